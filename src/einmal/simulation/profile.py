"""The meaning of a seed: the workload, the cluster, and the kinds and rates of faults.

No fault of a profile may lose acknowledged data, each for a reason:

- A killed process leaves its writes in its machine's page cache (``Crash.KILL``).
- A machine that loses its power loses unsynced data (``Crash.POWER``). If each write is flushed, no acknowledged data
is lost. If the operating system decides, replication has to preserve it: then every write has two replicas at least,
only one machine at a time loses its power, and only while every replica is in sync (the nemesis checks;
``is_careful``). With min.insync.replicas=1 a dead leader that no broker has noticed yet can become the only one in
sync.
- Processes may be killed meanwhile, any number of them: one that starts again in the same boot of its machine has
  everything, and reports so when it registers.
- A machine's clock is less than an hour off: records that are further ahead of it are refused for ever, as in Kafka.
- A disk is wiped only of a broker that has no vote in the metadata quorum, while every replica is in sync, and if each
acknowledged write has two replicas.
- A file is damaged only while its process is down, in a boot that the node has recorded, and an operator restores it
soon after. Until then its machine keeps its power: after a power cut, damage looks like a torn tail.
- If syncs fail, every crash is one of the machine, and every stop is followed by a power cut: a process that restarts
beside unwritten pages would trust them.
- Late requests are only for clients that can be protected from them: below transaction version 2 a request of one
  transaction may reach the next one on any broker (KIP-890), and so may a marker of its coordinator. There nothing is
  late: no pauses of nodes, and cuts reset connections instead of delaying bytes in flight.

``may_lose`` are the seeds in which all machines may lose their power though writes are not flushed: acknowledged data
may be lost then, and only the remaining promises are checked: replicas agree, and the cluster works.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from einmal.simulation.disk import DiskFaults
from einmal.simulation.network import NetworkFaults
from einmal.simulation.schedule import LATE, Fault, FaultKind, draw_schedule

WORKLOADS: Final = ("ledger", "bank", "batches")
TWO_PHASE: Final = "dual-writes"
"""A workload with profiles of its own: it needs brokers that take part in two-phase commits."""
_LATE_APIS: Final = (0, 24, 26, 28)
"""Produce, AddPartitionsToTxn, EndTxn, TxnOffsetCommit: the subject of KAFKA-17754."""


class Crash(Enum):
    """KILL: the process dies, its writes stay (kill -9). POWER: unsynced data is kept, lost or torn."""

    KILL = "kill"
    POWER = "power"


class ClusterMember(NamedTuple):
    """A node of the cluster. ``roles`` as in ``process.roles``."""

    node_id: int
    roles: str

    @property
    def is_broker(self) -> bool:
        return "broker" in self.roles

    @property
    def is_controller(self) -> bool:
        return "controller" in self.roles


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    seed: int
    workload: str
    members: tuple[ClusterMember, ...]
    replication_factor: int
    min_insync_replicas: int
    transaction_version: int
    flush_each: bool
    crash: Crash
    may_lose: bool
    duration: float
    faults: tuple[Fault, ...]
    network: NetworkFaults
    disk: DiskFaults
    segment_bytes: int

    @property
    def is_careful(self) -> bool:
        """Power fails only while every replica is in sync, and on one machine at a time."""
        return not self.flush_each and not self.may_lose

    @property
    def brokers(self) -> tuple[int, ...]:
        return tuple(member.node_id for member in self.members if member.is_broker)

    @property
    def controllers(self) -> tuple[int, ...]:
        return tuple(member.node_id for member in self.members if member.is_controller)


def _members(brokers: int, both: int, controllers: int) -> tuple[ClusterMember, ...]:
    roles = ["broker,controller"] * both + ["broker"] * brokers + ["controller"] * controllers
    return tuple(ClusterMember(node_id, role) for node_id, role in enumerate(roles, start=1))


_ALONE: Final = _members(0, 1, 0)
_CLUSTERS: Final = (
    _members(0, 3, 0),
    _members(0, 3, 0),
    _members(0, 3, 0),
    _members(1, 3, 0),
    _members(0, 5, 0),
    _members(3, 0, 1),
    _members(3, 0, 3),
)

_CLIENT_FAULTS: Final = (
    FaultKind.PAUSE_CLIENT,
    FaultKind.REPLACE_CLIENT,
    FaultKind.REPLACE_CLIENT,
    FaultKind.KILL_CLIENT,
    FaultKind.CUT_CLIENT,
)
_ALONE_FAULTS: Final = (
    FaultKind.CRASH,
    FaultKind.CRASH,
    FaultKind.CRASH_TWICE,
    FaultKind.RESET,
    FaultKind.SET_CLOCK,
    FaultKind.PAUSE_CLIENT,
    FaultKind.PAUSE_CLIENT,
    *_CLIENT_FAULTS,
)
_CLUSTER_FAULTS: Final = (
    FaultKind.CRASH,
    FaultKind.CRASH_LEADER,
    FaultKind.CRASH_LEADER,
    FaultKind.CRASH_CONTROLLER,
    FaultKind.CRASH_COORDINATOR,
    FaultKind.CRASH_SEVERAL,
    FaultKind.CRASH_TWICE,
    FaultKind.RESTART,
    FaultKind.ROLLING_RESTART,
    FaultKind.PAUSE,
    FaultKind.PAUSE_LEADER,
    FaultKind.ISOLATE,
    FaultKind.DEAFEN,
    FaultKind.MUTE,
    FaultKind.SPLIT,
    FaultKind.RING,
    FaultKind.BRIDGE,
    FaultKind.SEVER,
    FaultKind.LAG,
    FaultKind.SLOW_DISK,
    FaultKind.SET_CLOCK,
    FaultKind.RESET,
    FaultKind.ELECT,
    FaultKind.REASSIGN,
    *_CLIENT_FAULTS,
)

_TWO_PHASE_FAULTS: Final = (
    FaultKind.CRASH_COORDINATOR,
    FaultKind.CRASH_LEADER,
    FaultKind.CRASH_TWICE,
    FaultKind.ELECT,
    FaultKind.PAUSE_LEADER,
    FaultKind.RESET,
    *_CLIENT_FAULTS,
    *_CLIENT_FAULTS,
)


def profile_of(seed: int) -> Profile:
    """A broker alone: the seed's profile."""
    source = random.Random(f"{seed}/profile")
    return _profile(seed, source, _ALONE, _ALONE_FAULTS)


