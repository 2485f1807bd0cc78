"""ACLs on a node and on a cluster: requests, answers, and what is forwarded, through sockets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from einmal.broker.config import STANDARD_AUTHORIZER as AUTHORIZER
from einmal.broker.front.handlers import delete_acls
from einmal.broker.node import Node
from einmal.security.acl import AclOperation, PatternType, Permission, ResourceType
from einmal.security.principal import ANONYMOUS
from einmal.types import ErrorCode
from tests.broker.cluster import Cluster, running_cluster
from tests.broker.nodes import Client, running_node, until

DESCRIBE_ACLS, CREATE_ACLS, DELETE_ACLS = 29, 30, 31
SECRET = "the secret of this cluster"
OPEN = {"authorizer.class.name": AUTHORIZER, "super.users": "User:ANONYMOUS"}
CLOSED = {"authorizer.class.name": AUTHORIZER, "super.users": "User:root;User:admin"}
EVERY = {"resource_type_filter": 1, "pattern_type_filter": 1, "operation": 1, "permission_type": 1}


def acl(
    name: str = "t",
    principal: str = "User:a",
    *,
    resource_type: int = ResourceType.TOPIC,
    pattern: int = PatternType.LITERAL,
    host: str = "*",
    operation: int = AclOperation.READ,
    permission: int = Permission.ALLOW,
) -> dict[str, Any]:
    return {
        "resource_type": resource_type,
        "resource_name": name,
        "resource_pattern_type": pattern,
        "principal": principal,
        "host": host,
        "operation": operation,
        "permission_type": permission,
    }


def only(created: dict[str, Any]) -> dict[str, Any]:
    """The filter that means this ACL and no other."""
    renamed = {
        "resource_type": "resource_type_filter",
        "resource_name": "resource_name_filter",
        "resource_pattern_type": "pattern_type_filter",
        "principal": "principal_filter",
        "host": "host_filter",
    }
    return {renamed.get(key, key): value for key, value in created.items()}


async def create(client: Client, *acls: dict[str, Any], version: int = 3) -> list[tuple[ErrorCode, str | None]]:
    answer = await client.call(CREATE_ACLS, version, {"creations": list(acls)})
    return [(result.error_code, result.error_message) for result in answer.results]


async def described(client: Client, wanted: dict[str, Any] = EVERY, version: int = 3) -> list[tuple[Any, ...]]:
    answer = await client.call(DESCRIBE_ACLS, version, wanted)
    assert answer.error_code is ErrorCode.none, answer.error_message
    return [
        (resource.resource_name, each.principal, each.host, each.operation)
        for resource in answer.resources
        for each in resource.acls
    ]


async def delete(client: Client, *filters: dict[str, Any], version: int = 3) -> list[tuple[ErrorCode, list[str]]]:
    answer = await client.call(DELETE_ACLS, version, {"filters": list(filters)})
    return [
        (result.error_code, [each.resource_name for each in result.matching_acls]) for result in answer.filter_results
    ]


@pytest.mark.parametrize("version", [1, 2, 3])
async def test_created_acls_are_described_and_deleted(tmp_path: Path, version: int) -> None:
    async with running_node(tmp_path, OPEN) as node, Client.connect(node) as client:
        created = [acl(), acl("u"), acl("u", "User:b", host="0:0:0:0:0:0:0:1")]
        assert await create(client, *created, created[0], version=version) == [(ErrorCode.none, None)] * 4
        expected = [("t", "User:a", "*", 3), ("u", "User:a", "*", 3), ("u", "User:b", "::1", 3)]
        assert await described(client, version=version) == expected
        assert await described(client, only(created[2]), version=version) == expected[2:]
        missing = only(acl("x"))
        deleted = await delete(client, only(created[2]), missing, {**EVERY, "resource_name_filter": "u"})
        assert deleted == [(ErrorCode.none, ["u"]), (ErrorCode.none, []), (ErrorCode.none, ["u", "u"])]
        assert await described(client, version=version) == expected[:1]


async def test_filter_of_pattern_type_match_finds_all_acls_that_apply_to_the_resource(tmp_path: Path) -> None:
    async with running_node(tmp_path, OPEN) as node, Client.connect(node) as client:
        await create(client, acl("tea"), acl("te", pattern=PatternType.PREFIXED), acl("*"), acl("coffee"))
        found = await described(client, {**EVERY, "resource_name_filter": "tea", "pattern_type_filter": 2})
        assert [name for name, *_ in found] == ["tea", "te", "*"]


async def test_impossible_acl_is_refused_alone(tmp_path: Path) -> None:
    async with running_node(tmp_path, OPEN) as node, Client.connect(node) as client:
        results = await create(client, acl(principal="alice"), acl(), acl(operation=99))
        assert [error for error, _ in results] == [
            ErrorCode.invalid_request,
            ErrorCode.none,
            ErrorCode.invalid_request,
        ]
        assert "'alice' is not a principal" in (results[0][1] or "")


async def test_filter_with_an_unknown_number_is_refused(tmp_path: Path) -> None:
    async with running_node(tmp_path, OPEN) as node, Client.connect(node) as client:
        unknown = {**EVERY, "operation": 99}
        answer = await client.call(DESCRIBE_ACLS, 3, unknown)
        assert answer.error_code is ErrorCode.invalid_request
        assert await delete(client, unknown, EVERY) == [(ErrorCode.invalid_request, []), (ErrorCode.none, [])]


async def test_searches_and_matches_of_a_request_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delete_acls, "SEARCHES_MAX", 1)
    monkeypatch.setattr(delete_acls, "ACLS_MAX", 2)
    async with running_node(tmp_path, OPEN) as node, Client.connect(node) as client:
        await create(client, acl("a"), acl("b"), acl("c"))
        by_search = {**EVERY, "resource_name_filter": "b"}
        named = only(acl("a"))
        answers = await delete(client, by_search, by_search, named, named)
        violated: tuple[ErrorCode, list[str]] = (ErrorCode.policy_violation, [])
        assert answers == [(ErrorCode.none, ["b"]), violated, (ErrorCode.none, ["a"]), violated]
        assert [name for name, *_ in await described(client)] == ["c"]


async def test_client_without_rights_can_neither_see_nor_change_acls(tmp_path: Path) -> None:
    async with running_node(tmp_path, CLOSED) as node, Client.connect(node) as client:
        denied = ErrorCode.cluster_authorization_failed
        assert [error for error, _ in await create(client, acl(), acl())] == [denied] * 2
        assert await delete(client, EVERY) == [(denied, [])]
        assert (await client.call(DESCRIBE_ACLS, 3, EVERY)).error_code is denied
        assert not node.metadata.image.acls


async def test_acls_and_their_effect_survive_a_restart(tmp_path: Path) -> None:
    settings = {"metadata.log.max.record.bytes.between.snapshots": 1}
    describe = acl("kafka-cluster", "User:*", resource_type=ResourceType.CLUSTER, operation=AclOperation.ALTER)
    async with running_node(tmp_path, {**OPEN, **settings}) as node, Client.connect(node) as client:
        assert await create(client, describe, acl("gone")) == [(ErrorCode.none, None)] * 2
        assert await delete(client, only(acl("gone"))) == [(ErrorCode.none, ["gone"])]
        await until(lambda: node.quorum.snapshots.latest is not None)
    async with running_node(tmp_path, {**CLOSED, **settings}) as node, Client.connect(node) as client:
        assert [name for name, *_ in await described(client)] == ["kafka-cluster"]
        assert await create(client, acl()) == [(ErrorCode.none, None)]


async def test_denial_is_logged_with_its_principal_and_resource(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with running_node(tmp_path, CLOSED) as node, Client.connect(node) as client:
        await client.call(DESCRIBE_ACLS, 3, EVERY)
    expected = (
        "Principal = User:ANONYMOUS is Denied operation = DESCRIBE from host = 127.0.0.1 "
        "on resource = Cluster:LITERAL:kafka-cluster for request = DescribeAcls"
    )
    assert expected in caplog.messages


# --- a cluster -------------------------------------------------------------------------------------------------------


def may_read(node: Node, topic: str) -> bool:
    """Whether the node lets anonymous clients read the topic."""
    assert node.authorizer is not None
    return node.authorizer.allows(ANONYMOUS, "10.0.0.1", AclOperation.READ, ResourceType.TOPIC, topic)


def away(cluster: Cluster) -> Node:
    """A broker that is not the active controller."""
    active = cluster.active_controller()
    return next(node for node_id, node in cluster.nodes.items() if node_id in cluster.brokers and node_id != active)


@pytest.mark.parametrize("controllers", [(1, 2, 3), (4,)])
async def test_acls_are_created_through_any_broker_and_hold_on_every_node(
    tmp_path: Path, controllers: tuple[int, ...]
) -> None:
    """Also on a node that is only a controller; the principal of the client comes with the forwarded request."""
    manage = acl("kafka-cluster", "User:ANONYMOUS", resource_type=ResourceType.CLUSTER, operation=AclOperation.ALL)
    options = {"controllers": controllers, "secret": SECRET, "authorizer_class_name": AUTHORIZER}
    read = acl("t", "User:ANONYMOUS")
    opened = running_cluster(tmp_path, **options, super_users="User:ANONYMOUS")
    async with opened as cluster, Client.connect(away(cluster)) as client:
        assert await create(client, manage, read) == [(ErrorCode.none, None)] * 2
    async with running_cluster(tmp_path, **options) as cluster:
        nodes = list(cluster.nodes.values())
        await until(lambda: all(may_read(node, "t") for node in nodes))
        async with Client.connect(away(cluster)) as client:
            assert await delete(client, only(read)) == [(ErrorCode.none, ["t"])]
            await until(lambda: not any(may_read(node, "t") for node in nodes))
            assert [error for error, _ in await create(client, acl("u"))] == [ErrorCode.none]
            assert await delete(client, only(manage)) == [(ErrorCode.none, ["kafka-cluster"])]
            denied = ErrorCode.cluster_authorization_failed
            assert [error for error, _ in await create(client, acl("v"))] == [denied]
            assert await delete(client, EVERY) == [(denied, [])]
