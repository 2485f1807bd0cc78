"""Polls of one consumer, one at a time: a second one, of another task or thread, begins when the first has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from einmal.client.aio.consuming.rebalancing import Rebalancing
from einmal.client.aio.network.changes import Changes
from einmal.client.errors import InvalidState


class PollTurns:
    """``now_ms``: the clock of deadlines. ``check_open`` raises ClientClosed. ``rebalancing``: of a group's member."""

    def __init__(
        self,
        changes: Changes,
        now_ms: Callable[[], int],
        check_open: Callable[[], None],
        rebalancing: Rebalancing | None,
    ) -> None:
        self._changes = changes
        self._now_ms = now_ms
        self._check_open = check_open
        self._rebalancing = rebalancing
        self._is_polling = False

    async def take(self, deadline: int) -> bool:
        """Return whether it is this one's turn before ``deadline``; then ``give_back``. Raises InvalidState."""
        self._check_open()
        while self._is_polling:
            if self._rebalancing is not None and self._rebalancing.is_calling_back:
                raise InvalidState(
                    meaning="poll() is not possible inside a rebalance callback, or beside one: it waits for its end",
                    what_to_do="return from the callback; poll() then continues",
                )
            left = deadline - self._now_ms()
            if left <= 0:
                await asyncio.sleep(0)
                return False
            await self._changes.wait(left)
            self._check_open()
        self._is_polling = True
        return True

    def give_back(self) -> None:
        self._is_polling = False
        self._changes.announce()
