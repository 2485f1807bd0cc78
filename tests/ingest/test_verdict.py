"""The campaign's own verdict on topics that are made up: a loss, a repeat and a tear are red, and so is no input."""

from __future__ import annotations

import pytest

from tests.ingest.campaign import wrong_with

WRITTEN = ["line 0 xx", "line 1 xxx", "line 2 x"]


def test_lines_that_all_exist_once_are_right_in_any_order() -> None:
    assert wrong_with(WRITTEN, reversed(WRITTEN)) == []


@pytest.mark.parametrize(
    ("found", "kinds"),
    [
        ([], ["lost"]),
        (WRITTEN[1:], ["lost"]),
        ([*WRITTEN, WRITTEN[0]], ["duplicated"]),
        (["line 0 ", *WRITTEN[1:]], ["lost", "invented"]),
        (["line 0", " xx", *WRITTEN[1:]], ["lost", "invented"]),
        (["", *WRITTEN], ["invented"]),
    ],
    ids=["nothing", "lost", "repeated", "torn", "torn in two", "empty"],
)
def test_every_difference_is_red(found: list[str], kinds: list[str]) -> None:
    assert [each.split()[1].rstrip(":") for each in wrong_with(WRITTEN, found)] == kinds


def test_a_campaign_that_has_written_nothing_shows_nothing() -> None:
    assert wrong_with([], []) == ["nothing was written: nothing is shown"]
    assert wrong_with(["a", "a"], ["a"])
