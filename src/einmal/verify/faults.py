"""Faults on a cluster that the run has started: kill -9, SIGSTOP and clean restarts of brokers, drawn by the seed."""

from __future__ import annotations

import asyncio
import random
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

from einmal.local.layout import plan_cluster, write_properties
from einmal.local.processes import BrokerProcess, LocalCluster

_CALM_S: Final = (1.5, 4.0)
_PAUSE_S: Final = (0.3, 8.0)
"""Shorter and longer than a broker's session."""
_DOWN_S: Final = (0.0, 2.0)
_WEIGHTS: Final = {"kill -9": 3, "SIGSTOP": 2, "clean restart": 2}


class OwnCluster:
    """Brokers of einmal in ``folder``. Their calls block, so they run in threads."""

    def __init__(self, folder: Path, nodes: int) -> None:
        plans = plan_cluster(folder, nodes, host="127.0.0.1", first_port=0)
        write_properties(plans, {})
        self._cluster = LocalCluster(plans)

    @property
    def bootstrap_servers(self) -> str:
        return self._cluster.bootstrap_servers

    def start(self) -> None:
        """Raises BrokerFailed."""
        self._cluster.start()

    def close(self) -> None:
        for broker in self._cluster.brokers.values():
            broker.signal(signal.SIGCONT)
        self._cluster.kill()

    async def disturb(
        self, chance: random.Random, note: Callable[[str], None], progress: Callable[[], Awaitable[None]]
    ) -> None:
        """One fault after another until cancelled, each after ``progress`` and a calm."""
        while True:
            await progress()
            await asyncio.sleep(chance.uniform(*_CALM_S))
            (fault,) = chance.choices(list(_WEIGHTS), list(_WEIGHTS.values()))
            broker = self._cluster.brokers[chance.choice(list(self._cluster.brokers))]
            note(f"{fault} of broker {broker.plan.node_id}")
            if fault == "SIGSTOP":
                await _paused(broker, chance.uniform(*_PAUSE_S))
            else:
                await _restarted(broker, chance.uniform(*_DOWN_S), is_clean=fault == "clean restart")
            note(f"broker {broker.plan.node_id} serves again")

    async def calm(self) -> None:
        """Bring back every broker. Raises BrokerFailed."""
        for broker in self._cluster.brokers.values():
            broker.signal(signal.SIGCONT)
            if not broker.is_running:
                broker.start()
                await asyncio.to_thread(broker.wait_until_ready)


async def _paused(broker: BrokerProcess, seconds: float) -> None:
    broker.signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(seconds)
    finally:
        broker.signal(signal.SIGCONT)


async def _restarted(broker: BrokerProcess, seconds: float, *, is_clean: bool) -> None:
    await asyncio.to_thread(broker.stop if is_clean else broker.kill)
    await asyncio.sleep(seconds)
    broker.start()
    await asyncio.to_thread(broker.wait_until_ready)
