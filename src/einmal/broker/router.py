"""From a request frame to its handler, and from the handler's result to the bytes of the answer.

The table of APIs is data: ``HANDLERS`` below. This is the one place where exceptions become answers: broken input
closes the connection (``WireError`` passes through to the server), a request in a version that is not advertised gets
what a Kafka broker gives it. Knows no sockets.
"""

from __future__ import annotations

import inspect
import struct
from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, cast

from einmal.broker.authentication import OPEN_APIS, Unauthenticated
from einmal.broker.context import Body, Buffer, Handler, HandlerResult, Origin, Parked, RequestContext, Versions
from einmal.broker.forwarding import forward
from einmal.broker.handlers import (
    add_offsets_to_txn,
    add_partitions_to_txn,
    allocate_producer_ids,
    alter_configs,
    alter_partition,
    alter_partition_reassignments,
    alter_replica_log_dirs,
    api_versions,
    begin_quorum_epoch,
    broker_heartbeat,
    broker_registration,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_groups,
    delete_records,
    delete_topics,
    describe_acls,
    describe_cluster,
    describe_configs,
    describe_groups,
    describe_log_dirs,
    describe_producers,
    describe_quorum,
    describe_topic_partitions,
    describe_transactions,
    elect_leaders,
    end_quorum_epoch,
    end_txn,
    envelope,
    fetch,
    fetch_snapshot,
    find_coordinator,
    heartbeat,
    incremental_alter_configs,
    init_producer_id,
    join_group,
    leave_group,
    list_groups,
    list_offsets,
    list_partition_reassignments,
    list_transactions,
    metadata,
    offset_commit,
    offset_delete,
    offset_fetch,
    offset_for_leader_epoch,
    produce,
    sasl_authenticate,
    sasl_handshake,
    sync_group,
    txn_offset_commit,
    unregister_broker,
    update_features,
    vote,
    write_txn_markers,
)
from einmal.broker.listeners import Audience
from einmal.types import ErrorCode
from einmal.wire.errors import Malformed, UnknownVersion
from einmal.wire.messages import (
    RequestHeader,
    decode_request,
    decode_request_header,
    encode_response,
    response_slices,
)

if TYPE_CHECKING:
    from types import ModuleType

    from einmal.broker.node import Node

BROKER_HANDLERS: Final[tuple[ModuleType, ...]] = (
    produce,
    fetch,
    list_offsets,
    metadata,
    offset_commit,
    offset_fetch,
    find_coordinator,
    join_group,
    heartbeat,
    leave_group,
    sync_group,
    describe_groups,
    list_groups,
    api_versions,
    create_topics,
    delete_topics,
    delete_records,
    init_producer_id,
    offset_for_leader_epoch,
    add_partitions_to_txn,
    add_offsets_to_txn,
    end_txn,
    write_txn_markers,
    txn_offset_commit,
    describe_acls,
    create_acls,
    delete_acls,
    describe_configs,
    alter_configs,
    alter_replica_log_dirs,
    describe_log_dirs,
    create_partitions,
    delete_groups,
    elect_leaders,
    incremental_alter_configs,
    alter_partition_reassignments,
    list_partition_reassignments,
    offset_delete,
    describe_quorum,
    update_features,
    describe_cluster,
    describe_producers,
    unregister_broker,
    describe_transactions,
    list_transactions,
    describe_topic_partitions,
)
"""What clients and other brokers ask of a broker: one module per API, in the order of their keys."""

CONTROLLER_HANDLERS: Final[tuple[ModuleType, ...]] = (
    fetch,
    api_versions,
    create_topics,
    delete_topics,
    describe_configs,
    alter_configs,
    create_partitions,
    elect_leaders,
    incremental_alter_configs,
    alter_partition_reassignments,
    list_partition_reassignments,
    vote,
    begin_quorum_epoch,
    end_quorum_epoch,
    describe_quorum,
    alter_partition,
    update_features,
    envelope,
    fetch_snapshot,
    describe_cluster,
    broker_registration,
    broker_heartbeat,
    unregister_broker,
    allocate_producer_ids,
)
"""What the cluster's nodes, and operators' tools, ask of a controller. To add an API, add its module to a table."""

SASL_HANDLERS: Final[tuple[ModuleType, ...]] = (sasl_handshake, sasl_authenticate)
"""And on a listener that authenticates."""

Parts: TypeAlias = list[Buffer]
"""An answer frame in parts, length included; empty: no answer."""
_AT_ONCE_BYTES_MAX: Final = 4 * 1024
"""Of any request but Produce: a larger one waits for its turn, since reading it takes milliseconds."""
_UNPACKED_BYTES_MAX: Final = 16 * 1024 * 1024
"""Of any request but Produce, whose records stay bytes: what is unpacked takes ten times the room."""
_PREFIX: Final = struct.Struct(">ii")
"""Length and correlation id."""
_FLEXIBLE_PREFIX: Final = struct.Struct(">iib")
"""The same and no tagged fields."""


class _Route(NamedTuple):
    handle: Callable[[RequestContext, Any], HandlerResult]
    decode: Callable[[int, bytearray, int], Any] | None
    versions: Versions
    is_forwarded: bool


class Deferred(NamedTuple):
    """An answer still to come. ``parked``: the connection may go on meanwhile; ``running`` may end as parked."""

    header: RequestHeader
    parked: Parked | None
    running: Coroutine[Any, Any, Body | Parked] | None

    async def body(self) -> Body:
        parked: Body | Parked = self.parked
        if parked is None:
            assert self.running is not None, "an answer that comes later comes from somewhere"
            parked = await self.running
        return await parked.body if isinstance(parked, Parked) else parked


