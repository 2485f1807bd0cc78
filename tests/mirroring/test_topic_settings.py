"""Settings of copies where the target's brokers have other defaults, or show less than all."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from einmal.client import Admin, Consumer, Producer
from einmal.mirror_protocol.flow import MirrorNotice, NoticeKind
from einmal.types import TopicPartition
from tests.interop.einmal_broker import EinmalBroker
from tests.mirroring.test_incomplete import Clusters, create, flow_of, mirror, run_to_the_end, write

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    """The target's brokers set timestamps by default."""
    source = EinmalBroker(tmp_path_factory.mktemp("A"))
    target = EinmalBroker(tmp_path_factory.mktemp("B"), {"log.message.timestamp.type": "LogAppendTime"})
    for broker in (source, target):
        broker.start()
    yield Clusters(source.bootstrap, target.bootstrap)
    for broker in (source, target):
        broker.stop()


def timestamps(servers: str, topic: str, count: int) -> list[int]:
    found: list[int] = []
    with Consumer({"bootstrap.servers": servers}) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning(TopicPartition(topic, 0))
        while len(found) < count:
            found += [record.timestamp for record in consumer.poll(1_000)]
    return found


def send_of_the_past(servers: str, *topics: str) -> None:
    with Producer({"bootstrap.servers": servers}) as producer:
        for topic in topics:
            producer.send(topic, "v", timestamp=1_000)
        producer.flush()


def test_copies_keep_timestamps_under_brokers_that_set_their_own(clusters: Clusters) -> None:
    flow = flow_of("dated", "dated-before")
    create(clusters.source, "dated", "dated-before")
    create(clusters.target, flow.remote_topic("dated-before"))
    send_of_the_past(clusters.source, "dated", "dated-before")
    notices: list[MirrorNotice] = []
    run_to_the_end(mirror(clusters, flow, notices))
    for name in ("dated", "dated-before"):
        assert timestamps(clusters.target, flow.remote_topic(name), 1) == [1_000]
    assert not [notice for notice in notices if notice.kind is NoticeKind.SETTINGS]


def test_timestamps_of_a_source_that_sets_its_own_are_kept(clusters: Clusters) -> None:
    flow = flow_of("appended")
    create(clusters.source, "appended", message_timestamp_type="LogAppendTime")
    write(clusters.source, "appended", "v")
    run_to_the_end(mirror(clusters, flow))
    copied = timestamps(clusters.target, flow.remote_topic("appended"), 1)
    assert copied == timestamps(clusters.source, "appended", 1)


def test_a_copy_that_is_set_to_lose_timestamps_is_reported(clusters: Clusters) -> None:
    flow = flow_of("undated")
    copy = flow.remote_topic("undated")
    create(clusters.source, "undated")
    create(clusters.target, copy, message_timestamp_type="LogAppendTime")
    send_of_the_past(clusters.source, "undated")
    notices: list[MirrorNotice] = []
    run_to_the_end(mirror(clusters, flow, notices))
    (notice,) = [notice for notice in notices if notice.kind is NoticeKind.SETTINGS]
    assert notice.text.startswith(f"{copy}: message.timestamp.type=LogAppendTime is set for it")
    with Admin({"bootstrap.servers": clusters.target}) as admin:
        assert admin.describe_configs([copy])[copy]["message.timestamp.type"].value == "LogAppendTime"
