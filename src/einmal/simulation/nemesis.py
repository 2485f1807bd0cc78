"""Carries a schedule out: makes things go wrong when their time comes, and good again when it is over.

Each fault is a task of its own, so that one may hit what another one has already hit. Whom it hits is decided when it
begins, by the fault's own randomness and by who leads then. What a machine's power failing may do, and when a disk may
be wiped, ``profile`` says; whether the cluster is whole is looked up here.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

from einmal.client.aio.connection import Disconnected
from einmal.metadata.image import CONSUMER_OFFSETS, TRANSACTION_STATE, ClusterImage
from einmal.simulation.damage import inflict
from einmal.simulation.disk import DiskFaults
from einmal.simulation.loop import Host
from einmal.simulation.profile import Crash
from einmal.simulation.schedule import Fault, FaultKind
from einmal.simulation.world import DATA_DIRECTORY, Client, Machine, World
from einmal.wire.errors import WireError

_LOOK_SECONDS: Final = 0.5
"""How often it is looked whether a client has ended, and what is committed."""
_COORDINATED: Final = (TRANSACTION_STATE, CONSUMER_OFFSETS)
_ELECT_LEADERS: Final = 43
_ELECT_LEADERS_VERSION: Final = 2
_PREFERRED: Final = 0
_ALTER_REASSIGNMENTS: Final = 45
_OPERATOR_MS: Final = 5_000
_WRONG_MAX_MS: Final = 3_500_000
"""So far a machine's clock may be off: what is an hour ahead of it is refused (``message.timestamp.after.max.ms``)."""


