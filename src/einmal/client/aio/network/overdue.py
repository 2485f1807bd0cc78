"""Waiting for an answer no longer than answers usually take."""

from __future__ import annotations

import asyncio
from typing import Any

from einmal.rpc.connection import PATIENCE_S


async def is_in_time(answer: asyncio.Future[Any]) -> bool:
    """Whether an answer is there before it counts as overdue. It is waited for by its owner in either case."""
    if answer.done():
        return True
    loop = asyncio.get_running_loop()
    waiter = loop.create_future()

    def wake(_: object = None) -> None:
        if not waiter.done():
            waiter.set_result(None)

    timer = loop.call_later(PATIENCE_S, wake)
    answer.add_done_callback(wake)
    try:
        await waiter
    finally:
        timer.cancel()
        answer.remove_done_callback(wake)
    return answer.done()
