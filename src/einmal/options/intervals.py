"""Intervals between batches in the words of Spark's SQL, such as "10 seconds", as Spark parses those of a trigger."""

from __future__ import annotations

import re
from typing import Final

from einmal.options.values import OptionError

_UNITS_US: Final = {
    "microsecond": 1,
    "millisecond": 1_000,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 7 * 86_400_000_000,
}
_MONTHS: Final = {"month": 1, "year": 12}
_TRIMMED: Final = "".join(map(chr, (*range(0x21), 0x7F)))
_PREFIX: Final = re.compile(r"interval\s", re.ASCII)
_PART: Final = re.compile(
    r"\s*(?:(?P<sign>[+-])\s*(?=[\d.])|(?=\.?\d))(?P<whole>\d{0,100})(?:\.(?P<fraction>\d{0,9}))?\s+"
    rf"(?P<unit>{'|'.join((*_UNITS_US, *_MONTHS))})s?(?=\s|$)",
    re.ASCII,
)
"""A sum has several of them, each with a unit. Python converts no more than some thousand digits."""
_MAX_US: Final = 2**63 - 1


def trigger_interval_us(name: str, text: str) -> int:
    """The interval of a processing-time trigger in microseconds. ``name``: of the option. Raises OptionError."""
    rest = text.strip(_TRIMMED).lower()
    prefix = _PREFIX.match(rest)
    at = 0 if prefix is None else prefix.end()
    total = months = 0
    while at < len(rest):
        part = _PART.match(rest, at)
        if part is None or (part["fraction"] is not None and part["unit"] != "second"):
            raise _refused(name, text)
        sign, whole = -1 if part["sign"] == "-" else 1, int(part["whole"] or 0)
        months += sign * whole * _MONTHS.get(part["unit"], 0)
        total += sign * whole * _UNITS_US.get(part["unit"], 0)
        total += sign * (int((part["fraction"] or "").ljust(9, "0")) // 1_000)
        at = part.end()
    if not rest or months or not 0 <= total <= _MAX_US:
        raise _refused(name, text)
    return total


def _refused(name: str, text: str) -> OptionError:
    return OptionError(
        f"{name} is an interval of days, hours, minutes, seconds or milliseconds, not {text!r:.300}\n"
        'hint: "10 seconds", "500 milliseconds" or "1 minute 30 seconds": a number, a space, a unit'
    )
