"""One schedule: a seed, run from beginning to end, and judged.

The broker starts, the workload runs while the nemesis does harm, then everything is calm and must come to rest: what
was open is decided, everything can be read. The same seed gives the same trace, in any process.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from einmal.checker.history import Anomaly, History
from einmal.client.descriptions import NewTopic
from einmal.client.errors import KafkaError
from einmal.simulation.loop import Stuck
from einmal.simulation.nemesis import Nemesis
from einmal.simulation.profile import Profile, profile_of
from einmal.simulation.result import Result
from einmal.simulation.trace import Trace
from einmal.simulation.world import World
from einmal.workloads.bank import Bank
from einmal.workloads.batches import Batches
from einmal.workloads.ledger import Ledger
from einmal.workloads.reading import NotFinished

_REST: Final = 90.0
"""Virtual seconds in which clients must have ended, once nothing goes wrong any more."""
_FINISH: Final = 120.0
Workload = Ledger | Bank | Batches
WORKLOADS: Final[Mapping[str, Callable[[], Workload]]] = {"ledger": Ledger, "bank": Bank, "batches": Batches}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What is left of a world: what was wrong, what its clients did, and every event that was delivered."""

    anomalies: tuple[Anomaly, ...]
    history: History
    virtual_seconds: float
    trace: Trace


def run_seed(seed: int) -> Result:
    """Run a seed's schedule. Never raises: what goes wrong is an anomaly."""
    outcome = simulate(profile_of(seed))
    return Result(
        seed=seed,
        anomalies=tuple(str(anomaly) for anomaly in outcome.anomalies),
        virtual_seconds=outcome.virtual_seconds,
        trace_digest=outcome.trace.digest(),
    )


def simulate(profile: Profile, *, keep_trace: bool = False) -> Outcome:
    """Run one schedule as it is described."""
    with _undisturbed():
        return _simulate(World(profile, keep_trace=keep_trace), WORKLOADS[profile.workload]())


def _simulate(world: World, workload: Workload) -> Outcome:
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
    return Outcome(anomalies, history, world.loop.time(), world.trace)


async def _schedule(world: World, workload: Workload) -> None:
    await world.start_broker()
    await _create_topics(world, workload.topics)
    world.stir()
    for role in workload.roles:
        world.start_client(role)
    nemesis = Nemesis(world, random.Random(f"{world.profile.seed}/nemesis"))
    await nemesis.run(world.profile.duration)
    world.calm()
    if not world.profile.disk.is_reliable:
        # Logs that an error of the disk has taken offline come back with the next start only.
        world.crash_broker(world.profile.crash)
        await world.start_broker()
    workload.stop()
    await _rest(world)
    await _finish(world, workload)


async def _create_topics(world: World, topics: dict[str, int]) -> None:
    process, host = world.process("admin")

    async def create() -> None:
        admin = process.admin()
        await admin.create_topics([NewTopic(name, num_partitions=count) for name, count in topics.items()])
        await admin.close()

    await world.run_on(host, create())


async def _rest(world: World) -> None:
    """Wait until every client has ended by itself."""
    deadline = world.loop.time() + _REST
    while running := [client for client in world.clients if not client.task.done()]:
        if world.loop.time() > deadline:
            names = ", ".join(client.host.name for client in running)
            world.report("no-end", f"{names} did not end within {_REST:.0f} s of calm")
            return
        await asyncio.sleep(0.25)


async def _finish(world: World, workload: Workload) -> None:
    process, host = world.process("finisher")
    try:
        await asyncio.wait_for(world.run_on(host, workload.finish(process)), _FINISH)
    except (NotFinished, TimeoutError, KafkaError) as error:
        world.report("no-end", f"the log could not be read to its end: {type(error).__name__}: {error}")


@contextmanager
def _undisturbed() -> Iterator[None]:
    """No log lines, and no garbage collection: when it runs depends on what else the process has allocated."""
    was_enabled = gc.isenabled()
    level = logging.root.manager.disable
    hook = sys.unraisablehook
    gc.disable()
    # What was there before cannot refer to this world: collecting it need not look there.
    gc.freeze()
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        # The coroutines of dead hosts are collected now; what their ``finally`` blocks try comes to nothing.
        sys.unraisablehook = _ignore
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gc.collect()
        gc.unfreeze()
        sys.unraisablehook = hook
        logging.disable(level)
        if was_enabled:
            gc.enable()


def _ignore(_unraisable: object) -> None:
    return
