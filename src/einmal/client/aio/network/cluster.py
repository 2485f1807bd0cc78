"""The client's view of a cluster: brokers, topics, leaders, and requests with retries.

``call`` is one request to one node, tried once; ``call_any`` retries until a deadline, and so do requests to
coordinators (``coordinators``). A refusal, a lost connection and an overdue answer hint that the view is stale: the
client then refreshes it, at once, and with growing pauses while nothing changes; listeners of ``leaders_changed`` need
not wait for their own next retry. Time, network and randomness come from the seams. Knows no producer, no consumer.
"""

from __future__ import annotations

import asyncio
import copy
import random
import struct
from collections.abc import Callable, Iterable
from typing import Any, Final

from einmal.client.aio.network.background import end_tasks
from einmal.client.aio.network.backoff import Backoff
from einmal.client.aio.network.connections import COORDINATOR_LANE, DATA_LANE, Connections, LaneEndpoint, decode
from einmal.client.aio.network.coordinators import Coordinators
from einmal.client.aio.network.overdue import is_in_time
from einmal.client.aio.network.retry import Retry
from einmal.client.aio.network.wanted_topics import WantedTopics
from einmal.client.apis import ApiKey, choose_version
from einmal.client.config import ClientSettings, addresses
from einmal.client.cores.metadata_cache import (
    NO_TOPIC_ID,
    BrokerAddress,
    MetadataCache,
    PartitionMetadata,
    TopicMetadata,
)
from einmal.client.cores.pacing import first_pause_ms, pause_ms
from einmal.client.errors import (
    ClientClosed,
    Disconnected,
    FatalError,
    KafkaError,
    NoBrokerReachable,
    RequestRefused,
    error_for,
)
from einmal.event_log import EventLog
from einmal.rpc.connection import Connection
from einmal.seams import Clock, Network
from einmal.types import ErrorCode, TopicPartition
from einmal.wire.api.metadata import API as METADATA
from einmal.wire.api.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponseTopic
from einmal.wire.messages import Api, Q, R
from einmal.wire.produce import LeaderIdAndEpoch, NodeEndpoint

_log = EventLog(__name__)

_SAID_MAX: Final = 100
"""Log lines about addresses that cannot be reached, of one client: answers of brokers cause them."""


