"""What a mirror copies of what it has read ahead: every committed record once, and each byte fetched once."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, cast

import pytest

from einmal.client.cores.fetched import RawBatch
from einmal.client.records import OffsetRange, WrittenRange
from einmal.mirror_protocol.effects import CopyRecords, ScanHeaders
from einmal.mirror_protocol.offset_map import OffsetMap, OffsetRun
from einmal.mirror_protocol.progress import OFFSETS_TOPIC
from einmal.mirroring.copier import LocalCopier
from einmal.mirroring.reading import SourceUnreadable
from einmal.mirroring.scanned_batches import ScannedBatches, ScannedPartition
from einmal.types import NO_LEADER_EPOCH, Offset, ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition
from einmal.wire.control_batch import encode_marker
from einmal.wire.record_batch import NewRecord, decode_records, encode_batch, patch, read_header

IDENTITY = ProducerIdAndEpoch(ProducerId(77), ProducerEpoch(5))
TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAQ"
PLACES = [TopicPartition("orders", index) for index in range(3)]


class Log:
    """One partition of the source, as batches and markers; what of it is committed, and up to where it is decided."""

    def __init__(self, place: TopicPartition, source: random.Random, batches: int) -> None:
        self.batches: list[RawBatch] = []
        self._place = place
        self._end = 0
        self.committed: dict[int, bytes] = {}
        """By offset, in the order of offsets once it is sorted."""
        undecided: dict[int, list[tuple[int, bytes]]] = {}
        for number in range(batches):
            producer = source.randrange(1, 5)
            if producer in undecided and source.random() < 0.4:
                committed = source.random() < 0.6
                self._add(encode_marker(producer, 0, committed=committed, coordinator_epoch=0, timestamp=0))
                values = undecided.pop(producer)
                self.committed.update(values if committed else [])
                continue
            records = [b"%d-%d" % (number, index) * source.randrange(1, 30) for index in range(source.randrange(1, 4))]
            transactional = producer > 1
            if transactional:
                undecided.setdefault(producer, []).extend(enumerate(records, self._end))
            else:
                self.committed.update(enumerate(records, self._end))
            data = encode_batch(
                [NewRecord(None, value, 0) for value in records],
                producer_id=producer if transactional else -1,
                producer_epoch=0 if transactional else -1,
                transactional=transactional,
            )
            self._add(data)
        self.end = self._end
        self.stable = self.decided(self.end)

    def decided(self, scanned: int) -> int:
        """The largest cut of what was read ahead up to there."""
        firsts: dict[int, int] = {}
        for header in (batch.header for batch in self.batches if batch.header.next_offset <= scanned):
            if header.is_control:
                firsts.pop(header.producer_id, None)
            elif header.is_transactional:
                firsts.setdefault(header.producer_id, header.base_offset)
        return min(firsts.values(), default=scanned)

    def _add(self, encoded: bytes) -> None:
        data = bytearray(encoded)
        patch(data, 0, Offset(self._end), NO_LEADER_EPOCH)
        header = read_header(data)
        self.batches.append(RawBatch(self._place, header, memoryview(data)))
        self._end = header.next_offset


class Source:
    """In place of a reader: whole batches, and how often each was fetched."""

    def __init__(self, logs: Mapping[TopicPartition, Log]) -> None:
        self.logs = logs
        self.fetched: list[tuple[TopicPartition, int]] = []

    def read(self, ranges: Mapping[TopicPartition, OffsetRange], **_: Any) -> Iterator[RawBatch]:
        for place, bounds in ranges.items():
            for batch in self.logs[place].batches:
                if batch.header.next_offset > bounds.start and batch.header.base_offset < bounds.end:
                    self.fetched.append((place, batch.header.base_offset))
                    yield batch


class Target:
    """In place of a transaction: keeps what is appended, unless it is set to fail."""

    def __init__(self) -> None:
        self.values: dict[TopicPartition, list[bytes]] = {}
        self.fails = False

    def append(
        self, _identity: ProducerIdAndEpoch, batches: Iterable[tuple[TopicPartition, bytes]]
    ) -> dict[TopicPartition, WrittenRange]:
        written: dict[TopicPartition, list[bytes]] = {}
        for place, data in batches:
            written.setdefault(place, []).extend(
                record.value or b"" for record in decode_records(data, 0, read_header(data))
            )
            if self.fails:
                raise SourceUnreadable("as it happens")
        found = {}
        for place, values in written.items():
            first = len(self.values.setdefault(place, []))
            self.values[place] += values
            found[place] = WrittenRange(first, first + len(values) - 1, 1)
        return found


def scan(copier: LocalCopier, ranges: Mapping[TopicPartition, tuple[int, int]]) -> Mapping[TopicPartition, int]:
    return copier.scan(ScanHeaders(ranges, {"orders": TOPIC_ID})).reached


def copy(
    copier: LocalCopier, target: Target, ranges: Mapping[TopicPartition, tuple[int, int]]
) -> Mapping[TopicPartition, tuple[OffsetRun, ...]]:
    targets = {each: TopicPartition("A.orders", each.partition) for each in ranges}
    return copier.copy(CopyRecords(IDENTITY, ranges, {"orders": TOPIC_ID}, targets), cast(Any, target)).runs


def expected(log: Log, end: int) -> list[bytes]:
    return [value for offset, value in sorted(log.committed.items()) if offset < end]


@pytest.mark.parametrize("bytes_max", [0, 300, 2_000, 20_000, 1 << 30])
def test_every_committed_record_is_copied_once_whatever_is_kept(bytes_max: int) -> None:
    for seed in range(60):
        source = random.Random(f"{seed}/{bytes_max}")
        logs = {each: Log(each, source, source.randrange(1, 60)) for each in PLACES}
        reader, target = Source(logs), Target()
        copier = LocalCopier(cast(Any, reader), ScannedBatches(bytes_max))
        scanned = dict.fromkeys(PLACES, 0)
        copied = dict.fromkeys(PLACES, 0)
        maps = dict.fromkeys(PLACES, OffsetMap.beginning(0, 0))
        while copied != {each: log.stable for each, log in logs.items()}:
            ends = {each: source.randint(scanned[each], logs[each].end) for each in PLACES}
            ahead = {each: (scanned[each], ends[each]) for each in PLACES if ends[each] > scanned[each]}
            if ahead:
                # A probe ends where a batch ends: no broker's high watermark splits one.
                whole = {
                    each: next(
                        batch.header.next_offset for batch in logs[each].batches if batch.header.next_offset >= end
                    )
                    for each, (_, end) in ahead.items()
                }
                scanned |= scan(copier, {each: (start, whole[each]) for each, (start, _) in ahead.items()})
            if source.random() < 0.1:
                # Another run of the machine begins again where the last commit is.
                scanned = dict(copied)
                continue
            cuts = {
                each: source.randint(copied[each], max(copied[each], logs[each].decided(scanned[each])))
                for each in PLACES
            }
            ranges = {each: (copied[each], cut) for each, cut in cuts.items() if cut > copied[each]}
            target.fails = source.random() < 0.2
            try:
                runs = copy(copier, target, ranges)
            except SourceUnreadable:
                continue
            copied |= {each: end for each, (_, end) in ranges.items()}
            maps |= {each: maps[each].extended(found) for each, found in runs.items()}
        for each in PLACES:
            found = target.values.get(TopicPartition("A.orders", each.partition), [])
            assert found == expected(logs[each], copied[each]), f"seed {seed}"
            offsets = [offset for offset in sorted(logs[each].committed) if offset < copied[each]]
            assert [maps[each].translate(offset) for offset in offsets] == list(range(len(offsets))), f"seed {seed}"


def test_what_is_kept_is_fetched_once() -> None:
    logs = {each: Log(each, random.Random(each.partition), 100) for each in PLACES}
    reader, target = Source(logs), Target()
    copier = LocalCopier(cast(Any, reader))
    scan(copier, {each: (0, log.end) for each, log in logs.items()})
    copy(copier, target, {each: (0, log.stable) for each, log in logs.items()})
    assert len(reader.fetched) == sum(len(log.batches) for log in logs.values())
    assert all(
        target.values.get(TopicPartition("A.orders", each.partition), []) == expected(log, log.stable)
        for each, log in logs.items()
    )


def test_memory_is_free_again_when_its_batches_are_copied_or_their_topic_is_gone() -> None:
    logs = {each: Log(each, random.Random(each.partition), 100) for each in PLACES}
    kept = ScannedBatches(1 << 20)
    copier = LocalCopier(cast(Any, Source(logs)), kept)
    scan(copier, {each: (0, log.end) for each, log in logs.items()})
    assert kept.room < 1 << 20
    copier.scan(ScanHeaders({}, {"others": TOPIC_ID}))
    assert kept.room == 1 << 20
    scan(copier, {PLACES[0]: (0, logs[PLACES[0]].stable)})
    copy(copier, Target(), {PLACES[0]: (0, logs[PLACES[0]].stable)})
    assert kept.room == 1 << 20


def test_small_batches_take_the_memory_that_they_take() -> None:
    """Of a thousand batches of some bytes about a hundred are kept in 100 KB: each is an object, too."""
    log = Log(PLACES[0], random.Random(1), 1_000)
    reader, kept = Source({PLACES[0]: log}), ScannedBatches(100 * 1024)
    copier = LocalCopier(cast(Any, reader), kept)
    scan(copier, {PLACES[0]: (0, log.end)})
    assert kept.room >= 0
    scanned = len(reader.fetched)
    copy(copier, Target(), {PLACES[0]: (0, log.stable)})
    below = sum(batch.header.base_offset < log.stable for batch in log.batches)
    fetched_again = len(reader.fetched) - scanned
    assert below - 150 <= fetched_again < below


def test_a_producer_that_always_aborts_takes_no_memory_for_each_transaction() -> None:
    sizes = []
    for transactions in (10, 1_000):
        partition, offset = ScannedPartition(TOPIC_ID, 0), 0
        for _ in range(transactions):
            record = encode_batch([NewRecord(None, b"v", 0)], producer_id=7, producer_epoch=0, transactional=True)
            marker = encode_marker(7, 0, committed=False, coordinator_epoch=0, timestamp=0)
            for encoded, kind in ((record, None), (marker, False)):
                data = bytearray(encoded)
                patch(data, 0, Offset(offset), NO_LEADER_EPOCH)
                partition.take(RawBatch(PLACES[0], read_header(data), memoryview(data)), 0, kind)
                offset += 1
        sizes.append(len(pickle.dumps(partition)))
    assert sizes[1] < sizes[0] + 100


def test_nothing_of_consumer_offsets_is_kept() -> None:
    place = TopicPartition(OFFSETS_TOPIC, 0)
    kept = ScannedBatches(1 << 20)
    log = Log(place, random.Random(1), 20)
    log.batches = [each for each in log.batches if each.header.is_control]
    copier = LocalCopier(cast(Any, Source({place: log})), kept)
    copier.scan(ScanHeaders({place: (0, log.end)}, {OFFSETS_TOPIC: TOPIC_ID}))
    assert kept.room == 1 << 20


def test_what_was_not_read_ahead_is_not_copied() -> None:
    logs = {PLACES[0]: Log(PLACES[0], random.Random(1), 20)}
    copier = LocalCopier(cast(Any, Source(logs)))
    with pytest.raises(SourceUnreadable, match="orders-0 were not read ahead"):
        copy(copier, Target(), {PLACES[0]: (0, logs[PLACES[0]].stable)})
