"""Claims about guarantees together: losses and repetitions add up, and neither hides the other."""

from __future__ import annotations

import itertools

import pytest

from einmal.options.guarantees import NONE, UNKNOWN, guarantee_of_source, together
from einmal.options.sink import AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE


@pytest.mark.parametrize(
    ("several", "expected"),
    [
        ((), EXACTLY_ONCE),
        ((EXACTLY_ONCE, EXACTLY_ONCE), EXACTLY_ONCE),
        ((EXACTLY_ONCE, AT_LEAST_ONCE), AT_LEAST_ONCE),
        ((EXACTLY_ONCE, AT_MOST_ONCE), AT_MOST_ONCE),
        ((AT_LEAST_ONCE, AT_MOST_ONCE), NONE),
        ((NONE, EXACTLY_ONCE), NONE),
        ((UNKNOWN, EXACTLY_ONCE), UNKNOWN),
        ((UNKNOWN, AT_MOST_ONCE), UNKNOWN),
        ((UNKNOWN, NONE), NONE),
    ],
)
def test_what_one_way_loses_and_another_repeats_is_no_guarantee(several: tuple[str, ...], expected: str) -> None:
    assert {together(order) for order in itertools.permutations(several)} == {expected}


def test_it_does_not_matter_how_ways_are_put_together() -> None:
    words = (NONE, AT_MOST_ONCE, AT_LEAST_ONCE, EXACTLY_ONCE)
    for first, second, third in itertools.product(words, repeat=3):
        assert together([together([first, second]), third]) == together([first, second, third])


@pytest.mark.parametrize(
    ("kind", "isolation", "fails", "expected"),
    [
        ("einmal", "read_committed", True, EXACTLY_ONCE),
        ("kafka", "read_uncommitted", True, AT_LEAST_ONCE),
        ("einmal", "read_committed", False, AT_MOST_ONCE),
        ("einmal", "read_uncommitted", False, NONE),
        ("socket", None, True, AT_MOST_ONCE),
        ("csv", None, True, EXACTLY_ONCE),
        ("somebody's", None, True, UNKNOWN),
    ],
)
def test_a_source_loses_what_it_passes_over_and_repeats_what_is_aborted(
    kind: str, isolation: str | None, fails: bool, expected: str
) -> None:
    assert guarantee_of_source(kind, isolation, fails_on_data_loss=fails) == expected
