"""Carries a schedule out: each fault is injected when its time comes, and healed when it is over (``faults``).

Each fault is a task of its own, so that one may hit what another one has already hit.
"""

from __future__ import annotations

import asyncio
import random
from typing import Final

from einmal.simulation.faults import FAULTS
from einmal.simulation.schedule import Fault
from einmal.simulation.world import World

_LOOK_SECONDS: Final = 0.5
"""How often it is looked whether a client has ended, and what is committed."""


class Nemesis:
    def __init__(self, world: World) -> None:
        self._world = world
        self._tasks: list[asyncio.Task[None]] = []

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
        await self._carry_out(fault)

    async def _carry_out(self, fault: Fault) -> None:
        world, source = self._world, random.Random(fault.draw)
        action = FAULTS[fault.kind]
        target = action.target(world, source)
        if target is None:
            return
        injected = await action.inject(world, target, source)
        if injected is None or action.heal is None:
            return
        await asyncio.sleep(fault.lasts)
        await action.heal(world, injected, source)
