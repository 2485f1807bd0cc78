"""One schedule: a seed, run from beginning to end, and checked.

The cluster starts, and the workload runs while the nemesis injects faults. When these end, everything must soon work
again: open transactions are decided, everything can be read, and the nodes agree. The same seed gives the same trace,
in any process.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from einmal.checker.history import Anomaly, History
from einmal.client.descriptions import NewTopic
from einmal.client.errors import KafkaError
from einmal.simulation import liveness
from einmal.simulation.invariants import replicas
from einmal.simulation.loop import Stuck
from einmal.simulation.nemesis import Nemesis
from einmal.simulation.profile import (
    TWO_PHASE,
    Crash,
    Profile,
    cluster_profile_of,
    delayed_profile_of,
    profile_of,
    two_phase_profile_of,
)
from einmal.simulation.result import Result
from einmal.simulation.trace import Trace
from einmal.simulation.world import World
from einmal.workloads.bank import Bank
from einmal.workloads.batches import Batches
from einmal.workloads.dual_writes import DualWrites
from einmal.workloads.ledger import Ledger
from einmal.workloads.reading import NotFinished

_REST: Final = 90.0
"""Virtual seconds within which clients must end after the last fault."""
_FINISH: Final = 120.0
_DECIDED: Final = 20.0
"""Transactions open then have a timeout of six seconds."""
_AGREED: Final = 10.0
_START: Final = 30.0
_LOOK: Final = 0.25
Workload = Ledger | Bank | Batches | DualWrites
WORKLOADS: Final[Mapping[str, Callable[[], Workload]]] = {
    "ledger": Ledger,
    "bank": Bank,
    "batches": Batches,
    TWO_PHASE: DualWrites,
}
_LOSSES: Final = ("uncaught", "stuck", "no-start", "two-leaders", "replicas-differ", "metadata-differs", "not-live")
"""Anomalies that are not allowed even if data may be lost."""


@dataclass(frozen=True, slots=True)
class SimulationOutcome:
    """The results of a world: anomalies, the history of its clients, and every event that was delivered."""

    anomalies: tuple[Anomaly, ...]
    history: History
    virtual_seconds: float
    trace: Trace


def run_seed(seed: int) -> Result:
    """Run a seed's schedule on a single broker. Never raises: every failure is an anomaly."""
    return _result(profile_of(seed))


def run_cluster_seed(seed: int) -> Result:
    """As ``run_seed``, of a cluster."""
    return _result(cluster_profile_of(seed))


def run_delayed_seed(seed: int) -> Result:
    """As ``run_seed``, of a cluster with late requests."""
    return _result(delayed_profile_of(seed))


def run_two_phase_seed(seed: int) -> Result:
    """As ``run_seed``, with a database that is committed together with a topic."""
    return _result(two_phase_profile_of(seed))


def _result(profile: Profile) -> Result:
    outcome = simulate(profile)
    return Result(
        seed=profile.seed,
        anomalies=tuple(str(anomaly) for anomaly in outcome.anomalies),
        virtual_seconds=outcome.virtual_seconds,
        trace_digest=outcome.trace.digest(),
    )


def simulate(profile: Profile, *, keep_trace: bool = False) -> SimulationOutcome:
    """Run one schedule as it is described."""
    with _undisturbed():
        return _simulate(World(profile, keep_trace=keep_trace), WORKLOADS[profile.workload]())


def _simulate(world: World, workload: Workload) -> SimulationOutcome:
    try:
        world.loop.run_until_complete(_schedule(world, workload))
    except Stuck as error:
        world.report("stuck", str(error))
    except Exception as error:  # noqa: BLE001 - whatever ends a schedule is what was looked for.
        world.report("uncaught", f"the schedule ended: {type(error).__name__}: {error}")
    world.loop.close()
    history = workload.recorder.history(is_read_to_the_end=False)
    world.trace.event(world.loop.time(), "history", repr(history).encode())
    anomalies = (*world.reports, *workload.anomalies())
    if world.profile.may_lose:
        anomalies = tuple(anomaly for anomaly in anomalies if anomaly.kind in _LOSSES)
    return SimulationOutcome(anomalies, history, world.loop.time(), world.trace)


async def _schedule(world: World, workload: Workload) -> None:
    await asyncio.wait_for(world.start(), _START)
    await _create_topics(world, {**workload.topics, liveness.TOPIC: 1})
    world.stir()
    for role in workload.roles:
        world.start_client(role)
    await Nemesis(world).run()
    if not world.profile.disk.is_reliable:
        # Logs that are offline after a disk error return only with the next start.
        for machine in world.machines.values():
            if machine.is_alive:
                world.crash(machine.node_id, Crash.KILL if world.profile.is_careful else world.profile.crash)
    world.calm()
    await _is_live(world)
    workload.stop()
    await _rest(world)
    await _finish(world, workload)
    await _is_decided(world)
    await _agrees(world)


