"""Makes things go wrong, one after the other, as the seed has it.

Crashes and restarts the broker, kills clients, pauses them (and puts another in their place: the paused one comes back
as a zombie), cuts the network, resets connections, sets the broker's clock wrong.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable

from einmal.simulation.world import BROKER, Client, World


class Nemesis:
    def __init__(self, world: World, source: random.Random) -> None:
        self._world = world
        self._source = source
        self._faults: tuple[Callable[[], Awaitable[None]], ...] = (
            self._crash_broker,
            self._crash_broker,
            self._pause_client,
            self._pause_client,
            self._replace_client,
            self._replace_client,
            self._kill_client,
            self._cut_network,
            self._reset_connections,
            self._set_clock,
        )

    async def run(self, seconds: float) -> None:
        """Do harm for so long; afterwards the broker runs, and nothing is cut."""
        loop = self._world.loop
        end = loop.time() + seconds
        while (left := end - loop.time()) > 0:
            await asyncio.sleep(min(left, self._source.uniform(0.1, self._world.profile.fault_pause)))
            if loop.time() < end:
                await self._source.choice(self._faults)()
            self._world.restart_ended_clients()
        if self._source.random() < 0.5 and (client := self._client()) is not None:
            # This one never comes back: what it has left open must time out.
            self._world.kill_client(client)

    async def _crash_broker(self) -> None:
        self._world.crash_broker(self._world.profile.crash)
        await asyncio.sleep(self._source.uniform(0.05, 2.0))
        while self._source.random() < 0.15:
            # It dies again while it comes up.
            starting = asyncio.ensure_future(self._start_broker())
            await asyncio.sleep(self._source.uniform(0.0, 0.02))
            self._world.crash_broker(self._world.profile.crash)
            starting.cancel()
        await self._start_broker()

    async def _start_broker(self) -> None:
        """A disk that fails at the wrong moment keeps a broker from starting: then the machine starts again."""
        while True:
            try:
                return await self._world.start_broker()
            except OSError:
                if self._world.profile.disk.is_reliable:
                    raise
                self._world.crash_broker(self._world.profile.crash)
                await asyncio.sleep(self._source.uniform(0.1, 0.5))

    def _client(self) -> Client | None:
        running = [client for client in self._world.clients if not client.host.is_paused and not client.task.done()]
        return self._source.choice(running) if running else None

    async def _pause_client(self) -> None:
        if (client := self._client()) is not None:
            self._world.pause_client(client)
            self._later(self._source.choice((self._source.uniform(0.2, 3.0), self._source.uniform(3.0, 10.0))), client)

    async def _replace_client(self) -> None:
        """The zombie: paused, replaced under the same name, and back again."""
        if (client := self._client()) is None:
            return
        self._world.pause_client(client)
        client.is_replaced = True
        await asyncio.sleep(self._source.uniform(0.0, 0.5))
        self._world.start_client(client.role)
        self._later(self._source.uniform(0.0, 8.0), client)

    def _later(self, seconds: float, client: Client) -> None:
        self._world.loop.call_later(seconds, self._world.resume_client, client)

    async def _kill_client(self) -> None:
        if (client := self._client()) is not None:
            self._world.kill_client(client)
            if not client.is_replaced:
                await asyncio.sleep(self._source.uniform(0.0, 1.0))
                self._world.start_client(client.role)

    async def _cut_network(self) -> None:
        if (client := self._client()) is not None:
            self._world.network.cut(BROKER, client.host.name)
            await asyncio.sleep(self._source.uniform(0.1, 4.0))
            self._world.network.heal()

    async def _reset_connections(self) -> None:
        if self._world.broker_host is not None:
            self._world.network.reset_all(self._world.broker_host)

    async def _set_clock(self) -> None:
        self._world.broker_clock.jump(self._source.randint(-60_000, 60_000))
