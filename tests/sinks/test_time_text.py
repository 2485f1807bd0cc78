"""Claims about times as text: as Arrow has them, and as a calendar has them where Arrow has none."""

from __future__ import annotations

import datetime
import random

import pyarrow
import pytest

from einmal.sinks.time_text import _date, _timestamp, time_text

DAY_US = 86_400_000_000


@pytest.mark.parametrize(
    ("days", "text"),
    [
        (0, "1970-01-01"),
        (-719_162, "0001-01-01"),
        (-719_163, "0000-12-31"),
        (11_248_737, "32767-12-31"),
        (11_248_738, "32768-01-01"),
        (-12_687_429, "-32768-12-31"),
        (2_145_042_905, "5874897-12-31"),
    ],
)
def test_a_day_of_any_year_has_its_text(days: int, text: str) -> None:
    assert time_text(pyarrow.array([days, None, 0], pyarrow.date32())).to_pylist() == [text, None, "1970-01-01"]


@pytest.mark.parametrize("zone", [None, "UTC", "Europe/Berlin"])
@pytest.mark.parametrize(
    ("microseconds", "text"),
    [
        (2**63 - 1, "294247-01-10 04:00:54.775807"),
        (11_248_738 * DAY_US, "32768-01-01 00:00:00.000000"),
        (11_248_738 * DAY_US - 1, "32767-12-31 23:59:59.999999"),
        (-1, "1969-12-31 23:59:59.999999"),
        (-(2**63), "-290308-12-21 19:59:05.224192"),
    ],
)
def test_a_time_of_any_year_has_its_text_in_utc(zone: str | None, microseconds: int, text: str) -> None:
    column = pyarrow.array([microseconds, None, 1], pyarrow.timestamp("us", zone))
    assert time_text(column).to_pylist() == [text, None, "1970-01-01 00:00:00.000001"]


def test_both_calendars_agree_where_both_have_a_text() -> None:
    chosen = random.Random(7)
    times = [chosen.randint(-12_687_428 * DAY_US, 11_248_738 * DAY_US - 1) for _ in range(2_000)]
    assert time_text(pyarrow.array(times, pyarrow.timestamp("us"))).to_pylist() == [*map(_timestamp, times)]
    days = [time // DAY_US for time in times]
    assert time_text(pyarrow.array(days, pyarrow.date32())).to_pylist() == [*map(_date, days)]
    day = datetime.date(2024, 2, 29)
    assert _date((day - datetime.date(1970, 1, 1)).days) == day.isoformat()
