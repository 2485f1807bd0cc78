"""Claims about partitioning: keys as Java does it, no keys in runs."""

from __future__ import annotations

import random

import pytest

from einmal.client.cores.partitioner import Partitioner

_JAVA_HASHES = {b"21": -973932308, b"foobar": -790332482, b"a-little-bit-long-string": -985981536}
"""As Java's own test of its hash has them."""


@pytest.mark.parametrize("key", _JAVA_HASHES)
def test_a_key_goes_where_java_sends_it(key: bytes) -> None:
    expected = (_JAVA_HASHES[key] & 0x7FFFFFFF) % 10
    chosen = Partitioner(random.Random(1), 100).partition("t", key, 10, 10)
    assert chosen == expected


def test_records_without_a_key_stay_for_a_batch_and_then_move() -> None:
    partitioner = Partitioner(random.Random(1), 100)
    chosen = [partitioner.partition("t", None, 25, 3) for _ in range(40)]
    runs = [chosen[start : start + 4] for start in range(0, 40, 4)]
    assert all(len(set(run)) == 1 for run in runs)
    assert all(left[0] != right[0] for left, right in zip(runs, runs[1:], strict=False))
    assert set(chosen) == {0, 1, 2}


def test_topics_are_independent() -> None:
    partitioner = Partitioner(random.Random(1), 100)
    assert partitioner.partition("one", None, 100, 1) == 0
    assert partitioner.partition("two", None, 100, 1) == 0
    assert partitioner.partition("one", None, 100, 1) == 0


def test_the_choice_is_the_given_source_s() -> None:
    def choices(seed: int) -> list[int]:
        partitioner = Partitioner(random.Random(seed), 1)
        return [partitioner.partition("t", None, 1, 7) for _ in range(20)]

    assert choices(3) == choices(3)
