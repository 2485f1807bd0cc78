"""Pauses between retries, with jitter from the client's own source of randomness."""

from __future__ import annotations

import asyncio
import random

from einmal.client.cores.pacing import pause_ms


class Backoff:
    """One series of retries: ``first_ms``, then ever longer up to ``longest_ms``, each pause 0.8 to 1.2 times that."""

    def __init__(self, source: random.Random, first_ms: int, longest_ms: int) -> None:
        self._source = source
        self._first_ms = first_ms
        self._longest_ms = longest_ms
        self._pauses = 0

    def next_ms(self) -> int:
        pause = pause_ms(self._pauses, self._first_ms, self._longest_ms)
        self._pauses += 1
        return max(1, int(pause * self._source.uniform(0.8, 1.2)))

    async def pause(self, at_most_ms: int | None = None) -> None:
        pause = self.next_ms()
        if at_most_ms is not None:
            pause = max(0, min(pause, at_most_ms))
        await asyncio.sleep(pause / 1000)
