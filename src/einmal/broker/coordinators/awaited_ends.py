"""Requests that wait for the end of the previous transaction of their transactional id.

Between an outcome and its last marker the next transaction of an id cannot begin: CONCURRENT_TRANSACTIONS. Clients that
get this error pause for much longer than the markers take, so a request that begins a transaction is not refused at
once. Where the coordinator is, it waits for the completion. The leader of a partition whose coordinator is another
broker asks that one again after a pause, as Apache Kafka's does (KAFKA-18401): all its questions to that broker share
one connection, and one that waited there would hold back those of other clients.

A connection has one such request at a time, since its next request begins after it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Protocol, TypeVar

from einmal.broker.config import BrokerConfig
from einmal.broker.coordinators.marker_sender import Coordinator

A = TypeVar("A")


class Requester(Protocol):
    def on_connection_lost(self, key: Hashable, callback: Callable[[], None]) -> None:
        """Call back once the connection of the request is lost. A later call with the same key replaces it."""


class WaitLimit:
    """The time that one request may wait in all: ``ms_max`` from its first wait on, or until its connection is lost."""

    def __init__(self, ms_max: int, requester: Requester | None) -> None:
        self._ms_max = ms_max
        self._requester = requester
        self._end: float | None = None
        self._is_lost = False
        self._woken: asyncio.Future[None] | None = None

    async def wait(self, awaited: asyncio.Future[None]) -> bool:
        """Whether what is awaited has come in time."""
        loop = asyncio.get_running_loop()
        if self._end is None:
            self._end = loop.time() + self._ms_max / 1000
            if self._requester is not None:
                self._requester.on_connection_lost(WaitLimit, self._lose)
        seconds = self._end - loop.time()
        if seconds <= 0 or self._is_lost:
            return False
        # Not ``awaited`` itself: others wait for it too.
        self._woken = loop.create_future()
        timer = loop.call_later(seconds, self._wake)
        awaited.add_done_callback(self._wake)
        try:
            await self._woken
        finally:
            timer.cancel()
            awaited.remove_done_callback(self._wake)
        return awaited.done() and not self._is_lost

    def _lose(self) -> None:
        self._is_lost = True
        self._wake()

    def _wake(self, _awaited: asyncio.Future[None] | None = None) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)


class AwaitedEnds:
    """``ending_at``: the coordinator here whose transaction of that id lacks markers; None: there is none here."""

    def __init__(self, config: BrokerConfig, ending_at: Callable[[str], Coordinator | None]) -> None:
        self._ms_max = config.add_partitions_to_txn_retry_backoff_max_ms
        self._pause_seconds = config.add_partitions_to_txn_retry_backoff_ms / 1000
        self._ending_at = ending_at
        self._ends: dict[tuple[Coordinator, str], asyncio.Future[None]] = {}

    def limit(self, requester: Requester, timeout_ms: int | None = None) -> WaitLimit:
        """For one request. ``timeout_ms``: its own limit."""
        return WaitLimit(self._ms_max if timeout_ms is None else min(self._ms_max, timeout_ms), requester)

    async def ask(
        self,
        transactional_id: str,
        ask: Callable[[], Awaitable[A]],
        is_concurrent: Callable[[A], bool],
        limit: WaitLimit,
    ) -> A:
        """The first answer that is not refused because of the previous transaction, or the last in time."""
        while True:
            answer = await ask()
            if not is_concurrent(answer) or not await limit.wait(self._end(transactional_id)):
                return answer

    def _end(self, transactional_id: str) -> asyncio.Future[None]:
        """Done when the coordinator should be asked again."""
        coordinator = self._ending_at(transactional_id)
        if coordinator is None:
            return pause(self._pause_seconds)
        key = (coordinator, transactional_id)
        if key not in self._ends:
            self._ends[key] = asyncio.get_running_loop().create_future()
        return self._ends[key]

    def come(self, coordinator: Coordinator, transactional_id: str) -> None:
        """The transaction is complete, or its coordinator is not here any more: who waits asks again."""
        end = self._ends.pop((coordinator, transactional_id), None)
        if end is not None:
            end.set_result(None)

    def forget(self, coordinator: Coordinator) -> None:
        """Its leadership is over."""
        for key in [key for key in self._ends if key[0] == coordinator]:
            self.come(*key)


def pause(seconds: float) -> asyncio.Future[None]:
    """A future that is done after so long."""
    loop = asyncio.get_running_loop()
    over: asyncio.Future[None] = loop.create_future()
    loop.call_later(seconds, over.set_result, None)
    return over
