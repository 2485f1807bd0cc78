"""What compaction leaves of a batch is a valid batch of the same offsets, sequences and producer."""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einmal.types import Header
from einmal.wire.compacted_batch import DELETE_HORIZON, delete_horizon, encode_empty, encode_retained
from einmal.wire.compression import Compression
from einmal.wire.record_batch import (
    BatchHeader,
    NewRecord,
    Record,
    decode_records,
    encode_batch,
    read_header,
    set_log_append_time,
    validate,
)

T: Final = 1_700_000_000_000
KEPT_FIELDS: Final = (
    "base_offset",
    "last_offset",
    "partition_leader_epoch",
    "producer_id",
    "producer_epoch",
    "base_sequence",
    "last_sequence",
    "is_transactional",
    "is_control",
    "has_log_append_time",
)


def original(compression: Compression, count: int = 6, *, append_time: int | None = None) -> bytes:
    records = [
        NewRecord(
            b"key %d" % number,
            None if number % 3 == 2 else b"value %d" % number * number,
            T - number * 1000,
            (Header("name", b"x"), Header("none", None)) if number % 2 else (),
        )
        for number in range(count)
    ]
    data = bytearray(
        encode_batch(
            records,
            producer_id=7,
            producer_epoch=3,
            base_sequence=2**31 - 3,
            transactional=True,
            compression=compression,
            base_offset=1_000,
            leader_epoch=5,
        )
    )
    if append_time is not None:
        set_log_append_time(data, 0, append_time)
    return bytes(data)


def opened(data: bytes) -> tuple[BatchHeader, list[Record]]:
    header = read_header(data)
    assert header.size == len(data)
    validate(data, 0, header)
    return header, decode_records(data, 0, header)


def same(first: BatchHeader, second: BatchHeader) -> bool:
    return all(getattr(first, name) == getattr(second, name) for name in KEPT_FIELDS)


@given(
    st.sampled_from(Compression),
    st.sets(st.integers(0, 5), min_size=1),
    st.sampled_from([None, T + 86_400_000]),
    st.sampled_from([None, T + 5]),
)
def test_the_records_that_stay_are_as_they_were(
    compression: Compression, kept: set[int], horizon: int | None, append_time: int | None
) -> None:
    before, records = opened(original(compression, append_time=append_time))
    stay = [records[number] for number in sorted(kept)]
    after, found = opened(encode_retained(before, stay, horizon))
    assert found == stay
    assert same(before, after)
    assert after.compression is compression
    assert delete_horizon(after) == horizon
    assert after.max_timestamp == max(record.timestamp for record in stay)


def test_a_horizon_that_is_set_stays_when_more_records_go() -> None:
    before, records = opened(original(Compression.GZIP))
    with_horizon, records = opened(encode_retained(before, records, T + 1))
    after, found = opened(encode_retained(with_horizon, records[2:3], delete_horizon(with_horizon)))
    assert (delete_horizon(after), found) == (T + 1, records[2:3])


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("append_time", [None, T + 5])
def test_an_empty_batch_says_what_its_producer_has_written(compression: Compression, append_time: int | None) -> None:
    before, records = opened(original(compression, append_time=append_time))
    before, _ = opened(encode_retained(before, records, T))
    after, found = opened(encode_empty(before))
    assert found == []
    assert same(before, after)
    assert (after.size, after.base_timestamp, after.max_timestamp) == (61, -1, before.max_timestamp)
    assert after.attributes & (DELETE_HORIZON | 0x07) == 0
