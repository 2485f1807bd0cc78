"""An ingester on a real broker: what arrives, also when it is killed before and after each effect."""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from einmal.client import Admin, NewTopic
from einmal.commit_protocol.commit_record import COMMIT_TOPIC
from einmal.ingest import Ingest, IngestBatch, IngestRecord, IngestStopped, Position, RecordSource, SourceNotice
from einmal.ingest.appender import Appender
from einmal.ingest.effects import IngestEffect, IngestEvent
from einmal.ingest.source import SourceFailed, SourceRefused
from einmal.sinks.kafka.commit_point import KafkaCommitPoint
from einmal.wire.murmur2 import partition_for_key
from tests.ingest.sources import NumbersSource, committed

pytestmark = pytest.mark.system

PARTITIONS = 2


class Killed(BaseException):
    """The process ends without any further step."""


class MortalIngest(Ingest):
    """Dies before (even) or after (odd) half its effect number ``kill_at``; counts effects."""

    kill_at = -1
    effects = 0

    def perform(self, effect: IngestEffect, commit_point: KafkaCommitPoint, appender: Appender) -> IngestEvent:
        self.effects += 1
        if self.effects == self.kill_at // 2:
            if self.kill_at % 2:
                super().perform(effect, commit_point, appender)
            # A process that is killed aborts nothing.
            commit_point.abandon = lambda: None  # type: ignore[method-assign]
            raise Killed
        return super().perform(effect, commit_point, appender)


@pytest.fixture
def topic(servers: str, request: pytest.FixtureRequest) -> str:
    name = f"t-{zlib.crc32(request.node.name.encode())}"
    with Admin({"bootstrap.servers": servers}) as admin:
        admin.create_topics([NewTopic(name, num_partitions=PARTITIONS)])
    return name


def run(servers: str, source: RecordSource, name: str, kill_at: int = -1, **others: Any) -> MortalIngest:
    ingest = MortalIngest(source, bootstrap_servers=servers, name=name, **others)
    ingest.kill_at = kill_at
    ingest.run(available_now=True)
    return ingest


def by_key(last: int) -> list[list[bytes]]:
    found: list[list[bytes]] = [[] for _ in range(PARTITIONS)]
    for number in range(last):
        found[partition_for_key(b"k%d" % number, PARTITIONS)].append(b"%d" % number)
    return found


def test_each_record_arrives_once_and_in_order_over_several_runs(servers: str, topic: str) -> None:
    run(servers, NumbersSource(topic, 7), topic)
    source = NumbersSource(topic, 20)
    run(servers, source, topic)
    assert committed(servers, topic, PARTITIONS) == by_key(20)
    assert source.confirmed == [7, 10, 13, 16, 19, 20]


def test_an_ingester_that_is_killed_at_any_effect_loses_and_repeats_nothing(servers: str, topic: str) -> None:
    last = 0
    counting = run(servers, NumbersSource(topic, last := 6), topic)
    kills = 0
    for kill_at in range(2, 2 * counting.effects + 2):
        last += 6
        try:
            run(servers, NumbersSource(topic, last), topic, kill_at)
        except Killed:
            kills += 1
    assert kills > 25
    run(servers, NumbersSource(topic, last), topic)
    assert committed(servers, topic, PARTITIONS) == by_key(last)


class FailingSource(NumbersSource):
    """Fails in the middle of every batch but the one that is read again after a failure."""

    has_failed = False

    def read(self, position: Position | None) -> Iterator[IngestBatch | SourceNotice | None]:
        for part in super().read(position):
            if not isinstance(part, IngestBatch):
                yield part
                continue
            yield IngestBatch(self._failing(list(part.records)), part.end)

    def _failing(self, records: list[IngestRecord]) -> Iterator[IngestRecord]:
        self.has_failed = not self.has_failed
        yield from records[:-1]
        if self.has_failed:
            raise SourceFailed("the connection broke")
        yield records[-1]


def test_a_source_that_fails_inside_a_batch_is_read_again(servers: str, topic: str) -> None:
    notices: list[SourceNotice] = []
    run(servers, FailingSource(topic, 9), topic, notify=notices.append)
    assert committed(servers, topic, PARTITIONS) == by_key(9)
    assert [notice.text for notice in notices] == ["the connection broke; trying again."] * 3


