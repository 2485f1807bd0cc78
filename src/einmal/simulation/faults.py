"""The table of faults: for each kind whom it hits (target), what it does (inject), and how it ends (heal).

``Nemesis`` carries a row out: find the target, inject, wait for as long as the fault lasts, heal. ``inject`` returns
what there is to heal; None: nothing, and nobody waits. Several faults may be under way at once, and hit what another
one has already hit: a machine counts the faults that keep it down (``Machine.downs``), and the last of them starts it.

What may be lost when a machine's power fails, and when a disk may be wiped, is decided by the profile of the seed
(``profile``); whether the cluster is whole is looked up when the fault happens (``targets``).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final, Generic, TypeVar

from einmal.rpc.connection import NoAnswer
from einmal.simulation import targets
from einmal.simulation.damage import inflict
from einmal.simulation.disk import DiskFaults
from einmal.simulation.loop import Host
from einmal.simulation.profile import Crash
from einmal.simulation.schedule import FaultKind
from einmal.simulation.targets import Link, OperatorRequest, SlowLinks
from einmal.simulation.world import DATA_DIRECTORY, Client, Machine, World
from einmal.wire.errors import WireError
from einmal.workloads.process import Process, Role

_WRONG_MAX_MS: Final = 3_500_000
"""How far a machine's clock may be off: a record that is an hour ahead of it is refused
(``message.timestamp.after.max.ms``)."""

T = TypeVar("T")
H = TypeVar("H")


@dataclass(frozen=True, slots=True)
class FaultAction(Generic[T, H]):
    """A row of the table. ``heal`` is absent where ``inject`` leaves nothing behind."""

    target: Callable[[World, random.Random], T | None]
    inject: Callable[[World, T, random.Random], Awaitable[H | None]]
    heal: Callable[[World, H, random.Random], Awaitable[None]] | None = None


# --- processes and machines ------------------------------------------------------------------------------------------


async def crash(world: World, machines: list[Machine], source: random.Random) -> list[Machine]:
    """Kill processes, or cut the power of their machines."""
    how = _allowed_crash(world, len(machines))
    for machine in machines:
        machine.downs += 1
        if machine.is_alive:
            world.crash(machine.node_id, how, silently=how is Crash.POWER and source.random() < 0.5)
    return machines


async def start_again(world: World, machines: list[Machine], _source: random.Random) -> None:
    for machine in machines:
        _up_again(world, machine)


async def start_and_crash_again(world: World, machines: list[Machine], source: random.Random) -> None:
    """It dies again while it comes up."""
    await start_again(world, machines, source)
    await asyncio.sleep(source.uniform(0.0, 0.05))
    seconds = source.uniform(0.0, 0.1)
    await _crash_for(world, machines, seconds, source)


async def _crash_for(world: World, machines: list[Machine], seconds: float, source: random.Random) -> None:
    await crash(world, machines, source)
    await asyncio.sleep(seconds)
    await start_again(world, machines, source)


def _allowed_crash(world: World, count: int) -> Crash:
    profile = world.profile
    if profile.crash is Crash.POWER and profile.is_careful and not (count == 1 and targets.is_whole(world)):
        return Crash.KILL
    return profile.crash


def _up_again(world: World, machine: Machine) -> None:
    machine.downs -= 1
    if not machine.downs and not machine.is_alive:
        world.keep_up(machine)


async def stop(world: World, machine: Machine, _source: random.Random) -> Machine | None:
    """A controlled shutdown."""
    if not machine.is_running or not machine.has_started or machine.downs:
        return None
    machine.downs += 1
    host = machine.host
    stopping = asyncio.ensure_future(world.stop(machine.node_id))
    while not stopping.done():
        # Another fault may kill it while it stops; then its task never ends.
        if host is not machine.host or not machine.is_alive:
            break
        await asyncio.sleep(0.01)
    if stopping.done():
        stopping.result()
    return machine


async def start(world: World, machine: Machine, _source: random.Random) -> None:
    _up_again(world, machine)


async def restart_one_by_one(world: World, machines: list[Machine], source: random.Random) -> None:
    """A rolling restart: nothing is left to heal at its end."""
    for machine in machines:
        seconds = source.uniform(0.0, 0.5)
        if await stop(world, machine, source) is not None:
            await asyncio.sleep(seconds)
            _up_again(world, machine)
        await asyncio.sleep(source.uniform(0.0, 0.5))


async def wipe(world: World, machine: Machine, _source: random.Random) -> Machine:
    """The process is killed, and comes back with an empty disk."""
    machine.downs += 1
    world.crash(machine.node_id, Crash.KILL)
    machine.disk.wipe()
    return machine


async def pause(world: World, machine: Machine, _source: random.Random) -> Host | None:
    """The process is frozen, and then resumes as if nothing had happened."""
    host = machine.host
    world.pause(machine.node_id)
    return host


async def resume(world: World, host: Host, _source: random.Random) -> None:
    world.resume(host)


async def reset_connections(world: World, machine: Machine, _source: random.Random) -> None:
    """All connections of a process are reset."""
    if machine.host is not None:
        world.network.reset_all(machine.host)


# --- links -----------------------------------------------------------------------------------------------------------


async def cut(world: World, links: list[Link], _source: random.Random) -> list[Link]:
    """Hold back what is sent over these links."""
    for source, target in links:
        world.network.cut(source, target)
    return links


async def connect_again(world: World, links: Iterable[Link], _source: random.Random) -> None:
    for source, target in links:
        world.network.mend(source, target)


async def sever(world: World, link: Link, _source: random.Random) -> None:
    """Connections between two hosts are reset, and what was under way is lost."""
    one, other = link
    world.network.sever(one, other)
    world.network.sever(other, one)


async def slow_down(world: World, slow: SlowLinks, _source: random.Random) -> SlowLinks:
    for link in slow.links:
        world.network.slow_down(*link, slow.seconds)
    return slow


async def speed_up(world: World, slow: SlowLinks, _source: random.Random) -> None:
    for link in slow.links:
        world.network.slow_down(*link, 0.0)


# --- disks and clocks ------------------------------------------------------------------------------------------------


async def slow_disk(_world: World, machine: Machine, _source: random.Random) -> Machine:
    machine.disk.faults = DiskFaults(sync_min=0.05, sync_max=0.5, slow_sync=0.2)
    return machine


async def fill_disk(_world: World, machine: Machine, _source: random.Random) -> Machine:
    """Nothing can be written for a while."""
    machine.disk.faults = DiskFaults(full=0.5)
    return machine


async def usual_disk(world: World, machine: Machine, _source: random.Random) -> None:
    machine.disk.faults = world.profile.disk


async def make_space(world: World, machine: Machine, source: random.Random) -> None:
    """There is space again, and an operator restarts the node."""
    await usual_disk(world, machine, source)
    await _crash_for(world, [machine], 0.1, source)


async def damage(world: World, machine: Machine, source: random.Random) -> Machine:
    """A killed node finds one of its files damaged."""
    world.crash(machine.node_id, Crash.KILL)
    files = machine.disk.view(Host("operator"))
    machine.damage = inflict(machine.disk, files, PurePosixPath(DATA_DIRECTORY), source)
    if machine.damage is not None:
        world.trace.event(world.loop.time(), f"damage {machine.name} {machine.damage.path}")
    if not machine.downs:
        world.keep_up(machine)
    return machine


async def restore(world: World, machine: Machine, _source: random.Random) -> None:
    """The node has had time to notice; an operator restores the file."""
    if machine.damage is None:
        return
    machine.downs += 1
    if machine.is_alive:
        world.crash(machine.node_id, Crash.KILL)
    machine.damage.restore()
    machine.damage = None
    names = machine.disk.folder(PurePosixPath(DATA_DIRECTORY)).names
    if stray := [name for name in names if name.endswith("-stray")]:
        world.report("stray", f"{machine.name} has moved {', '.join(stray)} aside")
    _up_again(world, machine)


async def set_clock(_world: World, machine: Machine, source: random.Random) -> None:
    clock = machine.clock
    by_ms = source.choice((source.randint(-60_000, 60_000), source.randint(-3_600_000, 3_600_000)))
    clock.jump(max(-_WRONG_MAX_MS, min(_WRONG_MAX_MS, clock.skew_ms + by_ms)) - clock.skew_ms)


# --- operators and clients -------------------------------------------------------------------------------------------


async def ask_controller(world: World, request: OperatorRequest, _source: random.Random) -> None:
    """By way of some node; nobody waits for the answer."""
    _host, channel, api, version, asked = request

    async def ask() -> None:
        try:
            await channel.ask(api, version, asked, timeout_ms=targets.OPERATOR_MS)
        except (NoAnswer, WireError):
            return

    world.run_on(request.host, ask())


async def pause_client(world: World, client: Client, _source: random.Random) -> Host:
    world.pause_client(client)
    return client.host


async def replace_client(world: World, client: Client, source: random.Random) -> Host:
    """The zombie: paused, replaced under the same name, and back again."""
    world.pause_client(client)
    client.is_replaced = True
    await asyncio.sleep(source.uniform(0.0, 0.5))
    world.start_client(client.role)
    return client.host


async def kill_client(world: World, client: Client, _source: random.Random) -> Role[Process] | None:
    """Its role is to be started again, unless another process has it already."""
    world.kill_client(client)
    return None if client.is_replaced else client.role


async def start_client(world: World, role: Role[Process], _source: random.Random) -> None:
    world.start_client(role)


async def lose_client(world: World, client: Client, _source: random.Random) -> None:
    """This one never comes back: what it has left open must time out."""
    world.kill_client(client)


FAULTS: Final[Mapping[FaultKind, FaultAction[Any, Any]]] = {
    FaultKind.CRASH: FaultAction(targets.one(targets.any_machine), crash, start_again),
    FaultKind.CRASH_LEADER: FaultAction(targets.one(targets.data_leader), crash, start_again),
    FaultKind.CRASH_CONTROLLER: FaultAction(targets.one(targets.controller), crash, start_again),
    FaultKind.CRASH_COORDINATOR: FaultAction(targets.one(targets.coordinator), crash, start_again),
    FaultKind.CRASH_SEVERAL: FaultAction(targets.several, crash, start_again),
    FaultKind.CRASH_TWICE: FaultAction(targets.one(targets.any_machine), crash, start_and_crash_again),
    FaultKind.RESTART: FaultAction(targets.any_machine, stop, start),
    FaultKind.ROLLING_RESTART: FaultAction(targets.every_machine, restart_one_by_one),
    FaultKind.WIPE: FaultAction(targets.wipeable, wipe, start),
    FaultKind.PAUSE: FaultAction(targets.any_machine, pause, resume),
    FaultKind.PAUSE_LEADER: FaultAction(targets.data_leader, pause, resume),
    FaultKind.ISOLATE: FaultAction(targets.of_a_lonely_node, cut, connect_again),
    FaultKind.DEAFEN: FaultAction(targets.to_a_deaf_node, cut, connect_again),
    FaultKind.MUTE: FaultAction(targets.from_a_mute_node, cut, connect_again),
    FaultKind.SPLIT: FaultAction(targets.between_halves, cut, connect_again),
    FaultKind.RING: FaultAction(targets.outside_a_ring, cut, connect_again),
    FaultKind.BRIDGE: FaultAction(targets.beside_a_bridge, cut, connect_again),
    FaultKind.SEVER: FaultAction(targets.two_hosts, sever),
    FaultKind.LAG: FaultAction(targets.slow_links, slow_down, speed_up),
    FaultKind.SLOW_DISK: FaultAction(targets.any_machine, slow_disk, usual_disk),
    FaultKind.FULL_DISK: FaultAction(targets.any_machine, fill_disk, make_space),
    FaultKind.DAMAGE: FaultAction(targets.damageable, damage, restore),
    FaultKind.SET_CLOCK: FaultAction(targets.any_machine, set_clock),
    FaultKind.RESET: FaultAction(targets.any_machine, reset_connections),
    FaultKind.ELECT: FaultAction(targets.preferred_leaders, ask_controller),
    FaultKind.REASSIGN: FaultAction(targets.another_assignment, ask_controller),
    FaultKind.PAUSE_CLIENT: FaultAction(targets.any_client, pause_client, resume),
    FaultKind.REPLACE_CLIENT: FaultAction(targets.any_client, replace_client, resume),
    FaultKind.KILL_CLIENT: FaultAction(targets.any_client, kill_client, start_client),
    FaultKind.CUT_CLIENT: FaultAction(targets.of_a_client, cut, connect_again),
    FaultKind.LOSE_CLIENT: FaultAction(targets.any_client, lose_client),
}
