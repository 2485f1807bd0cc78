"""Checks of batches that take longer than the event loop may stand: in the background, one at a time in each lane.

A check costs what it decompresses and how many elements (records, headers) it walks, whatever the batch has in bytes.
So what is bounded in both is in a lane of its own, and does not wait for what is large in either. In a lane the senders
take turns: whoever sends many batches waits for the own ones.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, TypeAlias

from einmal.log.admission import SECTION_BYTES_MAX
from einmal.log.disk import Disk

_LIGHT_BYTES: Final = 4 * 1024 * 1024
_LIGHT_ELEMENTS: Final = 50_000

Check: TypeAlias = Callable[[int, int | None], bool]
"""Called with the most bytes that it may decompress, and the most elements (None: any number); False: it needs more."""


class BatchChecks:
    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._lanes: tuple[tuple[_FairLock, int, int | None], ...] = (
            (_FairLock(), _LIGHT_BYTES, _LIGHT_ELEMENTS),
            (_FairLock(), SECTION_BYTES_MAX, None),
        )

    async def run(self, check: Check, sender: Hashable) -> None:
        """Call ``check`` with the limits of the light lane, and with the largest ones when it returns False."""
        for lane, max_bytes, max_elements in self._lanes:
            async with lane.turn_of(sender):
                if await self._disk.in_background(partial(check, max_bytes, max_elements)):
                    return


class _FairLock:
    """A lock for which senders wait in turn, not requests."""

    def __init__(self) -> None:
        self._is_held = False
        self._waiting: dict[Hashable, deque[asyncio.Future[None]]] = {}
        """By sender, in the order of their turns; none of them is empty."""

    @asynccontextmanager
    async def turn_of(self, sender: Hashable) -> AsyncIterator[None]:
        if self._is_held:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(sender, deque()).append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._pass_on()
                raise
        self._is_held = True
        try:
            yield
        finally:
            self._pass_on()

    def _pass_on(self) -> None:
        """To the sender that has waited longest for its turn; held all the while, so that nobody gets between."""
        while self._waiting:
            sender = next(iter(self._waiting))
            turns = self._waiting.pop(sender)
            turn = turns.popleft()
            if turns:
                self._waiting[sender] = turns
            if not turn.done():
                turn.set_result(None)
                return
        self._is_held = False
