"""The composition root: one node of a cluster, from its settings and the three seams.

A node is a broker, a controller, or both; a cluster of one is a quorum of one voter and follows the same code path,
without a socket. No globals, no threads but those behind ``Disk.in_background``, no randomness but the injected one:
the simulator builds the same node on virtual time, network and disk.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final
from uuid import UUID

from einmal.broker.cluster_metadata import ClusterMetadata
from einmal.broker.config import CONNECTION_RATE_MAX, BrokerConfig, Endpoint
from einmal.broker.control.boot_mark import BootMark
from einmal.broker.control.broker_lifecycle import BrokerLifecycle
from einmal.broker.control.controller_link import ControllerLink
from einmal.broker.control.controller_runtime import ControllerRuntime
from einmal.broker.control.epoch_files import EpochFiles
from einmal.broker.control.quorum_runtime import QuorumRuntime
from einmal.broker.control.quorum_storage import QuorumStorage
from einmal.broker.control.topic_creation import TopicCreation
from einmal.broker.coordinators.group_service import GroupService
from einmal.broker.coordinators.marker_writer import MarkerWriter
from einmal.broker.coordinators.producer_ids import ProducerIdBlocks, ProducerIds
from einmal.broker.coordinators.transaction_service import TransactionService
from einmal.broker.front.apis import router
from einmal.broker.front.authentication.failed_authentications import FailedAuthentications
from einmal.broker.front.authentication.sasl_listeners import SaslListeners
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.connections.arrivals import Arrivals, ConnectionRate
from einmal.broker.front.connections.server import Server
from einmal.broker.front.connections.tls_server import TlsServer
from einmal.broker.front.fetch.fetch_sessions import FetchSessions
from einmal.broker.front.hanging_transactions import HangingTransactions
from einmal.broker.front.parts import NodeParts
from einmal.broker.front.produce.produced_batches import Destinations
from einmal.broker.front.quotas.client_throttles import ClientThrottles
from einmal.broker.front.routing.router import Router
from einmal.broker.front.topics.metadata_answers import EncodedAnswers
from einmal.broker.front.topics.setting_descriptions import SettingDescriptions
from einmal.broker.identity import Identity, new_uuid
from einmal.broker.listeners import Audience, NamedListener
from einmal.broker.listening import Listening
from einmal.broker.monitoring.monitoring import Monitoring
from einmal.broker.monitoring.parts import Monitored
from einmal.broker.replicas.batch_checks import BatchChecks
from einmal.broker.replicas.isr_updates import IsrUpdates
from einmal.broker.replicas.log_cleaner import LogCleaner
from einmal.broker.replicas.partitions import Partitions
from einmal.broker.replicas.replica_fetcher import ReplicaFetchers
from einmal.broker.replicas.replica_sessions import ReplicaSessions
from einmal.broker.resources.counts import RequestCounts
from einmal.broker.resources.memory_budget import RESPONSE_BYTES_MAX, MemoryBudget
from einmal.broker.resources.parked_fetches import ParkedFetches
from einmal.broker.resources.supervision import Supervisor
from einmal.broker.resources.turns import SLICE_MS, Turns
from einmal.broker.rpc.addresses import Addresses
from einmal.broker.rpc.authentication import Credentials
from einmal.broker.rpc.controller_channel import ControllerChannel
from einmal.broker.rpc.peers import Peers
from einmal.broker.tls import REFRESH_SECONDS, NodeTls
from einmal.log.disk import Disk
from einmal.log.errors import LogCorruption
from einmal.metadata.image import METADATA_PARTITION, ClusterImage, ImageDelta
from einmal.seams import Clock, Network
from einmal.security.authorizer import StandardAuthorizer

_CHECKPOINT_SECONDS: Final = 5.0


class Node:
    """``stopwatch``: seconds since any moment, of what is counted only."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock,
        network: Network,
        disk: Disk,
        random: random.Random,
        stopwatch: Callable[[], float] = time.perf_counter,
    ) -> None:
        config.check_roles()
        self.config = config
        self.clock = clock
        self.network = network
        self.disk = disk
        self.random = random
        self.directory = config.directory
        self.supervisor = Supervisor()
        self.turns = Turns(clock)
        self.requests = RequestCounts(stopwatch)
        self.response_memory = MemoryBudget(RESPONSE_BYTES_MAX)
        self.parked_fetches = ParkedFetches()
        self.identity = Identity(config.node_id)
        self.credentials = Credentials(config, disk, random)
        self.listening = Listening(config, network)
        self.authorizer = self._new_authorizer()
        self.metadata = ClusterMetadata(self, self.authorizer)
        self.access = Access(self.authorizer, lambda: self.metadata.is_current)
        self.sasl = SaslListeners(config, self.credentials, self.metadata, self.identity, disk, clock)
        self.partitions = Partitions(config, self.directory, disk, clock)
        self.tls = NodeTls(config, disk, clock)
        addresses = Addresses(config, self.metadata)
        self.peers = Peers(addresses, self.credentials, self.tls, network, self._answer_itself)
        self._build_quorum()
        self._build_replicas()
        self._build_coordinators()
        self._build_membership()
        self._build_front()
        self._stopping = asyncio.Event()
        self.monitoring = self._new_monitoring()
        self._is_catching_up = False
        self._chores: list[asyncio.Task[None]] = []

    # --- parts, each of which gets those before it -----------------------------------------------------------------

    def _new_authorizer(self) -> StandardAuthorizer | None:
        config = self.config
        if not config.authorizer_class_name:
            return None
        return StandardAuthorizer(config.super_user_principals, allow_if_no_acl=config.allow_everyone_if_no_acl_found)

    def _build_quorum(self) -> None:
        config, metadata, peers, clock = self.config, self.metadata, self.peers, self.clock
        self.controller = ControllerRuntime(config, metadata, peers, clock, self.random)
        storage = QuorumStorage(config, self.identity, self.partitions, self.disk)
        self.quorum = QuorumRuntime(config, storage, metadata, self.controller, peers, clock, self.random)
        self.controller_channel = ControllerChannel(peers, self.quorum)
        self.topic_creation = TopicCreation(config, metadata, self.controller_channel)

    def _build_replicas(self) -> None:
        config, identity, partitions, clock = self.config, self.identity, self.partitions, self.clock
        self.cleaner = LogCleaner(config, partitions, self.disk, clock)
        self.batch_checks = BatchChecks(self.disk)
        self.isr_updates = IsrUpdates(config, identity, partitions, self.controller_channel, clock)
        self.replica_sessions = ReplicaSessions(
            config, self.metadata, partitions, clock, self.random, self.isr_updates.look_at
        )
        self.fetchers = ReplicaFetchers(config, identity, partitions, self.peers)

    def _build_coordinators(self) -> None:
        config, metadata, partitions, clock = self.config, self.metadata, self.partitions, self.clock
        self.groups = GroupService(config, metadata, partitions, self.replica_sessions, clock)
        markers = MarkerWriter(metadata, partitions, self.groups, self.turns, clock)
        producer_ids = ProducerIds(ProducerIdBlocks(self.identity, self.controller_channel).allocate)
        self.transactions = TransactionService(config, metadata, partitions, markers, producer_ids, self.peers, clock)

    def _build_membership(self) -> None:
        config, identity = self.config, self.identity
        self._boot = BootMark(config, self.disk)
        self._epoch_files = EpochFiles(config, identity, self.disk, self._boot, new_uuid(self.random))
        link = ControllerLink(config, self.quorum, self.peers)
        self.lifecycle = BrokerLifecycle(
            config, identity, self._epoch_files, self.listening, self.metadata, self.partitions, link
        )

    def _build_front(self) -> None:
        self.encoded_metadata = EncodedAnswers(self.metadata)
        self.throttles = ClientThrottles(self.config, self.metadata, self.clock)
        self.fetch_sessions = FetchSessions(self.config.max_incremental_fetch_session_cache_slots, self.random)
        listeners = self.config.named_listeners
        self.request_memory = self._request_memory()
        self.connection_rates = self._connection_rates(self.config.max_connection_creation_rate)
        parts = self._parts()
        routers = {listener.name: router(parts, listener) for listener in listeners.all}
        self._own_routers = {listener_router.listener.audience: listener_router for listener_router in routers.values()}
        if Audience.CONTROLLERS not in self._own_routers:
            self._own_routers[Audience.CONTROLLERS] = router(parts, listeners.controllers_elsewhere)
        self.servers = {name: self._server(listener_router) for name, listener_router in routers.items()}
        """By the names of their listeners."""
        self._tls_servers = {
            name: TlsServer(server, tls) for name, server in self.servers.items() if (tls := self.tls.of(name))
        }

    def _parts(self) -> NodeParts:
        """For the handlers of requests."""
        markers = self.transactions.markers
        return NodeParts(
            config=self.config,
            directory=self.directory,
            clock=self.clock,
            turns=self.turns,
            supervisor=self.supervisor,
            requests=self.requests,
            response_memory=self.response_memory,
            parked_fetches=self.parked_fetches,
            throttles=self.throttles,
            new_uuid=partial(new_uuid, self.random),
            sasl=self.sasl.servers,
            failed_authentications=FailedAuthentications(self.clock),
            controller_channel=self.controller_channel,
            topic_creation=self.topic_creation,
            metadata=self.metadata,
            settings=SettingDescriptions(self.config, self.metadata),
            access=self.access,
            quorum=self.quorum,
            controller=self.controller,
            partitions=self.partitions,
            destinations=Destinations(self.metadata, self.partitions),
            batch_checks=self.batch_checks,
            encoded_metadata=self.encoded_metadata,
            fetch_sessions=self.fetch_sessions,
            replica_sessions=self.replica_sessions,
            transactions=self.transactions,
            markers=markers,
            hanging=HangingTransactions(self.metadata, self.partitions, markers, self.peers),
            groups=self.groups,
        )

    def _new_monitoring(self) -> Monitoring | None:
        endpoint = self.config.metrics_endpoint
        if endpoint is None:
            return None
        parts = Monitored(
            config=self.config,
            clock=self.clock,
            turns=self.turns,
            requests=self.requests,
            metadata=self.metadata,
            quorum=self.quorum,
            controller=self.controller,
            partitions=self.partitions,
            transactions=self.transactions,
            groups=self.groups,
            lifecycle=self.lifecycle,
            listening=self.listening,
            servers=self.servers,
            peers=self.peers,
            is_stopping=self._stopping.is_set,
        )
        return Monitoring(endpoint, parts, self.network)

    def _server(self, router: Router) -> Server:
        own = self.config.of_listener(router.listener.name)
        rate = own.max_connection_creation_rate
        rates = self._connection_rates(rate) if rate != self.config.max_connection_creation_rate else []
        # Memory that clients hold, and the rate at which they connect, leave the cluster's listeners their share.
        if not self.config.named_listeners.is_for_clients(router.listener):
            memory = self._request_memory(), MemoryBudget(RESPONSE_BYTES_MAX)
            arrivals = Arrivals(None, self.clock, rates) if rates else None
        else:
            memory = self.request_memory, self.response_memory
            arrivals = Arrivals(self.throttles, self.clock, [*rates, *self.connection_rates])
        sasl = self.sasl.servers.get(router.listener.name)
        return Server(router, own, self.clock, *memory, arrivals, None if sasl is None else sasl.settings.receive_max)

    def _request_memory(self) -> MemoryBudget:
        queued_max = self.config.queued_max_request_bytes
        return MemoryBudget(sys.maxsize if queued_max <= 0 else queued_max)

    def _connection_rates(self, per_second: int) -> list[ConnectionRate]:
        """The limit of new connections, if there is one."""
        if per_second == CONNECTION_RATE_MAX:
            return []
        return [ConnectionRate(self.throttles.windows, per_second, self.clock.now().monotonic_ms)]

    def _answer_itself(self, audience: Audience, frame: bytearray) -> Awaitable[bytes]:
        return self._own_routers[audience].answer(frame, "itself")

    @property
    def port(self) -> int:
        """The listening port: for clients, or of a process that is only a controller. Only after ``start``."""
        return self.listening.port

    @property
    def endpoint(self) -> Endpoint:
        """The address that clients, or other nodes, connect to. Only after ``start``."""
        return self.listening.endpoint

    # --- life ------------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Recover the data on disk, join the cluster, listen. Raises OSError, LogCorruption or ConfigError.

        Returns when this broker is unfenced: then a majority of the controllers runs.
        """
        if self.monitoring is not None:
            await self.monitoring.start()
        await self._recover()
        await self._listen()
        await self.quorum.start()
        if self.config.is_broker:
            await self._take_part()
        # After every log is recovered, and not before: the start after a power failure may die, too.
        if self.partitions.opener.lost_power and not self.partitions.may_open_more:
            self._boot.write()
        if self.tls.is_used:
            self._every(REFRESH_SECONDS, "reading certificates", self.tls.refresh)
        self._every(_CHECKPOINT_SECONDS, "checkpointing", self._look_after_partitions)
        self._every(self.config.log_retention_check_interval_ms / 1000, "retention", self._retain)
        if self.config.log_cleaner_enable:
            self._every(self.config.log_cleaner_backoff_ms / 1000, "the log cleaner", self.cleaner.clean)

    async def _recover(self) -> None:
        """Read this node's identity and its metadata log. Another node's data is refused, not changed."""
        if not self.disk.exists(self.directory):
            self.disk.make_directory(self.directory)
            # A folder is only as durable as its name in the folder above.
            self.disk.sync_directory(self.directory.parent)
        self.identity.load(self.config, self.disk, self.random, lambda: bool(self.partitions.folders.all()))
        self.credentials.load()
        self.sasl.start()
        self.tls.load()
        self._look_for_power_cut()
        self._epoch_files.load()
        await self.quorum.load()
        is_blank = self.quorum.voters == (self.config.node_id,) and self.quorum.partition.log_end_offset == 0
        if is_blank and self.partitions.folders.all():
            # They would be mistaken for remains of deleted topics.
            raise LogCorruption(
                f"{self.directory} holds partitions, but {METADATA_PARTITION} has lost what they are. "
                "Restore it from a backup"
            )

    async def _listen(self) -> None:
        """Answer other controllers, so that one can be elected. Clients and brokers wait for ``_take_part``."""
        listeners = self.config.named_listeners
        for listener in listeners.of_controller:
            await self.listening.open(listener, self._accepting(listener).connection)
            self.servers[listener.name].start()
        for listener in listeners.of_broker:
            # The port is bound before anything is written that names it.
            await self.listening.open(listener, self._accepting(listener).connection)

    def _accepting(self, listener: NamedListener) -> Server | TlsServer:
        """Return the server that makes the protocols of the listener's connections."""
        return self._tls_servers.get(listener.name) or self.servers[listener.name]

    async def _take_part(self) -> None:
        """Register, follow the image up to the registration, be unfenced; then answer clients and brokers."""
        self.lifecycle.start()
        await self.lifecycle.unfenced()
        await self.partitions.flushed()
        self.partitions.check_internal()
        await self.transactions.start()
        self.isr_updates.start()
        for listener in self.config.named_listeners.of_broker:
            self.servers[listener.name].start()

    async def stop(self) -> None:
        """Clean stop: hand leadership over, accept no connections, close the existing ones, flush everything.

        Also of a node whose start has failed or was cut off. Raises OSError when not everything could be flushed.
        """
        # First leadership is handed over, while everything still answers. The quorum stops last of all that sends to
        # others: a stopping controller hands its own leadership over. Then nothing is written any more.
        await self.lifecycle.shut_down()
        await self.lifecycle.stop()
        listeners = self.config.named_listeners
        self._stopping.set()
        self.cleaner.stop()
        self._close(listeners.of_broker)
        await self.transactions.stop()
        await self.groups.stop()
        await self.fetchers.stop()
        await self.isr_updates.stop()
        self.replica_sessions.close()
        self.controller.resign()
        if self.quorum.is_loaded:
            await self.quorum.stop()
        self._close(listeners.of_controller)
        self.metadata.stop()
        self.sasl.stop()
        self.topic_creation.stop()
        self.peers.close()
        await asyncio.gather(*self._chores, return_exceptions=True)
        if self.monitoring is not None:
            await self.monitoring.stop()
        is_whole = self.partitions.is_whole
        await self.partitions.close()
        if is_whole:
            self.lifecycle.stopped_cleanly()

    def _close(self, listeners: Sequence[NamedListener]) -> None:
        self.listening.close(listeners)
        for listener in listeners:
            self._accepting(listener).stop()
            self.servers[listener.name].stop()

    def _look_for_power_cut(self) -> None:
        """Whether the machine may have been restarted since data was last written here. Raises OSError."""
        self.partitions.opener.lost_power = not self._boot.is_of_this_boot()

    def _every(self, seconds: float, name: str, chore: Callable[[], Awaitable[None]]) -> None:
        async def repeat() -> None:
            while True:
                with suppress(asyncio.TimeoutError):
                    # A chore that works on files is never interrupted: see ``stop``.
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

    async def _retain(self) -> None:
        await self.turns.run(self.partitions.retain())

    # --- following the cluster's metadata ----------------------------------------------------------------------------

    def begin(self, image: ClusterImage, deleted: Mapping[UUID, str]) -> None:
        """See ``cluster_metadata.Following``."""
        self.partitions.sort_out(image, deleted)

    def apply(self, delta: ImageDelta, image: ClusterImage) -> None:
        """Apply changes of the cluster to replicas, fetchers, transactions and groups, in this order."""
        if not self.config.is_broker:
            return
        self.partitions.apply(delta, image)
        if self.partitions.has_put_off and not self._is_catching_up:
            self._is_catching_up = True
            self.turns.call(self._catch_up)
        if delta.configs:
            self.lifecycle.settings_changed()
        self.fetchers.apply(delta)
        if delta.brokers:
            self.isr_updates.look_at_all()
        self.transactions.apply(delta)
        self.groups.apply(delta)

    def _catch_up(self) -> None:
        """Open and remove some of the postponed replicas; the rest at the next turn."""
        ends_ms = self.turns.now_ms() + SLICE_MS
        self.partitions.catch_up(self.metadata.image, lambda: self.turns.now_ms() >= ends_ms)
        if self.partitions.has_put_off and not self._stopping.is_set():
            self.turns.call(self._catch_up)
        else:
            self._is_catching_up = False
            self._refresh()

    def _refresh(self) -> None:
        """Replicas have been opened since the image changed."""
        self.fetchers.refresh()
        # A coordinator needs no request to time out its open transactions, or to end its decided ones.
        self.transactions.refresh()
        self.groups.refresh()
