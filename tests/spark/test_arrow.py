from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einmal.client import OffsetRange
from einmal.client.cores.fetched import CorruptData, RawBatch
from einmal.spark.source.arrow import FarTimestamp, RowBuilder
from einmal.types import Header, Offset, TopicPartition
from einmal.wire.compression import Compression
from einmal.wire.record_batch import NewRecord, encode_batch, read_header, seal_batch, set_log_append_time
from tests.spark.strategies import LARGE

HERE = TopicPartition("t", 3)
HEADERS = st.lists(st.builds(Header, st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=2).map(tuple)
RECORDS = st.lists(
    st.builds(
        NewRecord,
        st.none() | st.binary(max_size=100),
        st.none() | st.binary(max_size=300) | LARGE,
        st.integers(0, 2**41),
        HEADERS,
    ),
    min_size=1,
    max_size=8,
)


def raw(data: bytes) -> RawBatch:
    return RawBatch(HERE, read_header(data), memoryview(data))


def rows(batches: list[RawBatch], *, start: int = 0, end: int = 2**40, headers: bool = True) -> list[dict[str, Any]]:
    builder = RowBuilder(HERE, OffsetRange(Offset(start), Offset(end)), include_headers=headers)
    for batch in batches:
        builder.add(batch)
    found: list[dict[str, Any]] = builder.take().to_pylist()
    assert builder.is_empty
    return found


@given(st.lists(st.tuples(RECORDS, st.sampled_from(Compression)), min_size=1, max_size=3), st.integers(0, 10))
def test_rows_are_the_records_of_all_batches_within_the_bounds(
    batches: list[tuple[list[NewRecord], Compression]], start: int
) -> None:
    made, base = [], 0
    for records, compression in batches:
        made.append(raw(encode_batch(records, base_offset=base, compression=compression)))
        base += len(records) + 2
    expected = [
        {
            "key": record.key,
            "value": record.value,
            "topic": "t",
            "partition": 3,
            "offset": record.offset,
            "timestamp": datetime.fromtimestamp(record.timestamp / 1000, UTC),
            "timestampType": 0,
            "headers": [{"key": each.key, "value": each.value} for each in record.headers] or None,
        }
        for batch in made
        for record in batch.records()
        if start <= record.offset < base - 3
    ]
    assert rows(made, start=start, end=base - 3) == expected


def test_a_batch_with_append_time_has_that_time_in_every_row() -> None:
    data = bytearray(encode_batch([NewRecord(b"k", b"v", 1), NewRecord(b"k", b"v", 2)]))
    set_log_append_time(data, 0, 5_000)
    found = rows([raw(bytes(data))], headers=False)
    assert {(row["timestamp"].timestamp(), row["timestampType"]) for row in found} == {(5.0, 1)}


@pytest.mark.parametrize("timestamp", [-1, 2**41, 1_700_000_000_000_000, (2**63 - 1) // 1_000])
def test_a_time_that_spark_has_is_the_records(timestamp: int) -> None:
    builder = RowBuilder(HERE, OffsetRange(Offset(0), Offset(9)), include_headers=False)
    builder.add(raw(encode_batch([NewRecord(b"k", b"v", timestamp)])))
    assert builder.take().column("timestamp").view("int64").to_pylist() == [timestamp * 1_000]


@pytest.mark.parametrize("timestamp", [(2**63 - 1) // 1_000 + 1, 1_700_000_000_000_000_000, 2**63 - 1])
def test_a_time_that_spark_does_not_have_is_an_error_of_its_own(timestamp: int) -> None:
    batch = raw(encode_batch([NewRecord(b"k", b"v", 5), NewRecord(b"k", b"v", timestamp)]))
    undated = RowBuilder(HERE, OffsetRange(Offset(0), Offset(9)), include_headers=False, undated=True)
    undated.add(batch)
    assert undated.take().column("timestamp").view("int64").to_pylist() == [5_000, None]
    with pytest.raises(FarTimestamp, match=rf"t-3 offset 1: the timestamp {timestamp} ms"):
        rows([batch])
    assert len(rows([batch], end=1)) == 1, "outside of what is read it does not matter"


@pytest.mark.parametrize(
    ("section", "count"),
    [
        (b"\x0e\x00\x00\x00\x01\x02a\x00\x00", 1),  # bytes after the last record
        (b"\x10\x00\x00\x00\x01\x02a\x00\x00", 1),  # the record claims to be longer
        (b"\x0e\x00\x00\x00\x01\x40a\x00", 1),  # a value that ends behind its batch
        (b"\x0e\x00\x00\x00\x03\x02a\x00", 1),  # a key of size -2
        (b"\x0e\x00\x00\x00\x01\x02a\xff", 1),  # a number of headers without its end
        (b"\x0e\x00\x00\x00\x01\x02a\x00", 0),
        (b"\x0f\x00\x00\x00\x01\x02a\x00", 1),  # a record of size -8
    ],
)
def test_a_damaged_section_is_an_error_of_its_own(section: bytes, count: int) -> None:
    with pytest.raises(CorruptData):
        rows([raw(seal_batch(section, count, 0, 0))])
