"""The composition root: one broker, from its settings and the three seams.

No globals, no threads but those behind ``Disk.in_background``, no randomness but the one that is given: the simulator
builds the same node on virtual time, network and disk.
"""

from __future__ import annotations

import random

from einmal.broker.config import BrokerConfig
from einmal.broker.router import Router
from einmal.broker.server import Server
from einmal.log.disk import Disk
from einmal.seams import Clock, Listener, Network


class Node:
    def __init__(
        self, config: BrokerConfig, *, clock: Clock, network: Network, disk: Disk, random: random.Random
    ) -> None:
        self.config = config
        self.clock = clock
        self.network = network
        self.disk = disk
        self.random = random
        self.router = Router(self)
        self.server = Server(self.router, config, clock)
        self._listener: Listener | None = None

    @property
    def port(self) -> int:
        """The port that is listened on. Only after ``start``."""
        assert self._listener is not None, "the node has not been started"
        return self._listener.port

    async def start(self) -> None:
        """Recover what is on disk, then listen. Raises OSError."""
        self._listener = await self.network.listen(self.server.connection, *self.config.listener)
        self.server.start()

    async def stop(self) -> None:
        """Clean stop: no new connections, the existing ones closed, everything flushed."""
        if self._listener is not None:
            self._listener.close()
        self.server.stop()

    def supported_features(self) -> tuple[tuple[str, int, int], ...]:
        """Name, lowest and highest level."""
        return (("transaction.version", 0, 2),)

    def finalized_features(self) -> tuple[tuple[str, int], ...]:
        level = self.config.transaction_version
        return (("transaction.version", level),) if level else ()

    def features_epoch(self) -> int:
        return 0
