"""A whole node on virtual time, network and disk: nothing that the machine does lengthens what a test measures."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from einmal.broker.config import broker_config
from einmal.broker.node import Node
from einmal.seams import Clock
from einmal.simulation.clock import SimulatedClock
from einmal.simulation.disk import SimulatedDisk
from einmal.simulation.loop import Host
from einmal.simulation.network import SimulatedNetwork
from einmal.simulation.trace import Trace
from tests.broker.nodes import Client
from tests.virtual_time import running_loop

ADDRESS: Final = "127.0.0.1"
"""Of all clients."""


class VirtualMachine:
    """What outlives its node; one node at a time runs here."""

    def __init__(self, clock: Clock | None = None) -> None:
        loop = running_loop()
        self.clock = clock or SimulatedClock(loop)
        self.disk = SimulatedDisk(loop, random.Random("disk"), Trace())
        self.network = SimulatedNetwork(loop, random.Random("network"), Trace())
        self.node: Node
        """The one that runs, or ran last."""

    @asynccontextmanager
    async def running(self, settings: Mapping[str, Any] = {}) -> AsyncIterator[Node]:
        """A node; ``settings`` under Kafka's keys."""
        values = {"listeners": "PLAINTEXT://broker:9092", "log.dirs": "/data", **settings}
        config, unknown = broker_config({key: str(value) for key, value in values.items()})
        assert not unknown
        host = Host("broker")
        node = self.node = Node(
            config,
            clock=self.clock,
            network=self.network.of(host),
            disk=self.disk.view(host),
            random=random.Random("node"),
        )
        await node.start()
        try:
            yield node
        finally:
            await node.stop()

    @asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        async with client_of(self.network, "broker", 9092) as client:
            yield client


@asynccontextmanager
async def client_of(network: SimulatedNetwork, host: str, port: int) -> AsyncIterator[Client]:
    """A connection to ``host:port`` of a network in memory."""
    loop = running_loop()
    reader = asyncio.StreamReader(limit=2**26, loop=loop)
    transport, protocol = await network.of(Host(ADDRESS)).connect(
        lambda: asyncio.StreamReaderProtocol(reader, loop=loop), host, port
    )
    writer = asyncio.StreamWriter(transport, protocol, reader, loop)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()
