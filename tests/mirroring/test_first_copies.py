"""Copies that are another mirror's, or have records, when a flow begins to write to them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from einmal.client import Admin, Producer
from einmal.mirror_protocol.flow import MirrorNotice, NoticeKind
from einmal.mirror_protocol.replication_policy import NameFilter
from einmal.mirroring.run import MirrorIncomplete
from tests.interop.einmal_broker import EinmalBroker
from tests.mirroring.test_incomplete import (
    Clusters,
    create,
    flow_of,
    mirror,
    run_to_the_end,
    status,
    values,
    write,
)

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    brokers = [EinmalBroker(tmp_path_factory.mktemp(name)) for name in ("A", "B")]
    for broker in brokers:
        broker.start()
    yield Clusters(brokers[0].bootstrap, brokers[1].bootstrap)
    for broker in brokers:
        broker.stop()


def of_filled(notices: list[MirrorNotice]) -> list[str]:
    return [notice.subject for notice in notices if notice.kind is NoticeKind.FILLED]


def test_a_copy_of_another_mirror_is_not_written_and_holds_back_no_other(clusters: Clusters) -> None:
    flow = flow_of("shared")
    copy = flow.remote_topic("shared")
    create(clusters.source, "shared", "unshared")
    write(clusters.source, "shared", "v")
    write(clusters.source, "unshared", "w")
    run_to_the_end(mirror(clusters, flow))
    # The same source, and the same target under another alias.
    second = replace(flow, target="C", topics=NameFilter(("shared", "unshared")))
    with pytest.raises(
        MirrorIncomplete, match=f"'shared': its copy '{copy}' is one of the mirror {flow.name}, .*alias"
    ):
        run_to_the_end(mirror(clusters, second))
    assert values(clusters.target, copy) == [b"v"]
    assert values(clusters.target, second.remote_topic("unshared")) == [b"w"]
    assert [topic.topic for topic in status(clusters, second).left_out] == ["shared"]
    # The first mirror continues.
    write(clusters.source, "shared", "x")
    notices: list[MirrorNotice] = []
    run_to_the_end(mirror(clusters, flow, notices))
    assert values(clusters.target, copy) == [b"v", b"x"]
    assert not of_filled(notices)
    # The second one begins anew where the copy is deleted.
    with Admin({"bootstrap.servers": clusters.target}) as admin:
        admin.delete_topics([copy])
    run_to_the_end(mirror(clusters, second))
    assert values(clusters.target, copy) == [b"v", b"x"]


def test_a_copy_that_is_not_empty_at_the_beginning_is_reported_once(clusters: Clusters) -> None:
    flow = flow_of("filled", "clean")
    filled, clean = map(flow.remote_topic, ("filled", "clean"))
    create(clusters.source, "filled", "clean")
    create(clusters.target, filled, clean)
    write(clusters.target, filled, "others")
    with Producer({"bootstrap.servers": clusters.target, "transactional.id": "aborts"}) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(clean, "aborted").result()
        producer.abort_transaction()
    for name in ("filled", "clean"):
        write(clusters.source, name, "v")
    notices: list[MirrorNotice] = []
    run_to_the_end(mirror(clusters, flow, notices))
    assert of_filled(notices) == [filled]
    assert values(clusters.target, filled) == [b"others", b"v"]
    again: list[MirrorNotice] = []
    run_to_the_end(mirror(clusters, flow, again))
    assert not of_filled(again)
