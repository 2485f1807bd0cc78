"""Claims about the parts of a run."""

from __future__ import annotations

import argparse

import pytest

from tests.suite.durations import Durations
from tests.suite.shards import Shard

DURATIONS = Durations({f"file-{seconds}": float(seconds) for seconds in range(1, 31)})


def test_each_file_is_in_one_part_and_the_parts_are_about_as_long() -> None:
    parts = [Shard(number, 4).of(DURATIONS.seconds, DURATIONS) for number in range(1, 5)]
    assert sorted(file for part in parts for file in part) == sorted(DURATIONS.seconds)
    sums = [sum(map(DURATIONS.of, part)) for part in parts]
    assert max(sums) - min(sums) <= 2


def test_a_part_does_not_depend_on_the_order_of_the_files() -> None:
    files = list(DURATIONS.seconds)
    assert Shard(2, 3).of(files, DURATIONS) == Shard(2, 3).of(reversed(files), DURATIONS)


@pytest.mark.parametrize("text", ["", "1", "0/3", "4/3", "1/0", "a/b", "1/3/5", "-1/3"])
def test_what_is_no_part_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="2/3"):
        Shard.parse(text)


def test_a_part_is_read_as_it_is_written() -> None:
    assert Shard.parse("2/3") == Shard(2, 3)
