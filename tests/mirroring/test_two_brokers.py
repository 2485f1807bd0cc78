"""A mirror between two real brokers: what arrives, also when the mirror is killed before and after each effect."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from typing import NamedTuple
from zlib import crc32

import pytest

from einmal.client import Admin, Consumer, ConsumerRecord, Header, NewTopic, Producer
from einmal.client.records import OffsetAndMetadata
from einmal.mirror_protocol.effects import MirrorEffect, MirrorEvent
from einmal.mirror_protocol.flow import Flow, MirrorNotice, NoticeKind
from einmal.mirror_protocol.replication_policy import NameFilter
from einmal.mirroring.failover import fail_over, fail_over_without_source, is_ready
from einmal.mirroring.run import MirrorProcess, MirrorStopped
from einmal.mirroring.status import FailoverState, MirrorStatus
from einmal.mirroring.target import TargetWriter
from einmal.types import TopicPartition
from tests.interop.einmal_broker import EinmalBroker
from tests.suite.patience import patient

pytestmark = pytest.mark.system

GROUP = "billing"
_PATIENCE_MS = 300_000
"""Of one poll that must find something."""


class Killed(BaseException):
    """The mirror's process ends without any further step."""


class MortalMirror(MirrorProcess):
    """Dies before (even) or after (odd) half its effect number ``kill_at``; counts effects."""

    kill_at = -1
    effects = 0

    def perform(self, effect: MirrorEffect, target: TargetWriter) -> MirrorEvent:
        self.effects += 1
        if self.effects == self.kill_at // 2:
            if self.kill_at % 2:
                super().perform(effect, target)
            # A process that is killed aborts nothing.
            target.target.abandon = lambda: None  # type: ignore[method-assign]
            raise Killed
        return super().perform(effect, target)


class Clusters(NamedTuple):
    source: str
    target: str


@pytest.fixture(scope="module")
def clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    brokers = [EinmalBroker(tmp_path_factory.mktemp(name)) for name in ("A", "B")]
    for broker in brokers:
        broker.start()
    yield Clusters(brokers[0].bootstrap, brokers[1].bootstrap)
    for broker in brokers:
        broker.stop()


@pytest.fixture
def topic(clusters: Clusters, request: pytest.FixtureRequest) -> str:
    """A new topic of the source, with two partitions."""
    name = f"orders-{crc32(request.node.name.encode())}"
    with Admin({"bootstrap.servers": clusters.source}) as admin:
        admin.create_topics([NewTopic(name, num_partitions=2)])
    return name


@pytest.fixture(scope="module")
def producer(clusters: Clusters) -> Iterator[Producer]:
    with Producer({"bootstrap.servers": clusters.source, "transactional.id": "orders"}) as found:
        found.init_transactions()
        yield found


def mirror(clusters: Clusters, notices: list[MirrorNotice] | None = None) -> MortalMirror:
    return MortalMirror(
        Flow(source="A", target="B"),
        {"bootstrap.servers": clusters.source},
        {"bootstrap.servers": clusters.target},
        notify=(notices if notices is not None else []).append,
        ends_when_idle=True,
    )


def run(process: MortalMirror) -> None:
    try:
        process.run()
    finally:
        process.close()


def partitions(topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, 0), TopicPartition(topic, 1)]


def copies(topic: str) -> list[TopicPartition]:
    return partitions(f"A.{topic}")


def write(producer: Producer, topic: str, values: list[str], *, committed: bool = True) -> None:
    """One transaction over both partitions."""
    producer.begin_transaction()
    for index, value in enumerate(values):
        producer.send(
            topic,
            value,
            key=f"k{index}",
            partition=index % 2,
            headers=[Header("h", b"1")],
            timestamp=1000 + index,
        )
    if committed:
        producer.commit_transaction()
    else:
        producer.abort_transaction()


def read(servers: str, places: list[TopicPartition]) -> list[list[bytes | None]]:
    """All committed values, by partition."""
    found: dict[TopicPartition, list[bytes | None]] = {each: [] for each in places}
    with Consumer({"bootstrap.servers": servers, "isolation.level": "read_committed"}) as consumer:
        consumer.assign(places)
        consumer.seek_to_beginning(*places)
        ends = consumer.end_offsets(*places)
        while any(consumer.position(each) < ends[each] for each in places):
            for record in consumer.poll(100):
                found[TopicPartition(record.topic, record.partition)].append(record.value)
    return list(found.values())