class Cluster:
    """Created inside a running event loop. ``close`` it."""

    def __init__(self, settings: ClientSettings, *, network: Network, clock: Clock, source: random.Random) -> None:
        self.settings = settings
        self.clock = clock
        self.source = source
        self.metadata = MetadataCache()
        self.leaders_changed: Callable[[list[TopicPartition]], None] = lambda _: None
        """Called with known partitions that have another leader, or the same one under a new epoch."""
        self.silence: Callable[[], None] = lambda: None
        """Called every second while some answer is overdue."""
        self._connections = Connections(settings, network=network, clock=clock, source=source, silent=self._silent)
        self._bootstrap = addresses(settings.bootstrap_servers)
        self.wanted = WantedTopics(self.metadata)
        self._refreshing: asyncio.Task[None] | None = None
        self._must_refresh_again = False
        self._refreshes_in_vain = 0
        self._asked_at_ms = 0
        self.refreshed_at_ms = 0
        self._said: dict[str, None] = {}
        self._loop = asyncio.get_running_loop()
        self.coordinators = Coordinators(self)

    @property
    def transaction_version(self) -> int:
        """The finalized level of ``transaction.version``, from the broker with the latest metadata."""
        return self._connections.transaction_version

    # --- time -----------------------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        return self.clock.now().monotonic_ms

    def deadline(self, timeout_ms: int | None = None) -> int:
        """``timeout_ms`` from now (default.api.timeout.ms), on the monotonic clock."""
        return self.now_ms() + (self.settings.default_api_timeout_ms if timeout_ms is None else timeout_ms)

    def backoff(self, first_ms: int | None = None) -> Backoff:
        """Pauses between retries, the first of ``first_ms`` (default: retry.backoff.ms)."""
        settings = self.settings
        first = first_pause_ms(settings.retry_backoff_ms) if first_ms is None else first_ms
        return Backoff(self.source, first, settings.retry_backoff_max_ms)

    # --- connections ----------------------------------------------------------------------------------------------

    def _endpoint(self, node_id: int, lane: str) -> LaneEndpoint:
        broker = self.metadata.brokers.get(node_id)
        if broker is None:
            raise Disconnected(f"broker {node_id} is not known", was_sent=False)
        return LaneEndpoint(broker.host, broker.port, lane)

    async def connection(self, node_id: int, lane: str = DATA_LANE) -> Connection:
        """An open connection to a known broker. Raises Disconnected."""
        endpoint = self._endpoint(node_id, lane)
        try:
            return await self._connections.connect(endpoint)
        except Disconnected as error:
            if error.was_sent or endpoint[:2] in self._bootstrap or self._connections.has_reached(endpoint):
                raise
            raise self._unreachable_as_advertised(node_id, error) from error

    def _unreachable_as_advertised(self, node_id: int, error: Disconnected) -> Disconnected:
        detail = f"broker {node_id} advertises {error.detail}"
        # A consumer's poll does not raise this error: it continues with the other brokers' partitions.
        if detail not in self._said and len(self._said) < _SAID_MAX:
            self._said[detail] = None
            sentence = "%(reason)s; check advertised.listeners of that broker"
            _log.warning("advertised_listener_unreachable", sentence, reason=detail)
        return Disconnected(detail, was_sent=False)

    def raise_if_alone(self) -> None:
        """Raises NoBrokerReachable when no bootstrap server has answered within bootstrap.timeout.ms."""
        due = self._connections.first_contact_due_ms
        if due is not None and self.now_ms() >= due:
            raise NoBrokerReachable(detail=self._connections.last_failures())

    @property
    def rejection(self) -> FatalError | None:
        """Why a broker rejects this client's credentials or certificate; None: it does not.

        For work without a call that waits for it: a retry gets the same answer.
        """
        rejection = self._connections.rejection
        return None if rejection is None else copy.copy(rejection)

    def first_contact_in_ms(self) -> int | None:
        """Time left for the first answer of any broker; None: one has answered."""
        due = self._connections.first_contact_due_ms
        return None if due is None else max(0, due - self.now_ms())

    def open_connection(self, node_id: int, lane: str = DATA_LANE) -> Connection | None:
        """The existing connection to a broker, if any."""
        return self._connections.get(self._endpoint(node_id, lane)) if node_id in self.metadata.brokers else None

    async def any_connection(self, avoid: Iterable[Connection] = ()) -> Connection:
        """A connection to any broker: the least busy one, a known broker, a bootstrap server. Raises Disconnected."""
        known = [(broker.host, broker.port) for broker in self.metadata.brokers.values()]
        turn = self.source.randrange(len(known)) if known else 0
        addresses = known[turn:] + known[:turn]
        if not known or self.settings.metadata_recovery_strategy == "rebootstrap":
            addresses += [address for address in self._bootstrap if address not in known]
        lanes = (DATA_LANE, COORDINATOR_LANE)
        return await self._connections.connect_any(
            [LaneEndpoint(*address, lane) for lane in lanes for address in addresses], avoid
        )

    def _silent(self, _connection: Connection) -> None:
        if not self._connections.is_closed:
            self.refresh_soon()
            self.silence()

    def version(self, node_id: int, api_key: ApiKey, *, lane: str = DATA_LANE, at_most: int = 32_767) -> int:
        """The version that would be used on the open connection to a broker. Raises Disconnected, RequestRefused."""
        connection = self.open_connection(node_id, lane)
        if connection is None:
            raise Disconnected(f"broker {node_id} is not connected", was_sent=False)
        return choose_version(connection.versions, api_key, at_most=at_most)

    # --- one request ----------------------------------------------------------------------------------------------

    async def call(
        self,
        node_id: int,
        api: Api[Q, R],
        request: Q,
        *,
        lane: str = DATA_LANE,
        at_least: int = 0,
        at_most: int = 32_767,
        timeout_ms: int | None = None,
    ) -> R:
        """One request to one broker, tried once.

        Raises Disconnected, or RequestRefused when there is no version in common.
        """
        connection = await self.connection(node_id, lane)
        return await self._call_on(connection, api, request, at_least, at_most, timeout_ms)

    async def _call_on(
        self,
        connection: Connection,
        api: Api[Q, R],
        request: Q,
        at_least: int = 0,
        at_most: int = 32_767,
        timeout_ms: int | None = None,
    ) -> R:
        version = choose_version(connection.versions, ApiKey(api.key), at_least=at_least, at_most=at_most)
        try:
            body = api.encode_request(version, request)
        except (struct.error, UnicodeEncodeError) as error:
            raise RequestRefused(
                ErrorCode.invalid_request,
                f"{ApiKey(api.key).name}: {error}",
                meaning="a number or a text is too large for the protocol, or a text has no UTF-8 form",
                what_to_do="correct it; nothing was sent",
            ) from error
        timeout = self.settings.request_timeout_ms if timeout_ms is None else timeout_ms
        return decode(connection, api, version, await connection.send(api.key, version, (body,), timeout))

    async def ask_any(self, api: Api[Q, R], request: Q, avoid: Iterable[Connection] = ()) -> R:
        """One request to any broker, and to another one as well where the first stays silent. Raises Disconnected.

        Only for reads: several brokers may carry it out.
        """
        answer: asyncio.Future[R] = self._loop.create_future()
        asked: dict[Connection, asyncio.Task[R]] = {}
        avoided = list(avoid)

        def done(task: asyncio.Task[R]) -> None:
            if task.cancelled() or answer.done():
                return
            if task.exception() is None:
                answer.set_result(task.result())
            elif all(call.done() for call in asked.values()):
                answer.set_exception(task.exception() or AssertionError())

        try:
            while True:
                connection = await self.any_connection(avoid=[*asked, *avoided])
                asked[connection] = self._loop.create_task(self._call_on(connection, api, request))
                asked[connection].add_done_callback(done)
                if await is_in_time(answer):
                    return answer.result()
        except Disconnected:
            if all(call.done() for call in asked.values()):
                raise
            return await answer
        finally:
            await end_tasks(list(asked.values()))
            if answer.done() and not answer.cancelled():
                answer.exception()

    async def call_any(
        self,
        api: Api[Q, R],
        request: Q,
        *,
        deadline: int,
        error_of: Callable[[R], ErrorCode] | None = None,
        is_safe_to_repeat: bool = True,
    ) -> R:
        """One request to any broker, retried until ``deadline``. Raises RetriableError or UnknownOutcome."""
        retry = Retry(self, ApiKey(api.key).name, deadline, is_safe_to_repeat=is_safe_to_repeat)
        while True:
            try:
                connection = await self.any_connection()
                response = await self._call_on(connection, api, request)
            except Disconnected as error:
                await retry.after_disconnect(error)
                continue
            code = ErrorCode.none if error_of is None else error_of(response)
            if code.retriable:
                await retry.after_refusal(code)
                continue
            return response

    # --- metadata -------------------------------------------------------------------------------------------------

    async def refresh_metadata(
        self,
        topics: Iterable[str] | None = (),
        *,
        may_create: bool = False,
        avoid: Iterable[Connection] = (),
        node_id: int | None = None,
    ) -> None:
        """Ask once for the brokers and these topics (None: all), this broker or any. Raises Disconnected or
        KafkaError."""
        names = None if topics is None else list(topics)
        asked = None if names is None else tuple(MetadataRequestTopic(name=name) for name in names)
        request = MetadataRequest(asked, allow_auto_topic_creation=may_create)
        self._asked_at_ms = self.now_ms()
        if node_id is None:
            response = await self.ask_any(METADATA, request, avoid)
        else:
            response = await self.call(node_id, METADATA, request)
        if response.error_code is ErrorCode.rebootstrap_required:
            self.metadata.brokers = {}
            raise Disconnected("the broker asked this client to reconnect to bootstrap.servers", was_sent=False)
        if response.error_code is not ErrorCode.none:
            raise error_for(response.error_code, "Metadata")
        brokers = {
            broker.node_id: BrokerAddress(broker.node_id, broker.host, broker.port, broker.rack)
            for broker in response.brokers
        }
        described = {
            topic.name: _topic_metadata(topic.name, topic) for topic in response.topics if topic.name is not None
        }
        if names is None:
            for name in [name for name in self.metadata.topics if name not in described]:
                del self.metadata.topics[name]
        changed = self.metadata.update(response.cluster_id, response.controller_id, brokers, described)
        self.refreshed_at_ms = self.now_ms()
        if changed:
            self._refreshes_in_vain = 0
            self.leaders_changed(changed)

    async def doubt(self, node_id: int) -> None:
        """A broker's answer seems stale: ask another one for the leaders. Does not raise."""
        doubted = [
            connection for lane in (DATA_LANE, COORDINATOR_LANE) if (connection := self.open_connection(node_id, lane))
        ]
        try:
            await self.refresh_metadata(self.wanted.now(), avoid=doubted)
        except KafkaError:
            # There is no other broker.
            self.refresh_soon()

    def update_leaders(
        self,
        leaders: Iterable[tuple[TopicPartition, LeaderIdAndEpoch | None]],
        endpoints: Iterable[NodeEndpoint],
    ) -> None:
        """Brokers that do not lead have named the leader (KIP-951), which saves a metadata request."""
        changed = []
        for partition, leader in leaders:
            for endpoint in endpoints:
                if leader is not None and endpoint.node_id == leader.leader_id:
                    self.metadata.brokers[endpoint.node_id] = BrokerAddress(*endpoint)
            if leader is not None and self.metadata.update_leader(partition, *leader):
                changed.append(partition)
        if changed:
            self.leaders_changed(changed)

    def want_topic(self, name: str, *, may_create: bool) -> None:
        """Keep this topic's metadata fresh from now on."""
        self.wanted.add(name, may_create=may_create)

    def refresh_soon(self) -> asyncio.Future[None]:
        """Refresh the wanted topics in the background, one request at a time, with growing pauses while nothing
        changes.

        The future of the running or next refresh; it does not raise.
        """
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = self._loop.create_task(self._refresh_wanted())
            self._refreshing.add_done_callback(self._refreshed)
        else:
            # The response in flight may be older than the reason to refresh.
            self._must_refresh_again = True
        return asyncio.shield(self._refreshing)

    def _refreshed(self, _task: asyncio.Task[None]) -> None:
        if self._must_refresh_again and not self._connections.is_closed:
            self.refresh_soon()

    async def _refresh_wanted(self) -> None:
        settings = self.settings
        since = self.now_ms() - self._asked_at_ms
        if since > 2 * settings.retry_backoff_max_ms:
            self._refreshes_in_vain = 0
        elif self._refreshes_in_vain:
            first = first_pause_ms(settings.retry_backoff_ms)
            pause = pause_ms(self._refreshes_in_vain - 1, first, settings.retry_backoff_max_ms)
            await asyncio.sleep(max(0, pause * self.source.uniform(0.8, 1.2) - since) / 1000)
        self._refreshes_in_vain += 1
        self._must_refresh_again = False
        wanted = self.wanted.now()
        # None at all is a question, too: for the brokers.
        kinds = sorted(set(wanted.values())) or [False]
        try:
            for may_create in kinds:
                names = [name for name, permission in wanted.items() if permission is may_create]
                # Not in one request: the broker would create those that must not be, with its defaults.
                await self.refresh_metadata(names, may_create=may_create)
        except KafkaError:
            # Callers that need the metadata ask again.
            self._asked_at_ms = self.now_ms()
        except asyncio.CancelledError:
            if not self._connections.is_closed:
                raise

    def refresh_when_old(self) -> bool:
        """Refresh metadata older than metadata.max.age.ms in the background: topics may have new partitions."""
        is_old = self.now_ms() - self.refreshed_at_ms > self.settings.metadata_max_age_ms
        if is_old and self.refreshed_at_ms:
            self.refresh_soon()
        return is_old

    async def topic(
        self, name: str, *, deadline: int, may_create: bool = True, appear_ms: int | None = None
    ) -> TopicMetadata:
        """The topic, once it exists and has partitions. Raises UnknownTopic, InvalidTopic, NotAuthorized, ...

        A missing topic is asked for again until the deadline, or for ``appear_ms``: it may be in creation.
        """
        self.want_topic(name, may_create=may_create)
        retry = Retry(self, f"metadata of topic {name!r}", deadline, appear_ms=appear_ms)
        while True:
            known = self.metadata.topics.get(name)
            if known is not None and known.is_usable:
                return known
            try:
                await self.refresh_metadata([name], may_create=may_create)
            except Disconnected as error:
                await retry.after_disconnect(error)
                continue
            known = self.metadata.topics.get(name)
            code = ErrorCode.unknown_topic_or_partition if known is None else known.error_code
            if code is not ErrorCode.none:
                if not code.retriable:
                    raise error_for(code, f"topic {name!r}")
                await retry.after_refusal(code)

    async def leader(
        self, topic_partition: TopicPartition, *, deadline: int, appear_ms: int | None = None
    ) -> PartitionMetadata:
        """The partition once it has a leader. Raises UnknownTopic or RetriableError at the deadline.

        ``appear_ms``: as for ``topic``.
        """
        retry = Retry(self, f"leader of {topic_partition}", deadline, appear_ms=appear_ms)
        topic = await self.topic(topic_partition.topic, deadline=deadline, may_create=False, appear_ms=appear_ms)
        while True:
            if self._connections.is_closed:
                raise ClientClosed()
            leader = self.metadata.leader(topic_partition)
            if leader is not None:
                return leader
            # It may have ended by closing.
            await asyncio.wait([self.refresh_soon()])
            if self.metadata.leader(topic_partition) is None:
                is_there = topic_partition.partition in topic.partitions
                code = ErrorCode.leader_not_available if is_there else ErrorCode.unknown_topic_or_partition
                await retry.after_refusal(code)

    # --- end ------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        self._connections.is_closed = True
        tasks: list[asyncio.Task[Any]] = [*self._connections.opening]
        if self._refreshing is not None:
            tasks.append(self._refreshing)
        await end_tasks(tasks)
        self._connections.close()
        # Transports close in the next turns of the loop.
        await asyncio.sleep(0)


def _topic_metadata(name: str, topic: MetadataResponseTopic) -> TopicMetadata:
    partitions = {
        partition.partition_index: PartitionMetadata(
            partition.partition_index,
            partition.leader_id,
            partition.leader_epoch,
            tuple(partition.replica_nodes),
            tuple(partition.isr_nodes),
            partition.error_code,
        )
        for partition in topic.partitions
    }
    topic_id = topic.topic_id or NO_TOPIC_ID
    return TopicMetadata(name, topic_id, dict(sorted(partitions.items())), topic.is_internal, topic.error_code)


def by_leader(
    metadata: MetadataCache, partitions: Iterable[TopicPartition]
) -> tuple[dict[int, list[TopicPartition]], list[TopicPartition]]:
    """Partitions by the node that leads them, and those without a leader."""
    led: dict[int, list[TopicPartition]] = {}
    leaderless = []
    for partition in partitions:
        leader = metadata.leader(partition)
        if leader is None:
            leaderless.append(partition)
        else:
            led.setdefault(leader.leader, []).append(partition)
    return led, leaderless


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return topics
