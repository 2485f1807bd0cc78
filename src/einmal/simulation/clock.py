"""Clocks of simulated hosts: virtual time, with a skew and a drift of their own."""

from __future__ import annotations

import random
from typing import Final

from einmal.simulation.loop import SimulatedLoop
from einmal.types import Instant

EPOCH_MS: Final = 1_767_225_600_000
"""The wall clock at virtual second 0: 2026-01-01."""


class SimulatedClock:
    """``skew_ms``: how far the wall clock is off; ``drift``: how much faster than time it runs (0.01: one percent)."""

    def __init__(self, loop: SimulatedLoop, *, skew_ms: int = 0, drift: float = 0.0, boot_ms: int = 0) -> None:
        self._loop = loop
        self.skew_ms = skew_ms
        self._rate = 1000.0 * (1.0 + drift)
        self._boot_ms = boot_ms

    def now(self) -> Instant:
        passed = int(self._loop.time() * self._rate)
        return Instant(EPOCH_MS + passed + self.skew_ms, self._boot_ms + passed)

    def jump(self, by_ms: int) -> None:
        """Set the wall clock forward or back; the monotonic clock does not notice."""
        self.skew_ms += by_ms


def skewed_clock(loop: SimulatedLoop, source: random.Random) -> SimulatedClock:
    """A clock as some machine may have it: seconds off, a little too fast or slow."""
    return SimulatedClock(
        loop,
        skew_ms=source.choice((0, source.randint(-5_000, 5_000))),
        drift=source.choice((0.0, source.uniform(-0.0005, 0.0005))),
        boot_ms=source.randint(0, 10_000_000),
    )
