from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest

from einmal.client.errors import ConfigError
from einmal.commit_protocol.claims import Output
from einmal.ingest.deduplication.business_key import Deduplicate, key_of
from einmal.ingest.deduplication.deduplicator import Deduplicator
from einmal.ingest.deduplication.key_window import Keys, KeyWindow, record_key, remember
from einmal.ingest.deduplication.recorded import DuplicateCounts, RecordedWindow, decode_window
from einmal.ingest.source import IngestBatch, IngestRecord, SourceFailed, SourceRefused
from einmal.types import Header, Offset, TopicPartition
from einmal.wire.record_batch import Record
from tests.suite.cases import each_case

WINDOW_MS = 100
NOW_MS = 1_000_000
TOPIC = "events"
PARTITIONS = 2


@dataclass
class Log:
    """What is committed to the topic; ``reader`` restores from it."""

    window: KeyWindow = field(default_factory=lambda: KeyWindow(Deduplicate("key", WINDOW_MS)))
    records: list[list[IngestRecord | None]] = field(default_factory=lambda: [[] for _ in range(PARTITIONS)])

    def write(self, *records: IngestRecord, is_committed: bool = True, now_ms: int = NOW_MS) -> list[IngestRecord]:
        """One batch; the records that were written."""
        batch = self.window.batch(now_ms)
        written = list(batch.written(records))
        outputs = []
        for partition in range(PARTITIONS):
            mine = [each for each in written if int(each.value or b"0") % PARTITIONS == partition]
            first = len(self.records[partition])
            # A marker takes an offset, too.
            self.records[partition] += [*(mine if is_committed else [None] * len(mine)), None]
            if mine:
                outputs.append(Output(TOPIC, partition, first, first + len(mine) - 1, len(mine)))
        staged = self.window.stage(batch, outputs, producer_id=7)
        if is_committed:
            self.window.committed()
        assert decode_window(staged.recorded.encode()) == staged.recorded
        return written

    def restart(self) -> None:
        """Another process takes over."""
        recorded, self.window = self.window.recorded, KeyWindow(self.window.declared)
        self.window.restore(recorded, self._keys)

    def _keys(self, recorded: RecordedWindow) -> dict[int, Keys]:
        keys: dict[int, Keys] = {each.number: {} for each in recorded.spans}
        for place, start in recorded.start().items():
            for offset in range(start, recorded.reached[place]):
                record = self.records[place.partition][offset]
                if record is not None:
                    timestamp = NOW_MS if record.timestamp is None else record.timestamp
                    copy = Record(Offset(offset), timestamp, record.key, record.value, ())
                    found = record_key(self.window, TOPIC, copy)
                    assert found is not None
                    remember(keys[recorded.span_of(place, offset)], *found)
        return keys

    @property
    def counts(self) -> DuplicateCounts:
        return self.window.recorded.batch


def event(key: str, timestamp: int | None = 0, value: int = 0) -> IngestRecord:
    return IngestRecord(TOPIC, b"%d" % value, key.encode(), timestamp=timestamp)


def test_a_duplicate_within_the_window_is_removed_and_the_first_record_wins() -> None:
    log = Log()
    first, second = event("a", 0), event("a", WINDOW_MS, value=1)
    assert log.write(first, second) == [first]
    assert log.counts == DuplicateCounts(duplicates=1, different=1)


def test_the_window_begins_at_the_record_that_is_written() -> None:
    log = Log()
    times = (0, 90, 101, 180, 202)
    assert [each.timestamp for each in log.write(*(event("a", time) for time in times))] == [0, 101, 202]


def test_a_duplicate_is_found_in_a_later_batch_and_after_a_restart() -> None:
    log = Log()
    log.write(event("a", 0))
    assert log.write(event("a", 10)) == []
    log.restart()
    assert log.write(event("a", 20)) == []
    assert log.window.recorded.total.duplicates == 2


