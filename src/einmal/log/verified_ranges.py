"""Which bytes of a file have been validated since this process began. Knows no file."""

from __future__ import annotations

from typing import Final

_RANGES_MAX: Final = 16


class VerifiedRanges:
    """Ranges of positions; neighbours are merged. Forgetting one costs a second look later, nothing else."""

    __slots__ = ("_ranges",)

    def __init__(self) -> None:
        self._ranges: list[tuple[int, int]] = []

    def cover(self, start: int, end: int) -> bool:
        return any(first <= start and end <= last for first, last in self._ranges)

    def add(self, start: int, end: int) -> None:
        apart = []
        for first, last in self._ranges:
            if last < start or end < first:
                apart.append((first, last))
            else:
                start, end = min(first, start), max(last, end)
        apart.append((start, end))
        self._ranges = sorted(apart)[-_RANGES_MAX:]
