from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from einmal.client.errors import KafkaError
from einmal.sinks.batch_rows import RowRefused
from einmal.sinks.kafka.encoding import Encoding, encoded
from einmal.types import Header
from einmal.wire.compression import Compression
from einmal.wire.record_batch import NewRecord, decode_records, read_header, seal_batch
from tests.spark.strategies import LARGE

HEADERS = pyarrow.list_(pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())]))


def frame(records: list[NewRecord], binary: Any = None) -> Any:
    headers = [[{"key": h.key, "value": h.value} for h in record.headers] or None for record in records]
    binary = binary or pyarrow.binary()
    return pyarrow.record_batch(
        {
            "key": pyarrow.array([record.key for record in records], binary),
            "value": pyarrow.array([record.value for record in records], binary),
            "headers": pyarrow.array(headers, HEADERS),
            "timestamp": pyarrow.array([record.timestamp for record in records], pyarrow.int64()),
        }
    )


def by_value(rows: Any, _task: int) -> Any:
    return np.array([len(value or b"") % 3 for value in rows.column("value").to_pylist()])


def sections_of(batches: list[Any], **changed: Any) -> Iterator[dict[str, Any]]:
    settings: dict[str, Any] = {
        "batch_bytes": 200,
        "largest": 20_000,
        "now_ms": 77,
        "topic": "t",
        "compression": Compression.NONE,
    }
    for sections in encoded(Encoding(choose=by_value, **settings | changed), 7, iter(batches)):
        yield from sections.to_pylist()


RECORDS = st.lists(
    st.builds(
        NewRecord,
        st.none() | st.binary(max_size=70),
        st.none() | st.binary(max_size=200) | LARGE,
        st.integers(0, 2**41),
        st.lists(st.builds(Header, st.text(max_size=5), st.none() | st.binary(max_size=5)), max_size=2).map(tuple),
    ),
    min_size=1,
    max_size=10,
)


@pytest.mark.parametrize("binary", [pyarrow.binary(), pyarrow.large_binary()])
@given(st.lists(RECORDS, min_size=1, max_size=3), st.sampled_from(Compression))
def test_every_row_is_a_record_of_its_partition_in_the_order_of_the_rows(
    binary: Any, given_records: list[list[NewRecord]], compression: Compression
) -> None:
    sections = list(sections_of([frame(each, binary) for each in given_records], compression=compression))
    found: dict[int, list[NewRecord]] = {}
    for position, section in enumerate(sections):
        assert (section["task"], section["position"]) == (7, position)
        batch = seal_batch(
            section["section"],
            section["count"],
            section["first_timestamp"],
            section["max_timestamp"],
            compression=compression,
        )
        records = decode_records(batch, 0, read_header(batch))
        assert [record.offset for record in records] == list(range(section["count"]))
        assert max(record.timestamp for record in records) == section["max_timestamp"]
        found.setdefault(section["number"], []).extend(
            NewRecord(*record[2:4], record[1], record[4]) for record in records
        )
    expected: dict[int, list[NewRecord]] = {}
    for record in [record for records in given_records for record in records]:
        expected.setdefault(len(record.value or b"") % 3, []).append(record)
    assert found == expected


def test_a_section_ends_where_a_batch_would_become_too_large() -> None:
    records = [NewRecord(None, b"x" * 30, 5)] * 20
    sections = list(sections_of([frame(records)]))
    assert sum(section["count"] for section in sections) == 20
    assert all(len(section["section"]) <= 200 for section in sections)
    assert all(section["count"] > 2 for section in sections[:-1])


def test_a_row_without_a_time_has_the_batchs() -> None:
    rows = frame([NewRecord(None, b"x", 5)] * 2)
    rows = rows.set_column(3, "timestamp", pyarrow.array([None, 5], pyarrow.int64()))
    (section,) = sections_of([rows])
    assert (section["first_timestamp"], section["max_timestamp"]) == (77, 77)


@pytest.mark.parametrize("timestamp", [-1, 0, 1_700_000_000_000_000, 2**63 - 1])
def test_each_time_of_a_record_is_kept(timestamp: int) -> None:
    (section,) = sections_of([frame([NewRecord(None, b"x", timestamp)])])
    assert (section["first_timestamp"], section["max_timestamp"]) == (timestamp, timestamp)


def test_a_row_that_cannot_be_a_record_is_refused() -> None:
    with pytest.raises(RowRefused, match="3 ms before 1970"):
        list(sections_of([frame([NewRecord(None, b"x", -3)])]))
    with pytest.raises(KafkaError, match=r"kafka\.max\.request\.size is 50") as refused:
        list(sections_of([frame([NewRecord(None, b"x" * 60, 3)])], largest=50))
    assert "t: a row of 76 bytes makes a batch of 137" in str(refused.value)
    assert "Raise kafka.max.request.size" in str(refused.value)
    assert "max.message.bytes" not in str(refused.value)
    rows = frame([NewRecord(None, b"x", 3)])
    nameless = pyarrow.array([[{"key": None, "value": b"v"}]], HEADERS)
    with pytest.raises(RowRefused, match="header without a key"):
        list(sections_of([rows.set_column(2, "headers", nameless)]))


def test_nothing_is_made_of_no_rows() -> None:
    assert list(sections_of([])) == []
    assert list(sections_of([frame([])])) == []