@pytest.mark.parametrize("begin", [0, 800])
@pytest.mark.parametrize("times", [(0, 10, 20), (0, WINDOW_MS, 2 * WINDOW_MS)], ids=["one span", "several"])
def test_a_topic_that_is_created_again_begins_a_new_range(begin: int, times: tuple[int, ...]) -> None:
    log = Log(records=[[None] * begin for _ in range(PARTITIONS)])
    for number, time in enumerate(times):
        log.write(event(f"a{number}", time), event(f"b{number}", time, value=1))
    log.records[0].clear()
    log.write(event("c", times[-1]))
    log.restart()
    assert log.write(event("c", times[-1]), event(f"b{len(times) - 1}", times[-1], value=1)) == []
    assert log.write(event("a0", times[-1] + WINDOW_MS)) != []


def test_keys_of_an_aborted_batch_are_forgotten() -> None:
    log = Log()
    log.write(event("a", 0), is_committed=False)
    log.restart()
    assert log.write(event("a", 10)) == [event("a", 10)]


def test_a_backlog_has_the_duplicates_that_it_would_have_had_in_time() -> None:
    assert len(Log().write(event("a", 0), event("a", 10 * WINDOW_MS))) == 2


def test_a_record_without_a_timestamp_counts_from_the_time_of_writing() -> None:
    log = Log()
    assert log.write(event("a", None)) != []
    assert log.write(event("a", None), now_ms=NOW_MS + WINDOW_MS) == []
    assert log.write(event("a", None), now_ms=NOW_MS + WINDOW_MS + 1) != []


def test_a_timestamp_from_the_future_does_not_make_later_records_late() -> None:
    log = Log()
    log.write(event("a", NOW_MS - 5), event("b", 10 * NOW_MS))
    assert log.write(event("a", NOW_MS - 5)) == []
    assert log.write(event("c", NOW_MS - 5)) != []
    assert log.counts == DuplicateCounts()


def test_a_clock_that_was_set_back_forgets_nothing_and_is_followed() -> None:
    log = Log()
    log.write(event("a", None), now_ms=50 * NOW_MS)
    log.write(event("b", None), now_ms=NOW_MS)
    assert log.window.recorded.clock == NOW_MS
    assert log.write(event("b", None), now_ms=NOW_MS + 10) == []
    for number in range(1, 9):
        log.write(event("c", None), now_ms=NOW_MS + number * WINDOW_MS)
    assert len(log.window.recorded.spans) < 5


def test_a_record_that_is_later_than_a_window_is_written_and_counted() -> None:
    log = Log()
    log.write(event("a", 500))
    assert log.write(event("b", 399)) != []
    assert log.counts == DuplicateCounts(late=1)
    assert log.write(event("b", 399)) == []


def test_a_tombstone_is_written_and_the_key_stays_known() -> None:
    log = Log()
    log.write(event("a", 0))
    tombstone = IngestRecord(TOPIC, None, b"a", timestamp=1)
    assert log.write(tombstone, event("a", 2)) == [tombstone]


def test_a_record_without_the_key_is_written_and_counted() -> None:
    log = Log()
    record = IngestRecord(TOPIC, b"1", None, timestamp=0)
    assert log.write(record, record) == [record, record]
    assert log.counts == DuplicateCounts(without_key=2)


def test_one_key_in_two_topics_is_two_keys() -> None:
    assert len(Log().write(event("a"), event("a")._replace(topic="others"))) == 2


def test_more_keys_than_declared_stop_the_ingester() -> None:
    window = KeyWindow(Deduplicate("key", WINDOW_MS, keys_max=3))
    with pytest.raises(SourceRefused, match="more than 3 business keys"):
        list(window.batch(NOW_MS).written(event(str(number)) for number in range(4)))


