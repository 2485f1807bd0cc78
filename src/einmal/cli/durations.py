"""Durations as options have them, such as ``30s``, ``5m`` or ``1h``."""

from __future__ import annotations

import re
from typing import Final

import typer

_UNITS: Final = {"s": 1, "m": 60, "h": 3600}
_TIME: Final = re.compile(r"(\d+(?:\.\d+)?)([smh]?)")


def seconds_of(option: str, text: str) -> float:
    """The value of an option in seconds. Raises typer.BadParameter."""
    match = _TIME.fullmatch(text.strip())
    if match is None or not float(match[1]):
        raise typer.BadParameter(f"{option}: {text!r} is not a duration, such as 30s, 5m or 1h")
    return float(match[1]) * _UNITS[match[2] or "s"]
