"""Deduplication on a real broker: what other producers, settings of topics and killed ingesters do to it."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from einmal.client import Admin, NewTopic, Producer
from einmal.ingest import Deduplicate, IngestBatch, IngestRecord, IngestStopped, Position, RecordSource, SourceNotice
from einmal.types import TopicPartition
from tests.ingest.sources import committed
from tests.ingest.test_one_broker import Killed, MortalIngest
from tests.interop.einmal_broker import EinmalBroker

pytestmark = pytest.mark.system

PARTITIONS = 2
HOUR_MS = 3_600_000
_KEY = Deduplicate("key", HOUR_MS)


@pytest.fixture
def topic(servers: str, request: pytest.FixtureRequest) -> str:
    return created(servers, f"t-{zlib.crc32(request.node.name.encode())}")


def created(servers: str, name: str, **configs: str) -> str:
    with Admin({"bootstrap.servers": servers}) as admin:
        admin.create_topics([NewTopic(name, num_partitions=PARTITIONS, configs=configs)])
    return name


class Events(RecordSource):
    """Two in a batch; the key is the event, and the value the position in the source."""

    def __init__(self, topic: str, events: str) -> None:
        self._topic = topic
        self._events = events

    def origin(self) -> str:
        return "events"

    def read(self, position: Position | None) -> Iterator[IngestBatch | SourceNotice | None]:
        begin = position["next"] if position else 0
        for start in range(begin, len(self._events), 2):
            batch = range(start, min(start + 2, len(self._events)))
            records = [IngestRecord(self._topic, b"%d" % each, self._events[each].encode()) for each in batch]
            yield IngestBatch(records, {"next": batch.stop})
        yield None


class Run:
    """Runs of one ingester. ``notices``: kinds of counts and texts."""

    def __init__(self, servers: str, topic: str, name: str = "", deduplicate: Deduplicate | None = _KEY) -> None:
        self._servers = servers
        self.topic = topic
        self._name = name or topic
        self._deduplicate = deduplicate
        self.notices: dict[str, str] = {}

    def __call__(self, events: str, kill_at: int = -1) -> MortalIngest:
        self.notices.clear()
        ingest = MortalIngest(
            Events(self.topic, events),
            bootstrap_servers=self._servers,
            name=self._name,
            deduplicate=self._deduplicate,
            notify=lambda notice: self.notices.update({notice.subject: notice.text}),
        )
        ingest.kill_at = kill_at
        ingest.run(available_now=True)
        return ingest

    def found(self) -> list[str]:
        return sorted(value.decode() for values in committed(self._servers, self.topic, PARTITIONS) for value in values)


def test_duplicates_are_removed_within_and_across_runs_and_reported(servers: str, topic: str) -> None:
    run = Run(servers, topic)
    run("aabc")
    assert run.found() == ["0", "2", "3"]
    assert run.notices == {
        "duplicates": f"{topic}: removed 1 duplicates, such as 'a'",
        "different": f"{topic}: 1 of the duplicates have another value than the first record, which stays, such as 'a'",
    }
    run("aabcbd")
    assert run.found() == ["0", "2", "3", "5"]


def test_the_position_behind_a_batch_of_duplicates_alone_is_committed(servers: str, topic: str) -> None:
    run = Run(servers, topic)
    run("ab")
    run("abab")
    run("ababc")
    assert run.found() == ["0", "1", "4"]
    assert "duplicates" not in run.notices


def test_an_ingester_that_is_killed_at_any_effect_writes_each_event_once(servers: str, topic: str) -> None:
    run = Run(servers, topic)
    counting = run(events := "aabc")
    kills = 0
    for kill_at in range(2, 2 * counting.effects + 2):
        # A new event, which is repeated by the batch behind it, and an event from before.
        new = chr(ord("d") + kills)
        events += f"{new}a{new}c"
        try:
            run(events, kill_at)
        except Killed:
            kills += 1
    assert kills > 25
    run(events)
    assert run.found() == sorted(str(events.index(each)) for each in set(events))


def test_duplicates_are_removed_where_epochs_are_not_bumped_by_each_transaction(tmp_path: Path) -> None:
    """Below TV2 each transaction has an epoch from InitProducerId."""
    broker = EinmalBroker(tmp_path, {"transaction.version": "1"})
    broker.start()
    try:
        run = Run(broker.bootstrap, created(broker.bootstrap, "t"))
        run("aabcd")
        run("aabcdaeb")
        assert run.found() == ["0", "2", "3", "4", "6"]
    finally:
        broker.stop()


def test_an_open_transaction_of_another_producer_hides_no_key(servers: str, topic: str) -> None:
    run = Run(servers, topic)
    with Producer({"bootstrap.servers": servers, "transactional.id": f"other-{topic}"}) as other:
        other.init_transactions()
        other.begin_transaction()
        for partition in range(PARTITIONS):
            other.send(topic, b"other", key=b"z", partition=partition)
        other.flush()
        run("abc")
        run("abcabz")
        other.commit_transaction()
    assert run.found() == ["0", "1", "2", "5", "other", "other"]


def test_two_ingesters_in_one_topic_remove_nothing_of_each_other(servers: str, topic: str) -> None:
    first, second = Run(servers, topic, f"{topic}-1"), Run(servers, topic, f"{topic}-2")
    first("a")
    second("a")
    first("aab")
    second("aab")
    assert first.found() == ["0", "0", "2", "2"]


@pytest.mark.parametrize(
    ("configs", "hint"),
    [
        ({"message.timestamp.type": "LogAppendTime"}, "set message.timestamp.type=CreateTime"),
        ({"cleanup.policy": "compact"}, f"set min.compaction.lag.ms={3 * HOUR_MS}"),
    ],
)
def test_a_topic_that_does_not_keep_what_is_needed_is_refused(servers: str, configs: dict[str, str], hint: str) -> None:
    run = Run(servers, created(servers, f"t-{'-'.join(configs.values())}", **configs))
    with pytest.raises(IngestStopped, match=hint):
        run("ab")
    assert run.found() == []


def test_a_compacted_topic_that_keeps_its_records_for_three_windows_is_written(servers: str) -> None:
    configs = {"cleanup.policy": "compact", "min.compaction.lag.ms": str(3 * HOUR_MS)}
    run = Run(servers, created(servers, "t-lagging", **configs))
    run("aab")
    assert run.found() == ["0", "2"]


def test_records_that_were_deleted_are_reported_at_the_start(servers: str, topic: str) -> None:
    run = Run(servers, topic)
    run("abcd")
    with Admin({"bootstrap.servers": servers}) as admin:
        admin.delete_records({TopicPartition(topic, each): -1 for each in range(PARTITIONS)})
    run("abcda")
    assert "does not have all records of the window any more" in run.notices["deleted"]
    assert run.found() == ["4"]


def test_a_topic_that_was_created_again_is_reported_and_begins_empty(servers: str, topic: str) -> None:
    run = Run(servers, topic)
    run("abcd")
    with Admin({"bootstrap.servers": servers}) as admin:
        admin.delete_topics([topic])
        admin.create_topics([NewTopic(topic, num_partitions=1)])
        run("abcda")
        assert "deleted" in run.notices
        admin.delete_topics([topic])
        created(servers, topic)
    run("abcdaa")
    assert "deleted" in run.notices


def test_a_window_that_begins_later_than_the_ingester_is_reported(servers: str, topic: str) -> None:
    Run(servers, topic, deduplicate=None)("ab")
    run = Run(servers, topic)
    run("abac")
    assert "begins now" in run.notices["window"]
    assert run.found() == ["0", "1", "2", "3"]
    longer = Run(servers, topic, deduplicate=Deduplicate("key", 2 * HOUR_MS))
    longer("abacc")
    assert f"the window was {HOUR_MS} ms" in longer.notices["window"]
    assert run.found() == ["0", "1", "2", "3"]


def test_more_keys_than_declared_stop_the_ingester_and_more_memory_continues(servers: str, topic: str) -> None:
    with pytest.raises(IngestStopped, match="raise max.keys"):
        Run(servers, topic, deduplicate=Deduplicate("key", HOUR_MS, keys_max=3))("abcde")
    run = Run(servers, topic)
    run("abcdea")
    assert run.found() == ["0", "1", "2", "3", "4"]
