import pytest
from hypothesis import given
from hypothesis import strategies as st

from einmal.log.time_index import ENTRY_SIZE, TimeIndex
from einmal.types import Offset


def index_of(timestamps: list[int]) -> TimeIndex:
    index = TimeIndex(Offset(100))
    for number, timestamp in enumerate(timestamps):
        index.maybe_append(timestamp, Offset(100 + number))
    return index


def test_an_entry_is_an_int64_and_a_relative_int32() -> None:
    index = TimeIndex(Offset(100))
    index.maybe_append(1_700_000_000_000, Offset(103))
    assert index.encode() == bytes.fromhex("0000018bcfe56800 00000003")


@given(st.lists(st.integers(-1, 60), max_size=40), st.integers(0, 60))
def test_nothing_before_the_offset_looked_up_is_later_than_the_timestamp(timestamps: list[int], wanted: int) -> None:
    start = index_of(timestamps).lookup(wanted) - 100
    assert all(timestamp < wanted for timestamp in timestamps[:start] if timestamp != wanted)
    first = next((number for number, timestamp in enumerate(timestamps) if timestamp >= wanted), None)
    assert first is None or start <= first


@given(st.lists(st.integers(-1, 60), max_size=40))
def test_timestamps_only_rise_and_survive_decoding(timestamps: list[int]) -> None:
    index = index_of(timestamps)
    decoded = TimeIndex.decode(Offset(100), index.encode())
    assert decoded.encode() == index.encode()
    latest = max((timestamp for timestamp in timestamps if timestamp >= 0), default=-1)
    assert decoded.last() == (latest, 100 + timestamps.index(latest) if latest >= 0 else 100)


def test_encoding_from_an_entry_on_leaves_out_those_before() -> None:
    index = index_of([1, 2, 3])
    assert index.encode(2) == index.encode()[2 * ENTRY_SIZE :]


def test_truncation_leaves_only_entries_below() -> None:
    index = index_of([1, 2, 3])
    index.truncate_to(Offset(102))
    assert index.last() == (2, 101)


def test_half_an_entry_is_refused() -> None:
    with pytest.raises(ValueError):
        TimeIndex.decode(Offset(0), bytes(ENTRY_SIZE - 1))
