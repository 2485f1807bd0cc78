"""Faults around a system that somebody else drives, by a seed, and a calm at the end."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from einmal.chaos.injector import FaultInjector, inject_faults

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ChaosRun:
    """``injectors``: by a name that their draws depend on. ``seconds``: of faults; None: until the end of the run."""

    injectors: Mapping[str, FaultInjector]
    seed: int
    seconds: float | None
    note: Callable[[str], None]

    async def run(self, end: Awaitable[T]) -> T:
        """Inject faults while time is left, then keep calm until ``end``, and return what it returns.

        Raises BrokerFailed where a disturbed broker does not come back.
        """
        awaited = asyncio.ensure_future(end)
        faults = [
            asyncio.ensure_future(inject_faults(injector, random.Random(f"{self.seed}/{name}"), self.note))
            for name, injector in self.injectors.items()
        ]
        try:
            await asyncio.wait([awaited, *faults], timeout=self.seconds, return_when=asyncio.FIRST_COMPLETED)
            await _stop(faults)
            if not awaited.done():
                # At once: a broker takes seconds to come back, and clients send requests meanwhile.
                await asyncio.gather(*(injector.calm() for injector in self.injectors.values()))
                self.note("calm")
            return await awaited
        finally:
            # Also where this one is cancelled.
            for task in (awaited, *faults):
                task.cancel()
            await asyncio.gather(awaited, *faults, return_exceptions=True)


async def _stop(faults: list[asyncio.Task[None]]) -> None:
    """Raises what has ended one of them, or happened while it was stopped."""
    for fault in faults:
        fault.cancel()
    for outcome in await asyncio.gather(*faults, return_exceptions=True):
        if isinstance(outcome, Exception):
            raise outcome
