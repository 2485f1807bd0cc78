"""Where a defence matters: profiles with the faults that make its absence show, drawn from the seed as all others."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from einmal.simulation.disk import RELIABLE, DiskFaults
from einmal.simulation.network import NetworkFaults
from einmal.simulation.profile import ClusterMember, Crash, Profile, cluster_profile_of
from einmal.simulation.schedule import Fault, FaultKind, draw_schedule

Where = Callable[[int], Profile]
BOTH: Final = tuple(ClusterMember(node_id, "broker,controller") for node_id in (1, 2, 3))
ALONE: Final = (ClusterMember(1, "broker,controller"),)
APART: Final = (
    *(ClusterMember(node_id, "broker") for node_id in (1, 2, 3)),
    *(ClusterMember(node_id, "controller") for node_id in (4, 5, 6)),
)
NEAR: Final = NetworkFaults(delay_max=0.003)
FAR: Final = NetworkFaults(delay_max=0.05)
SPIKES: Final = NetworkFaults(delay_max=0.02, spike=0.2, spike_max=0.8)
SLOW_DISK: Final = DiskFaults(sync_min=0.005, sync_max=0.05, slow_sync=0.1)
SOUND: Final[dict[str, Any]] = {
    "members": APART,
    "replication_factor": 3,
    "min_insync_replicas": 2,
    "flush_each": False,
    "crash": Crash.KILL,
    "may_lose": False,
    "network": NEAR,
    "disk": RELIABLE,
}
"""Three brokers and three controllers, where nothing goes wrong but the faults that are asked for."""


def late(*apis: int, share: float = 0.1, seconds: float = 2.0) -> NetworkFaults:
    """So many of these requests come after their senders have given them up."""
    return replace(NEAR, late=share, late_apis=apis, late_max=seconds)


def changed(profile_of: Where, **changes: Any) -> Where:
    """As the seed has it, but for this."""
    return lambda seed: replace(profile_of(seed), **changes)


def faults(*kinds: FaultKind, pause_max: float = 1.0, **changes: Any) -> Where:
    """Clusters where faults of these kinds happen, and no others."""

    def profile_of(seed: int) -> Profile:
        profile = replace(cluster_profile_of(seed), **{**SOUND, **changes})
        source = random.Random(f"{seed}/faults")
        return replace(profile, faults=draw_schedule(source, kinds, seconds=profile.duration, pause_max=pause_max))

    return profile_of


def bursts(*kinds: FaultKind, apart: float, lasts: Sequence[float], every: float, **changes: Any) -> Where:
    """Clusters where these faults happen together, each at most ``apart`` after the one before, again and again."""

    def profile_of(seed: int) -> Profile:
        profile = replace(cluster_profile_of(seed), **{**SOUND, **changes})
        source = random.Random(f"{seed}/bursts")
        found = []
        start = source.uniform(0.5, 1.5)
        while start < profile.duration:
            at = start
            for kind, longest in zip(kinds, lasts, strict=True):
                found.append(Fault(at, kind, source.uniform(longest / 2, longest), source.randrange(2**31)))
                at += source.uniform(0.0, apart)
            start += source.uniform(0.7, 1.0) * every
        return replace(profile, faults=tuple(found))

    return profile_of
