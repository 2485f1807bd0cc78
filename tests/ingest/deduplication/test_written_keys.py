from __future__ import annotations

import pytest

from einmal.client.cores.fetched import RawBatch, whole_batches
from einmal.commit_protocol.claims import Output
from einmal.ingest.deduplication.business_key import Deduplicate, key_digest
from einmal.ingest.deduplication.key_window import KeyWindow
from einmal.ingest.deduplication.recorded import DuplicateCounts, RecordedWindow
from einmal.ingest.deduplication.written_keys import WrittenKeys
from einmal.ingest.source import SourceRefused
from einmal.types import TopicPartition
from einmal.wire.control_batch import encode_marker
from einmal.wire.record_batch import NewRecord, encode_batch

PLACE = TopicPartition("events", 0)
OWN, OTHER = 7, 8
WINDOW_MS = 100


class PartitionLog:
    """One partition, written batch by batch."""

    def __init__(self) -> None:
        self.batches: list[RawBatch] = []
        self._end = 0

    def append(self, producer_id: int, *keys: str, transactional: bool = True) -> Output:
        data = encode_batch(
            [NewRecord(key.encode(), b"v", 0) for key in keys],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            transactional=transactional,
            base_offset=self._end,
        )
        self._add(data)
        return Output("events", 0, self._end - len(keys), self._end - 1, len(keys))

    def end(self, producer_id: int, *, committed: bool) -> None:
        data = bytearray(encode_marker(producer_id, 0, committed=committed, coordinator_epoch=0, timestamp=0))
        data[:8] = self._end.to_bytes(8)
        self._add(bytes(data))

    def _add(self, data: bytes) -> None:
        (batch,) = whole_batches(PLACE, memoryview(data))
        self.batches.append(batch)
        self._end = batch.header.next_offset


def restored(log: PartitionLog, *outputs: Output, keys_max: int = 100, producer_id: int = OWN) -> list[set[bytes]]:
    """The keys of each span; every output was a batch, one window after the one before."""
    window = KeyWindow(Deduplicate("key", WINDOW_MS, keys_max))
    recorded = RecordedWindow(WINDOW_MS)
    for number, output in enumerate(outputs):
        recorded = recorded.after(number * WINDOW_MS, DuplicateCounts(), [output], producer_id)
    written = WrittenKeys(window, recorded)
    for batch in log.batches:
        written.take(batch)
    return [set(keys) for keys in written.keys().values()]


def digests(*keys: str) -> set[bytes]:
    return {key_digest("events", key.encode()) for key in keys}


def test_committed_records_are_remembered_in_their_spans() -> None:
    log = PartitionLog()
    first = log.append(OWN, "a", "b")
    log.end(OWN, committed=True)
    second = log.append(OWN, "c")
    log.end(OWN, committed=True)
    assert restored(log, first, second) == [digests("a", "b", "c"), set()]
    third = log.append(OWN, "d")
    log.end(OWN, committed=True)
    assert restored(log, first, second, third) == [digests("a", "b", "c"), digests("d"), set()]


def test_aborted_records_between_committed_ones_are_not_remembered() -> None:
    log = PartitionLog()
    first = log.append(OWN, "a")
    log.end(OWN, committed=True)
    log.append(OWN, "b")
    log.end(OWN, committed=False)
    second = log.append(OWN, "c")
    log.end(OWN, committed=True)
    log.append(OWN, "d")
    log.end(OWN, committed=False)
    assert restored(log, first, second)[0] == digests("a", "c")


def test_the_last_transaction_counts_although_its_marker_is_behind_the_range() -> None:
    log = PartitionLog()
    assert restored(log, log.append(OWN, "a"))[0] == digests("a")


def test_records_of_other_producers_do_not_count_whatever_is_open() -> None:
    log = PartitionLog()
    first = log.append(OWN, "a")
    log.append(OTHER, "b")
    log.append(OTHER, "x", transactional=False)
    log.end(OWN, committed=True)
    second = log.append(OWN, "c")
    assert restored(log, first, second)[0] == digests("a", "c")


def test_too_many_keys_are_refused() -> None:
    log = PartitionLog()
    with pytest.raises(SourceRefused, match="more than 2 business keys"):
        restored(log, log.append(OWN, "a", "b", "c"), keys_max=2)
