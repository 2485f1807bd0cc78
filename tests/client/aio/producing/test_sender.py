"""The sender's turns: when the next one is due."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest
import uvloop

from einmal.client.aio.network.cluster import Cluster
from einmal.client.aio.producing.sender import Sender
from einmal.client.config import AdminSettings, parse
from einmal.client.cores.producer_core import ProduceLimits, ProducerCore
from einmal.seams import SystemClock, TcpNetwork
from tests.suite.patience import patient

LIMITS = ProduceLimits(linger_ms=0, batch_size=1, delivery_timeout_ms=1_000, retry_backoff_ms=10)


class WatchedSender(Sender):
    def __init__(self, core: ProducerCore, cluster: Cluster) -> None:
        super().__init__(core, cluster, acks=-1, settle=lambda outcomes: None)
        self.has_turned = asyncio.Event()

    def _turn(self) -> None:
        self.has_turned.set()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("milliseconds", [(0, 0), (0, 5), (5, 0), (60_000, 0)])
def test_of_two_due_times_the_earlier_one_counts_on_either_event_loop(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
    milliseconds: tuple[int, int],
) -> None:
    # uvloop's timer for what is due at once is no timer: it cannot be asked when it is due.
    async def run() -> None:
        settings = parse(AdminSettings, {"bootstrap.servers": "127.0.0.1:1"}, {})
        cluster = Cluster(settings, network=TcpNetwork(), clock=SystemClock(), source=random.Random(1))
        sender = WatchedSender(ProducerCore(LIMITS), cluster)
        for each in milliseconds:
            sender.wake_within(each)
        async with asyncio.timeout(patient(10)):
            await sender.has_turned.wait()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())