async def _create_topics(world: World, topics: dict[str, int]) -> None:
    process, host = world.process("admin")

    async def create() -> None:
        admin = process.admin()
        await admin.create_topics([NewTopic(name, num_partitions=count) for name, count in topics.items()])
        await admin.close()

    await world.run_on(host, create())


async def _is_live(world: World) -> None:
    """Everything works again in time, and every node starts."""
    probing = {}
    for name, probe in liveness.PROBES.items():
        process, host = world.process("probe")
        probing[name] = world.run_on(host, liveness.until_it_works(probe, process))
    deadline = world.loop.time() + liveness.SECONDS
    while not all(task.done() for task in probing.values()):
        if world.loop.time() > deadline:
            break
        await asyncio.sleep(_LOOK)
    for name, task in probing.items():
        if not task.done():
            world.report("not-live", f"no {name} worked within {liveness.SECONDS:.0f} s of calm")
            task.cancel()
        elif not task.cancelled() and (error := task.exception()) is not None:
            world.report("uncaught", f"a {name} ended with {type(error).__name__}: {error}")
    deadline = world.loop.time() + _START
    while late := [machine.name for machine in world.machines.values() if not machine.has_started]:
        if world.loop.time() > deadline:
            world.report("no-start", f"{', '.join(late)} did not start within {_START:.0f} s of calm")
            return
        await asyncio.sleep(_LOOK)


async def _rest(world: World) -> None:
    """Wait until every client has ended by itself."""
    deadline = world.loop.time() + _REST
    while running := [client for client in world.clients if not client.task.done()]:
        if world.loop.time() > deadline:
            names = ", ".join(client.host.name for client in running)
            world.report("no-end", f"{names} did not end within {_REST:.0f} s of calm")
            return
        await asyncio.sleep(_LOOK)


async def _finish(world: World, workload: Workload) -> None:
    process, host = world.process("finisher")
    try:
        await asyncio.wait_for(world.run_on(host, workload.finish(process)), _FINISH)
    except (NotFinished, TimeoutError, KafkaError) as error:
        world.report("no-end", f"the log could not be read to its end: {type(error).__name__}: {error}")


async def _is_decided(world: World) -> None:
    """Every transaction has ended."""
    deadline = world.loop.time() + _DECIDED
    while undecided := liveness.undecided(world.nodes()):
        if world.loop.time() > deadline:
            world.report("undecided", f"transactions are open in {', '.join(map(str, undecided))}")
            return
        await asyncio.sleep(_LOOK)


async def _agrees(world: World) -> None:
    """Wait until nothing changes any more, and compare the nodes."""
    deadline = world.loop.time() + _AGREED
    while moving := _moves(world):
        if world.loop.time() > deadline:
            world.report("not-live", f"nodes do not agree within {_AGREED:.0f} s: {moving}")
            break
        await asyncio.sleep(_LOOK)
    nodes = world.nodes()
    world.invariants.compare_committed(nodes)
    world.invariants.compare_replicas(nodes)
    world.invariants.compare_metadata(nodes)
    world.invariants.compare_coordinators(nodes)


def _moves(world: World) -> str:
    """The state that is not replicated everywhere yet; empty: all is."""
    ends: dict[object, dict[int, int]] = {}
    for node in world.nodes():
        for partition in replicas(node):
            ends.setdefault(partition.topic_partition, {})[node.config.node_id] = partition.high_watermark
    behind = [f"{key} {watermarks}" for key, watermarks in ends.items() if len(set(watermarks.values())) > 1]
    return ", ".join(behind)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """No log lines, and no garbage collection: when it runs depends on what else the process has allocated."""
    was_enabled = gc.isenabled()
    level = logging.root.manager.disable
    hook = sys.unraisablehook
    gc.disable()
    # Earlier objects cannot refer to this world: collecting it need not search them. They stay frozen, for thawing
    # cannot be limited to some: in a process with many modules each later collection would search them all.
    gc.collect()
    gc.freeze()
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        # The coroutines of dead hosts are collected now; their ``finally`` blocks have no effect.
        sys.unraisablehook = _ignore
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # A collection spares objects that a ``finally`` block touches, until the next one.
            while gc.collect():
                pass
        sys.unraisablehook = hook
        logging.disable(level)
        if was_enabled:
            gc.enable()


def _ignore(_unraisable: object) -> None:
    return
