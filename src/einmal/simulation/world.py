"""A simulated cluster of one with its clients: the real node and the real client code on simulated seams.

Starts, kills and restarts the broker; starts, pauses, replaces and kills client processes. What goes wrong inside of
them (an exception that nobody caught, a broker that does not come up again) is kept in ``reports``.
"""

from __future__ import annotations

import asyncio
import random
import traceback
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any, Final

from einmal.broker.config import BrokerConfig
from einmal.broker.node import Node
from einmal.checker.history import Anomaly
from einmal.simulation.clock import skewed_clock
from einmal.simulation.disk import RELIABLE, SimulatedDisk
from einmal.simulation.loop import Host, SimulatedLoop
from einmal.simulation.network import QUIET, SimulatedNetwork
from einmal.simulation.profile import Crash, Profile
from einmal.simulation.trace import Trace
from einmal.workloads.process import Process, Role

BROKER: Final = "broker"
PORT: Final = 9092


@dataclass(slots=True, eq=False)
class Client:
    """A running process of a role. ``is_replaced``: another one has taken its place."""

    role: Role
    process: Process
    host: Host
    task: asyncio.Task[None]
    is_replaced: bool = False


class World:
    def __init__(self, profile: Profile, *, keep_trace: bool = False) -> None:
        self.profile = profile
        self.trace = Trace(keep=keep_trace)
        self.reports: list[Anomaly] = []
        self.loop = SimulatedLoop(self._uncaught)  # type: ignore[abstract]
        self.network = SimulatedNetwork(self.loop, self._source("network"), self.trace)
        self.disk = SimulatedDisk(self.loop, self._source("disk"), self.trace)
        self.broker_host: Host | None = None
        self.node: Node | None = None
        self.broker_clock = skewed_clock(self.loop, self._source("broker clock"))
        self.clients: list[Client] = []
        self._incarnations = 0
        self._processes = 0

    def _source(self, name: str) -> random.Random:
        return random.Random(f"{self.profile.seed}/{name}")

    def _uncaught(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        detail = str(context.get("message"))
        if error is not None:
            places = traceback.extract_tb(error.__traceback__)
            where = " < ".join(f"{place.name}:{place.lineno}" for place in reversed(places[-4:]))
            detail += f": {type(error).__name__}: {error} ({where})"
        self.report("uncaught", detail)

    def report(self, kind: str, detail: str) -> None:
        self.reports.append(Anomaly(kind, f"{detail}, at {self.loop.time():.3f} s"))

    # --- the broker ------------------------------------------------------------------------------------------------

    async def start_broker(self) -> None:
        """Start it on what its disk has. Raises what ``Node.start`` raises."""
        self._incarnations += 1
        host = self.broker_host = Host(BROKER)
        node = self.node = Node(
            _broker_config(self.profile),
            clock=self.broker_clock,
            network=self.network.of(host),
            disk=self.disk.view(host),
            random=self._source(f"broker {self._incarnations}"),
        )
        self.trace.event(self.loop.time(), f"start {BROKER}")
        await self.run_on(host, node.start())

    def crash_broker(self, crash: Crash) -> None:
        assert self.broker_host is not None
        self.trace.event(self.loop.time(), f"crash {BROKER} {crash.value}")
        self.loop.kill(self.broker_host)
        self.network.lose(self.broker_host)
        if crash is Crash.POWER:
            self.disk.cut_power()

    def run_on(self, host: Host, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self.loop.create_task(work, context=host.context.copy())

    # --- clients ---------------------------------------------------------------------------------------------------

    def process(self, name: str) -> tuple[Process, Host]:
        """A new process, on a machine of its own."""
        self._processes += 1
        host = Host(f"{name}#{self._processes}")
        source = self._source(host.name)
        process = Process(
            name=name,
            number=self._processes,
            bootstrap_servers=f"{BROKER}:{PORT}",
            network=self.network.of(host),
            clock=skewed_clock(self.loop, source),
            random=source,
        )
        return process, host

    def start_client(self, role: Role) -> Client:
        process, host = self.process(role.name)
        self.trace.event(self.loop.time(), f"start {host.name}")
        client = Client(role, process, host, self.run_on(host, _run(role, process)))
        client.task.add_done_callback(self._ended)
        self.clients.append(client)
        return client

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._uncaught({"message": "a client process ended", "exception": error})

    def kill_client(self, client: Client) -> None:
        self.trace.event(self.loop.time(), f"kill {client.host.name}")
        self.loop.kill(client.host)
        self.network.lose(client.host)
        self.clients.remove(client)

    def pause_client(self, client: Client) -> None:
        self.trace.event(self.loop.time(), f"pause {client.host.name}")
        self.loop.pause(client.host)

    def resume_client(self, client: Client) -> None:
        if client.host.is_paused:
            self.trace.event(self.loop.time(), f"resume {client.host.name}")
            self.loop.resume(client.host)

    def restart_ended_clients(self) -> None:
        """Start a process anew for each role whose process has ended, unless another one has its place."""
        for client in [client for client in self.clients if client.task.done()]:
            self.clients.remove(client)
            if not client.is_replaced:
                self.start_client(client.role)

    def stir(self) -> None:
        """From now on network and disk are as the profile has them."""
        self.network.faults = self.profile.network
        self.disk.faults = self.profile.disk

    def calm(self) -> None:
        """No fault happens from now on."""
        self.network.faults = QUIET
        self.disk.faults = RELIABLE
        self.network.heal()
        for client in self.clients:
            self.resume_client(client)


async def _run(role: Role, process: Process) -> None:
    await role.run(process)


def _broker_config(profile: Profile) -> BrokerConfig:
    return BrokerConfig(
        listeners=f"PLAINTEXT://{BROKER}:{PORT}",
        log_dirs="/data",
        auto_create_topics_enable=False,
        transaction_version=profile.transaction_version,
        log_flush_interval_messages=1 if profile.flush_each else 2**63 - 1,
        log_segment_bytes=profile.segment_bytes,
        log_index_interval_bytes=512,
        transaction_state_log_num_partitions=2,
        offsets_topic_num_partitions=2,
        group_initial_rebalance_delay_ms=200,
        group_min_session_timeout_ms=1_000,
    )
