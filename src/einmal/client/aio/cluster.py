"""The client's view of a cluster: connections, versions, metadata, coordinators; and the retries around them.

``call`` is one request to one node, tried once. ``call_coordinator`` and ``call_any`` retry until a deadline, look
coordinators up again and pause with jitter. Time, network and randomness come from the seams. Knows no producer, no
consumer.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from einmal.client.aio.backoff import Backoff
from einmal.client.aio.connection import Answer, Connection, Disconnected
from einmal.client.apis import ApiKey, choose_version
from einmal.client.cluster_metadata import (
    NO_TOPIC_ID,
    BrokerAddress,
    ClusterMetadata,
    PartitionMetadata,
    TopicMetadata,
)
from einmal.client.config import ClientSettings, addresses
from einmal.client.errors import ClientClosed, KafkaError, UnknownOutcome, error_for
from einmal.seams import Clock, Network
from einmal.types import ErrorCode, TopicPartition
from einmal.wire.errors import WireError
from einmal.wire.messages import Fields, decode_response, encode_request

GROUP: Final = 0
TRANSACTION: Final = 1
_COORDINATOR_WORD: Final = {GROUP: "group", TRANSACTION: "transaction"}

DATA_LANE: Final = "data"
"""Produce, Fetch, metadata."""
COORDINATOR_LANE: Final = "coordinator"
"""A second connection to the same broker: a long Fetch or JoinGroup must not hold up a heartbeat or a commit."""
GROUP_LANE: Final = "group"
"""JoinGroup and SyncGroup, which the broker answers only when the other members have come."""

FINDABLE_AGAIN: Final = frozenset(
    {ErrorCode.not_coordinator, ErrorCode.coordinator_not_available, ErrorCode.request_timed_out}
)
"""Answers after which the coordinator is looked up again."""
_PERHAPS_DONE: Final = frozenset({ErrorCode.coordinator_not_available, ErrorCode.request_timed_out})
"""Answers of a coordinator that may have decided already, and only could not wait for its log any longer."""

_CHECK_VERSIONS_MS: Final = 10_000
_SHORT_PAUSE_MS: Final = 5
_MAX_API_VERSIONS: Final = 4


class _Place(NamedTuple):
    host: str
    port: int
    lane: str


class Cluster:
    """Created inside a running event loop. ``close`` it."""

    def __init__(self, settings: ClientSettings, *, network: Network, clock: Clock, source: random.Random) -> None:
        self.settings = settings
        self.clock = clock
        self.source = source
        self.metadata = ClusterMetadata()
        self.transaction_version = 0
        """The finalized level of ``transaction.version``, as the newest connection told."""
        self._network = network
        self._bootstrap = addresses(settings.bootstrap_servers)
        self._connections: dict[_Place, Connection] = {}
        self._opening: dict[_Place, asyncio.Task[Connection]] = {}
        self._failures: dict[tuple[str, int], int] = {}
        self._coordinators: dict[tuple[int, str], int] = {}
        self._wanted_topics: dict[str, bool] = {}
        self._refreshing: asyncio.Task[None] | None = None
        self._refreshed_at_ms = 0
        self._is_closed = False

    # --- time -----------------------------------------------------------------------------------------------------

    def now_ms(self) -> int:
        return self.clock.now().monotonic_ms

    def deadline(self, timeout_ms: int | None = None) -> int:
        """``timeout_ms`` from now (default.api.timeout.ms), on the monotonic clock."""
        return self.now_ms() + (self.settings.default_api_timeout_ms if timeout_ms is None else timeout_ms)

    def backoff(self) -> Backoff:
        return Backoff(self.source, self.settings.retry_backoff_ms, self.settings.retry_backoff_max_ms)

    # --- connections ----------------------------------------------------------------------------------------------

    async def connection(self, node_id: int, lane: str = DATA_LANE) -> Connection:
        """An open connection to a known broker. Raises Disconnected."""
        broker = self.metadata.brokers.get(node_id)
        if broker is None:
            raise Disconnected(f"broker {node_id} is not known", was_sent=False)
        return await self._connect(_Place(broker.host, broker.port, lane))

    def open_connection(self, node_id: int, lane: str = DATA_LANE) -> Connection | None:
        """The connection to a broker if there is one already."""
        broker = self.metadata.brokers.get(node_id)
        if broker is None:
            return None
        connection = self._connections.get(_Place(broker.host, broker.port, lane))
        return connection if connection is not None and connection.is_open else None

    async def _connect(self, place: _Place) -> Connection:
        if self._is_closed:
            raise ClientClosed()
        connection = self._connections.get(place)
        if connection is not None and connection.is_open:
            return connection
        opening = self._opening.get(place)
        if opening is None:
            opening = asyncio.get_running_loop().create_task(self._open(place))
            self._opening[place] = opening
            opening.add_done_callback(lambda done: self._opened(place, done))
        # Several requests may wait for one connection: a cancelled one must not take it from the others.
        return await asyncio.shield(opening)

    def _opened(self, place: _Place, done: asyncio.Task[Connection]) -> None:
        self._opening.pop(place, None)
        if not done.cancelled():
            done.exception()

    async def _open(self, place: _Place) -> Connection:
        where = (place.host, place.port)
        settings = self.settings
        failures = self._failures.get(where, 0)
        if failures:
            backoff = Backoff(self.source, settings.reconnect_backoff_ms << min(failures - 1, 10), 0)
            await backoff.pause(settings.reconnect_backoff_max_ms)
        self._failures[where] = failures + 1
        name = f"{place.host}:{place.port}"

        def make() -> Connection:
            return Connection(name, settings.client_id)

        try:
            async with asyncio.timeout(settings.request_timeout_ms / 1000):
                _transport, connection = await self._network.connect(make, place.host, place.port)
        except (OSError, TimeoutError) as error:
            raise Disconnected(f"{name}: {error or 'no connection in time'}", was_sent=False) from error
        assert isinstance(connection, Connection)
        try:
            await self._learn_versions(connection)
        except BaseException:
            connection.close()
            raise
        if self._is_closed:
            connection.close()
            raise ClientClosed()
        self._failures.pop(where, None)
        self._connections[place] = connection
        return connection

    async def _learn_versions(self, connection: Connection) -> None:
        timeout = min(self.settings.request_timeout_ms, _CHECK_VERSIONS_MS)
        version = _MAX_API_VERSIONS
        while True:
            fields = {"client_software_name": "einmal", "client_software_version": "0"}
            body = encode_request(ApiKey.API_VERSIONS, version, fields)
            answer = await connection.send(ApiKey.API_VERSIONS, version, (body,), timeout)
            # A broker that is older than this request answers UNSUPPORTED_VERSION, in version 0.
            told = int.from_bytes(answer.frame[answer.position : answer.position + 2], "big", signed=True)
            if told != ErrorCode.unsupported_version:
                break
            if version == 0:
                raise error_for(ErrorCode.unsupported_version, "ApiVersions")
            version = 0
        response = _decode(ApiKey.API_VERSIONS, version, answer)
        if response.error_code is not ErrorCode.none:
            raise error_for(response.error_code, f"ApiVersions at {connection.name}")
        connection.versions = {each.api_key: (each.min_version, each.max_version) for each in response.api_keys}
        for feature in getattr(response, "finalized_features", ()) or ():
            connection.features[feature.name] = feature.max_version_level
        self.transaction_version = connection.features.get("transaction.version", 0)

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
        api_key: ApiKey,
        fields: Fields,
        *,
        lane: str = DATA_LANE,
        at_least: int = 0,
        at_most: int = 32_767,
        timeout_ms: int | None = None,
    ) -> Any:
        """One request to one broker, tried once: kio's response object.

        Raises Disconnected, or RequestRefused when there is no version in common.
        """
        connection = await self.connection(node_id, lane)
        return await self._call_on(connection, api_key, fields, at_least, at_most, timeout_ms)

    async def _call_on(
        self,
        connection: Connection,
        api_key: ApiKey,
        fields: Fields,
        at_least: int = 0,
        at_most: int = 32_767,
        timeout_ms: int | None = None,
    ) -> Any:
        version = choose_version(connection.versions, api_key, at_least=at_least, at_most=at_most)
        body = encode_request(api_key, version, fields)
        timeout = self.settings.request_timeout_ms if timeout_ms is None else timeout_ms
        answer = await connection.send(api_key, version, (body,), timeout)
        try:
            return _decode(api_key, version, answer)
        except WireError as error:
            connection.abort(str(error))
            raise Disconnected(f"{connection.name}: {error}", was_sent=True) from error

    async def any_connection(self) -> Connection:
        """A connection to any broker: an open one, a known one, or a bootstrap server. Raises Disconnected."""
        known = [(broker.host, broker.port) for broker in self.metadata.brokers.values()]
        places = [_Place(host, port, DATA_LANE) for host, port in [*known, *self._bootstrap]]
        for place in places:
            connection = self._connections.get(place)
            if connection is not None and connection.is_open:
                return connection
        turn = self.source.randrange(len(known)) if known else 0
        order = places[turn : len(known)] + places[:turn] + places[len(known) :]
        last: KafkaError | None = None
        for place in order:
            try:
                return await self._connect(place)
            except Disconnected as error:
                last = error
        assert last is not None
        raise last

    async def call_any(
        self,
        api_key: ApiKey,
        fields: Fields,
        *,
        deadline: int,
        error_of: Callable[[Any], ErrorCode] | None = None,
        is_safe_to_repeat: bool = True,
    ) -> Any:
        """One request to any broker, retried until ``deadline``. Raises RetriableError or UnknownOutcome."""
        retry = Retry(self, f"{api_key.name}", deadline, is_safe_to_repeat=is_safe_to_repeat)
        while True:
            try:
                connection = await self.any_connection()
                response = await self._call_on(connection, api_key, fields)
            except Disconnected as error:
                await retry.after_disconnect(error)
                continue
            code = ErrorCode.none if error_of is None else error_of(response)
            if code.retriable:
                await retry.after_refusal(code)
                continue
            return response

    # --- metadata -------------------------------------------------------------------------------------------------

    async def refresh_metadata(self, topics: Iterable[str] | None = (), *, may_create: bool = False) -> None:
        """Ask once for the brokers and these topics (None: all). Raises Disconnected or KafkaError."""
        names = None if topics is None else list(topics)
        fields = {
            "topics": None if names is None else [{"name": name, "topic_id": NO_TOPIC_ID} for name in names],
            "allow_auto_topic_creation": may_create,
        }
        connection = await self.any_connection()
        response = await self._call_on(connection, ApiKey.METADATA, fields)
        top_level = getattr(response, "error_code", ErrorCode.none)
        if top_level is not ErrorCode.none:
            raise error_for(top_level, "Metadata")
        brokers = {
            each.node_id: BrokerAddress(each.node_id, each.host, each.port, each.rack) for each in response.brokers
        }
        told = {each.name: _topic_metadata(each) for each in response.topics}
        if names is None:
            for name in [name for name in self.metadata.topics if name not in told]:
                del self.metadata.topics[name]
        self.metadata.update(getattr(response, "cluster_id", None), response.controller_id, brokers, told)
        self._refreshed_at_ms = self.now_ms()

    def want_topic(self, name: str, *, may_create: bool) -> None:
        """Keep this topic's metadata fresh from now on."""
        self._wanted_topics[name] = may_create

    def refresh_soon(self) -> asyncio.Task[None]:
        """Refresh the wanted topics in the background; one refresh at a time. The task does not raise."""
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.get_running_loop().create_task(self._refresh_wanted())
        return self._refreshing

    async def _refresh_wanted(self) -> None:
        may_create = any(self._wanted_topics.values())
        try:
            await self.refresh_metadata(list(self._wanted_topics), may_create=may_create)
        except ClientClosed:
            return
        except KafkaError:
            # Whoever needs the metadata asks again after its own pause.
            await self.backoff().pause()

    def refresh_when_old(self) -> bool:
        """Refresh in the background what is older than metadata.max.age.ms: topics get new partitions."""
        is_old = self.now_ms() - self._refreshed_at_ms > self.settings.metadata_max_age_ms
        if is_old and self._refreshed_at_ms:
            self.refresh_soon()
        return is_old

    async def topic(self, name: str, *, deadline: int, may_create: bool = True) -> TopicMetadata:
        """The topic, once it exists and has partitions. Raises UnknownTopic, InvalidTopic, NotAuthorized, ...

        A topic that does not exist is asked for again until the deadline: it may be on its way.
        """
        self.want_topic(name, may_create=may_create)
        retry = Retry(self, f"metadata of topic {name!r}", deadline)
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

    async def leader(self, topic_partition: TopicPartition, *, deadline: int) -> PartitionMetadata:
        """The partition once it has a leader. Raises UnknownTopic or RetriableError at the deadline."""
        retry = Retry(self, f"leader of {topic_partition}", deadline)
        topic = await self.topic(topic_partition.topic, deadline=deadline, may_create=False)
        while True:
            found = self.metadata.leader(topic_partition)
            if found is not None:
                return found
            code = ErrorCode.leader_not_available
            if topic_partition.partition not in topic.partitions:
                code = ErrorCode.unknown_topic_or_partition
            await retry.after_refusal(code)
            await self.refresh_soon()

    # --- coordinators ---------------------------------------------------------------------------------------------

    async def coordinator(self, kind: int, key: str, *, deadline: int) -> int:
        """The node that coordinates this group or transactional id. Raises RetriableError at the deadline."""
        found = self._coordinators.get((kind, key))
        if found is not None and found in self.metadata.brokers:
            return found
        retry = Retry(self, f"finding the {_COORDINATOR_WORD[kind]} coordinator of {key!r}", deadline)
        fields = {"key_type": kind, "key": key, "coordinator_keys": [key]}
        while True:
            try:
                connection = await self.any_connection()
                response = await self._call_on(connection, ApiKey.FIND_COORDINATOR, fields)
            except Disconnected as error:
                await retry.after_disconnect(error)
                continue
            told = response.coordinators[0] if hasattr(response, "coordinators") else response
            if told.error_code is ErrorCode.none:
                self.metadata.brokers[told.node_id] = BrokerAddress(told.node_id, told.host, told.port)
                self._coordinators[kind, key] = told.node_id
                return int(told.node_id)
            if not told.error_code.retriable:
                raise error_for(told.error_code, retry.what)
            await retry.after_refusal(told.error_code)

    def forget_coordinator(self, kind: int, key: str) -> None:
        self._coordinators.pop((kind, key), None)

    async def call_coordinator(
        self,
        kind: int,
        key: str,
        api_key: ApiKey,
        fields: Fields,
        *,
        deadline: int,
        error_of: Callable[[Any], ErrorCode],
        also_retry: frozenset[ErrorCode] = frozenset(),
        lane: str = COORDINATOR_LANE,
        at_least: int = 0,
        at_most: int = 32_767,
        timeout_ms: int | None = None,
        is_safe_to_repeat: bool = True,
    ) -> Any:
        """A request to a coordinator, retried until it answers something that is not "not me" or "not yet".

        ``error_of`` finds the code that decides in the response; codes in ``also_retry`` are retried too. At the
        deadline: UnknownOutcome if a request was sent whose answer never came, else RetriableError.
        """
        retry = Retry(self, f"{api_key.name} for {key!r}", deadline, is_safe_to_repeat=is_safe_to_repeat)
        while True:
            try:
                node_id = await self.coordinator(kind, key, deadline=deadline)
            except KafkaError as error:
                if retry.is_outcome_unknown:
                    raise UnknownOutcome(error.code, f"{retry.what}; then: {error.detail}") from error
                raise
            try:
                response = await self.call(
                    node_id, api_key, fields, lane=lane, at_least=at_least, at_most=at_most, timeout_ms=timeout_ms
                )
            except Disconnected as error:
                self.forget_coordinator(kind, key)
                await retry.after_disconnect(error)
                continue
            code = error_of(response)
            if code in FINDABLE_AGAIN:
                self.forget_coordinator(kind, key)
            elif code is not ErrorCode.coordinator_load_in_progress and code not in also_retry:
                return CoordinatorAnswer(response, retry.is_outcome_unknown)
            await retry.after_refusal(code)

    # --- end ------------------------------------------------------------------------------------------------------

    async def close(self) -> None:
        self._is_closed = True
        tasks: list[asyncio.Task[Any]] = [*self._opening.values()]
        if self._refreshing is not None:
            tasks.append(self._refreshing)
        await end_tasks(tasks)
        for connection in list(self._connections.values()):
            connection.close()
        # Transports close in the next turns of the loop.
        await asyncio.sleep(0)


