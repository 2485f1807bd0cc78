"""Parts of a run for several machines: each file in one part, and all parts about as long."""

from __future__ import annotations

import argparse
import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from tests.suite.durations import Durations


@dataclass(frozen=True, slots=True)
class Shard:
    """Part ``number`` of ``count``, from 1."""

    number: int
    count: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """From "2/3". Raises argparse.ArgumentTypeError."""
        number, slash, count = text.partition("/")
        if not (slash and number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
            raise argparse.ArgumentTypeError(f"{text!r} is not like 2/3, the second of three parts")
        return cls(int(number), int(count))

    def of(self, files: Iterable[str], durations: Durations) -> frozenset[str]:
        """Its files: the longest file first, each to the part that is the shortest so far."""
        parts: list[tuple[float, int, list[str]]] = [(0.0, number, []) for number in range(1, self.count + 1)]
        for file in sorted(files, key=lambda each: (-durations.of(each), each)):
            seconds, number, chosen = heapq.heappop(parts)
            heapq.heappush(parts, (seconds + durations.of(file), number, [*chosen, file]))
        return frozenset(next(chosen for _, number, chosen in parts if number == self.number))