class OneRecord(RecordSource):
    def __init__(self, record: IngestRecord) -> None:
        self._record = record

    def origin(self) -> str:
        return "one"

    def read(self, position: Position | None) -> Iterator[IngestBatch]:
        if position is None:
            yield IngestBatch([self._record], {"done": 1})


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (IngestRecord(COMMIT_TOPIC, b"x"), "in which brokers and pipelines keep what they know"),
        (IngestRecord("TOPIC", b"x", partition=7), "for partition 7 of TOPIC, which has 2"),
        (IngestRecord("TOPIC", b"x" * 2_000_000), "is 1048576\nhint: raise kafka.max.request.size"),
        (IngestRecord("TOPIC", b"x", timestamp=-1), "has the timestamp -1"),
        (IngestRecord("bad name!", b"x"), "the topic's name is not allowed"),
        (IngestRecord("x" * 250, b"x"), "the topic's name is not allowed"),
    ],
)
def test_a_record_that_cannot_be_written_stops_the_ingester(
    servers: str, topic: str, record: IngestRecord, reason: str
) -> None:
    source = OneRecord(record._replace(topic=record.topic.replace("TOPIC", topic)))
    with pytest.raises(IngestStopped, match=reason.replace("TOPIC", topic)):
        run(servers, source, topic)
    assert committed(servers, topic, PARTITIONS) == [[], []]


@dataclass
class LongPosition(NumbersSource):
    """Its position takes more than a commit record can."""

    def read(self, position: Position | None) -> Iterator[IngestBatch | SourceNotice | None]:
        yield IngestBatch([IngestRecord(self.topic, b"1", b"k")], {"next": 1, "rest": "x" * 2_000_000})


def test_a_commit_record_that_is_too_large_stops_the_ingester_at_once(servers: str, topic: str) -> None:
    with pytest.raises(IngestStopped, match="the commit record has 2,000,"):
        run(servers, LongPosition(topic, 4), topic, notify=lambda notice: pytest.fail(notice.text))
    assert committed(servers, topic, PARTITIONS) == [[], []]


def test_a_source_that_has_ended_ends_the_ingester(servers: str, topic: str) -> None:
    ingest = Ingest(NumbersSource(topic, 4, is_endless=False), {"bootstrap.servers": servers}, name=topic)
    ingest.run()
    assert committed(servers, topic, PARTITIONS) == by_key(4)


@dataclass
class WaitingSource(NumbersSource):
    """Waits within ``read`` until it is interrupted."""

    waits: threading.Event = field(default_factory=threading.Event)
    interrupted: threading.Event = field(default_factory=threading.Event)

    def read(self, position: Position | None) -> Iterator[IngestBatch | SourceNotice | None]:
        self.waits.set()
        assert self.interrupted.wait(60)
        raise SourceFailed("interrupted")
        yield None

    def interrupt(self) -> None:
        self.interrupted.set()


def test_stop_interrupts_a_source_that_waits(servers: str, topic: str) -> None:
    source = WaitingSource(topic, 1)
    ingest = Ingest(source, bootstrap_servers=servers, name=topic, notify=lambda notice: pytest.fail(notice.text))
    running = threading.Thread(target=ingest.run)
    running.start()
    assert source.waits.wait(60)
    ingest.stop.set()
    running.join(60)
    assert not running.is_alive()


def test_a_position_of_another_source_is_refused(servers: str, topic: str) -> None:
    run(servers, NumbersSource(topic, 4), topic)
    with pytest.raises(IngestStopped, match="the source is other, but the recorded position is one of numbers"):
        run(servers, NumbersSource(topic, 4, name="other"), topic)


def test_a_second_ingester_fences_the_first(servers: str, topic: str) -> None:
    second = NumbersSource(topic, 4)

    class Overtaken(NumbersSource):
        def read(self, position: Position | None) -> Iterator[IngestBatch | SourceNotice | None]:
            for part in super().read(position):
                if position is None and part is not None:
                    run(servers, second, topic)
                yield part

    with pytest.raises(IngestStopped, match="another ingester has started under this name"):
        run(servers, Overtaken(topic, 4), topic)
    assert committed(servers, topic, PARTITIONS) == by_key(4)


class RefusingSource(NumbersSource):
    def origin(self) -> str:
        raise SourceRefused("the slot is gone", "create it again")


def test_what_a_source_refuses_stops_the_ingester_with_a_hint(servers: str, topic: str) -> None:
    with pytest.raises(IngestStopped, match="the slot is gone\nhint: create it again"):
        run(servers, RefusingSource(topic, 4), topic)
