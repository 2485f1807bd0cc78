"""A client process of a workload: its name, its seams to the system under test, and its recorder.

The same workload runs on simulated and on real processes: it does not know what starts, pauses and kills it.
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
            # Faults hit brokers before a client has connected, too.
            "bootstrap_timeout_ms": 60_000,
            "network": self.network,
            "clock": self.clock,
            "random": self.random,
        }


@dataclass(frozen=True, slots=True)
class Role:
    """One process of a workload. ``run`` returns when the workload stops, or when it cannot continue.

    Roles may be paused, killed and started again; while one is paused another process may replace it.
    """

    name: str
    run: Callable[[Process], Awaitable[None]]
