"""What the mirror writes of a fetched batch."""

from __future__ import annotations

import pytest

from einmal.client.cores.fetched import RawBatch
from einmal.client.records import OffsetRange
from einmal.mirror_protocol.offset_map import OffsetRun
from einmal.mirroring.copied_stream import CopiedStream, runs_of
from einmal.sinks.kafka.batches import TransactionBatches
from einmal.types import Header, ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition
from einmal.wire.compression import Compression
from einmal.wire.record_batch import (
    CONTROL,
    HEADER_SIZE,
    LOG_APPEND_TIME,
    TRANSACTIONAL,
    NewRecord,
    Record,
    assemble,
    decode_records,
    encode_batch,
    peek_header,
    read_header,
    set_log_append_time,
    validate,
)

SOURCE = TopicPartition("orders", 0)
TARGET = TopicPartition("A.orders", 0)
IDENTITY = ProducerIdAndEpoch(ProducerId(77), ProducerEpoch(5))
RECORDS = [
    NewRecord(b"k", b"v" * 100, 1_000, (Header("h", b"x"), Header("n", None))),
    NewRecord(None, b"", 999),
    NewRecord(b"deleted", None, 2_000),
]
EVERYTHING = OffsetRange(0, 1_000)


def fetched(
    offset: int,
    records: list[NewRecord] = RECORDS,
    compression: Compression = Compression.NONE,
    transactional: bool = True,
) -> RawBatch:
    data = encode_batch(
        records,
        producer_id=3,
        producer_epoch=2,
        base_sequence=50,
        transactional=transactional,
        compression=compression,
        base_offset=offset,
        leader_epoch=9,
    )
    return RawBatch(SOURCE, read_header(data), memoryview(data))


def compacted(batch: RawBatch, *, last_offset_delta: int) -> RawBatch:
    """Only the last offset shows that records are missing."""
    data = assemble(batch.header._replace(last_offset_delta=last_offset_delta), batch.data[HEADER_SIZE:])
    return RawBatch(SOURCE, read_header(data), memoryview(data))


def stream() -> CopiedStream:
    return CopiedStream(TARGET, TransactionBatches(IDENTITY))


def taken(into: CopiedStream, batch: RawBatch, bounds: OffsetRange = EVERYTHING) -> bytes:
    found = into.take(batch, bounds)
    assert found is not None
    place, data = found
    assert place == TARGET
    validate(data, 0, read_header(data))
    return data


def records_in(data: bytes) -> list[Record]:
    return decode_records(data, 0, read_header(data))


def expected(records: list[NewRecord]) -> list[tuple[object, ...]]:
    return [(each.key, each.value, each.timestamp, each.headers) for each in records]


def contents(data: bytes) -> list[tuple[object, ...]]:
    return [(each.key, each.value, each.timestamp, each.headers) for each in records_in(data)]


@pytest.mark.parametrize("transactional", [True, False])
@pytest.mark.parametrize("compression", list(Compression))
def test_a_whole_batch_keeps_its_records_to_the_bit(compression: Compression, transactional: bool) -> None:
    batch = fetched(40, compression=compression, transactional=transactional)
    into = stream()
    data = taken(into, batch)
    header = peek_header(data)
    assert data[HEADER_SIZE:] == bytes(batch.data[HEADER_SIZE:])
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (77, 5, 0)
    assert (header.base_offset, header.partition_leader_epoch) == (0, -1)
    assert (header.attributes, header.compression) == (TRANSACTIONAL | compression, compression)
    assert (header.base_timestamp, header.max_timestamp) == (batch.header.base_timestamp, batch.header.max_timestamp)
    assert contents(data) == expected(RECORDS)


def test_sequences_continue_over_copied_and_encoded_batches() -> None:
    into = stream()
    batches = [fetched(0), compacted(fetched(3), last_offset_delta=9), fetched(13), fetched(16)]
    found = [peek_header(taken(into, batch)).base_sequence for batch in batches]
    assert found == [0, 3, 6, 9]


@pytest.mark.parametrize(
    ("bounds", "kept"), [((41, 99), RECORDS[1:]), ((0, 42), RECORDS[:2]), ((41, 42), RECORDS[1:2])]
)
def test_of_a_batch_that_is_partly_in_the_range_only_those_records_are_written(
    bounds: tuple[int, int], kept: list[NewRecord]
) -> None:
    into = stream()
    data = taken(into, fetched(40, compression=Compression.LZ4), OffsetRange(*bounds))
    assert contents(data) == expected(kept)
    assert peek_header(data).compression is Compression.LZ4
    first = max(40, bounds[0])
    assert runs_of(TARGET, into.sources, 7, 6 + len(kept)) == (OffsetRun(first, 7, len(kept)),)


def test_a_batch_from_which_compaction_has_removed_records_is_closed_up() -> None:
    into = stream()
    data = taken(into, compacted(fetched(40), last_offset_delta=5))
    assert (peek_header(data).last_offset_delta, contents(data)) == (2, expected(RECORDS))
    assert into.take(compacted(fetched(50), last_offset_delta=4), OffsetRange(60, 70)) is None


def test_times_that_the_sources_broker_has_set_are_the_records_own_at_the_target() -> None:
    log = bytearray(fetched(40).data)
    set_log_append_time(log, 0, 5_555)
    data = taken(stream(), RawBatch(SOURCE, read_header(log), memoryview(log)))
    assert not peek_header(data).attributes & LOG_APPEND_TIME
    assert {each.timestamp for each in records_in(data)} == {5_555}


def test_the_runs_join_batches_without_a_gap() -> None:
    into = stream()
    for batch in (fetched(40), fetched(43), fetched(50)):
        taken(into, batch)
    assert runs_of(TARGET, into.sources, 100, 108) == (OffsetRun(40, 100, 6), OffsetRun(50, 106, 3))


def test_no_bit_of_the_header_travels_that_a_producer_may_not_set() -> None:
    batch = fetched(40)
    horizon = batch.header._replace(attributes=batch.header.attributes | 0x40)
    data = assemble(horizon, batch.data[HEADER_SIZE:])
    copied = taken(stream(), RawBatch(SOURCE, read_header(data), memoryview(data)))
    assert peek_header(copied).attributes == TRANSACTIONAL
    assert not peek_header(copied).attributes & CONTROL
