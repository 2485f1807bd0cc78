"""From a request frame to its handler, and from the handler's result to the bytes of the answer.

The table of APIs is in ``apis.py``. Only here exceptions become answers: broken input closes the connection
(``WireError`` passes through to the server), a request in a version that is not advertised is answered as by a Kafka
broker. Knows no sockets.
"""

from __future__ import annotations

import asyncio
import inspect
import struct
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, cast

from einmal.broker.front.context import Body, Buffer, HandlerResult, Origin, Parked, RequestContext
from einmal.broker.front.quotas.charge import Charge
from einmal.broker.front.quotas.client_throttles import ClientThrottles
from einmal.broker.front.routing.forwarding import Forwarding
from einmal.broker.front.routing.routes import REQUEST_BYTES_MAX, ApiRoute
from einmal.broker.front.routing.throttle_times import own_throttle_ms, with_throttle_ms
from einmal.broker.listeners import NamedListener
from einmal.broker.resources.counts import RequestCounts
from einmal.broker.resources.turns import Turns
from einmal.broker.resources.unpacked_requests import UnpackedRequests
from einmal.broker.rpc.authentication import OPEN_APIS
from einmal.security.principal import Principal
from einmal.types import ErrorCode
from einmal.wire.api.api_versions import API as API_VERSIONS
from einmal.wire.api.sasl_authenticate import API as SASL_AUTHENTICATE
from einmal.wire.api.sasl_authenticate import SaslAuthenticateResponse
from einmal.wire.errors import Malformed, UnknownVersion
from einmal.wire.messages import RequestHeader, Values, decode_request_header
from einmal.wire.produce import partition_count

_PRODUCE: Final = 0
_FETCH: Final = 1
_ENVELOPE: Final = 58

Parts: TypeAlias = list[Buffer]
"""An answer frame in parts, length included; empty: no answer."""
_AT_ONCE_BYTES_MAX: Final = 4 * 1024
"""Maximum size of a request that is read at once, unless it is a Produce: a larger one waits for its turn, since
reading it takes milliseconds."""
_WIDE: Final = 1_000
"""A Produce for more partitions waits for its turn too."""
_NARROW_BYTES_MAX: Final = 8 * _WIDE
"""Fewer bytes cannot name so many."""
_DESCRIPTIONS: Final = frozenset((29, 32, 35, 48, 50, 61, 75))
"""APIs that answer a few bytes with all that the broker knows of a kind, as 300,000 producers: one such answer is made
at a time. They wait for nothing but turns."""
_BARE: Final = -1
"""The version of an answer without a header."""
_LENGTH: Final = struct.Struct(">i")
_PREFIX: Final = struct.Struct(">ii")
"""Length and correlation id."""
_FLEXIBLE_PREFIX: Final = struct.Struct(">iib")
"""The same and no tagged fields."""


class Deferred(NamedTuple):
    """A pending answer. ``parked``: the connection may continue meanwhile; ``running`` may end as parked.

    ``charge``: what the request costs under quotas. ``begun``: when it came, by the stopwatch of the counts.
    """

    header: RequestHeader
    parked: Parked | None
    running: Coroutine[Any, Any, Body | Parked] | None
    charge: Charge | None = None
    begun: float | None = None

    async def body(self) -> Body:
        parked: Body | Parked = self.parked
        if parked is None:
            assert self.running is not None, "a deferred answer is parked or running"
            parked = await self.running
        return await parked.body if isinstance(parked, Parked) else parked


