"""Kafka's two hashes, against the values of its own tests and another implementation."""

from __future__ import annotations

import pytest
from aiokafka.partitioner import murmur2 as their_murmur2
from hypothesis import given
from hypothesis import strategies as st

from einmal.wire.java_hash import java_string_hash, partition_for_id
from einmal.wire.murmur2 import murmur2, partition_for_key


@pytest.mark.parametrize(
    ("data", "expected"),
    [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536), (b"abc", 479470107)],
)
def test_murmur2_is_kafkas(data: bytes, expected: int) -> None:
    assert murmur2(data) == expected


@given(st.binary(max_size=64))
def test_murmur2_agrees_with_another_implementation(data: bytes) -> None:
    assert murmur2(data) & 0xFFFFFFFF == their_murmur2(data) & 0xFFFFFFFF
    assert 0 <= partition_for_key(data, 7) < 7


@pytest.mark.parametrize(("text", "expected"), [("", 0), ("hello", 99162322), ("polygenelubricants", -(2**31))])
def test_java_string_hash(text: str, expected: int) -> None:
    assert java_string_hash(text) == expected


def test_characters_beyond_the_basic_plane_count_as_two_units() -> None:
    assert java_string_hash("\U0001f600") == 31 * 0xD83D + 0xDE00


def test_the_smallest_hash_has_partition_zero() -> None:
    assert partition_for_id("polygenelubricants", 50) == 0
    assert partition_for_id("hello", 50) == 99162322 % 50
