"""Dates and times of Arrow as text in the form of ISO 8601, also in years that Arrow has no text for."""

from __future__ import annotations

import datetime
from typing import Any, Final

_NEAR_DAYS: Final = (-12_687_428, 11_248_737)
"""The first day of the year -32767, the last of 32767: others are "out of range" in Arrow's text, or another year."""
_DAY_US: Final = 86_400_000_000
_CYCLE_DAYS: Final = 146_097
"""400 years, after which the calendar repeats."""


def time_text(column: Any) -> Any:
    """A column of dates or of timestamps as strings; timestamps in UTC, without a zone, with microseconds."""
    import pyarrow
    from pyarrow import compute

    is_date = pyarrow.types.is_date(column.type)
    kind = pyarrow.date32() if is_date else pyarrow.timestamp("us")
    if not is_date and column.type.tz is not None:
        # Arrow formats a time with a zone thirty times slower.
        column = column.cast(pyarrow.timestamp("us", column.type.tz)).cast(pyarrow.int64())
    column = column.cast(kind)
    numbers = column.cast(pyarrow.int32() if is_date else pyarrow.int64())
    first, last = _NEAR_DAYS
    least, most = (first, last) if is_date else (first * _DAY_US, (last + 1) * _DAY_US - 1)
    extremes = compute.min_max(numbers).as_py()
    if extremes["min"] is None or (extremes["min"] >= least and extremes["max"] <= most):
        return column.cast(pyarrow.string())
    is_near = compute.and_(compute.greater_equal(numbers, least), compute.less_equal(numbers, most))
    texts = compute.if_else(is_near, column, pyarrow.scalar(None, kind)).cast(pyarrow.string()).to_pylist()
    for number in compute.indices_nonzero(compute.invert(is_near)).to_pylist():
        value = numbers[number].as_py()
        texts[number] = _date(value) if is_date else _timestamp(value)
    return pyarrow.array(texts, pyarrow.string())


def _date(days: int) -> str:
    cycles, day = divmod(days + datetime.date(1970, 1, 1).toordinal() - 1, _CYCLE_DAYS)
    date = datetime.date.fromordinal(day + 1)
    year = date.year + 400 * cycles
    return f"{'-' if year < 0 else ''}{abs(year):04}-{date:%m-%d}"


def _timestamp(microseconds: int) -> str:
    days, of_day = divmod(microseconds, _DAY_US)
    seconds, fraction = divmod(of_day, 1_000_000)
    return f"{_date(days)} {seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.{fraction:06}"
