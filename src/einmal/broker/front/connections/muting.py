"""A connection that is not read for a time: throttled by a quota (KIP-219), or waiting for its turn (KIP-612)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Muting:
    """``resume`` is called when the time is over."""

    __slots__ = ("_loop", "_resume", "_timer", "_until_ms", "is_on")

    def __init__(self, loop: asyncio.AbstractEventLoop, resume: Callable[[], None]) -> None:
        self._loop = loop
        self._resume = resume
        self._timer: asyncio.TimerHandle | None = None
        self._until_ms = 0
        self.is_on = False

    def extend(self, now_ms: int, milliseconds: int) -> None:
        """Mute for so long from now on; a longer time holds."""
        if now_ms + milliseconds <= self._until_ms:
            return
        self.stop()
        self._until_ms = now_ms + milliseconds
        self._timer = self._loop.call_later(milliseconds / 1000, self._end)
        self.is_on = True

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self.is_on = False

    def _end(self) -> None:
        self._timer = None
        self.is_on = False
        self._resume()