class CoordinatorAnswer(NamedTuple):
    """``was_repeated``: an earlier send of the same request had no answer, so it may have been carried out before."""

    response: Any
    was_repeated: bool


class Retry:
    """One call's retries: pauses, the deadline, and whether an answer was lost on the way."""

    def __init__(self, cluster: Cluster, what: str, deadline: int, *, is_safe_to_repeat: bool = True) -> None:
        self.what = what
        self.is_outcome_unknown = False
        self._cluster = cluster
        self._deadline = deadline
        self._backoff = cluster.backoff()
        self._is_safe_to_repeat = is_safe_to_repeat
        self._is_hurried = False

    async def after_disconnect(self, error: Disconnected) -> None:
        """Pause. Raises at the deadline, or at once when a request was lost that must not be repeated."""
        if error.was_sent:
            self.is_outcome_unknown = True
            if not self._is_safe_to_repeat:
                raise UnknownOutcome(ErrorCode.network_exception, f"{self.what}; {error.detail}") from error
        await self._pause(ErrorCode.network_exception, error.detail, error)

    async def after_refusal(self, code: ErrorCode) -> None:
        """Pause. Raises at the deadline."""
        if code in _PERHAPS_DONE:
            self.is_outcome_unknown = True
        if code is ErrorCode.concurrent_transactions and not self._is_hurried:
            # The last markers of the previous transaction are being written: a matter of milliseconds.
            self._is_hurried = True
            self._backoff = Backoff(self._cluster.source, _SHORT_PAUSE_MS, self._cluster.settings.retry_backoff_max_ms)
        await self._pause(code, code.name.upper(), None)

    async def _pause(self, code: ErrorCode, detail: str, cause: KafkaError | None) -> None:
        left = self._deadline - self._cluster.now_ms()
        if left <= 0:
            if self.is_outcome_unknown:
                raise UnknownOutcome(ErrorCode.request_timed_out, f"{self.what}; last: {detail}") from cause
            raise error_for(code, f"{self.what}; last: {detail}") from cause
        await self._backoff.pause(left)


