"""A simulated cluster with its clients: the real nodes and the real client code on simulated seams.

A machine has a disk and a clock; nodes run on it one after the other. Starts, crashes, pauses and stops nodes; starts,
pauses, replaces and kills client processes. A cluster of one is a world with one machine. Failures inside of them (an
uncaught exception, a node that does not restart) are kept in ``reports``.
"""

from __future__ import annotations

import asyncio
import random
import traceback
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from einmal.broker.config import BrokerConfig
from einmal.broker.node import Node
from einmal.checker.history import Anomaly
from einmal.log.errors import LogCorruption
from einmal.metadata.image import ClusterImage, ImageDelta
from einmal.simulation.clock import SimulatedClock, skewed_clock
from einmal.simulation.damage import Damage
from einmal.simulation.disk import RELIABLE, SimulatedDisk
from einmal.simulation.invariants import Invariants
from einmal.simulation.loop import Host, SimulatedLoop
from einmal.simulation.network import QUIET, SimulatedNetwork
from einmal.simulation.profile import TWO_PHASE, ClusterMember, Crash, Profile
from einmal.simulation.trace import Trace
from einmal.workloads.process import Process, Role
from einmal.workloads.reading import NotFinished

T = TypeVar("T")

DATA_DIRECTORY: Final = "/data"
PORT: Final = 9092
CONTROLLER_PORT: Final = 9093
_RETRY_SECONDS: Final = 0.2


@dataclass(slots=True, eq=False)
class Client:
    """A running process of a role. ``is_replaced``: another one runs instead."""

    role: Role[Process]
    process: Process
    host: Host
    task: asyncio.Task[None]
    is_replaced: bool = False


class Machine:
    """The machine of a node. ``host`` and ``node``: the present ones, or the last ones."""

    def __init__(self, member: ClusterMember, disk: SimulatedDisk, clock: SimulatedClock) -> None:
        self.member = member
        self.name = name_of(member.node_id)
        self.disk = disk
        self.clock = clock
        self.host: Host | None = None
        self.node: Node | None = None
        self.incarnations = 0
        self.downs = 0
        """The number of faults that keep it down."""
        self.damage: Damage | None = None
        """The damage to its files, until the operator restores them."""
        self.starting: asyncio.Task[None] | None = None

    @property
    def node_id(self) -> int:
        return self.member.node_id

    @property
    def is_alive(self) -> bool:
        """Its process exists; it may be starting, or paused."""
        return self.host is not None and self.host.is_alive

    @property
    def is_running(self) -> bool:
        return self.host is not None and self.host.is_alive and not self.host.is_paused

    @property
    def has_started(self) -> bool:
        return self.is_alive and self.starting is not None and self.starting.done()


class _WatchedNode(Node):
    """A node that exposes each state of its replicas to the simulation."""

    watch: Invariants

    def apply(self, delta: ImageDelta, image: ClusterImage) -> None:
        super().apply(delta, image)
        self.watch.look_at(self)


