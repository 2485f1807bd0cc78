"""The copy and the bills against the source, record by record, with all that a record has. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Partitions = Mapping[int, Sequence[str]]
"""Whole records by partition, in order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Records of the source; ``lost``, ``doubled``, ``surplus``: in the copy; ``reordered``: partitions of it."""

    records: int
    lost: int
    doubled: int
    surplus: int
    reordered: int
    billed_never: int
    billed_twice: int
    billed_wrong: int

    @property
    def wrong(self) -> list[str]:
        return [] if self.records else ["nothing was written at the source: nothing is shown"]


def compared(origin: Partitions, copy: Partitions, billed: Counter[str]) -> Difference:
    expected = {value for values in origin.values() for value in values}
    copied = Counter(value for values in copy.values() for value in values)
    return Difference(
        records=len(expected),
        lost=len(expected - copied.keys()),
        doubled=sum(count > 1 for count in copied.values()),
        surplus=len(copied.keys() - expected),
        reordered=sum(list(copy.get(each, ())) != list(values) for each, values in origin.items()),
        billed_never=len(expected - billed.keys()),
        billed_twice=sum(count > 1 for count in billed.values()),
        billed_wrong=len(billed.keys() - expected),
    )
