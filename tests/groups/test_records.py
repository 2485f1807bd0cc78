"""Claims about the bytes of ``__consumer_offsets``."""

from __future__ import annotations

import contextlib
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einmal.groups.records import (
    CommittedOffset,
    GroupMetadata,
    GroupRecord,
    MemberMetadata,
    OffsetRecord,
    decode,
    encode,
)
from einmal.types import ProducerId
from einmal.wire.errors import Malformed, Truncated, WireError

TEXT = st.text(max_size=12)
INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
OFFSETS = st.builds(CommittedOffset, INT64, INT32, TEXT, INT64)
MEMBERS = st.builds(
    MemberMetadata, TEXT, st.none() | TEXT, TEXT, TEXT, INT32, INT32, st.binary(max_size=9), st.binary(max_size=9)
)
GROUPS = st.builds(
    GroupMetadata, TEXT, INT32, st.none() | TEXT, st.none() | TEXT, INT64, st.lists(MEMBERS, max_size=3).map(tuple)
)
RECORDS = st.one_of(
    st.builds(
        OffsetRecord,
        TEXT,
        TEXT,
        INT32,
        st.none() | OFFSETS,
        st.none() | st.integers(0, 9).map(ProducerId),
    ),
    st.builds(GroupRecord, TEXT, st.none() | GROUPS),
)


@given(RECORDS)
def test_every_record_is_read_as_it_was_written(record: Any) -> None:
    key, value = encode(record)
    assert decode(key, value, getattr(record, "producer_id", None)) == record


@given(RECORDS, st.data())
def test_a_cut_record_is_refused_as_broken_input(record: Any, data: st.DataObject) -> None:
    key, value = encode(record)
    size = data.draw(st.integers(0, len(key) - 1))
    with pytest.raises(WireError):
        decode(key[:size], value)
    if value is not None:
        size = data.draw(st.integers(0, len(value) - 1))
        with pytest.raises(WireError):
            decode(key, value[:size])


@given(st.binary(max_size=60), st.none() | st.binary(max_size=60))
def test_garbage_is_refused_or_skipped_and_nothing_else(key: bytes, value: bytes | None) -> None:
    with contextlib.suppress(WireError):
        decode(key, value)


def test_an_offset_has_the_bytes_that_kafka_writes() -> None:
    key, value = encode(OffsetRecord("g", "t", 5, CommittedOffset(42, 3, "m", 1_000)))
    assert key == struct.pack(">hh1sh1si", 1, 1, b"g", 1, b"t", 5)
    assert value == struct.pack(">hqih1sq", 3, 42, 3, 1, b"m", 1_000)


def test_an_offset_that_expires_at_a_time_of_its_own_is_written_in_version_1() -> None:
    offset = CommittedOffset(42, -1, "", 1_000, expire_timestamp=9_000)
    key, value = encode(OffsetRecord("g", "t", 5, offset))
    assert value == struct.pack(">hqhqq", 1, 42, 0, 1_000, 9_000)
    assert decode(key, value) == OffsetRecord("g", "t", 5, offset)


OFFSET_VALUES = {
    0: struct.pack(">hqh1sq", 0, 42, 1, b"m", 1_000),
    1: struct.pack(">hqh1sqq", 1, 42, 1, b"m", 1_000, -1),
    2: struct.pack(">hqh1sq", 2, 42, 1, b"m", 1_000),
    3: struct.pack(">hqih1sq", 3, 42, 3, 1, b"m", 1_000),
    4: struct.pack(">hqiB1sq", 4, 42, 3, 2, b"m", 1_000) + b"\x01\x63\x02\xff\xff",
}


@pytest.mark.parametrize("version", OFFSET_VALUES)
@pytest.mark.parametrize("key_version", [0, 1])
def test_offset_values_of_every_version_are_read(version: int, key_version: int) -> None:
    key = struct.pack(">hh1sh1si", key_version, 1, b"g", 1, b"t", 5)
    leader_epoch = 3 if version >= 3 else -1
    expected = OffsetRecord("g", "t", 5, CommittedOffset(42, leader_epoch, "m", 1_000))
    assert decode(key, OFFSET_VALUES[version]) == expected


def member(version: int) -> bytes:
    if version == 4:
        return struct.pack(">B1sBB1sB1sii", 2, b"m", 0, 2, b"c", 2, b"h", 60, 10) + b"\x02s\x02a\x00"
    instance = struct.pack(">h", -1) if version >= 3 else b""
    rebalance_timeout = struct.pack(">i", 60) if version >= 1 else b""
    client = struct.pack(">h1sh1s", 1, b"c", 1, b"h")
    return b"\x00\x01m" + instance + client + rebalance_timeout + struct.pack(">ii1si1s", 10, 1, b"s", 1, b"a")


@pytest.mark.parametrize("version", range(5))
def test_group_values_of_every_version_are_read(version: int) -> None:
    if version == 4:
        value = struct.pack(">hB8siB5sB1sq", 4, 9, b"consumer", 7, 6, b"range", 2, b"m", 99) + b"\x02"
    else:
        timestamp = struct.pack(">q", 99) if version >= 2 else b""
        value = struct.pack(">hh8sih5sh1s", version, 8, b"consumer", 7, 5, b"range", 1, b"m")
        value += timestamp + b"\x00\x00\x00\x01"
    value += member(version) + (b"\x00" if version == 4 else b"")
    rebalance_timeout_ms = 60 if version >= 1 else 10
    timestamp_ms = 99 if version >= 2 else -1
    expected_member = MemberMetadata("m", None, "c", "h", rebalance_timeout_ms, 10, b"s", b"a")
    expected = GroupMetadata("consumer", 7, "range", "m", timestamp_ms, (expected_member,))
    assert decode(struct.pack(">hh1s", 2, 1, b"g"), value) == GroupRecord("g", expected)


@pytest.mark.parametrize("key_version", [3, 5, 8, 16])
def test_keys_of_other_kinds_of_group_are_skipped(key_version: int) -> None:
    assert decode(struct.pack(">hh1s", key_version, 1, b"g"), b"\x00\x00") is None


def test_a_value_of_an_unknown_version_is_refused() -> None:
    key, _value = encode(GroupRecord("g", None))
    with pytest.raises(Malformed):
        decode(key, b"\x00\x05")


def test_a_member_count_that_lies_is_refused_without_room_being_made_for_it() -> None:
    key, _value = encode(GroupRecord("g", None))
    value = struct.pack(">hhihhqi", 3, 0, 1, -1, -1, 0, 2**31 - 1)
    with pytest.raises(Truncated):
        decode(key, value)