def cluster_profile_of(seed: int) -> Profile:
    """A cluster of three to six nodes: the seed's profile."""
    source = random.Random(f"{seed}/cluster profile")
    return _profile(seed, source, source.choice(_CLUSTERS), _CLUSTER_FAULTS)


def delayed_profile_of(seed: int) -> Profile:
    """A cluster whose clients' requests are late, in the next transaction, while coordinators move (KAFKA-17754)."""
    source = random.Random(f"{seed}/delayed profile")
    workload = source.choice(("ledger", "bank"))
    kinds = (FaultKind.CRASH_COORDINATOR, FaultKind.CRASH_LEADER, FaultKind.ELECT, FaultKind.PAUSE_LEADER)
    duration = source.uniform(5.0, 9.0)
    return Profile(
        seed=seed,
        workload=workload,
        members=_members(0, 3, 0),
        replication_factor=3,
        min_insync_replicas=2,
        transaction_version=2,
        flush_each=False,
        crash=Crash.KILL,
        may_lose=False,
        duration=duration,
        faults=draw_schedule(source, kinds, seconds=duration, pause_max=4.0),
        network=NetworkFaults(
            delay_max=0.003,
            late=source.choice((0.05, 0.1, 0.3)),
            late_apis=source.choice((_LATE_APIS, _LATE_APIS, (26,), (26,), (0,), (28,), (24, 0))),
            late_max=source.choice((0.3, 1.0, 4.0)),
        ),
        disk=DiskFaults(sync_max=0.002),
        segment_bytes=1_000_000,
    )


