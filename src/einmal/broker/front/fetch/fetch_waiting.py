"""A waiting Fetch of a consumer: read again when its partitions change, answered when max_wait_ms are over."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from einmal.broker.front.context import Body
from einmal.broker.front.fetch.consumer_fetch import ConsumerFetch
from einmal.broker.resources.parked_fetches import ParkedFetches
from einmal.broker.resources.turns import Turns
from einmal.wire.errors import WireError


def answer_later(
    fetch: ConsumerFetch, parked: ParkedFetches, encode: Callable[[ConsumerFetch], Body]
) -> asyncio.Future[Body]:
    """The answer, when there is enough to read or the time is over. Of a Fetch that has been read."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Body] = loop.create_future()
    partitions = list(fetch.partitions)
    available = [] if fetch.min_bytes <= 1 else [fetch.available(index) for index in range(fetch.partition_count)]
    total = sum(available)
    is_scheduled = False

    def changed(index: int) -> None:
        nonlocal is_scheduled, total
        if available:
            # Without this a Fetch for a megabyte would read it again with every small batch that comes.
            before, available[index] = available[index], fetch.available(index)
            total += available[index] - before
        if not is_scheduled and (not available or total >= fetch.min_bytes):
            is_scheduled = True
            loop.call_soon(look)

    def look() -> None:
        nonlocal is_scheduled
        is_scheduled = False
        if not done.done() and fetch.read():
            _answer(fetch, encode, done)

    def expire() -> None:
        if not done.done():
            fetch.read()
            _answer(fetch, encode, done)

    timer = loop.call_later(fetch.request.max_wait_ms / 1000, expire)
    for index, partition in partitions:
        partition.watch(fetch, partial(changed, index))
    ticket = parked.add(fetch.partition_count, expire)

    def end(_done: asyncio.Future[Body]) -> None:
        timer.cancel()
        parked.remove(ticket)
        for _index, partition in partitions:
            partition.unwatch(fetch)

    done.add_done_callback(end)
    return done


def _answer(fetch: ConsumerFetch, encode: Callable[[ConsumerFetch], Body], done: asyncio.Future[Body]) -> None:
    """Answer with what the Fetch has read, without what its sender may not read any more: it chooses how long it
    waits."""
    try:
        if fetch.loses_access():
            fetch.read()
    except WireError as error:
        done.set_exception(error)
    else:
        done.set_result(encode(fetch))


class WideWait:
    """The same for a Fetch of very many partitions, whose every look at all of them takes turns with other work.

    It watches them from before the first look: what comes during that one is not missed. ``end`` it.
    """

    def __init__(self, fetch: ConsumerFetch, turns: Turns, parked: ParkedFetches) -> None:
        self._fetch = fetch
        self._turns = turns
        self._parked = parked
        self._changed: set[int] = set()
        self._is_over = False
        self._event = asyncio.Event()
        for index, partition in fetch.partitions:
            partition.watch(fetch, partial(self._change, index))

    def end(self) -> None:
        for _index, partition in self._fetch.partitions:
            partition.unwatch(self._fetch)

    async def answer(self, encode: Callable[[ConsumerFetch], Awaitable[Body]]) -> Body:
        """The answer, when there is enough to read or the time is over. Raises WireError."""
        fetch = self._fetch
        timer = asyncio.get_running_loop().call_later(fetch.request.max_wait_ms / 1000, self._expire)
        ticket = self._parked.add(fetch.partition_count, self._expire)
        try:
            await self._wait()
            if fetch.loses_access():
                await self._turns.run(fetch.reading())
            return await encode(fetch)
        finally:
            timer.cancel()
            self._parked.remove(ticket)

    async def _wait(self) -> None:
        fetch = self._fetch
        available: list[int] = []
        if fetch.min_bytes > 1:
            indexes = range(fetch.partition_count)
            available = [fetch.available(index) async for index in self._turns.paced(indexes)]
        while not self._is_over:
            await self._event.wait()
            self._event.clear()
            changed, self._changed = self._changed, set()
            await self._turns.next()
            if available:
                async for index in self._turns.paced(changed):
                    available[index] = fetch.available(index)
                if not self._is_over and sum(available) < fetch.min_bytes:
                    continue
            await self._turns.run(fetch.reading())
            if fetch.is_ready:
                return

    def _change(self, index: int) -> None:
        self._changed.add(index)
        self._event.set()

    def _expire(self) -> None:
        self._is_over = True
        self._event.set()
