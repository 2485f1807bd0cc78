import pytest
from hypothesis import given
from hypothesis import strategies as st

from einmal.log.offset_index import ENTRY_SIZE, OffsetIndex
from einmal.types import Offset, Position

entries = st.lists(st.tuples(st.integers(1, 50), st.integers(1, 5_000)), max_size=50)


def index_of(steps: list[tuple[int, int]], base: int = 1000) -> tuple[OffsetIndex, list[tuple[int, int]]]:
    index, known = OffsetIndex(Offset(base)), []
    offset, position = base, 0
    for offset_step, position_step in steps:
        offset, position = offset + offset_step, position + position_step
        index.append(Offset(offset), Position(position))
        known.append((offset, position))
    return index, known


def test_an_entry_is_two_big_endian_int32_relative_to_the_base_offset() -> None:
    index, _ = index_of([(5, 4096), (1, 100)])
    assert index.encode() == bytes.fromhex("00000005 00001000 00000006 00001064")


@given(entries, st.integers(990, 4_000))
def test_lookup_finds_the_last_entry_that_is_not_above(steps: list[tuple[int, int]], offset: int) -> None:
    index, known = index_of(steps)
    expected = [(position, last) for last, position in known if last <= offset]
    assert index.lookup(Offset(offset)) == (expected[-1] if expected else (0, 1000))


@given(entries, st.integers(-1, 300_000), st.integers(0, 5))
def test_floor_finds_the_last_position_that_is_not_above(
    steps: list[tuple[int, int]], position: int, back: int
) -> None:
    index, known = index_of(steps)
    below = [0, *(each for _, each in known if each <= position)]
    assert index.floor(position) == below[-1]
    assert index.floor_before(position, back) == below[max(0, len(below) - 1 - back)]


@given(entries, st.integers(0, 50))
def test_decoding_gives_back_what_was_encoded_in_parts(steps: list[tuple[int, int]], first: int) -> None:
    index, _ = index_of(steps)
    first = min(first, len(index))
    data = index.encode()[: first * ENTRY_SIZE] + index.encode(first)
    decoded = OffsetIndex.decode(Offset(1000), data)
    assert decoded.encode() == index.encode()
    assert len(decoded) == len(steps)


@given(entries, st.integers(1000, 4_000))
def test_truncation_leaves_only_entries_below(steps: list[tuple[int, int]], offset: int) -> None:
    index, known = index_of(steps)
    index.truncate_to(Offset(offset))
    assert len(index) == len([last for last, _ in known if last < offset])


def test_half_an_entry_is_refused() -> None:
    with pytest.raises(ValueError):
        OffsetIndex.decode(Offset(0), bytes(ENTRY_SIZE + 3))
