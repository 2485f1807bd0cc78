"""Long work takes turns on the event loop; what is short is never made to wait for them."""

from __future__ import annotations

import asyncio

from einmal.broker.resources.turns import SLICE_MS, Turns
from einmal.types import Instant


class Clock:
    """Each look at it finds that as much time has passed as makes any iteration wait."""

    def __init__(self) -> None:
        self._ms = 0

    def now(self) -> Instant:
        self._ms += SLICE_MS
        return Instant(self._ms, self._ms)


async def test_one_item_does_not_wait_behind_long_work() -> None:
    turns, order = Turns(Clock()), list[str]()

    has_begun = asyncio.Event()

    async def long_work(name: str) -> None:
        async for step in turns.paced(range(5)):
            order.append(f"{name}{step}")
            has_begun.set()

    async def short_work() -> None:
        await has_begun.wait()
        async for _topic in turns.paced(["t"]):
            async for _partition in turns.paced([0]):
                order.append("short")

    await asyncio.gather(short_work(), *(long_work(name) for name in "abc"))
    assert order.index("short") <= 2 * 3, order


async def test_long_work_takes_turns() -> None:
    turns, order = Turns(Clock()), list[str]()

    async def work(name: str) -> None:
        async for step in turns.paced(range(3)):
            order.append(f"{name}{step}")

    await asyncio.gather(work("a"), work("b"))
    assert order == ["a0", "b0", "a1", "b1", "a2", "b2"]
