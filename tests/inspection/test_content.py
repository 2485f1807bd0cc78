"""Claims about counting what lies between two offsets, on batches made here."""

from __future__ import annotations

from einmal.client.cores.fetched import RawBatch
from einmal.inspection.content import RangeContent, count
from einmal.types import LeaderEpoch, Offset, TopicPartition
from einmal.wire.control_batch import encode_marker
from einmal.wire.record_batch import NewRecord, encode_batch, patch, read_header


class Log:
    """Batches of a partition, one after the other."""

    def __init__(self) -> None:
        self.batches: list[RawBatch] = []
        self.end = 0

    def add(self, encoded: bytes) -> int:
        data = bytearray(encoded)
        patch(data, 0, Offset(self.end), LeaderEpoch(0))
        header = read_header(data)
        self.batches.append(RawBatch(TopicPartition("t", 0), header, memoryview(data)))
        base, self.end = self.end, header.next_offset
        return base

    def data(self, records: int, producer_id: int = -1) -> int:
        values = [NewRecord(None, b"v", 1_000 + self.end) for _ in range(records)]
        is_transactional = producer_id >= 0
        return self.add(
            encode_batch(
                values,
                producer_id=producer_id,
                producer_epoch=0 if is_transactional else -1,
                base_sequence=0 if is_transactional else -1,
                transactional=is_transactional,
            )  # fmt: skip
        )

    def marker(self, producer_id: int, *, committed: bool) -> int:
        return self.add(encode_marker(producer_id, 0, committed=committed, coordinator_epoch=0, timestamp=5))

    def count(self, start: int = 0, stable: int | None = None) -> RangeContent:
        batches = [each for each in self.batches if each.header.next_offset > start]
        return count(batches, start, self.end if stable is None else stable)


def test_a_transaction_that_is_read_leaves_no_lag_although_its_marker_is_the_last_offset() -> None:
    log = Log()
    log.data(3, producer_id=1)
    log.marker(1, committed=True)
    found = log.count(start=3)
    assert (found.committed, found.aborted, found.markers, found.behind) == (0, 0, 1, 0)


def test_aborted_records_are_not_unread_and_their_range_is_reported() -> None:
    log = Log()
    log.data(2)
    first = log.data(3, producer_id=1)
    log.data(1, producer_id=2)
    marker = log.marker(1, committed=False)
    log.marker(2, committed=True)
    found = log.count()
    assert (found.committed, found.aborted, found.markers) == (3, 3, 2)
    (aborted,) = found.aborted_ranges
    assert (aborted.first_offset, aborted.last_offset, aborted.records, aborted.marker_offset) == (first, 4, 3, marker)


def test_what_an_open_transaction_holds_back_is_counted_with_the_open_records_and_without_aborted_ones() -> None:
    log = Log()
    log.data(1)
    stable = log.data(2, producer_id=1)
    log.data(4)
    log.data(5, producer_id=2)
    log.marker(2, committed=False)
    log.data(6, producer_id=3)
    log.marker(3, committed=True)
    found = log.count(stable=stable)
    assert (found.committed, found.aborted, found.markers, found.behind) == (1, 0, 0, 2 + 4 + 6)
    (held,) = found.open_ranges
    assert (held.producer_id, held.first_offset, held.records, held.first_timestamp) == (1, stable, 2, 1_001)


def test_a_transaction_below_the_last_stable_offset_is_decided_by_its_marker_after_it() -> None:
    log = Log()
    log.data(2, producer_id=1)
    stable = log.data(1, producer_id=2)
    log.marker(1, committed=True)
    found = log.count(stable=stable)
    assert (found.committed, found.behind, len(found.open_ranges)) == (2, 1, 1)


def test_a_position_in_the_middle_of_a_batch_leaves_its_rest_unread() -> None:
    log = Log()
    log.data(5)
    assert log.count(start=3).committed == 2