class Nemesis:
    def __init__(self, world: World) -> None:
        self._world = world
        self._tasks: list[asyncio.Task[None]] = []
        self._carry_out: dict[FaultKind, Callable[[Fault, random.Random], Awaitable[None]]] = {
            FaultKind.CRASH: self._crash_any,
            FaultKind.CRASH_LEADER: self._crash_leader,
            FaultKind.CRASH_CONTROLLER: self._crash_controller,
            FaultKind.CRASH_COORDINATOR: self._crash_coordinator,
            FaultKind.CRASH_SEVERAL: self._crash_several,
            FaultKind.CRASH_TWICE: self._crash_twice,
            FaultKind.RESTART: self._restart,
            FaultKind.ROLLING_RESTART: self._restart_all,
            FaultKind.WIPE: self._wipe,
            FaultKind.PAUSE: self._pause_any,
            FaultKind.PAUSE_LEADER: self._pause_leader,
            FaultKind.ISOLATE: self._isolate,
            FaultKind.DEAFEN: self._deafen,
            FaultKind.MUTE: self._mute,
            FaultKind.SPLIT: self._split,
            FaultKind.RING: self._ring,
            FaultKind.BRIDGE: self._bridge,
            FaultKind.SEVER: self._sever,
            FaultKind.LAG: self._lag,
            FaultKind.SLOW_DISK: self._slow_disk,
            FaultKind.FULL_DISK: self._full_disk,
            FaultKind.DAMAGE: self._damage,
            FaultKind.SET_CLOCK: self._set_clock,
            FaultKind.RESET: self._reset,
            FaultKind.ELECT: self._elect,
            FaultKind.REASSIGN: self._reassign,
            FaultKind.PAUSE_CLIENT: self._pause_client,
            FaultKind.REPLACE_CLIENT: self._replace_client,
            FaultKind.KILL_CLIENT: self._kill_client,
            FaultKind.CUT_CLIENT: self._cut_client,
            FaultKind.LOSE_CLIENT: self._lose_client,
        }

    async def run(self) -> None:
        """The whole schedule; afterwards every fault is over."""
        world = self._world
        begun = world.loop.time()
        for fault in world.profile.faults:
            self._tasks.append(asyncio.ensure_future(self._in_time(fault, begun)))
        while (left := begun + world.profile.duration - world.loop.time()) > 0:
            await asyncio.sleep(min(left, _LOOK_SECONDS))
            world.restart_ended_clients()
            world.invariants.compare_committed(world.nodes())
        await asyncio.gather(*self._tasks)

    async def _in_time(self, fault: Fault, begun: float) -> None:
        await asyncio.sleep(begun + fault.at - self._world.loop.time())
        self._world.trace.event(self._world.loop.time(), str(fault))
        await self._carry_out[fault.kind](fault, random.Random(fault.draw))

    # --- who -------------------------------------------------------------------------------------------------------

    def _running(self) -> list[Machine]:
        return [machine for machine in self._world.machines.values() if machine.is_running]

    def _any(self, source: random.Random) -> Machine | None:
        running = self._running()
        return source.choice(running) if running else None

    def _leader_of(self, topics: Callable[[str], bool], source: random.Random) -> Machine | None:
        """Whoever leads some partition of such topics."""
        image = self._image()
        leaders = [
            partition.leader for topic in image.topics.values() if topics(topic.name) for partition in topic.partitions
        ]
        leaders = [leader for leader in leaders if leader in self._world.machines]
        machine = self._world.machines[source.choice(leaders)] if leaders else None
        return machine if machine is not None and machine.is_running else self._any(source)

    def _data_leader(self, source: random.Random) -> Machine | None:
        return self._leader_of(lambda name: not name.startswith("__"), source)

    def _coordinator(self, source: random.Random) -> Machine | None:
        return self._leader_of(lambda name: name in _COORDINATED, source)

    def _controller(self, source: random.Random) -> Machine | None:
        for machine in self._running():
            if machine.has_started and machine.node is not None and machine.node.quorum.is_leader:
                return machine
        return self._any(source)

    def _is_whole(self) -> bool:
        """Every machine runs, and every replica is in sync."""
        world = self._world
        if not all(machine.is_running and machine.has_started for machine in world.machines.values()):
            return False
        return all(
            len(partition.isr) == len(partition.replicas)
            for topic in self._image().topics.values()
            for partition in topic.partitions
        )

    def _image(self) -> ClusterImage:
        """As the best informed of the nodes has it that run."""
        images = [(node.metadata.next_offset, node.metadata.image) for node in self._world.nodes()]
        return max(images, key=lambda known: known[0])[1] if images else ClusterImage()

    # --- processes and machines ------------------------------------------------------------------------------------

    async def _crash_any(self, fault: Fault, source: random.Random) -> None:
        await self._crash([self._any(source)], fault.lasts, source)

    async def _crash_leader(self, fault: Fault, source: random.Random) -> None:
        await self._crash([self._data_leader(source)], fault.lasts, source)

    async def _crash_controller(self, fault: Fault, source: random.Random) -> None:
        await self._crash([self._controller(source)], fault.lasts, source)

    async def _crash_coordinator(self, fault: Fault, source: random.Random) -> None:
        await self._crash([self._coordinator(source)], fault.lasts, source)

    async def _crash_several(self, fault: Fault, source: random.Random) -> None:
        running = self._running()
        await self._crash(source.sample(running, source.randint(0, len(running))), fault.lasts, source)

    async def _crash_twice(self, fault: Fault, source: random.Random) -> None:
        """It dies again while it comes up."""
        machine = self._any(source)
        await self._crash([machine], fault.lasts, source)
        await asyncio.sleep(source.uniform(0.0, 0.05))
        await self._crash([machine], source.uniform(0.0, 0.1), source)

    async def _crash(self, machines: Sequence[Machine | None], seconds: float, source: random.Random) -> None:
        hit = [machine for machine in machines if machine is not None]
        crash = self._allowed_crash(len(hit))
        for machine in hit:
            machine.downs += 1
            if machine.is_alive:
                self._world.crash(machine.node_id, crash, silently=crash is Crash.POWER and source.random() < 0.5)
        await asyncio.sleep(seconds)
        for machine in hit:
            self._up_again(machine)

    def _allowed_crash(self, count: int) -> Crash:
        profile = self._world.profile
        if profile.crash is Crash.POWER and profile.is_careful and not (count == 1 and self._is_whole()):
            return Crash.KILL
        return profile.crash

    def _up_again(self, machine: Machine) -> None:
        machine.downs -= 1
        if not machine.downs and not machine.is_alive:
            self._world.keep_up(machine)

    async def _restart(self, fault: Fault, source: random.Random) -> None:
        await self._stop_and_start(self._any(source), fault.lasts)

    async def _restart_all(self, fault: Fault, source: random.Random) -> None:
        for machine in list(self._world.machines.values()):
            await self._stop_and_start(machine, source.uniform(0.0, 0.5))
            await asyncio.sleep(source.uniform(0.0, 0.5))

    async def _stop_and_start(self, machine: Machine | None, seconds: float) -> None:
        if machine is None or not machine.is_running or not machine.has_started or machine.downs:
            return
        machine.downs += 1
        host = machine.host
        stopping = asyncio.ensure_future(self._world.stop(machine.node_id))
        while not stopping.done():
            # Another fault may kill it while it stops; then its task never ends.
            if host is not machine.host or not machine.is_alive:
                break
            await asyncio.sleep(0.01)
        if stopping.done():
            stopping.result()
        await asyncio.sleep(seconds)
        self._up_again(machine)

    async def _wipe(self, fault: Fault, source: random.Random) -> None:
        """A broker without a vote comes back with an empty disk."""
        brokers = [machine for machine in self._running() if not machine.member.is_controller]
        brokers = [machine for machine in brokers if machine.damage is None]
        if not brokers or not self._is_whole():
            return
        machine = source.choice(brokers)
        machine.downs += 1
        self._world.crash(machine.node_id, Crash.KILL)
        machine.disk.wipe()
        await asyncio.sleep(fault.lasts)
        self._up_again(machine)

    async def _pause_any(self, fault: Fault, source: random.Random) -> None:
        await self._pause(self._any(source), fault.lasts)

    async def _pause_leader(self, fault: Fault, source: random.Random) -> None:
        await self._pause(self._data_leader(source), fault.lasts)

    async def _pause(self, machine: Machine | None, seconds: float) -> None:
        """The process is frozen, and then goes on as if nothing had been."""
        if machine is None or machine.host is None:
            return
        host = machine.host
        self._world.pause(machine.node_id)
        await asyncio.sleep(seconds)
        self._world.resume(host)

    # --- links -----------------------------------------------------------------------------------------------------

    async def _cut(self, links: Iterable[tuple[str, str]], seconds: float) -> None:
        network = self._world.network
        cut = list(links)
        for source, target in cut:
            network.cut(source, target)
        await asyncio.sleep(seconds)
        for source, target in cut:
            network.mend(source, target)

    def _names(self) -> list[str]:
        return [machine.name for machine in self._world.machines.values()]

    def _cut_apart(self, source: random.Random) -> list[str]:
        """Those whom a cut between nodes concerns: the nodes, and at times some clients with them."""
        clients = [client.host.name for client in self._world.clients]
        return source.sample(clients, source.randint(0, len(clients))) if source.random() < 0.5 else []

    async def _isolate(self, fault: Fault, source: random.Random) -> None:
        if (machine := self._any(source)) is not None:
            others = [name for name in self._names() if name != machine.name] + self._cut_apart(source)
            await self._cut(_both_ways([machine.name], others), fault.lasts)

    async def _deafen(self, fault: Fault, source: random.Random) -> None:
        """It is heard, and hears nobody."""
        if (machine := self._any(source)) is not None:
            await self._cut([(name, machine.name) for name in self._names() if name != machine.name], fault.lasts)

    async def _mute(self, fault: Fault, source: random.Random) -> None:
        """It hears, and nobody hears it."""
        if (machine := self._any(source)) is not None:
            await self._cut([(machine.name, name) for name in self._names() if name != machine.name], fault.lasts)

    async def _split(self, fault: Fault, source: random.Random) -> None:
        names = self._names()
        source.shuffle(names)
        middle = source.randint(1, len(names) - 1)
        await self._cut(_both_ways(names[:middle], names[middle:] + self._cut_apart(source)), fault.lasts)

    async def _ring(self, fault: Fault, source: random.Random) -> None:
        """Each hears its two neighbours only."""
        names = self._names()
        source.shuffle(names)
        count = len(names)
        apart = [
            (one, other)
            for place, one in enumerate(names)
            for distance, other in enumerate(names[place + 1 :], start=1)
            if distance not in (1, count - 1)
        ]
        if not apart:
            # Three in a ring are all neighbours: then one link is gone.
            apart = [(names[0], names[1])]
        await self._cut([link for one, other in apart for link in ((one, other), (other, one))], fault.lasts)

    async def _bridge(self, fault: Fault, source: random.Random) -> None:
        """Two halves that one node alone connects."""
        names = self._names()
        source.shuffle(names)
        middle = (len(names) - 1) // 2
        await self._cut(_both_ways(names[1 : 1 + middle], names[1 + middle :]), fault.lasts)

    async def _sever(self, fault: Fault, source: random.Random) -> None:
        """Connections between two hosts are reset, and what was under way is lost."""
        names = self._names() + [client.host.name for client in self._world.clients]
        one, other = source.sample(names, 2)
        self._world.network.sever(one, other)
        self._world.network.sever(other, one)

    async def _lag(self, fault: Fault, source: random.Random) -> None:
        """A node is slow to be heard: a follower that falls behind, or a leader that is late."""
        machine = self._any(source)
        if machine is None:
            return
        network, seconds = self._world.network, source.choice((0.05, 0.3, 1.0))
        links = [(name, machine.name) for name in self._names() if name != machine.name]
        if source.random() < 0.5:
            links = [(target, name) for name, target in links]
        for link in links:
            network.slow_down(*link, seconds)
        await asyncio.sleep(fault.lasts)
        for link in links:
            network.slow_down(*link, 0.0)

    async def _reset(self, _fault: Fault, source: random.Random) -> None:
        if (machine := self._any(source)) is not None and machine.host is not None:
            self._world.network.reset_all(machine.host)

    # --- disks and clocks ------------------------------------------------------------------------------------------

    async def _slow_disk(self, fault: Fault, source: random.Random) -> None:
        if (machine := self._any(source)) is not None:
            await self._with_disk(machine, DiskFaults(sync_min=0.05, sync_max=0.5, slow_sync=0.2), fault.lasts)

    async def _full_disk(self, fault: Fault, source: random.Random) -> None:
        """Nothing can be written for a while; then there is space, and an operator starts the node anew."""
        if (machine := self._any(source)) is not None:
            await self._with_disk(machine, DiskFaults(full=0.5), fault.lasts)
            await self._crash([machine], 0.1, source)

    async def _damage(self, fault: Fault, source: random.Random) -> None:
        """A killed node finds a file damaged; when it has had time to notice, an operator restores the file."""
        world, machine = self._world, self._any(source)
        if machine is None or not self._may_be_damaged(machine):
            return
        world.crash(machine.node_id, Crash.KILL)
        directory = PurePosixPath(DATA_DIRECTORY)
        machine.damage = inflict(machine.disk, machine.disk.view(Host("operator")), directory, source)
        if machine.damage is not None:
            world.trace.event(world.loop.time(), f"damage {machine.name} {machine.damage.path}")
        if not machine.downs:
            world.keep_up(machine)
        await asyncio.sleep(fault.lasts)
        if machine.damage is None:
            return
        machine.downs += 1
        if machine.is_alive:
            world.crash(machine.node_id, Crash.KILL)
        machine.damage.restore()
        machine.damage = None
        names = machine.disk.folder(directory).names
        if stray := [name for name in names if name.endswith("-stray")]:
            world.report("stray", f"{machine.name} has moved {', '.join(stray)} aside")
        self._up_again(machine)

    def _may_be_damaged(self, machine: Machine) -> bool:
        """It is up, in a boot of its machine that it has noted, and nothing else is wrong with its disk."""
        node = machine.node
        return (
            machine.has_started
            and machine.damage is None
            and not machine.downs
            and node is not None
            and not node.partitions.may_open_more
            and machine.disk.faults.is_reliable
            and self._world.profile.disk.is_reliable
        )

    async def _with_disk(self, machine: Machine, faults: DiskFaults, seconds: float) -> None:
        machine.disk.faults = faults
        await asyncio.sleep(seconds)
        machine.disk.faults = self._world.profile.disk

    async def _set_clock(self, _fault: Fault, source: random.Random) -> None:
        if (machine := self._any(source)) is not None:
            clock = machine.clock
            by_ms = source.choice((source.randint(-60_000, 60_000), source.randint(-3_600_000, 3_600_000)))
            clock.jump(max(-_WRONG_MAX_MS, min(_WRONG_MAX_MS, clock.skew_ms + by_ms)) - clock.skew_ms)

    # --- leaders ---------------------------------------------------------------------------------------------------

    async def _elect(self, _fault: Fault, source: random.Random) -> None:
        """An operator has leaders moved to the preferred replicas."""
        fields = {"election_type": _PREFERRED, "topic_partitions": None, "timeout_ms": _OPERATOR_MS}
        self._ask_controller(_ELECT_LEADERS, _ELECT_LEADERS_VERSION, fields, source)

    async def _reassign(self, _fault: Fault, source: random.Random) -> None:
        """An operator has some partition moved to other replicas, or its replicas put into another order."""
        topics = list(self._image().topics.values())
        if not topics:
            return
        topic = source.choice(topics)
        replicas = source.sample(self._world.profile.brokers, self._world.profile.replication_factor)
        partition = {"partition_index": source.randrange(len(topic.partitions)), "replicas": replicas}
        fields = {"timeout_ms": _OPERATOR_MS, "topics": [{"name": topic.name, "partitions": [partition]}]}
        self._ask_controller(_ALTER_REASSIGNMENTS, 0, fields, source)

    def _ask_controller(self, api_key: int, version: int, fields: dict[str, Any], source: random.Random) -> None:
        """By way of some node; nobody waits for what comes of it."""
        machine = self._any(source)
        if machine is None or not machine.has_started or machine.node is None or machine.host is None:
            return
        peers = machine.node.peers

        async def ask() -> None:
            try:
                await peers.ask_controller(api_key, version, fields, timeout_ms=_OPERATOR_MS)
            except (Disconnected, WireError):
                return

        self._world.run_on(machine.host, ask())

    # --- clients ---------------------------------------------------------------------------------------------------

    def _client(self, source: random.Random) -> Client | None:
        running = [client for client in self._world.clients if not client.host.is_paused and not client.task.done()]
        return source.choice(running) if running else None

    async def _pause_client(self, fault: Fault, source: random.Random) -> None:
        if (client := self._client(source)) is not None:
            self._world.pause_client(client)
            await asyncio.sleep(fault.lasts)
            self._world.resume(client.host)

    async def _replace_client(self, fault: Fault, source: random.Random) -> None:
        """The zombie: paused, replaced under the same name, and back again."""
        if (client := self._client(source)) is None:
            return
        self._world.pause_client(client)
        client.is_replaced = True
        await asyncio.sleep(source.uniform(0.0, 0.5))
        self._world.start_client(client.role)
        await asyncio.sleep(fault.lasts)
        self._world.resume(client.host)

    async def _kill_client(self, fault: Fault, source: random.Random) -> None:
        if (client := self._client(source)) is not None:
            self._world.kill_client(client)
            if not client.is_replaced:
                await asyncio.sleep(fault.lasts)
                self._world.start_client(client.role)

    async def _lose_client(self, _fault: Fault, source: random.Random) -> None:
        if (client := self._client(source)) is not None:
            self._world.kill_client(client)

    async def _cut_client(self, fault: Fault, source: random.Random) -> None:
        client = self._client(source)
        names = self._names()
        if client is not None:
            await self._cut(
                _both_ways([client.host.name], source.sample(names, source.randint(1, len(names)))), fault.lasts
            )


def _both_ways(ones: Iterable[str], others: Iterable[str]) -> list[tuple[str, str]]:
    targets = list(others)
    return [link for one in ones for other in targets for link in ((one, other), (other, one))]
