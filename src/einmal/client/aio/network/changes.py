"""Waiting until something changes, whatever it is: whoever wakes up looks at the state again."""

from __future__ import annotations

import asyncio


class Changes:
    """Create it inside a running event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiters: dict[asyncio.Future[None], None] = {}

    def announce(self) -> None:
        """Something has changed: wake everyone who waits."""
        waiters, self._waiters = self._waiters, {}
        for waiter in waiters:
            _release(waiter)

    async def wait(self, timeout_ms: int | None = None) -> None:
        """Wait for the next change, at most ``timeout_ms``."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters[waiter] = None
        timer = None if timeout_ms is None else self._loop.call_later(timeout_ms / 1000, _release, waiter)
        try:
            await waiter
        finally:
            if timer is not None:
                timer.cancel()
            # For long there may be no change: a consumer whose partitions are all paused has none.
            self._waiters.pop(waiter, None)


def _release(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
