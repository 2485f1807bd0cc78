"""Pauses between retries that double: soon again at first, ever later while something fails for long."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

_EXPONENT_MAX: Final = 30


@dataclass(frozen=True, slots=True)
class DoublingPauses:
    """``first`` and ``longest``, in one unit."""

    first: float
    longest: float

    def after(self, number: int) -> float:
        """The pause after so many others: each is twice as long as the one before, up to the longest."""
        return min(self.longest, self.first * (1 << min(number, _EXPONENT_MAX)))
