"""Producer ids for this broker to give out, from blocks that the controller has recorded as handed over.

An id is given once. Those left of a block when the process ends are skipped, never given again (KIP-730).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from einmal.types import ErrorCode, ProducerId

_LOW: Final = 100
"""With so few left the next block is fetched, so that a coordinator rarely finds none at hand."""


class ProducerIds:
    def __init__(self, allocate: Callable[[], Awaitable[range | ErrorCode]]) -> None:
        self._allocate = allocate
        self._block = range(0)
        self._next_block = range(0)
        self._fetching: asyncio.Task[ErrorCode] | None = None

    @property
    def has_any(self) -> bool:
        """Whether an id is at hand."""
        return bool(self._block or self._next_block)

    def take(self) -> ProducerId | None:
        """An id that nobody has had. None: none is at hand, but will be soon."""
        if not self._block:
            self._block, self._next_block = self._next_block, range(0)
        if len(self._block) + len(self._next_block) <= _LOW:
            self._fetch()
        if not self._block:
            return None
        producer_id, self._block = self._block[0], self._block[1:]
        return ProducerId(producer_id)

    async def ready(self) -> ErrorCode:
        """Wait until an id is at hand. The error: why there is none."""
        if self.has_any:
            return ErrorCode.none
        return await asyncio.shield(self._fetch())

    def stop(self) -> None:
        if self._fetching is not None:
            self._fetching.cancel()

    def _fetch(self) -> asyncio.Task[ErrorCode]:
        if self._fetching is None or self._fetching.done():
            self._fetching = asyncio.get_running_loop().create_task(self._fetch_block())
        return self._fetching

    async def _fetch_block(self) -> ErrorCode:
        block = await self._allocate()
        if isinstance(block, ErrorCode):
            return block
        assert not self._next_block, "blocks are fetched one at a time"
        self._next_block = block
        return ErrorCode.none
