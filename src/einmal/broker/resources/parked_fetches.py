"""Memory of the Fetches that wait for data, of all clients of a node: a limit, and who is answered early for it.

A client names the partitions and chooses how long it waits. At the limit the Fetch of the most partitions is answered
with what there is, as if its time were over: so those of well-behaved consumers wait on beside one that is not.
DeleteRecords that wait for followers count among them.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable
from typing import Final

BYTES_MAX: Final = 64 * 1024 * 1024
_FETCH_BYTES: Final = 4_000
_PARTITION_BYTES: Final = 700


class ParkedFetches:
    """``held`` is an estimate, in bytes."""

    def __init__(self, limit: int = BYTES_MAX) -> None:
        self.limit = limit
        self.held = 0
        self._next_ticket = 0
        self._waiting: dict[int, tuple[int, Callable[[], None]]] = {}
        self._largest: list[tuple[int, int]] = []
        """A heap of negative sizes and tickets; those that have been removed are in it until they come up."""

    def add(self, partition_count: int, expire: Callable[[], None]) -> int:
        """A ticket for ``remove``. ``expire`` answers the Fetch, soon after this call at the earliest."""
        ticket = self._next_ticket
        self._next_ticket += 1
        size = _FETCH_BYTES + _PARTITION_BYTES * partition_count
        self._waiting[ticket] = size, expire
        self.held += size
        if len(self._largest) > 2 * len(self._waiting) + 100:
            self._largest = [(-of, waiting_ticket) for waiting_ticket, (of, _expire) in self._waiting.items()]
            heapq.heapify(self._largest)
        else:
            heapq.heappush(self._largest, (-size, ticket))
        while self.held > self.limit:
            asyncio.get_running_loop().call_soon(self._remove_largest())
        return ticket

    def remove(self, ticket: int) -> None:
        """It has been answered, or its client has left."""
        size, _expire = self._waiting.pop(ticket, (0, None))
        self.held -= size

    def _remove_largest(self) -> Callable[[], None]:
        """How to answer it."""
        while True:
            _size, ticket = heapq.heappop(self._largest)
            if ticket in self._waiting:
                expire = self._waiting[ticket][1]
                self.remove(ticket)
                return expire
