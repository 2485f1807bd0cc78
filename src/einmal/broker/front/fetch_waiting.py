"""A waiting Fetch of a consumer: read again when its partitions change, answered when max_wait_ms are over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from einmal.broker.front.consumer_fetch import ConsumerFetch
from einmal.broker.front.context import Body
from einmal.broker.resources.turns import Turns
from einmal.wire.errors import WireError


def answer_later(fetch: ConsumerFetch, turns: Turns, encode: Callable[[ConsumerFetch], Body]) -> asyncio.Future[Body]:
    """The answer, when there is enough to read or the time is over."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Body] = loop.create_future()
    partitions = fetch.partitions
    available = fetch.available_each()
    total = sum(available)
    is_scheduled = False

    def changed(place: int) -> None:
        nonlocal is_scheduled, total
        if available:
            # Without this a Fetch for a megabyte would read it again with every small batch that comes.
            before, available[place] = available[place], fetch.available(place)
            total += available[place] - before
        if not is_scheduled and (not available or total >= fetch.min_bytes):
            is_scheduled = True
            if fetch.is_wide:
                turns.call(look)
            else:
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
    for place, partition in partitions:
        partition.watch(fetch, partial(changed, place))

    def end(_done: asyncio.Future[Body]) -> None:
        timer.cancel()
        for _place, partition in partitions:
            partition.unwatch(fetch)

    done.add_done_callback(end)
    return done


def _answer(fetch: ConsumerFetch, encode: Callable[[ConsumerFetch], Body], done: asyncio.Future[Body]) -> None:
    """What the Fetch has read, without what its sender may not read any more: it chooses how long it waits."""
    try:
        if fetch.loses_access():
            fetch.read()
    except WireError as error:
        done.set_exception(error)
    else:
        done.set_result(encode(fetch))
