"""The timeline of a run: faults have their numbers as long as they do not overlap, and every one has a text."""

from __future__ import annotations

import re

import pytest

from einmal.verify.evidence import NotedFault, Second
from einmal.verify.picture import NARROW_WIDTH, WIDTH, draw

SECONDS = [Second(number % 7, 2.0) for number in range(60)]


@pytest.mark.parametrize(("width", "count"), [(WIDTH, 30), (NARROW_WIDTH, 10)])
def test_a_few_faults_have_numbers(width: int, count: int) -> None:
    picture = draw(SECONDS, [NotedFault(number * 60 / count, f"fault {number}") for number in range(count)], width)
    assert picture.count("<title>") == count
    assert f">{count}</text>" in picture and "stroke-dasharray" in picture


def test_faults_at_the_same_time_have_one_number() -> None:
    picture = draw(SECONDS, [NotedFault(second, f"fault {second}") for second in (10.0, 10.1, 30.0)])
    assert picture.count("<title>") == 3
    assert re.findall(r'aborted\)">(\d*)</text>', picture) == ["1", "", "3"]


@pytest.mark.parametrize(("width", "count"), [(WIDTH, 170), (NARROW_WIDTH, 30)])
def test_many_faults_are_ticks_over_the_plots(width: int, count: int) -> None:
    kinds = ("brokers", "network")
    noted = [NotedFault(number * 60 / count, f"fault {number}", kinds[number % 2]) for number in range(count)]
    picture = draw(SECONDS, [*noted, NotedFault(60.0, "calm")], width)
    assert picture.count("<title>") == count and f"fault {count - 1}<" in picture
    assert all(f">{kind}</text>" in picture for kind in kinds) and "stroke-dasharray" not in picture


@pytest.mark.parametrize("width", [WIDTH, NARROW_WIDTH])
def test_a_long_run_is_drawn_as_means_of_several_seconds(width: int) -> None:
    """A point for each of 3,600 seconds, on fewer pixels, is a smear."""
    picture = draw([Second(100, 2.0)] * 3600, [], width)
    first, second = re.findall('points="(.*?)"', picture)
    assert len(first.split()) == len(second.split()) <= width / 3
    assert "records acknowledged per second, mean of" in picture and ">100</text>" in picture
