"""Turns of long work on the event loop, so that no request holds up those of other clients.

The broker has one thread. Work that grows with a request iterates with ``paced``: after some milliseconds it waits for
its next turn. All long work of a node shares one queue, and one of its members runs in each round of the loop, between
which every other connection is served. So the delay that others see is one slice, however many requests are wide.

Time comes from the node's clock: in the simulator, where none passes while code runs, every piece of work is one slice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Generic, TypeVar

from einmal.seams import Clock

T = TypeVar("T")

FIRST_SLICE_MS: Final = 2
"""Before the first wait: any number of connections may begin something in the same round."""
SLICE_MS: Final = 10


class Turns:
    """The queue of one node."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._waiting: deque[Callable[[], None]] = deque()
        self._is_scheduled = False

    def now_ms(self) -> int:
        return self._clock.now().monotonic_ms

    def call(self, callback: Callable[[], None]) -> None:
        """Call back when it is this work's turn."""
        self._waiting.append(callback)
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._next)

    async def next(self) -> None:
        """Wait for a turn."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def begin() -> None:
            if turn.done():
                # Whoever waited has been cancelled: its turn is the next one's.
                self._give()
            else:
                turn.set_result(None)

        self.call(begin)
        await turn

    def paced(self, items: Iterable[T]) -> Paced[T]:
        """To iterate over with ``async for`` where what is done for an item, times their number, may take long."""
        return Paced(self, items)

    async def run(self, steps: Iterable[object]) -> None:
        """Take all steps, in turns."""
        async for _ in self.paced(steps):
            pass

    def _next(self) -> None:
        self._is_scheduled = False
        self._give()
        if self._waiting and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._next)

    def _give(self) -> None:
        if self._waiting:
            self._waiting.popleft()()


class Paced(Generic[T]):
    """An iteration that waits for its turns."""

    def __init__(self, turns: Turns, items: Iterable[T]) -> None:
        self._turns = turns
        self._items = iter(items)
        self._ends_ms: int | None = None
        """End of the slice; it begins with the first item."""

    def __aiter__(self) -> Paced[T]:
        return self

    async def __anext__(self) -> T:
        # Neither the first item waits nor the end: a request for one partition never stands behind those for thousands,
        # however long this process was not scheduled.
        try:
            item = next(self._items)
        except StopIteration:
            raise StopAsyncIteration from None
        now_ms = self._turns.now_ms()
        if self._ends_ms is None:
            self._ends_ms = now_ms + FIRST_SLICE_MS
        elif now_ms >= self._ends_ms:
            await self._turns.next()
            self._ends_ms = self._turns.now_ms() + SLICE_MS
        return item