class Router:
    """The APIs of one listener. ``authenticates``: only nodes of the cluster are answered."""

    def __init__(self, node: Node, audience: Audience = Audience.CLIENTS, *, authenticates: bool = False) -> None:
        self._node = node
        self._audience = audience
        self._authenticates = authenticates
        handlers = CONTROLLER_HANDLERS if audience is Audience.CONTROLLERS else BROKER_HANDLERS
        if authenticates:
            handlers += SASL_HANDLERS
        self._routes = {module.API_KEY: _route(module) for module in sorted(handlers, key=_api_key)}

    def versions(self) -> list[tuple[int, Versions]]:
        """By API key, in its order."""
        return [(key, route.versions) for key, route in self._routes.items()]

    def is_passed_on(self, api_key: int) -> bool:
        """Whether it is an API that only the active controller can answer."""
        route = self._routes.get(api_key)
        return route is not None and route.is_forwarded

    def dispatch(self, frame: bytearray, client_address: str, origin: Origin | None = None) -> Parts | Deferred:
        """Start one request. Raises WireError: the connection that sent it is to be closed."""
        header, position = decode_request_header(frame, flexible=self._is_flexible)
        api_key, version, _correlation_id, _client_id = header
        is_open = not self._authenticates or origin is None or origin.authentication.is_done
        if not is_open and api_key not in OPEN_APIS:
            raise Unauthenticated(f"api key {api_key} before SaslAuthenticate")
        route = self._routes[api_key]
        oldest, newest, _flexible = route.versions
        if not oldest <= version <= newest:
            return self._refuse_version(header)
        context = RequestContext(self._node, header, client_address, self._audience, origin)
        if len(frame) > _AT_ONCE_BYTES_MAX and api_key != produce.API_KEY:
            if len(frame) > _UNPACKED_BYTES_MAX:
                raise Malformed(f"request of {len(frame)} bytes to api key {api_key}")
            return Deferred(header, None, self._in_turn(context, route, frame, position))
        result = self._start(context, route, frame, position)
        if isinstance(result, bytes):
            return self.encode(header, result)
        if isinstance(result, Parked):
            return Deferred(header, result, None)
        if inspect.iscoroutine(result):
            return Deferred(header, None, result)
        return self.encode(header, cast(Body, result))

    def _start(self, context: RequestContext, route: _Route, frame: bytearray, position: int) -> HandlerResult:
        """Decode the request and hand it over. Raises WireError."""
        api_key, version, _correlation_id, _client_id = context.header
        if route.decode is None:
            request = decode_request(api_key, version, frame, position)
        else:
            request = route.decode(version, frame, position)
        is_for_controller = route.is_forwarded and self._audience is not Audience.CONTROLLERS
        if is_for_controller and not self._node.controller.is_active:
            return forward(context, bytes(frame), lambda: route.handle(context, request))
        return route.handle(context, request)

    async def _in_turn(self, context: RequestContext, route: _Route, frame: bytearray, position: int) -> Body | Parked:
        """Decode and handle a large request when it is its turn. Raises WireError."""
        await self._node.turns.next()
        result = self._start(context, route, frame, position)
        return await result if inspect.iscoroutine(result) else cast(Body | Parked, result)

    async def finish(self, deferred: Deferred) -> Body | Parked:
        """What a request that is running comes to; the answer's fields are encoded, since they may be many."""
        assert deferred.running is not None, "nothing is running"
        result = await deferred.running
        if not isinstance(result, Mapping):
            return result
        slices = response_slices(deferred.header.api_key, deferred.header.api_version, result)
        return b"".join([part async for part in self._node.turns.paced(slices)])

    async def answer(self, frame: bytearray, client_address: str) -> bytes:
        """The whole answer to a request that came on no connection; empty: it has none. Raises WireError."""
        result = self.dispatch(frame, client_address)
        if isinstance(result, Deferred):
            result = self.encode(result.header, await result.body())
        return b"".join(result)[4:]

    def encode(self, header: RequestHeader, body: Body) -> Parts:
        """The answer frame of a handler's result."""
        parts: Parts
        if isinstance(body, bytes):
            size, parts = len(body), [body]
        elif body is None:
            return []
        elif isinstance(body, Mapping):
            encoded = encode_response(header.api_key, header.api_version, body)
            size, parts = len(encoded), [encoded]
        else:
            parts = list(body)
            size = sum(map(len, parts))
        api_key, version, correlation_id, _client_id = header
        if version >= self._routes[api_key].versions.flexible and api_key != api_versions.API_KEY:
            return [_FLEXIBLE_PREFIX.pack(size + 5, correlation_id, 0), *parts]
        return [_PREFIX.pack(size + 4, correlation_id), *parts]

    def _is_flexible(self, api_key: int, version: int) -> bool:
        route = self._routes.get(api_key)
        if route is None:
            raise UnknownVersion(f"api key {api_key}")
        if version > route.versions.max:
            # An ApiVersions request of the future cannot be read, nor need it be, to be refused.
            return False
        return version >= route.versions.flexible

    def _refuse_version(self, header: RequestHeader) -> Parts:
        if header.api_key != api_versions.API_KEY:
            raise UnknownVersion(f"api key {header.api_key} version {header.api_version}")
        fields = api_versions.supported(self._node, self._audience, 0, ErrorCode.unsupported_version)
        return self.encode(header._replace(api_version=0), fields)


def _api_key(module: ModuleType) -> int:
    return cast(Handler, module).API_KEY


def _route(module: ModuleType) -> _Route:
    handler = cast(Handler, module)
    is_forwarded = getattr(module, "FORWARDED", False)
    return _Route(handler.handle, getattr(module, "decode", None), handler.VERSIONS, is_forwarded)