@each_case("seed", range(60))
def test_timestamps_that_go_backwards_by_up_to_a_window_change_nothing(seed: int) -> None:
    rng = random.Random(seed)
    log, found, wanted = Log(), list[IngestRecord](), list[IngestRecord]()
    time = newest = 0
    for number in range(120):
        batch = []
        for _ in range(rng.randrange(4)):
            time += rng.randrange(WINDOW_MS)
            newest = max(newest, time)
            time = max(newest - rng.randrange(WINDOW_MS + 1), 0) if rng.random() < 0.5 else newest
            batch.append(event(rng.choice("abcdefgh"), time, value=len(wanted) + number))
        if rng.random() < 0.2:
            log.write(*batch, is_committed=False)
            log.restart()
        found += log.write(*batch)
        for each in batch:
            assert each.timestamp is not None
            if all(one.key != each.key or abs((one.timestamp or 0) - each.timestamp) > WINDOW_MS for one in wanted):
                wanted.append(each)
        if rng.random() < 0.1:
            log.restart()
    assert found == wanted
    assert log.window.recorded.total.late == 0
    assert len(log.window.recorded.spans) <= 4


@pytest.mark.parametrize(
    ("key", "value", "found"),
    [
        ("value.id", b'{"id": "x"}', b'"x"'),
        ("value.id", b'{"id": 1}', b"1"),
        ("value.id", b'{"id": "1"}', b'"1"'),
        ("value.id", b'{"id": null}', None),
        ("value.id", b'{"id": [1]}', None),
        ("value.id", b'{"other": 1}', None),
        ("value.id", b"[1]", None),
        ("value.id", b"\xff{", None),
        ("value.id", b"[" * 100_000, None),
        ("value.id", b'{"id": ' + b"9" * 10_000 + b"}", b"9" * 10_000),
        ("header:id", b"", b"second"),
        ("header:none", b"", None),
        ("header:empty", b"", None),
        ("key", b"", b"k"),
    ],
)
def test_the_business_key_is_read_from_whatever_the_record_has(key: str, value: bytes, found: bytes | None) -> None:
    headers = (Header("id", b"first"), Header("id", b"second"), Header("empty", b""))
    assert key_of(Deduplicate(key, 1))(b"k", value, headers) == found


def test_a_batch_whose_offsets_are_not_known_is_not_committed() -> None:
    cluster: Any = None
    deduplicator = Deduplicator(Deduplicate("key", WINDOW_MS), "numbers", cluster, lambda notice: None)
    batch = deduplicator.without_duplicates(IngestBatch([event("a")], {"next": 1}), NOW_MS)
    assert list(batch.records) == [event("a")]
    with pytest.raises(SourceFailed, match="the offsets of written records are not known"):
        deduplicator.stage([Output(TOPIC, 0, -1, -1, 1)], 7)


@pytest.mark.parametrize(
    ("key", "window_ms", "keys_max"), [("id", 1, 1), ("value.", 1, 1), ("key", 0, 1), ("key", 1, 0)]
)
def test_what_is_no_declaration_of_a_key_is_refused(key: str, window_ms: int, keys_max: int) -> None:
    with pytest.raises(ConfigError):
        Deduplicate(key, window_ms, keys_max)


GOOD = RecordedWindow(WINDOW_MS).after(5, DuplicateCounts(), [Output(TOPIC, 0, 3, 4, 2)], 7).encode()


@pytest.mark.parametrize(
    "change",
    [
        {"clock": -1},
        {"clock": True},
        {"clock": None},
        {"window_ms": 0},
        {"spans": []},
        {"spans": [1]},
        {"spans": GOOD["spans"] * 2},
        {"reached": {}},
        {"reached": {TOPIC: {"0": 3}}},
        {"reached": {TOPIC: {"x": 9}}},
        {"reached": [1]},
        {"total": {"lost": 1}},
        {"batch": 1},
    ],
)
def test_a_window_that_nobody_has_recorded_is_refused(change: dict[str, object]) -> None:
    assert decode_window(GOOD).reached == {TopicPartition(TOPIC, 0): 5}
    with pytest.raises(ValueError):
        decode_window(GOOD | change)
    with pytest.raises(ValueError):
        decode_window(change)
