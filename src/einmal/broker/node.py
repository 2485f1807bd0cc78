"""The composition root: one broker, from its settings and the three seams.

No globals, no threads but those behind ``Disk.in_background``, no randomness but the one that is given: the simulator
builds the same node on virtual time, network and disk.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Final
from uuid import UUID

from einmal.broker.cluster_metadata import METADATA_PARTITION, ClusterMetadata, new_cluster_id
from einmal.broker.config import BrokerConfig, ConfigError, Endpoint, parse_properties
from einmal.broker.fetch_sessions import FetchSessions
from einmal.broker.group_service import GroupService
from einmal.broker.partitions import Partitions
from einmal.broker.router import Router
from einmal.broker.server import Server
from einmal.broker.transaction_service import TransactionService
from einmal.log.disk import Disk
from einmal.metadata.features import SUPPORTED_FEATURES
from einmal.metadata.records import BrokerEndpoint
from einmal.seams import Clock, Listener, Network

log = logging.getLogger(__name__)

_META_PROPERTIES: Final = "meta.properties"
_CHECKPOINT_SECONDS: Final = 5.0


class Node:
    def __init__(
        self, config: BrokerConfig, *, clock: Clock, network: Network, disk: Disk, random: random.Random
    ) -> None:
        self.config = config
        self.clock = clock
        self.network = network
        self.disk = disk
        self.random = random
        self.directory = PurePosixPath(config.log_dirs)
        self.partitions = Partitions(config, self.directory, disk, clock)
        self.metadata = ClusterMetadata(self)
        self.fetch_sessions = FetchSessions(config.max_incremental_fetch_session_cache_slots, random)
        self.transactions = TransactionService(self)
        self.groups = GroupService(self)
        self.router = Router(self)
        self.server = Server(self.router, config, clock)
        self._listener: Listener | None = None
        self._stopping = asyncio.Event()
        self._chores: list[asyncio.Task[None]] = []

    @property
    def port(self) -> int:
        """The port that is listened on. Only after ``start``."""
        assert self._listener is not None, "the node has not been started"
        return self._listener.port

    @property
    def endpoint(self) -> Endpoint:
        """What clients are told to connect to. Only after ``start``."""
        return self.config.advertised(self.port)

    async def start(self) -> None:
        """Recover what is on disk, then listen. Raises OSError, LogCorruption or ConfigError."""
        if not self.disk.exists(self.directory):
            self.disk.make_directory(self.directory)
            # A folder is only as durable as its name in the folder above.
            self.disk.sync_directory(self.directory.parent)
        self.metadata.cluster_id = self._identify()
        await self.metadata.load()
        # The port is taken before anything is written down that names it; requests wait for their turn below.
        self._listener = await self.network.listen(self.server.connection, *self.config.listener)
        host, port = self.endpoint
        await self.metadata.register((BrokerEndpoint("PLAINTEXT", host, port),))
        self.metadata.open_replicas()
        await self.partitions.flushed()
        await self.groups.start()
        await self.transactions.start()
        self.server.start()
        self._every(_CHECKPOINT_SECONDS, self._look_after_partitions)
        self._every(self.config.log_retention_check_interval_ms / 1000, self._retain)

    async def stop(self) -> None:
        """Clean stop: no new connections, the existing ones closed, everything flushed."""
        if self._listener is not None:
            self._listener.close()
        self._stopping.set()
        self.server.stop()
        await self.transactions.stop()
        await self.groups.stop()
        self.metadata.stop()
        await asyncio.gather(*self._chores, return_exceptions=True)
        await self.partitions.close()

    def new_uuid(self) -> UUID:
        return UUID(bytes=self.random.randbytes(16), version=4)

    def _identify(self) -> str:
        """The cluster's id: read, or given now to an empty data folder. Raises ConfigError."""
        path = self.directory / _META_PROPERTIES
        if self.disk.exists(path):
            known = parse_properties(self.disk.read_file(path).decode())
            if known.get("node.id") != str(self.config.node_id):
                raise ConfigError(
                    f"the data in {self.directory} is of node.id={known.get('node.id')}, "
                    f"this broker is node.id={self.config.node_id}"
                )
            return known["cluster.id"]
        if self.partitions.folders() or self.disk.exists(self.directory / str(METADATA_PARTITION)):
            raise ConfigError(f"{self.directory} holds partitions, but no {_META_PROPERTIES} that says whose they are")
        cluster_id = new_cluster_id(self.new_uuid())
        text = f"version=1\ncluster.id={cluster_id}\nnode.id={self.config.node_id}\n"
        self.disk.write_file(path, text.encode())
        return cluster_id

    def _every(self, seconds: float, chore: Callable[[], Awaitable[None]]) -> None:
        async def repeat() -> None:
            while True:
                with suppress(asyncio.TimeoutError):
                    # A chore that works on files is never cut off in the middle: see ``stop``.
                    await asyncio.wait_for(self._stopping.wait(), seconds)
                if self._stopping.is_set():
                    return
                try:
                    await chore()
                except OSError as error:
                    # A sick disk may recover; the next time comes.
                    log.error("a chore of the node failed: %s", error)

        def ended(task: asyncio.Task[None]) -> None:
            error = None if task.cancelled() else task.exception()
            if error is not None:
                task.get_loop().call_exception_handler({"message": "a chore of the node ended", "exception": error})

        task = asyncio.get_running_loop().create_task(repeat())
        task.add_done_callback(ended)
        self._chores.append(task)

    async def _look_after_partitions(self) -> None:
        if self.partitions.may_open_more:
            self.metadata.open_replicas()
            # Nobody need ask a coordinator for its open transactions to time out, or its decided ones to be ended.
            self.transactions.runtimes()
            self.groups.runtimes()
        await self.partitions.checkpoint()

    async def _retain(self) -> None:
        self.partitions.retain()

    # --- features ------------------------------------------------------------------------------------------------

    def supported_features(self) -> tuple[tuple[str, int, int], ...]:
        """Name, lowest and highest level."""
        return tuple(
            (feature.name, feature.min_supported_version, feature.max_supported_version)
            for feature in SUPPORTED_FEATURES
        )

    def finalized_features(self) -> tuple[tuple[str, int], ...]:
        return tuple((name, level) for name, level in self.metadata.image.features.items() if level > 0)

    def features_epoch(self) -> int:
        return self.metadata.broker_epoch