def _decode(api_key: int, version: int, answer: Answer) -> Any:
    return decode_response(api_key, version, answer.frame, answer.position)


def _topic_metadata(told: Any) -> TopicMetadata:
    partitions = {
        each.partition_index: PartitionMetadata(
            each.partition_index,
            each.leader_id,
            getattr(each, "leader_epoch", -1),
            tuple(each.replica_nodes),
            tuple(each.isr_nodes),
            each.error_code,
        )
        for each in told.partitions
    }
    topic_id = getattr(told, "topic_id", None) or NO_TOPIC_ID
    return TopicMetadata(told.name, topic_id, dict(sorted(partitions.items())), told.is_internal, told.error_code)


async def end_tasks(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until each has ended, in order."""
    for task in tasks:
        task.cancel()
    for task in tasks:
        while not task.done():
            await asyncio.gather(task, return_exceptions=True)


def by_leader(
    metadata: ClusterMetadata, partitions: Iterable[TopicPartition]
) -> tuple[dict[int, list[TopicPartition]], list[TopicPartition]]:
    """Partitions by the node that leads them, and those without a leader."""
    led: dict[int, list[TopicPartition]] = {}
    leaderless = []
    for each in partitions:
        leader = metadata.leader(each)
        if leader is None:
            leaderless.append(each)
        else:
            led.setdefault(leader.leader, []).append(each)
    return led, leaderless


def by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, partition in partitions:
        topics.setdefault(topic, []).append(partition)
    return topics
