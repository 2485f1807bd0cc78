"""Injectors of faults that a seed draws, and the loop that lets one of them inject."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Protocol


class FaultInjector(Protocol):
    """``calm_s``: bounds of the calm before each fault."""

    @property
    def calm_s(self) -> tuple[float, float]: ...

    async def inject(self, chance: random.Random, note: Callable[[str], None]) -> None:
        """One fault, to its end, in words for ``note``."""

    async def calm(self) -> None:
        """End every fault."""


async def inject_faults(
    injector: FaultInjector,
    chance: random.Random,
    note: Callable[[str], None],
    progress: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """One fault after another until cancelled, each after a calm. ``progress``: awaited before the calm."""
    while True:
        if progress is not None:
            await progress()
        await asyncio.sleep(chance.uniform(*injector.calm_s))
        await injector.inject(chance, note)
