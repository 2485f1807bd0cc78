"""Claims about fetched pieces of a log: what a read_committed reader sees of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from einmal.client.cores.fetched import CorruptData, RawBatch, visible_batches, whole_batches
from einmal.client.records import OffsetRange
from einmal.types import TopicPartition
from einmal.wire.compression import Compression, compress
from einmal.wire.control_batch import encode_marker
from einmal.wire.record_batch import NewRecord, encode_batch, patch
from tests.log.malformed import BASE_OFFSET, LENGTH, good, resealed, sealed

T0 = TopicPartition("t", 0)


class LogWriter:
    """A log as bytes, and what of it was aborted."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.end = 0
        self.starts: list[tuple[int, int]] = []
        """(base offset, position) of every batch."""
        self.open: dict[int, int] = {}
        self.aborted: list[tuple[int, int, int]] = []
        """(producer id, first offset, offset of the marker)."""
        self.values: list[tuple[int, bytes, int | None]] = []
        """(offset, value, producer id of its transaction)."""

    def _add(self, batch: bytes, count: int) -> None:
        patched = bytearray(batch)
        patch(patched, 0, self.end, 0)  # type: ignore[arg-type]
        self.starts.append((self.end, len(self.data)))
        self.data += patched
        self.end += count

    def write(self, values: Sequence[bytes], producer_id: int | None = None) -> None:
        records = [NewRecord(None, value, 0) for value in values]
        self.values += [(self.end + index, value, producer_id) for index, value in enumerate(values)]
        if producer_id is None:
            self._add(encode_batch(records), len(values))
            return
        self.open.setdefault(producer_id, self.end)
        batch = encode_batch(records, producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True)
        self._add(batch, len(values))

    def mark(self, producer_id: int, committed: bool) -> None:
        first = self.open.pop(producer_id)
        if not committed:
            self.aborted.append((producer_id, first, self.end))
        self._add(encode_marker(producer_id, 0, committed=committed, coordinator_epoch=0, timestamp=0), 1)

    def fetch(self, offset: int, size: int) -> tuple[memoryview, list[tuple[int, int]]]:
        """As a broker answers: from the batch that holds ``offset``, cut anywhere, with the aborted transactions."""
        position = max(at for base, at in self.starts if base <= offset)
        piece = bytes(self.data[position : position + size])
        aborted = [(producer_id, first) for producer_id, first, marker in self.aborted if marker >= offset]
        return memoryview(piece), aborted


def values(batches: Sequence[RawBatch]) -> list[bytes | None]:
    return [record.value for batch in batches for record in batch.records()]


def test_aborted_records_and_markers_are_hidden() -> None:
    log = LogWriter()
    log.write([b"plain"])
    log.write([b"aborted"], 1)
    log.write([b"committed"], 2)
    log.mark(1, committed=False)
    log.write([b"again"], 1)
    log.mark(2, committed=True)
    log.mark(1, committed=True)
    data, aborted = log.fetch(0, len(log.data))
    batches = whole_batches(T0, data)
    assert len(batches) == 7
    assert values(list(visible_batches(batches, aborted))) == [b"plain", b"committed", b"again"]
    assert values(list(visible_batches(batches, None))) == [b"plain", b"aborted", b"committed", b"again"]


def test_a_batch_that_is_cut_off_is_left_for_the_next_fetch() -> None:
    log = LogWriter()
    log.write([b"a"])
    log.write([b"b"])
    data, _aborted = log.fetch(0, len(log.data) - 1)
    assert values(whole_batches(T0, data)) == [b"a"]


def test_a_damaged_batch_is_never_given() -> None:
    log = LogWriter()
    log.write([b"a" * 100])
    log.data[90] ^= 1
    with pytest.raises(CorruptData, match="CRC"):
        whole_batches(T0, memoryview(bytes(log.data)))


def test_records_outside_of_the_bounds_are_cut() -> None:
    log = LogWriter()
    log.write([b"a", b"b", b"c", b"d"])
    (batch,) = whole_batches(T0, memoryview(bytes(log.data)))
    assert [record.value for record in batch.records(OffsetRange(1, 3))] == [b"b", b"c"]


@settings(max_examples=200, deadline=None)
@given(st.integers(min_value=0, max_value=2**32))
def test_reading_in_pieces_gives_exactly_what_was_committed(seed: int) -> None:
    source = random.Random(seed)
    log = LogWriter()
    outcomes: dict[tuple[int, int], bool] = {}
    for _ in range(40):
        producer_id = source.choice((None, 1, 2, 3))
        if producer_id is not None and producer_id in log.open and source.random() < 0.4:
            committed = source.random() < 0.5
            outcomes[producer_id, log.open[producer_id]] = committed
            log.mark(producer_id, committed)
        else:
            log.write([b"%d" % (len(log.values) + index) for index in range(source.randint(1, 3))], producer_id)
    for producer_id in list(log.open):
        log.mark(producer_id, committed=True)
    hidden = {
        offset
        for offset, _value, producer in log.values
        for aborter, first, marker in log.aborted
        if producer == aborter and first <= offset < marker
    }
    expected = [value for offset, value, _producer in log.values if offset not in hidden]
    position, seen = 0, []
    while position < log.end:
        data, aborted = log.fetch(position, source.randint(200, 600))
        source.shuffle(aborted)
        batches = whole_batches(T0, data)
        for batch in visible_batches(batches, aborted):
            seen += [record.value for record in batch.records() if record.offset >= position]
        position = batches[-1].header.next_offset
    assert seen == expected


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        (lambda: resealed(good(3, 0)[:70] + bytes(20), {LENGTH: 78}), "expected a record up to byte"),
        (lambda: sealed(compress(Compression.ZSTD, bytes(200 << 20)), 3, 0, Compression.ZSTD), "more than"),
    ],
    ids=["malformed", "a bomb"],
)
def test_a_batch_that_cannot_be_unpacked_is_named_with_the_way_past_it(made: Callable[[], bytes], reason: str) -> None:
    (raw,) = whole_batches(T0, memoryview(bytes(resealed(made(), {BASE_OFFSET: 5}))))
    with pytest.raises(CorruptData) as caught:
        raw.records()
    text = str(caught.value)
    assert "t-0, the batch of offsets 5 to 7" in text and "seek to 8" in text and reason in text
