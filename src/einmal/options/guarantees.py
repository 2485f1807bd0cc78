"""Guarantees of several hops or links together, and of a source by its options. Pure.

The words are those of ``processing.guarantee``, with two more. A guarantee excludes losses, repetitions, or both: hops
that may lose records, behind others that may repeat some, guarantee nothing together.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from einmal.options.sink import AT_LEAST_ONCE, AT_MOST_ONCE, EXACTLY_ONCE

UNKNOWN: Final = "unknown"
NONE: Final = "none"
"""No guarantee: records may be lost, and may be repeated."""

REPLAYED_FILES: Final = ("parquet", "json", "csv", "text", "orc", "avro")
_REPLAYED: Final = (*REPLAYED_FILES, "rate-micro-batch", "delta")


def together(guarantees: Iterable[str]) -> str:
    """The guarantee for records that take all of these ways, one after the other or side by side."""
    several = set(guarantees)
    may_lose, may_repeat = several & {AT_MOST_ONCE, NONE}, several & {AT_LEAST_ONCE, NONE}
    if may_lose and may_repeat:
        return NONE
    if UNKNOWN in several:
        return UNKNOWN
    return AT_MOST_ONCE if may_lose else AT_LEAST_ONCE if may_repeat else EXACTLY_ONCE


def guarantee_of_source(kind: str, isolation: str | None, *, fails_on_data_loss: bool = True) -> str:
    """The guarantee of a source of this format; ``isolation`` is None where it reads no topics. ``fails_on_data_loss``:
    an option of Kafka's sources and Delta's."""
    if isolation is None:
        if kind == "delta" and not fails_on_data_loss:
            return AT_MOST_ONCE
        return AT_MOST_ONCE if kind == "socket" else EXACTLY_ONCE if kind in _REPLAYED else UNKNOWN
    return together(
        [
            EXACTLY_ONCE if isolation == "read_committed" else AT_LEAST_ONCE,
            EXACTLY_ONCE if fails_on_data_loss else AT_MOST_ONCE,
        ]
    )
