"""What the controller decides about ACLs."""

from __future__ import annotations

from uuid import UUID

import pytest

from einmal.metadata import acls
from einmal.metadata.acls import AclResult, problem_of_filter
from einmal.security.acl import CLUSTER_NAME, Acl, AclFilter, AclOperation, PatternType, Permission, ResourceType
from einmal.types import ErrorCode
from tests.metadata.cluster import Cluster

ACL = Acl(ResourceType.TOPIC, "orders", PatternType.LITERAL, "User:a", "*", AclOperation.READ, Permission.ALLOW)
OTHER = ACL._replace(permission=Permission.DENY)
ONE, TWO = UUID(int=1), UUID(int=2)


def test_created_acl_holds_until_it_is_removed() -> None:
    cluster = Cluster()
    assert cluster.done(cluster.controller.create_acls([(ONE, ACL), (TWO, OTHER)])) == [AclResult(), AclResult()]
    assert cluster.image.acls == {ONE: ACL, TWO: OTHER}
    assert cluster.done(cluster.controller.known_acls()) == {ACL: ONE, OTHER: TWO}
    cluster.done(cluster.controller.remove_acls([ACL, ACL]))
    assert cluster.image.acls == {TWO: OTHER}
    assert not cluster.controller.remove_acls([ACL]).records


def test_acl_that_holds_already_is_accepted_and_not_recorded_again() -> None:
    cluster = Cluster()
    cluster.done(cluster.controller.create_acls([(ONE, ACL), (TWO, ACL)]))
    assert cluster.image.acls == {ONE: ACL}
    decision = cluster.controller.create_acls([(TWO, ACL)])
    assert (decision.records, decision.response) == ((), [AclResult()])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"resource_type": ResourceType.ANY}, "resourceType ANY"),
        ({"resource_type": ResourceType.UNKNOWN}, "resourceType UNKNOWN"),
        ({"pattern_type": PatternType.MATCH}, "patternType MATCH"),
        ({"pattern_type": PatternType.ANY}, "patternType ANY"),
        ({"operation": AclOperation.ANY}, "operation ANY"),
        ({"operation": AclOperation.UNKNOWN}, "operation UNKNOWN"),
        ({"permission": Permission.ANY}, "permissionType ANY"),
        ({"resource_name": ""}, "should not be empty"),
        ({"resource_type": ResourceType.CLUSTER}, CLUSTER_NAME),
        ({"principal": "alice"}, "not a principal"),
        ({"principal": "User:"}, "not a principal"),
        ({"principal": ""}, "not a principal"),
        ({"host": ""}, "Host should not be empty"),
        ({"resource_name": "n" * 1_025}, "at most 1024"),
        ({"principal": "User:" + "n" * 1_024}, "at most 1024"),
    ],
)
def test_impossible_acl_is_refused_with_its_problem(wrong: dict[str, object], message: str) -> None:
    decision = Cluster().controller.create_acls([(ONE, ACL._replace(**wrong)), (TWO, ACL)])  # type: ignore[arg-type]
    refused, accepted = decision.response
    assert refused.error is ErrorCode.invalid_request
    assert message in (refused.message or "")
    assert (accepted.error, len(decision.records)) == (ErrorCode.none, 1)


def test_acl_on_the_cluster_is_accepted_under_its_only_name() -> None:
    acl = ACL._replace(resource_type=ResourceType.CLUSTER, resource_name=CLUSTER_NAME)
    assert Cluster().controller.create_acls([(ONE, acl)]).response == [AclResult()]


def test_number_of_acls_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acls, "ACLS_MAX", 1)
    cluster = Cluster()
    first, second = cluster.done(cluster.controller.create_acls([(ONE, ACL), (TWO, OTHER)]))
    assert (first.error, second.error) == (ErrorCode.none, ErrorCode.policy_violation)
    assert cluster.done(cluster.controller.create_acls([(TWO, ACL)])) == [AclResult()]


@pytest.mark.parametrize(
    "wanted",
    [
        AclFilter(resource_type=ResourceType.UNKNOWN),
        AclFilter(pattern_type=PatternType.UNKNOWN),
        AclFilter(operation=AclOperation.UNKNOWN),
        AclFilter(permission=Permission.UNKNOWN),
    ],
)
def test_filter_with_an_unknown_part_is_refused(wanted: AclFilter) -> None:
    assert problem_of_filter(wanted) is not None
    assert problem_of_filter(AclFilter()) is None
