import numpy as np
import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from einmal.sinks.kafka.vectors import Varints, joined, murmur2s, read_varints
from einmal.wire.errors import CorruptBatch
from einmal.wire.murmur2 import murmur2
from einmal.wire.record_batch import encode_varint

NUMBERS = st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-200, 20_000), min_size=1, max_size=20)


@given(NUMBERS)
def test_varints_of_a_column_are_those_of_its_numbers(numbers: list[int]) -> None:
    made = joined(Varints(np.array(numbers, np.int64)), b"\x00").to_pylist()
    assert made == [encode_varint(number) + b"\x00" for number in numbers]


@given(NUMBERS)
def test_a_column_of_varints_is_read_at_its_positions(numbers: list[int]) -> None:
    encoded = [encode_varint(number) for number in numbers]
    ends = np.cumsum([len(each) for each in encoded])
    found, after = read_varints(np.frombuffer(b"".join(encoded), np.uint8), np.append(0, ends[:-1]))
    assert found.tolist() == numbers
    assert after.tolist() == ends.tolist()


def test_a_varint_without_an_end_is_corrupt() -> None:
    with pytest.raises(CorruptBatch):
        read_varints(np.full(20, 0xFF, np.uint8), np.array([0]))
    with pytest.raises(IndexError):
        read_varints(np.full(2, 0xFF, np.uint8), np.array([0]))


@given(st.lists(st.none() | st.binary(max_size=30), max_size=20), st.integers(0, 3))
def test_the_hashes_of_a_column_are_those_of_its_keys(keys: list[bytes | None], skipped: int) -> None:
    hashes = murmur2s(pyarrow.array(keys, pyarrow.binary())[skipped:])
    assert hashes.tolist() == [murmur2(key or b"") & 0x7FFFFFFF for key in keys[skipped:]]
