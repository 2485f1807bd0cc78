"""The campaign's own verdict on copies and bills that are made up: a loss, a repeat and a tear are red."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import Any

import pytest

from tests.mirroring.campaign.verdict import Partitions, compared

ORIGIN: dict[int, list[str]] = {
    0: ['{"part": 0, "amount": -7}', '{"part": 1, "amount": 3}'],
    1: ['{"part": 2, "amount": 4}'],
}
BILLS = Counter(value for values in ORIGIN.values() for value in values)
A, B = ORIGIN[0]
(C,) = ORIGIN[1]
RIGHT = dict.fromkeys(asdict(compared(ORIGIN, ORIGIN, BILLS)), 0) | {"records": 3}


def found(copy: Partitions = ORIGIN, billed: Counter[str] = BILLS) -> dict[str, Any]:
    """What is not as it must be."""
    seen = asdict(compared(ORIGIN, copy, billed))
    return {name: count for name, count in seen.items() if count != RIGHT[name]}


def test_a_copy_and_bills_that_are_equal_are_right() -> None:
    assert found() == {}
    assert compared(ORIGIN, ORIGIN, BILLS).wrong == []


@pytest.mark.parametrize(
    ("copy", "seen"),
    [
        ({}, {"lost": 3, "reordered": 2}),
        ({0: [A], 1: [C]}, {"lost": 1, "reordered": 1}),
        ({0: [A, B, B], 1: [C]}, {"doubled": 1, "reordered": 1}),
        ({0: [B, A], 1: [C]}, {"reordered": 1}),
        ({0: [A, B], 1: ['{"part": 2, "amount": 5}']}, {"lost": 1, "surplus": 1, "reordered": 1}),
        ({0: [A, B], 1: [C[:-4]]}, {"lost": 1, "surplus": 1, "reordered": 1}),
    ],
    ids=["nothing", "lost", "repeated", "late", "another amount", "torn"],
)
def test_every_difference_of_the_copy_is_red(copy: Partitions, seen: dict[str, int]) -> None:
    assert found(copy) == seen


@pytest.mark.parametrize(
    ("billed", "seen"),
    [
        (Counter[str](), {"billed_never": 3}),
        (BILLS - Counter([A]), {"billed_never": 1}),
        (BILLS + Counter([A]), {"billed_twice": 1}),
        (BILLS + Counter(["{}"]), {"billed_wrong": 1}),
        (BILLS - Counter([C]) + Counter(['{"part": 2, "amount": 5}']), {"billed_never": 1, "billed_wrong": 1}),
    ],
    ids=["nothing", "lost", "repeated", "invented", "another amount"],
)
def test_every_difference_of_the_bills_is_red(billed: Counter[str], seen: dict[str, int]) -> None:
    assert found(billed=billed) == seen


def test_a_campaign_without_records_shows_nothing() -> None:
    assert compared({0: [], 1: []}, {}, Counter()).wrong
