"""What a seed means: which workload runs on which broker, and what goes wrong how often.

Late requests are only for clients that can be protected from them: below transaction version 2 a request of one
transaction may reach the next one on any broker (KIP-890), so there nothing is late.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import Enum
from typing import Final

from einmal.simulation.disk import DiskFaults
from einmal.simulation.network import NetworkFaults

WORKLOADS: Final = ("ledger", "bank", "batches")


class Crash(Enum):
    """KILL: the process dies, what it wrote stays (kill -9). POWER: what was not synced is kept, lost or torn."""

    KILL = "kill"
    POWER = "power"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """``fault_pause``: the longest time between two faults, in seconds; 0: only those of network and disk."""

    seed: int
    workload: str
    transaction_version: int
    flush_each: bool
    crash: Crash
    duration: float
    fault_pause: float
    network: NetworkFaults
    disk: DiskFaults
    segment_bytes: int


def profile_of(seed: int) -> Profile:
    """The seed's profile."""
    source = random.Random(f"{seed}/profile")
    version = source.choice((2, 2, 2, 2, 1, 0))
    flush_each = source.random() < 0.4
    may_be_late = version >= 2
    rough = source.choice((0.0, 0.5, 1.0, 2.0))
    network = NetworkFaults(
        delay_max=source.choice((0.001, 0.003, 0.02)),
        spike=0.01 * rough if may_be_late else 0.0,
        spike_max=0.8,
        split=source.choice((0.0, 0.05)),
        reset=0.002 * rough,
        give_up=0.003 * rough if may_be_late else 0.0,
        late_max=source.choice((1.0, 5.0)),
        stall=0.002 * rough if may_be_late else 0.0,
    )
    crash = source.choice((Crash.KILL, Crash.POWER)) if flush_each else Crash.KILL
    is_sick = source.random() < 0.2
    disk = DiskFaults(
        sync_max=source.choice((0.002, 0.02)),
        slow_sync=source.choice((0.0, 0.01, 0.1)),
        # A process that starts again beside pages that were never written believes they were: only a machine that
        # starts again knows better. So where syncs fail, every crash is one of the machine.
        sync_error=0.003 if is_sick and crash is Crash.POWER else 0.0,
        full=0.01 if is_sick else 0.0,
    )
    return Profile(
        seed=seed,
        workload=source.choice(WORKLOADS),
        transaction_version=version,
        flush_each=flush_each,
        crash=crash,
        duration=source.uniform(6.0, 16.0),
        fault_pause=source.choice((0.7, 1.5, 4.0)),
        network=network,
        disk=disk,
        segment_bytes=source.choice((2_000, 20_000, 1_000_000)),
    )
