"""A client process as a workload sees it: its name, its seams to the system under test, and what it writes down.

The same workload runs on simulated and on real processes: who starts it, pauses it and kills it is not its business.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from einmal.client.aio import Admin, Consumer, Producer
from einmal.seams import Clock, Network


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """``number`` is unique in a run: a restarted role is another process."""

    name: str
    number: int
    bootstrap_servers: str
    network: Network
    clock: Clock
    random: random.Random

    def producer(self, **settings: Any) -> Producer:
        return Producer(**self._common, **settings)

    def consumer(self, **settings: Any) -> Consumer:
        return Consumer(**self._common, **settings)

    def admin(self, **settings: Any) -> Admin:
        return Admin(**self._common, **settings)

    @property
    def _common(self) -> dict[str, Any]:
        return {
            "bootstrap_servers": self.bootstrap_servers,
            # Brokers are struck before a client has met them, too.
            "bootstrap_timeout_ms": 60_000,
            "network": self.network,
            "clock": self.clock,
            "random": self.random,
        }


@dataclass(frozen=True, slots=True)
class Role:
    """What one process of a workload does. ``run`` returns when it is told to stop, or when it cannot go on.

    Roles may be paused, killed and started again; while one is paused another process may take its place.
    """

    name: str
    run: Callable[[Process], Awaitable[None]]
