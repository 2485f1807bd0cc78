"""A cluster of a run's own, with faults that a seed draws: kill -9, SIGSTOP and clean restarts of brokers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from einmal.chaos.cluster_faults import ClusterFaults
from einmal.local.processes import NodeProcess, ProcessCluster

_PAUSE_S: Final = (0.3, 12.0)
"""Shorter and longer than a broker's session."""


class FaultMix(NamedTuple):
    """``weights``: of the faults, by which they are drawn. ``calm_s``, ``down_s``: bounds of the calm before a fault,
    and of the time in which a broker is down."""

    weights: Mapping[str, int]
    calm_s: tuple[float, float]
    down_s: tuple[float, float]


ALL_FAULTS: Final = FaultMix({"kill -9": 3, "SIGSTOP": 2, "clean restart": 2}, (1.5, 4.0), (0.0, 2.0))
KILLS: Final = FaultMix({"kill -9": 1}, (0.0, 1.0), (0.0, 1.0))


class OwnCluster:
    """A cluster of the run's own. ``software``: in words. Calls of brokers block, so they run in threads."""

    def __init__(self, cluster: ProcessCluster[NodeProcess], software: str, mix: FaultMix = ALL_FAULTS) -> None:
        self.software = software
        self.calm_s = mix.calm_s
        self._mix = mix
        self._cluster = cluster
        self._faults = ClusterFaults(cluster)
        self._call: asyncio.Future[None] | None = None

    @property
    def bootstrap_servers(self) -> str:
        return self._cluster.bootstrap_servers

    def start(self) -> None:
        """Raises BrokerFailed."""
        self._cluster.start()

    def close(self) -> None:
        self._faults.close()
        self._cluster.kill()

    async def inject(self, chance: random.Random, note: Callable[[str], None]) -> None:
        """One fault of one broker, to its end. Raises BrokerFailed."""
        (fault,) = chance.choices(list(self._mix.weights), list(self._mix.weights.values()))
        node_id = chance.choice(list(self._cluster.brokers))
        note(f"{fault} of broker {node_id}")
        if fault == "SIGSTOP":
            self._faults.pause(node_id)
            try:
                await asyncio.sleep(chance.uniform(*_PAUSE_S))
            finally:
                self._faults.resume(node_id)
        else:
            seconds = chance.uniform(*self._mix.down_s)
            await self._in_thread(self._faults.stop if fault == "clean restart" else self._faults.kill, node_id)
            await asyncio.sleep(seconds)
            await self._in_thread(self._faults.start, node_id)
        note(f"broker {node_id} serves again")

    async def calm(self) -> None:
        """Bring back every broker. Raises BrokerFailed."""
        if self._call is not None:
            # A broker that is still on its way down would not come back otherwise.
            await self._call
        for node_id, broker in self._cluster.brokers.items():
            self._faults.resume(node_id)
            if not broker.is_running:
                await self._in_thread(self._faults.start, node_id)

    async def _in_thread(self, call: Callable[[int], None], node_id: int) -> None:
        """Raises BrokerFailed. A call that has begun ends, also where nobody waits for it any more."""
        self._call = asyncio.ensure_future(asyncio.to_thread(call, node_id))
        await asyncio.shield(self._call)
