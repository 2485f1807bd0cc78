"""The composition root: one node of a cluster, from its settings and the three seams.

A node is a broker, a controller, or both; a cluster of one is a quorum of one voter and takes the same way, only
without a socket. No globals, no threads but those behind ``Disk.in_background``, no randomness but the one that is
given: the simulator builds the same node on virtual time, network and disk.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Final
from uuid import UUID

from einmal.broker import meta_properties
from einmal.broker.authentication import new_nonce
from einmal.broker.batch_checks import BatchChecks
from einmal.broker.broker_lifecycle import BrokerLifecycle
from einmal.broker.cluster_metadata import METADATA_PARTITION, ClusterMetadata, cluster_id_of, new_cluster_id
from einmal.broker.config import BrokerConfig, ConfigError, Endpoint
from einmal.broker.controller_runtime import ControllerRuntime
from einmal.broker.fetch_sessions import FetchSessions
from einmal.broker.group_service import GroupService
from einmal.broker.isr_updates import IsrUpdates
from einmal.broker.listeners import Audience
from einmal.broker.log_cleaner import LogCleaner
from einmal.broker.memory_budget import RESPONSE_BYTES_MAX, MemoryBudget
from einmal.broker.meta_properties import MetaProperties
from einmal.broker.partitions import Partitions
from einmal.broker.peers import Peers
from einmal.broker.quorum_runtime import QuorumRuntime
from einmal.broker.replica_fetcher import ReplicaFetchers
from einmal.broker.replica_sessions import ReplicaSessions
from einmal.broker.router import Router
from einmal.broker.server import Server
from einmal.broker.supervision import Supervisor
from einmal.broker.transaction_service import TransactionService
from einmal.broker.turns import SLICE_MS, Turns
from einmal.log.disk import Disk
from einmal.log.errors import LogCorruption
from einmal.metadata.features import SUPPORTED_FEATURES
from einmal.metadata.image import ImageDelta
from einmal.seams import Clock, Listener, Network

log = logging.getLogger(__name__)

BOOT_FILE: Final = ".boot"
"""The boot of the machine in which the data was written."""
_CHECKPOINT_SECONDS: Final = 5.0
_SECRET_LENGTH_MIN: Final = 16


class Node:
    def __init__(
        self, config: BrokerConfig, *, clock: Clock, network: Network, disk: Disk, random: random.Random
    ) -> None:
        config.check_roles()
        self.config = config
        self.clock = clock
        self.network = network
        self.disk = disk
        self.random = random
        self.directory = PurePosixPath(config.log_dirs)
        self.supervisor = Supervisor()
        self.directory_id = UUID(int=0)
        """Of the data folder: a folder that was wiped has another one."""
        self.cluster_secret = ""
        """By which the cluster's nodes authenticate to each other; empty: they do not. Only after ``start``."""
        self.turns = Turns(clock)
        self.response_memory = MemoryBudget(RESPONSE_BYTES_MAX)
        self.partitions = Partitions(config, self.directory, disk, clock)
        self.peers = Peers(self)
        self.metadata = ClusterMetadata(self)
        self.quorum = QuorumRuntime(self)
        self.controller = ControllerRuntime(self)
        self.lifecycle = BrokerLifecycle(self)
        self.cleaner = LogCleaner(self)
        self.batch_checks = BatchChecks(disk)
        self.fetch_sessions = FetchSessions(config.max_incremental_fetch_session_cache_slots, random)
        self.replica_sessions = ReplicaSessions(self)
        self.isr_updates = IsrUpdates(self)
        self.fetchers = ReplicaFetchers(self)
        self.transactions = TransactionService(self)
        self.groups = GroupService(self)
        listeners = config.named_listeners
        of_brokers = listeners.brokers is not None and listeners.brokers.is_authenticated
        self.routers = {
            Audience.CLIENTS: Router(self),
            Audience.BROKERS: Router(self, Audience.BROKERS, authenticates=of_brokers),
            Audience.CONTROLLERS: Router(self, Audience.CONTROLLERS, authenticates=listeners.controllers_authenticate),
        }
        # What clients hold leaves the cluster's own listeners their share.
        self.server = self._server(Audience.CLIENTS, self.response_memory)
        self.broker_server = self._server(Audience.BROKERS, MemoryBudget(RESPONSE_BYTES_MAX))
        self.controller_server = self._server(Audience.CONTROLLERS, MemoryBudget(RESPONSE_BYTES_MAX))
        self._listener: Listener | None = None
        self._broker_listener: Listener | None = None
        self._controller_listener: Listener | None = None
        self._is_catching_up = False
        self._is_loaded = False
        """Whether the metadata log is open."""
        self._stopping = asyncio.Event()
        self._chores: list[asyncio.Task[None]] = []

    @property
    def port(self) -> int:
        """The port that is listened on: for clients, or by what is only a controller. Only after ``start``."""
        listener = self._listener or self._controller_listener
        assert listener is not None, "the node has not been started"
        return listener.port

    @property
    def endpoint(self) -> Endpoint:
        """What clients are told to connect to, or other nodes. Only after ``start``."""
        if not self.config.is_broker and self.config.controller_listener is not None:
            return self.config.controller_listener._replace(port=self.port)
        return self.config.advertised(self.port)

    @property
    def endpoint_for_brokers(self) -> Endpoint | None:
        """What other brokers are told to connect to; None: the same. Only after ``start``."""
        listener = self._broker_listener
        return None if listener is None else self.config.advertised_to_brokers(listener.port)

    @property
    def broker_epoch(self) -> int:
        """Of this process as a broker; -1: it has none yet."""
        return self.lifecycle.broker_epoch

    # --- life ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Recover what is on disk, join the cluster, listen. Raises OSError, LogCorruption or ConfigError.

        Returns when this broker takes part: then a majority of the controllers is there.
        """
        if not self.disk.exists(self.directory):
            self.disk.make_directory(self.directory)
            # A folder is only as durable as its name in the folder above.
            self.disk.sync_directory(self.directory.parent)
        self._identify()
        self._read_secret()
        self._look_for_power_cut()
        self.lifecycle.load()
        await self.quorum.load()
        self._is_loaded = True
        is_blank = self.quorum.voters == (self.config.node_id,) and self.quorum.partition.log.log_end_offset == 0
        if is_blank and self.partitions.folders.all():
            # They would be taken for what is left of deleted topics.
            raise LogCorruption(
                f"{self.directory} holds partitions, but {METADATA_PARTITION} has lost what they are. "
                "Restore it from a backup"
            )
        address = self.config.controller_listener
        if address is not None:
            self._controller_listener = await self.network.listen(self.controller_server.connection, *address)
            self.controller_server.start()
        if self.config.is_broker:
            # The port is taken before anything is written down that names it; requests wait for their turn below.
            self._listener = await self.network.listen(self.server.connection, *self.config.listener)
            brokers = self.config.named_listeners.brokers
            if brokers is not None:
                self._broker_listener = await self.network.listen(self.broker_server.connection, *brokers.endpoint)
        await self.quorum.start()
        if self.config.is_broker:
            self.lifecycle.start()
            await self.lifecycle.unfenced()
            await self.partitions.flushed()
            self.partitions.check_internal()
            await self.transactions.start()
            self.isr_updates.start()
            self.server.start()
            self.broker_server.start()
        self._remember_boot()
        self._every(_CHECKPOINT_SECONDS, "checkpointing", self._look_after_partitions)
        self._every(self.config.log_retention_check_interval_ms / 1000, "retention", self._retain)
        if self.config.log_cleaner_enable:
            self._every(self.config.log_cleaner_backoff_ms / 1000, "the log cleaner", self.cleaner.clean)

    def _server(self, audience: Audience, response_memory: MemoryBudget) -> Server:
        queued_max = self.config.queued_max_request_bytes
        request_memory = MemoryBudget(sys.maxsize if queued_max < 0 else queued_max)
        return Server(self.routers[audience], self.config, self.clock, request_memory, response_memory)

    def apply(self, delta: ImageDelta) -> None:
        """Follow what has changed in the cluster."""
        if not self.config.is_broker:
            return
        self.partitions.apply(delta, self.metadata.image)
        if self.partitions.has_put_off and not self._is_catching_up:
            self._is_catching_up = True
            self.turns.call(self._catch_up)
        if delta.configs:
            self.lifecycle.settings_changed()
        self.fetchers.apply(delta, self.metadata.image)
        self.transactions.apply(delta)
        self.groups.apply(delta)

    def _catch_up(self) -> None:
        """Open and remove some of the replicas that were put off; the rest at the next turn."""
        ends_ms = self.turns.now_ms() + SLICE_MS
        self.partitions.catch_up(self.metadata.image, lambda: self.turns.now_ms() >= ends_ms)
        if self.partitions.has_put_off and not self._stopping.is_set():
            self.turns.call(self._catch_up)
        else:
            self._is_catching_up = False
            self._refresh()

    async def stop(self) -> None:
        """Clean stop: what is led is handed over, no new connections, the existing ones closed, everything flushed.

        Also of a node whose start has failed or was cut off. Raises OSError when not everything could be flushed.
        """
        await self.lifecycle.shut_down()
        await self.lifecycle.stop()
        for listener in (self._listener, self._broker_listener):
            if listener is not None:
                listener.close()
        self._stopping.set()
        self.cleaner.stop()
        self.server.stop()
        self.broker_server.stop()
        await self.transactions.stop()
        await self.groups.stop()
        await self.fetchers.stop()
        await self.isr_updates.stop()
        self.replica_sessions.close()
        self.controller.resign()
        if self._is_loaded:
            await self.quorum.stop()
        if self._controller_listener is not None:
            self._controller_listener.close()
        self.controller_server.stop()
        self.metadata.stop()
        self.peers.close()
        await asyncio.gather(*self._chores, return_exceptions=True)
        is_whole = self.partitions.is_whole
        await self.partitions.close()
        if is_whole:
            self.lifecycle.stopped_cleanly()

    def new_uuid(self) -> UUID:
        return UUID(bytes=self.random.randbytes(16), version=4)

    def new_nonce(self) -> str:
        return new_nonce(self.random)

    def _read_secret(self) -> None:
        """Raises ConfigError."""
        file = self.config.einmal_cluster_secret_file
        if not file:
            return
        try:
            self.cluster_secret = self.disk.read_file(PurePosixPath(file)).decode().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"einmal.cluster.secret.file={file} cannot be read: {error}") from error
        if len(self.cluster_secret) < _SECRET_LENGTH_MIN:
            raise ConfigError(f"einmal.cluster.secret.file={file} has less than {_SECRET_LENGTH_MIN} characters")

    def _identify(self) -> None:
        """The ids of cluster and data folder: read, or given now to an empty one. Raises ConfigError, LogCorruption."""
        path = self.directory / meta_properties.FILE_NAME
        if self.disk.exists(path):
            try:
                known = meta_properties.decode(self.disk.read_file(path))
            except ValueError as error:
                raise LogCorruption(f"{path}: {error}. {self._how_to_identify}") from error
            if known.node_id != self.config.node_id:
                raise ConfigError(
                    f"the data in {self.directory} is of node.id={known.node_id}, "
                    f"this broker is node.id={self.config.node_id}"
                )
            self.metadata.cluster_id = known.cluster_id
            self.directory_id = known.directory_id
            return
        if self.partitions.folders.all() or self.disk.exists(self.directory / str(METADATA_PARTITION)):
            raise LogCorruption(
                f"{self.directory} holds partitions, but no {meta_properties.FILE_NAME} that says whose they are. "
                f"{self._how_to_identify}"
            )
        voters = self.config.quorum_voters
        self.metadata.cluster_id = cluster_id_of(voters) if voters else new_cluster_id(self.new_uuid())
        self.directory_id = self.new_uuid()
        written = MetaProperties(self.metadata.cluster_id, self.config.node_id, self.directory_id)
        self.disk.write_file(path, meta_properties.encode(written))

    @property
    def _how_to_identify(self) -> str:
        return (
            "Restore it from a backup, or write it again: version=1, cluster.id= as in "
            f"{METADATA_PARTITION}/quorum-state, node.id={self.config.node_id}, directory.id= a UUID"
        )

    def _look_for_power_cut(self) -> None:
        """Whether the machine may have been started anew since data was last written here. Raises OSError."""
        path = self.directory / BOOT_FILE
        known = self.disk.read_file(path) if self.disk.exists(path) else b""
        self.partitions.lost_power = not known or known != self.disk.boot_id().encode()

    def _remember_boot(self) -> None:
        """Every log has been recovered: from now on only the end of the machine's boot tears anything."""
        if self.partitions.lost_power and not self.partitions.may_open_more:
            try:
                self.disk.write_file(self.directory / BOOT_FILE, self.disk.boot_id().encode())
            except OSError as error:
                # The next start may take damage for a torn tail, no more.
                log.warning("%s: %s", self.directory / BOOT_FILE, error)

    def forget_boot(self) -> None:
        """The disk has refused writes: what this process wrote may be lost although the machine has kept its power."""
        with suppress(OSError):
            self.disk.remove(self.directory / BOOT_FILE)

    def _every(self, seconds: float, name: str, chore: Callable[[], Awaitable[None]]) -> None:
        async def repeat() -> None:
            while True:
                with suppress(asyncio.TimeoutError):
                    # A chore that works on files is never cut off in the middle: see ``stop``.
                    await asyncio.wait_for(self._stopping.wait(), seconds)
                if self._stopping.is_set():
                    return
                await self.supervisor.attempt(name, chore)

        self._chores.append(asyncio.get_running_loop().create_task(repeat()))

    async def _look_after_partitions(self) -> None:
        if self.metadata.is_applied and self.partitions.may_open_more:
            self.partitions.open_all(self.metadata.image)
            self._refresh()
        await self.partitions.checkpoint()

    def _refresh(self) -> None:
        """Replicas have been opened since the image changed."""
        self.fetchers.refresh()
        # Nobody need ask a coordinator for its open transactions to time out, or its decided ones to be ended.
        self.transactions.refresh()
        self.groups.refresh()

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
        return self.metadata.next_offset - 1
