"""Waiting until something changes, whatever it is: whoever wakes up looks at the state again."""

from __future__ import annotations

import asyncio
from collections import deque


class Changes:
    """Create it inside a running event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiters: deque[asyncio.Future[None]] = deque()

    def announce(self) -> None:
        """Something has changed: wake everyone who waits."""
        while self._waiters:
            _release(self._waiters.popleft())

    async def wait(self, timeout_ms: int | None = None) -> None:
        """Wait for the next change, at most ``timeout_ms``."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        if timeout_ms is None:
            await waiter
            return
        timer = self._loop.call_later(timeout_ms / 1000, _release, waiter)
        try:
            await waiter
        finally:
            timer.cancel()


def _release(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
