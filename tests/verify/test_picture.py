"""The timeline of a run: faults have their numbers as long as they do not overlap, and every one has a text."""

from __future__ import annotations

import pytest

from einmal.verify.evidence import NotedFault, Second
from einmal.verify.picture import NARROW_WIDTH, WIDTH, draw

SECONDS = [Second(number % 7, 2.0) for number in range(60)]


@pytest.mark.parametrize(("width", "count"), [(WIDTH, 30), (NARROW_WIDTH, 10)])
def test_a_few_faults_have_numbers(width: int, count: int) -> None:
    picture = draw(SECONDS, [NotedFault(number, f"fault {number}") for number in range(count)], width)
    assert picture.count("<title>") == count
    assert f">{count}</text>" in picture and ">faults</text>" not in picture


@pytest.mark.parametrize(("width", "count"), [(WIDTH, 170), (NARROW_WIDTH, 30)])
def test_many_faults_are_ticks_over_the_plots(width: int, count: int) -> None:
    picture = draw(SECONDS, [NotedFault(number * 60 / count, f"fault {number}") for number in range(count)], width)
    assert picture.count("<title>") == count and f"fault {count - 1}<" in picture
    assert ">faults</text>" in picture and "stroke-dasharray" not in picture
