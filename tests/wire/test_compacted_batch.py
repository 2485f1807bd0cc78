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
    assemble,
    decode_records,
    encode_batch,
    encode_record,
    read_header,
    records_section,
    set_log_append_time,
    validate,
)
from einmal.wire.record_scan import record_times

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


@given(
    st.integers(-(2**63), 2**63 - 1),
    st.lists(st.sampled_from((-(2**63), -(2**62), -1, 0, T, 2**62, 2**63 - 1)), min_size=2, max_size=3),
    st.sampled_from([None, T, 2**63 - 1, T + 2**63 - 1]),
    st.booleans(),
)
def test_timestamps_at_the_ends_of_their_type_can_be_read_again(
    base: int, deltas: list[int], horizon: int | None, has_append_time: bool
) -> None:
    """A delete.retention.ms of 2^63 - 1 made logs uncleanable, and far timestamps varints of more than 64 bits."""
    deltas = [delta for delta in deltas if -(2**63) <= base + delta < 2**63] or [0]
    section = b"".join(encode_record(delta, number, b"key", None, ()) for number, delta in enumerate(deltas))
    header = read_header(encode_batch([NewRecord(b"", b"", 0, ())] * len(deltas)))
    latest = base + max(deltas)
    written = bytearray(assemble(header._replace(base_timestamp=base, max_timestamp=latest), section))
    if has_append_time:
        set_log_append_time(written, 0, T)
    before, records = opened(bytes(written))
    data = encode_retained(before, records, horizon)
    after, found = opened(data)
    assert found == records
    assert len(list(record_times(records_section(data, 0, after), len(records)))) == len(records)
    if horizon is not None:
        assert (delete_horizon(after) or 0) <= horizon


@pytest.mark.parametrize("compression", Compression)
@pytest.mark.parametrize("append_time", [None, T + 5])
def test_an_empty_batch_keeps_its_producers_state(compression: Compression, append_time: int | None) -> None:
    before, records = opened(original(compression, append_time=append_time))
    before, _ = opened(encode_retained(before, records, T))
    after, found = opened(encode_empty(before))
    assert found == []
    assert same(before, after)
    assert (after.size, after.base_timestamp, after.max_timestamp) == (61, -1, before.max_timestamp)
    assert after.attributes & (DELETE_HORIZON | 0x07) == 0