def two_phase_profile_of(seed: int) -> Profile:
    """A broker or a cluster, and writers that commit a database together with their topic (KIP-939)."""
    source = random.Random(f"{seed}/two-phase profile")
    members = source.choice((_ALONE, _members(0, 3, 0), _members(0, 3, 0)))
    replicas = len(members)
    flush_each = source.random() < 0.4
    duration = source.uniform(8.0, 14.0)
    return Profile(
        seed=seed,
        workload=TWO_PHASE,
        members=members,
        replication_factor=replicas,
        min_insync_replicas=2 if replicas > 1 else 1,
        transaction_version=2,
        flush_each=flush_each,
        crash=source.choice((Crash.KILL, Crash.POWER)) if flush_each else Crash.KILL,
        may_lose=False,
        duration=duration,
        faults=draw_schedule(source, _TWO_PHASE_FAULTS, seconds=duration, pause_max=source.choice((1.5, 4.0))),
        network=NetworkFaults(
            delay_max=source.choice((0.003, 0.02)),
            reset=0.002,
            late=source.choice((0.0, 0.1, 0.3)),
            late_apis=source.choice((_LATE_APIS, (26,), (26,), (0,))),
            late_max=source.choice((0.3, 1.0, 4.0)),
        ),
        disk=DiskFaults(sync_max=0.002),
        segment_bytes=source.choice((2_000, 1_000_000)),
    )


def _damages(seed: int, duration: float) -> Iterator[Fault]:
    """Damaged files in one seed of four, with randomness of their own: the other faults stay what they are."""
    source = random.Random(f"{seed}/damage")
    if source.random() < 0.25:
        for _ in range(source.randint(1, 3)):
            at, lasts = source.uniform(1.0, duration), source.uniform(0.5, 3.0)
            yield Fault(round(at, 3), FaultKind.DAMAGE, round(lasts, 3), source.randrange(2**31))


def _profile(
    seed: int, source: random.Random, members: tuple[ClusterMember, ...], kinds: tuple[FaultKind, ...]
) -> Profile:
    is_cluster = len(members) > 1
    version = source.choice((2, 2, 2, 2, 1, 0))
    flush_each = source.random() < 0.4
    may_be_late = version >= 2
    rough = source.choice((0.0, 0.5, 1.0, 2.0)) / (2.0 if is_cluster else 1.0)
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
    replicas = min(3, sum(1 for member in members if member.is_broker))
    min_insync_replicas = source.choice((2, 2, 2, 1)) if is_cluster else 1
    crash = source.choice((Crash.KILL, Crash.POWER)) if flush_each or min_insync_replicas > 1 else Crash.KILL
    may_lose = is_cluster and crash is Crash.POWER and not flush_each and source.random() < 0.2
    is_sick = source.random() < 0.2
    disk = DiskFaults(
        sync_max=source.choice((0.002, 0.02)),
        slow_sync=source.choice((0.0, 0.01, 0.1)),
        sync_error=0.003 if is_sick and crash is Crash.POWER and flush_each else 0.0,
        full=0.01 if is_sick else 0.0,
    )
    duration = source.uniform(6.0, 16.0) if not is_cluster else source.uniform(5.0, 12.0)
    if not may_be_late:
        kinds = tuple(kind for kind in kinds if kind not in LATE)
    if min_insync_replicas == 2 and not all(member.is_controller for member in members if member.is_broker):
        kinds = (*kinds, FaultKind.WIPE, FaultKind.WIPE)
    return Profile(
        seed=seed,
        workload=source.choice(WORKLOADS),
        members=members,
        replication_factor=replicas,
        min_insync_replicas=min_insync_replicas,
        transaction_version=version,
        flush_each=flush_each,
        crash=crash,
        may_lose=may_lose,
        duration=duration,
        faults=(
            *draw_schedule(source, kinds, seconds=duration, pause_max=source.choice((0.7, 1.5, 4.0))),
            *(_damages(seed, duration) if disk.is_reliable else ()),
        ),
        network=network,
        disk=disk,
        segment_bytes=source.choice((2_000, 20_000, 1_000_000)),
    )
