"""Producer ids that this broker hands out, from blocks that the controller has recorded as allocated.

An id is handed out once. The unused ids of a block are skipped when the process ends, never reused (KIP-730).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from einmal.broker.identity import Identity
from einmal.broker.rpc.controller_channel import ControllerChannel
from einmal.rpc.connection import NoAnswer
from einmal.types import ErrorCode, ProducerId
from einmal.wire.api.allocate_producer_ids import API as ALLOCATE_PRODUCER_IDS
from einmal.wire.api.allocate_producer_ids import AllocateProducerIdsRequest
from einmal.wire.errors import WireError

_TIMEOUT_MS: Final = 5_000
_LOW: Final = 100
"""With so few left the next block is fetched, so that a coordinator rarely has to wait."""


class ProducerIds:
    def __init__(self, allocate: Callable[[], Awaitable[range | ErrorCode]]) -> None:
        self._allocate = allocate
        self._block = range(0)
        self._next_block = range(0)
        self._fetching: asyncio.Task[ErrorCode] | None = None

    @property
    def has_any(self) -> bool:
        """Whether an id is available."""
        return bool(self._block or self._next_block)

    def take(self) -> ProducerId | None:
        """A new id. None: none is available, but will be soon."""
        if not self._block:
            self._block, self._next_block = self._next_block, range(0)
        if len(self._block) + len(self._next_block) <= _LOW:
            self._fetch()
        if not self._block:
            return None
        producer_id, self._block = self._block[0], self._block[1:]
        return ProducerId(producer_id)

    async def ready(self) -> ErrorCode:
        """Wait until an id is available. The error: why there is none."""
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


class ProducerIdBlocks:
    """Where the blocks come from."""

    def __init__(self, identity: Identity, controller: ControllerChannel) -> None:
        self._identity = identity
        self._controller = controller

    async def allocate(self) -> range | ErrorCode:
        """A block of producer ids that is never allocated again, also after a crash."""
        request = AllocateProducerIdsRequest(self._identity.node_id, self._identity.broker_epoch)
        try:
            answer = await self._controller.ask(ALLOCATE_PRODUCER_IDS, 0, request, timeout_ms=_TIMEOUT_MS)
        except (NoAnswer, WireError):
            return ErrorCode.coordinator_not_available
        if answer.error_code is not ErrorCode.none:
            return answer.error_code
        return range(answer.producer_id_start, answer.producer_id_start + answer.producer_id_len)