class Router:
    """The APIs of one listener.

    ``forwarding`` None: no request is forwarded from here.
    ``throttles`` None: nobody has a quota here. ``counts`` None: nobody counts. ``unsupported``: the answer to an
    ApiVersions request of a version that is not supported; None: there is none.
    """

    def __init__(
        self,
        routes: Iterable[ApiRoute],
        turns: Turns,
        listener: NamedListener,
        *,
        forwarding: Forwarding | None = None,
        throttles: ClientThrottles | None = None,
        counts: RequestCounts | None = None,
        unsupported: Callable[[], Values] | None = None,
    ) -> None:
        routes = tuple(routes)
        self._routes = {route.key: route for route in routes}
        self._turns = turns
        self.listener = listener
        self._forwarding = forwarding
        self._throttles = throttles
        self._counts = counts
        self._unsupported = unsupported
        self._unread = {(route.key, version) for route in routes if route.has_schema for version in route.versions.all}
        """APIs and versions of which no request has come. The first one waits for its turn: the import of a schema
        takes some ten milliseconds, and a client may ask for hundreds of them."""
        self._descriptions = asyncio.Lock()
        self._unpacked = UnpackedRequests()
        # Each has its own: a request with a share of another one may wait for a follower's Fetch, a Produce for others.
        self._unpacked_of = {_FETCH: UnpackedRequests(), _PRODUCE: UnpackedRequests()}

    def dispatch(
        self, frame: bytearray, client_address: str, origin: Origin | None = None, principal: Principal | None = None
    ) -> Parts | Deferred:
        """Start one request. Raises WireError: the connection that sent it is to be closed.

        ``principal``: of a request without a connection, None: the node itself. Such a request is not counted.
        """
        if origin is not None and origin.authentication.is_bare:
            return self._authenticate_bare(frame, client_address, origin)
        counts = self._counts
        begun = None if counts is None or origin is None else counts.stopwatch()
        header, position = decode_request_header(frame, flexible=self._is_flexible)
        api_key, version, _correlation_id, _client_id = header
        if self.listener.authenticates and origin is not None:
            origin.authentication.check(api_key, self._turns.now_ms())
        route = self._routes[api_key]
        oldest, newest, _flexible = route.versions
        if not oldest <= version <= newest:
            # Not counted: a client may make versions up.
            return self._refuse_version(header)
        if origin is not None:
            principal = origin.authentication.principal
        context = RequestContext(header, client_address, self._turns, self.listener, origin, principal)
        if self._throttles is not None and self._throttles.quotas:
            context.charge = self._charge(context, len(frame))
        if api_key == _PRODUCE and len(frame) > _NARROW_BYTES_MAX and partition_count(version, frame, position) > _WIDE:
            return Deferred(header, None, self._in_turn(context, route, frame, position), context.charge, begun)
        if len(frame) > _AT_ONCE_BYTES_MAX and api_key != _PRODUCE:
            if len(frame) > REQUEST_BYTES_MAX:
                raise Malformed(f"request of {len(frame)} bytes to api key {api_key}")
            return Deferred(header, None, self._in_turn(context, route, frame, position), context.charge, begun)
        return self._answer(context, route, frame, position, begun)

    def _authenticate_bare(self, frame: bytearray, client_address: str, origin: Origin) -> Deferred:
        """A message of an exchange that SaslHandshake v0 has begun. A failure has no answer."""
        header = RequestHeader(SASL_AUTHENTICATE.key, 0, 0, None)
        principal = origin.authentication.principal
        context = RequestContext(header, client_address, self._turns, self.listener, origin, principal)
        request = _LENGTH.pack(len(frame)) + frame
        running = self._routes[SASL_AUTHENTICATE.key].prepare(context, request, 0)()

        async def answer() -> bytes | None:
            response = await cast(Coroutine[Any, Any, SaslAuthenticateResponse], running)
            return bytes(response.auth_bytes) if response.error_code is ErrorCode.none else None

        return Deferred(header._replace(api_version=_BARE), None, answer())

    def answered(self, header: RequestHeader, begun: float | None) -> None:
        """Count a request whose answer is ready. ``begun`` None: it is not counted."""
        if begun is not None and self._counts is not None:
            self._counts.answered(header.api_key, header.api_version, begun)

    def _answer(
        self, context: RequestContext, route: ApiRoute, frame: bytearray, position: int, begun: float | None
    ) -> Parts | Deferred:
        """Start a small request at once. Raises WireError."""
        header, charge = context.header, context.charge
        if charge is not None:
            charge.begin()
        result = self._start(context, route, frame, position)
        is_running = not isinstance(result, bytes) and inspect.iscoroutine(result)
        if not is_running and not isinstance(result, Parked):
            parts = self.encode(header, cast(Body, result), charge)
            self.answered(header, begun)
            return parts
        if charge is not None:
            charge.pause()
        if is_running:
            return Deferred(header, None, cast(Coroutine[Any, Any, Body | Parked], result), charge, begun)
        return Deferred(header, cast(Parked, result), None, charge, begun)

    def _charge(self, context: RequestContext, size: int) -> Charge | None:
        """Return the charge of a client's request; nodes of the cluster have no quotas."""
        if context.principal is None or context.origin is None or self._throttles is None:
            return None
        produced_bytes = size if context.header.api_key == _PRODUCE else 0
        return Charge(self._throttles, context.principal.name, context.client_id, produced_bytes, context.origin.mute)

    def _start(self, context: RequestContext, route: ApiRoute, frame: bytearray, position: int) -> HandlerResult:
        """Decode the request and hand it over. Raises WireError."""
        api = context.header[:2]
        if api in self._unread:
            self._unread.remove(api)
            return self._start_in_turn(context, route, frame, position)
        return self._hand_over(context, route, frame, route.prepare(context, frame, position))

    async def _start_in_turn(
        self, context: RequestContext, route: ApiRoute, frame: bytearray, position: int
    ) -> Body | Parked:
        await self._turns.next()
        result = self._hand_over(context, route, frame, route.prepare(context, frame, position))
        return await result if inspect.iscoroutine(result) else cast(Body | Parked, result)

    def _hand_over(
        self, context: RequestContext, route: ApiRoute, frame: bytearray, handle: partial[HandlerResult]
    ) -> HandlerResult:
        if self._forwarding is not None and route.forwards(handle) and self._forwarding.is_needed:
            return self._forwarding.forward(context, bytes(frame), handle)
        return handle()

    async def _in_turn(
        self, context: RequestContext, route: ApiRoute, frame: bytearray, position: int
    ) -> Body | Parked:
        """Decode a large request in turns with other work, and handle it. Raises WireError."""
        if route.key == _ENVELOPE or route.key in OPEN_APIS:
            # The request in an envelope waits for itself. What is answered before authentication has no arrays, and
            # its senders may not keep anything from those who have authenticated.
            return await self._unpack_and_handle(context, route, frame, position)
        async with self._unpacked_of.get(route.key, self._unpacked).admitted(len(frame)):
            return await self._unpack_and_handle(context, route, frame, position)

    async def _unpack_and_handle(
        self, context: RequestContext, route: ApiRoute, frame: bytearray, position: int
    ) -> Body | Parked:
        handle = None
        await self._turns.next()
        async for step in self._turns.paced(route.prepare_in_steps(context, frame, position)):
            handle = step
        assert handle is not None, "the last step is the call"
        result = self._hand_over(context, route, frame, handle)
        if inspect.iscoroutine(result):
            result = await result
        if context.charge is not None and not isinstance(result, Parked):
            result = _settled(context.header, cast(Body, result), context.charge)
        return await self._in_slices(context.header, cast(Body | Parked, result))

    async def finish(self, deferred: Deferred) -> Body | Parked:
        """The result of a running request; a response is encoded, since it may be long."""
        if deferred.header.api_key in _DESCRIPTIONS:
            async with self._descriptions:
                return await self._finish(deferred)
        return await self._finish(deferred)

    async def _finish(self, deferred: Deferred) -> Body | Parked:
        assert deferred.running is not None, "nothing is running"
        header, charge = deferred.header, deferred.charge
        if charge is None:
            return await self._in_slices(header, await deferred.running)
        result = await charge.timed(deferred.running)
        if not isinstance(result, Parked):
            result = _settled(header, result, charge)
        return await self._in_slices(header, result)

    async def _in_slices(self, header: RequestHeader, result: Body | Parked) -> Body | Parked:
        """The result with a response encoded in turns with other work."""
        if not isinstance(result, tuple) or isinstance(result, Parked):
            return result
        slices = self._routes[header.api_key].slices(header.api_version, result)
        return b"".join([chunk async for chunk in self._turns.paced(slices)])

    async def answer(self, frame: bytearray, client_address: str) -> bytes:
        """The whole answer to a request without a connection; empty: it has none. Raises WireError."""
        result = self.dispatch(frame, client_address)
        if isinstance(result, Deferred):
            result = self.encode(result.header, await result.body())
        return b"".join(result)[4:]

    def encode(self, header: RequestHeader, body: Body, charge: Charge | None = None) -> Parts:
        """The answer frame of a handler's result. ``charge``: settled, if it is not yet."""
        if charge is not None:
            body = _settled(header, body, charge)
        api_key, version, correlation_id, _client_id = header
        route = self._routes[api_key]
        parts: Parts
        if isinstance(body, bytes):
            size, parts = len(body), [body]
        elif body is None:
            return []
        elif isinstance(body, tuple):
            encoded = route.encode(version, body)
            size, parts = len(encoded), [encoded]
        else:
            parts = body
            size = sum(map(len, parts))
        if version == _BARE:
            return [_LENGTH.pack(size), *parts]
        if version >= route.versions.flexible and api_key != API_VERSIONS.key:
            return [_FLEXIBLE_PREFIX.pack(size + 5, correlation_id, 0), *parts]
        return [_PREFIX.pack(size + 4, correlation_id), *parts]

    def _is_flexible(self, api_key: int, version: int) -> bool:
        route = self._routes.get(api_key)
        if route is None:
            raise UnknownVersion(f"api key {api_key}")
        if version > route.versions.max:
            # An ApiVersions request of a future version is refused without reading it.
            return False
        return version >= route.versions.flexible

    def _refuse_version(self, header: RequestHeader) -> Parts:
        if header.api_key != API_VERSIONS.key or self._unsupported is None:
            raise UnknownVersion(f"api key {header.api_key} version {header.api_version}")
        return self.encode(header._replace(api_version=0), self._unsupported())


def _settled(header: RequestHeader, body: Body, charge: Charge) -> Body:
    """The answer with its throttle time. A charge that is settled is stated in it already."""
    if charge.is_settled:
        return body
    throttle_ms = charge.settle(own_throttle_ms(header, body))
    return with_throttle_ms(header, body, throttle_ms) if throttle_ms else body