class World:
    def __init__(self, profile: Profile, *, keep_trace: bool = False) -> None:
        self.profile = profile
        self.trace = Trace(keep=keep_trace)
        self.reports: list[Anomaly] = []
        self.loop = SimulatedLoop(self._uncaught)  # type: ignore[abstract]
        self.network = SimulatedNetwork(self.loop, self._source("network"), self.trace)
        self.invariants = Invariants(self.report, is_loss_allowed=profile.may_lose)
        self.machines = {
            member.node_id: Machine(
                member,
                SimulatedDisk(self.loop, self._source(f"disk {member.node_id}"), self.trace),
                skewed_clock(self.loop, self._source(f"clock {member.node_id}")),
            )
            for member in profile.members
        }
        self.clients: list[Client] = []
        self._processes = 0

    def _source(self, name: str) -> random.Random:
        return random.Random(f"{self.profile.seed}/{name}")

    def _uncaught(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        detail = str(context.get("message"))
        if error is not None:
            frames = traceback.extract_tb(error.__traceback__)
            where = " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(frames[-4:]))
            detail += f": {type(error).__name__}: {error} ({where})"
        self.report("uncaught", detail)

    def report(self, kind: str, detail: str) -> None:
        self.reports.append(Anomaly(kind, f"{detail}, at {self.loop.time():.3f} s"))

    # --- nodes -----------------------------------------------------------------------------------------------------

    async def start(self, *node_ids: int) -> None:
        """Start nodes, all by default, on what their disks have, and wait. Raises what ``Node.start`` raises."""
        starting = [self.begin_start(self.machines[node_id]) for node_id in node_ids or self.machines]
        await asyncio.gather(*starting)

    def begin_start(self, machine: Machine) -> asyncio.Task[None]:
        assert not machine.is_alive, f"{machine.name} runs"
        machine.incarnations += 1
        host = machine.host = Host(machine.name)
        self.network.light(machine.name)
        node = machine.node = _WatchedNode(
            _broker_config(self.profile, machine.member),
            clock=machine.clock,
            network=self.network.of(host),
            disk=machine.disk.view(host),
            stopwatch=self.loop.time,
            random=self._source(f"{machine.name} {machine.incarnations}"),
        )
        node.watch = self.invariants
        self.trace.event(self.loop.time(), f"start {machine.name}")
        machine.starting = self.run_on(host, node.start())
        return machine.starting

    def keep_up(self, machine: Machine) -> None:
        """Start it, with retries if disk errors prevent the start."""
        starting = self.begin_start(machine)
        host = machine.host

        def ended(task: asyncio.Task[None]) -> None:
            if task.cancelled() or machine.host is not host or not machine.is_alive or not (error := task.exception()):
                return
            if isinstance(error, LogCorruption) and machine.damage is not None:
                # It has detected the damage, and waits for its operator.
                self.crash(machine.node_id, Crash.KILL)
                return
            if not isinstance(error, OSError) or machine.disk.faults.is_reliable:
                self._uncaught({"message": f"{machine.name} does not start", "exception": error})
                return
            self.crash(machine.node_id, self.profile.crash)
            self.loop.call_later(_RETRY_SECONDS, again)

        def again() -> None:
            if machine.host is host:
                self.keep_up(machine)

        starting.add_done_callback(ended)

    def crash(self, node_id: int, crash: Crash, *, silently: bool = False) -> None:
        """``silently``: its peers do not notice until it starts again."""
        machine = self.machines[node_id]
        host = machine.host
        assert host is not None, "it has never run"
        if machine.damage is not None:
            # After a power cut, damage looks like a torn tail.
            crash = Crash.KILL
        self.trace.event(self.loop.time(), f"crash {machine.name} {crash.value}")
        self.loop.kill(host)
        self.network.lose(host, silently=silently)
        if crash is Crash.POWER:
            machine.disk.cut_power()

    async def stop(self, node_id: int) -> None:
        """A clean stop, and the end of the process; if syncs fail, of the machine."""
        machine = self.machines[node_id]
        node, host = machine.node, machine.host
        assert node is not None and host is not None
        self.trace.event(self.loop.time(), f"stop {machine.name}")
        try:
            await self.run_on(host, node.stop())
        except OSError:
            if machine.disk.faults.is_reliable:
                raise
        if host.is_alive:
            self.loop.kill(host)
            self.network.lose(host)
            if self.profile.disk.sync_error:
                # Another process would trust pages that were never written.
                machine.disk.cut_power()

    def pause(self, node_id: int) -> None:
        machine = self.machines[node_id]
        if machine.host is not None:
            self.trace.event(self.loop.time(), f"pause {machine.name}")
            self.loop.pause(machine.host)

    def resume(self, host: Host) -> None:
        if host.is_paused:
            self.trace.event(self.loop.time(), f"resume {host.name}")
            self.loop.resume(host)

    def run_on(self, host: Host, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        return self.loop.create_task(work, context=host.context.copy())

    def nodes(self) -> list[Node]:
        """Those that run."""
        return [machine.node for machine in self.machines.values() if machine.is_running and machine.node is not None]

    # --- clients ---------------------------------------------------------------------------------------------------

    def process(self, name: str) -> tuple[Process, Host]:
        """A new process, on a machine of its own."""
        self._processes += 1
        host = Host(f"{name}#{self._processes}")
        source = self._source(host.name)
        process = Process(
            name=name,
            number=self._processes,
            bootstrap_servers=",".join(f"{name_of(node_id)}:{PORT}" for node_id in self.profile.brokers),
            network=self.network.of(host),
            clock=skewed_clock(self.loop, source),
            random=source,
        )
        return process, host

    def start_client(self, role: Role[Process]) -> Client:
        process, host = self.process(role.name)
        self.trace.event(self.loop.time(), f"start {host.name}")
        client = Client(role, process, host, self.run_on(host, _run(role, process)))
        client.task.add_done_callback(self._ended)
        self.clients.append(client)
        return client

    def _ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if isinstance(error, NotFinished):
            self.report("no-end", f"a client could not read to the end: {error}")
        elif error is not None:
            self._uncaught({"message": "a client process ended", "exception": error})

    def kill_client(self, client: Client) -> None:
        self.trace.event(self.loop.time(), f"kill {client.host.name}")
        self.loop.kill(client.host)
        self.network.lose(client.host)
        self.clients.remove(client)

    def pause_client(self, client: Client) -> None:
        self.trace.event(self.loop.time(), f"pause {client.host.name}")
        self.loop.pause(client.host)

    def restart_ended_clients(self) -> None:
        """Start a new process for each role whose process has ended, unless it was replaced."""
        for client in [client for client in self.clients if client.task.done()]:
            self.clients.remove(client)
            if not client.is_replaced:
                self.start_client(client.role)

    # --- everything ------------------------------------------------------------------------------------------------

    def stir(self) -> None:
        """From now on network and disks have the faults of the profile."""
        self.network.faults = self.profile.network
        for machine in self.machines.values():
            machine.disk.faults = self.profile.disk

    def calm(self) -> None:
        """End all faults: nothing is cut or paused, and every machine runs."""
        self.network.faults = QUIET
        self.network.heal()
        for client in self.clients:
            self.resume(client.host)
        for machine in self.machines.values():
            assert machine.host is not None
            machine.disk.faults = RELIABLE
            self.resume(machine.host)
            if not machine.is_alive:
                self.keep_up(machine)


async def _run(role: Role[Process], process: Process) -> None:
    await role.run(process)


def name_of(node_id: int) -> str:
    """Return the name of a node's machine, in the network."""
    return f"node-{node_id}"


def _broker_config(profile: Profile, member: ClusterMember) -> BrokerConfig:
    name = name_of(member.node_id)
    is_alone = len(profile.members) == 1
    listeners = [f"PLAINTEXT://{name}:{PORT}"] if member.is_broker else []
    if member.is_controller and not is_alone:
        listeners.append(f"CONTROLLER://{name}:{CONTROLLER_PORT}")
    voters = ",".join(f"{node_id}@{name_of(node_id)}:{CONTROLLER_PORT}" for node_id in profile.controllers)
    return BrokerConfig(
        node_id=member.node_id,
        process_roles=member.roles,
        listeners=",".join(listeners),
        controller_quorum_voters="" if is_alone else voters,
        log_dirs=DATA_DIRECTORY,
        auto_create_topics_enable=False,
        transaction_version=profile.transaction_version,
        transaction_two_phase_commit_enable=profile.workload == TWO_PHASE,
        default_replication_factor=profile.replication_factor,
        min_insync_replicas=profile.min_insync_replicas,
        log_flush_interval_messages=1 if profile.flush_each else 2**63 - 1,
        log_segment_bytes=profile.segment_bytes,
        log_index_interval_bytes=512,
        replica_lag_time_max_ms=3_000,
        broker_session_timeout_ms=3_000,
        log_cleaner_backoff_ms=700,
        log_cleaner_min_cleanable_ratio=0.1,
        transaction_state_log_num_partitions=2,
        transaction_state_log_segment_bytes=profile.segment_bytes,
        transaction_state_log_replication_factor=profile.replication_factor,
        transaction_state_log_min_isr=profile.min_insync_replicas,
        offsets_topic_num_partitions=2,
        offsets_topic_segment_bytes=profile.segment_bytes,
        offsets_topic_replication_factor=profile.replication_factor,
        group_initial_rebalance_delay_ms=200,
        group_min_session_timeout_ms=1_000,
    )
