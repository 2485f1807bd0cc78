"""A well-behaved client beside others that are not: what they cost it."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from einmal.broker.node import Node
from einmal.types import ErrorCode
from tests.broker.nodes import Client, batch

LATENCY_SECONDS_MAX = 0.7
"""Without turns, tens of thousands of partitions, topics or names hold up the others for longer than that."""
_WORK = 300_000
_WORK_S = 0.02
"""What ``_cost_of_work`` is on a quiet machine."""
_NEVER = 1 << 30
"""Collections of the middle generation before one of everything."""


def _cost_of_work() -> float:
    """Of a fixed piece of work, in seconds of this process: a busy machine, or one that clocks down, needs more."""
    begun = time.process_time()
    sum(number * number for number in range(_WORK))
    return time.process_time() - begun


class Good:
    """A client that works all the time; ``slowest`` is how long it has waited at most.

    In seconds of this process, which is the node's too, as a quiet machine has them: what else the machine does is not
    the node's doing.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self.slowest = 0.0

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        async with Client.connect(self._node) as client:
            await client.create_topic("good")
            # What the tests before have left here is not collected meanwhile: that takes half a second by itself. It
            # is not frozen: thawing would thaw all modules, too, and every later collection would look through them.
            gc.collect()
            young, middle, old = gc.get_threshold()
            gc.set_threshold(young, middle, _NEVER)
            before = _cost_of_work()
            working = asyncio.create_task(self._work(client))
            await asyncio.sleep(0)
            try:
                yield
            finally:
                working.cancel()
                with suppress(asyncio.CancelledError):
                    await working
                gc.set_threshold(young, middle, old)
                self.slowest /= max(1.0, max(before, _cost_of_work()) / _WORK_S)

    async def _work(self, client: Client) -> None:
        started = time.process_time()
        while True:
            try:
                assert (await client.produce("good", batch(b"x"))).error_code == ErrorCode.none
                assert (await client.fetch("good", 0)).error_code == ErrorCode.none
            finally:
                ended = time.process_time()
                self.slowest, started = max(self.slowest, ended - started), ended
            # Whoever is held up here as well has waited: it would have asked by then.
            await asyncio.sleep(0.001)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096
