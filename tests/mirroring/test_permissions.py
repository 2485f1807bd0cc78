"""A mirror whose principal lacks a permission: what it may not see or do holds back nothing else, and is named."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from einmal.client import Acl, AclOperation, Admin, PatternType, Permission, ResourceType
from einmal.mirror_protocol.flow import MirrorNotice, NoticeKind
from einmal.mirroring.status import FailoverState
from einmal.types import TopicPartition
from tests.interop.einmal_broker import EinmalBroker
from tests.mirroring.test_incomplete import (
    Clusters,
    commit,
    create,
    fail_over_now,
    flow_of,
    mirror,
    run_to_the_end,
    status,
    write,
)

pytestmark = pytest.mark.system

_SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    brokers = [EinmalBroker(tmp_path_factory.mktemp(name), _SETTINGS) for name in ("A", "B")]
    for broker in brokers:
        broker.start()
    yield Clusters(brokers[0].bootstrap, brokers[1].bootstrap)
    for broker in brokers:
        broker.stop()


def deny(servers: str, kind: ResourceType, name: str, operation: AclOperation) -> None:
    denied = Acl(kind, name, PatternType.LITERAL, "User:ANONYMOUS", "*", operation, Permission.DENY)
    # Where a resource has an ACL, nothing else is permitted to everyone.
    others = denied._replace(operation=AclOperation.ALL, permission=Permission.ALLOW)
    with Admin({"bootstrap.servers": servers}) as admin:
        admin.create_acls([denied, others])


def test_a_mirrored_topic_that_is_not_shown_any_more_keeps_no_other_from_failing_over(clusters: Clusters) -> None:
    flow, lost = flow_of("masked", "visible"), TopicPartition("masked", 0)
    create(clusters.source, "masked", "visible")
    for name, group in (("masked", "of-masked"), ("visible", "of-visible")):
        write(clusters.source, name, "v")
        commit(clusters.source, group, {TopicPartition(name, 0): 1})
    run_to_the_end(mirror(clusters, flow))
    deny(clusters.source, ResourceType.TOPIC, "masked", AclOperation.DESCRIBE)
    seen = status(clusters, flow)
    (left_out,) = seen.left_out
    assert left_out.topic == "masked"
    assert left_out.reason.startswith("The source does not show it: TOPIC_AUTHORIZATION_FAILED")
    assert [partition.lag for partition in seen.partitions] == [None, 0]
    states = {group.group: group.state for group in seen.groups}
    assert states == {"of-masked": FailoverState.UNKNOWN, "of-visible": FailoverState.READY}
    assert fail_over_now(clusters, flow, "of-visible") == []
    assert any(
        f"in {lost} is unknown: The source does not" in why for why in fail_over_now(clusters, flow, "of-masked")
    )
    assert any("topic 'masked' is left out: The source does not" in why for why in fail_over_now(clusters, flow))


@pytest.mark.parametrize("side", ("source", "target"))
def test_a_topic_whose_settings_are_not_shown_keeps_no_others_from_being_copied(clusters: Clusters, side: str) -> None:
    hidden, shown = f"veiled-{side}", f"plain-{side}"
    flow = flow_of(hidden, shown)
    create(clusters.source, hidden, shown)
    run_to_the_end(mirror(clusters, flow))
    with Admin({"bootstrap.servers": clusters.source}) as admin:
        admin.alter_configs(shown, {"retention.ms": "1000000"})
    name = hidden if side == "source" else flow.remote_topic(hidden)
    deny(getattr(clusters, side), ResourceType.TOPIC, name, AclOperation.DESCRIBE_CONFIGS)
    notices: list[MirrorNotice] = []
    run_to_the_end(mirror(clusters, flow, notices))
    copy = flow.remote_topic(shown)
    with Admin({"bootstrap.servers": clusters.target}) as admin:
        assert admin.describe_configs([copy])[copy]["retention.ms"].value == "1000000"
    (notice,) = [notice for notice in notices if notice.kind is NoticeKind.SETTINGS]
    assert notice.text.startswith(f"{name}: its settings cannot be read at the {side}, and are not copied: TOPIC_AUTH")


@pytest.mark.parametrize("side", ("source", "target"))
def test_a_group_that_a_cluster_does_not_show_keeps_no_other_from_failing_over(clusters: Clusters, side: str) -> None:
    topic, hidden, shown = f"seen-{side}", f"hidden-{side}", f"shown-{side}"
    flow, place = flow_of(topic), TopicPartition(topic, 0)
    create(clusters.source, topic)
    write(clusters.source, topic, "a", "b")
    for group in (hidden, shown):
        commit(clusters.source, group, {place: 1})
    run_to_the_end(mirror(clusters, flow))
    deny(getattr(clusters, side), ResourceType.GROUP, hidden, AclOperation.DESCRIBE)
    states = {group.group: (group.state, group.reason) for group in status(clusters, flow).groups}
    assert states[shown] == (FailoverState.READY, "")
    state, reason = states[hidden]
    assert state is FailoverState.UNKNOWN
    assert "GROUP_AUTHORIZATION_FAILED" in reason
    assert fail_over_now(clusters, flow, shown) == []
    (unready,) = fail_over_now(clusters, flow, hidden)
    assert f"group '{hidden}' in {place} is unknown: GROUP_AUTHORIZATION_FAILED" in unready
