"""How many large requests a listener works on at once: as many as fit into memory when they are unpacked.

A byte of a request can become an object of hundreds. So a large request waits, in the order of arrival, until what it
may take at most is free, and gives that back when its answer is encoded or waits elsewhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from einmal.wire.primitives import ELEMENTS_MAX

_ELEMENT_BYTES: Final = 500
"""Memory of an element, with its part of the response; a byte of a frame is one element at most."""
UNPACKED_BYTES_MAX: Final = 64 * 1024 * 1024


class UnpackedRequests:
    def __init__(self, limit: int = UNPACKED_BYTES_MAX) -> None:
        self._limit = limit
        self._held = 0
        self._arrivals = asyncio.Lock()
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def admitted(self, frame_bytes: int) -> AsyncIterator[None]:
        """Wait until the request fits beside the others; one that fits beside none is let in alone."""
        needed = min(frame_bytes, ELEMENTS_MAX) * _ELEMENT_BYTES
        async with self._arrivals:
            while self._held and self._held + needed > self._limit:
                self._freed.clear()
                await self._freed.wait()
            self._held += needed
        try:
            yield
        finally:
            self._held -= needed
            self._freed.set()