def test_records_arrive_as_they_are_and_aborted_ones_do_not(clusters: Clusters, producer: Producer, topic: str) -> None:
    write(producer, topic, ["a0", "a1", "a2"])
    write(producer, topic, ["x0", "x1"], committed=False)
    write(producer, topic, ["b0", "b1"])
    notices: list[MirrorNotice] = []
    run(mirror(clusters, notices))
    # Groups of other tests may have moved to the target.
    mine = [notice for notice in notices if notice.kind is not NoticeKind.MOVED]
    assert [notice.subject for notice in mine] in ([], ["__consumer_offsets"])
    assert (
        read(clusters.target, copies(topic))
        == read(clusters.source, partitions(topic))
        == [[b"a0", b"a2", b"b0"], [b"a1", b"b1"]]
    )
    with Consumer({"bootstrap.servers": clusters.target}) as consumer:
        consumer.assign(copies(topic)[:1])
        consumer.seek(copies(topic)[0], 0)
        (first, *_) = consumer.poll(_PATIENCE_MS)
    assert (first.key, first.timestamp, first.headers) == (b"k0", 1000, (Header("h", b"1"),))


def test_a_group_that_switches_clusters_reads_each_record_once(
    clusters: Clusters, producer: Producer, topic: str
) -> None:
    write(producer, topic, [f"c{index}" for index in range(6)])
    settings = {"group.id": GROUP, "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    seen: list[bytes | None] = []
    with Consumer({"bootstrap.servers": clusters.source, **settings}) as consumer:
        consumer.subscribe([topic])
        while len(seen) < 4:
            seen += [record.value for record in consumer.poll(1_000, max_records=1)]
        consumer.commit()
    write(producer, topic, [f"d{index}" for index in range(4)])
    run(mirror(clusters))
    everything = [value for values in read(clusters.source, partitions(topic)) for value in values]
    with Consumer({"bootstrap.servers": clusters.target, **settings}) as consumer:
        consumer.subscribe([f"A.{topic}"])
        while len(seen) < len(everything):
            polled = consumer.poll(_PATIENCE_MS)
            assert polled, f"{len(everything) - len(seen)} records are missing"
            seen += [record.value for record in polled]
        assert consumer.poll(500) == []
    assert sorted(map(str, seen)) == sorted(map(str, everything))


def test_aborted_records_that_were_deleted_since_are_not_missed(
    clusters: Clusters, producer: Producer, topic: str
) -> None:
    write(producer, topic, ["a0", "a1"])
    run(mirror(clusters))
    write(producer, topic, ["b0", "b1"], committed=False)
    run(mirror(clusters))
    with Admin({"bootstrap.servers": clusters.source}) as admin:
        ends = admin.list_offsets(dict.fromkeys(partitions(topic), -1))
        admin.delete_records({partition: end.offset for partition, end in ends.items()})
    run(mirror(clusters))
    assert read(clusters.target, copies(topic)) == [[b"a0"], [b"a1"]]


def test_what_a_group_commits_with_its_offset_arrives_with_it(
    clusters: Clusters, producer: Producer, topic: str
) -> None:
    write(producer, topic, ["c0", "c1"])
    group, (first, second) = f"streams-{topic}", partitions(topic)
    with Consumer({"bootstrap.servers": clusters.source, "group.id": group}) as consumer:
        consumer.assign([first, second])
        consumer.commit({first: OffsetAndMetadata(1, metadata="state=42"), second: OffsetAndMetadata(0)})
    run(mirror(clusters))
    with Admin({"bootstrap.servers": clusters.target}) as admin:
        committed = admin.list_group_offsets(group)
    assert {copy: offset.metadata for copy, offset in committed.items()} == dict(
        zip(copies(topic), ("state=42", ""), strict=True)
    )


@pytest.mark.slow
@pytest.mark.time_limit(120)
def test_a_mirror_that_is_killed_at_any_effect_loses_and_repeats_nothing(
    clusters: Clusters, producer: Producer, topic: str
) -> None:
    source, kills = random.Random(1), 0
    process = mirror(clusters)
    write(producer, topic, ["e0", "e1"])
    run(process)
    for kill_at in range(2, 2 * process.effects + 2):
        values = [f"f{kill_at}-{index}" for index in range(4)]
        write(producer, topic, values, committed=source.random() < 0.8)
        mortal = mirror(clusters)
        mortal.kill_at = kill_at
        try:
            run(mortal)
        except Killed:
            kills += 1
    assert kills > 20
    run(mirror(clusters))
    assert read(clusters.target, copies(topic)) == read(clusters.source, partitions(topic))


def test_settings_of_topics_are_copied_and_followed(clusters: Clusters, producer: Producer, topic: str) -> None:
    with (
        Admin({"bootstrap.servers": clusters.source}) as source,
        Admin({"bootstrap.servers": clusters.target}) as target,
    ):
        copied = {"cleanup.policy": "compact", "max.message.bytes": "2000000", "retention.ms": "1000"}
        source.alter_configs(topic, copied)
        write(producer, topic, ["g0"])
        run(mirror(clusters))

        def settings() -> dict[str, str | None]:
            found = target.describe_configs([f"A.{topic}"])[f"A.{topic}"]
            return {name: each.value for name, each in found.items() if not each.is_default}

        assert settings() == copied
        source.alter_configs(topic, {"retention.ms": "2000", "min.insync.replicas": "1"})
        run(mirror(clusters))
        assert settings() == {**copied, "retention.ms": "2000"}
        target.alter_configs(f"A.{topic}", {"min.insync.replicas": "1", "segment.ms": "5000"})
        source.alter_configs(topic, dict.fromkeys(copied))
        run(mirror(clusters))
        # Not what lets the copy accept records, or was set for the copy alone.
        own = {"min.insync.replicas": "1", "segment.ms": "5000"}
        assert settings() == {"max.message.bytes": "2000000", **own}


def test_what_was_committed_at_the_start_is_copied_while_more_is_written(
    clusters: Clusters, producer: Producer, topic: str
) -> None:
    stopping = threading.Event()

    def write_on() -> None:
        while not stopping.is_set():
            write(producer, topic, ["h0", "h1"])

    write(producer, topic, ["first"])
    writer = threading.Thread(target=write_on)
    writer.start()
    try:
        run(mirror(clusters))
    finally:
        stopping.set()
        writer.join()
    assert read(clusters.target, copies(topic))[0][0] == b"first"


def test_transactions_are_copied_by_the_same_clients(clusters: Clusters, producer: Producer, topic: str) -> None:
    """One for each cluster and role: to connect again for each transaction cost more than to copy it."""
    flow = Flow(source="A", target="B", topics=NameFilter((topic,)))
    committed = threading.Semaphore(0)
    process = MirrorProcess(
        flow,
        {"bootstrap.servers": clusters.source},
        {"bootstrap.servers": clusters.target},
        committed=lambda record: committed.release(),
    )
    running = threading.Thread(target=process.run)
    clients: list[list[str]] = []
    before = set(threading.enumerate())
    running.start()
    try:
        for number in range(4):
            write(producer, topic, [f"j{number}", f"k{number}"])
            assert committed.acquire(timeout=patient(30))
            begun = [each for each in threading.enumerate() if each not in before and each.name.startswith("einmal-")]
            clients.append(sorted(f"{each.name} {each.ident}" for each in begun))
    finally:
        process.stop.set()
        running.join()
        process.close()
    assert clients[1] == clients[2] == clients[3]
    roles = [each.split()[0] for each in clients[3]]
    assert roles == [
        *["einmal-cluster"] * 2,
        "einmal-partition-writer",
        "einmal-range-reader",
        "einmal-transaction-driver",
    ]


def test_a_group_fails_over_where_it_has_stopped(clusters: Clusters, producer: Producer, topic: str) -> None:
    flow = Flow(source="A", target="B", topics=NameFilter((topic,)))
    source, target = {"bootstrap.servers": clusters.source}, {"bootstrap.servers": clusters.target}

    def fail_over_now() -> MirrorStatus:
        return fail_over(flow, source, target, ["failing"], notify=lambda notice: None, committed=lambda record: None)

    write(producer, topic, [f"i{index}" for index in range(6)])
    settings = {"group.id": "failing", "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
    with Consumer({**source, **settings}) as consumer:
        consumer.subscribe([topic])
        while not consumer.poll(1_000, max_records=1):
            pass
        consumer.commit()
        with pytest.raises(MirrorStopped, match="groups run at the source: failing"):
            fail_over_now()
    status = fail_over_now()
    assert is_ready(status, ["failing"])
    with Consumer({**target, **settings}) as consumer:
        consumer.subscribe([f"A.{topic}"])
        polled: list[ConsumerRecord] = []
        while len(polled) < 5:
            polled += consumer.poll(5_000)
        consumer.commit()
    (moved,) = {each.state for each in fail_over_now().groups}
    assert moved is FailoverState.MOVED
    lost = fail_over_without_source(flow, target, ["failing"])
    assert {each.state for each in lost.groups} == {FailoverState.MOVED}
