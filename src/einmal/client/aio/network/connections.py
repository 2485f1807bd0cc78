"""A client's connections: opened on demand, with a pause after a broker has failed.

Each knows the versions that its broker supports. A connection is *silent* while a request on it has waited for its
answer for longer than its sender expected; the owner's callback is then called repeatedly. Knows no metadata: a broker
is a host and a port here.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import random
import socket
import ssl
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from einmal.client.aio.network.secured import Secured
from einmal.client.apis import ApiKey
from einmal.client.config import ClientSettings
from einmal.client.errors import ClientClosed, Disconnected, FatalError, KafkaError, error_for
from einmal.event_log import EventLog
from einmal.pauses import DoublingPauses
from einmal.rpc.connection import Answer, Connection
from einmal.seams import Clock, Network
from einmal.types import ErrorCode
from einmal.wire.api.api_versions import API as API_VERSIONS
from einmal.wire.api.api_versions import ApiVersionsRequest
from einmal.wire.errors import Malformed, WireError
from einmal.wire.messages import Api, Q, R

T = TypeVar("T")

_log = EventLog("einmal.client")

_REQUESTS: Final = {key.value: key.name for key in ApiKey} | {17: "SASL_HANDSHAKE", 36: "SASL_AUTHENTICATE"}
_CHECK_VERSIONS_MS: Final = 10_000
_MAX_API_VERSIONS: Final = 4


DATA_LANE: Final = "data"
"""Produce, Fetch, metadata."""
COORDINATOR_LANE: Final = "coordinator"
"""A second connection to the same broker: a long Fetch or JoinGroup must not delay a heartbeat or a commit."""
GROUP_LANE: Final = "group"
"""JoinGroup and SyncGroup, which the broker answers only when the other members have joined."""


class LaneEndpoint(NamedTuple):
    """``lane``: one of several connections to the same broker."""

    host: str
    port: int
    lane: str


@dataclass(slots=True)
class _Failures:
    count: int = 0
    again_at_ms: int = 0
    last: KafkaError | None = None


class Connections:
    """``silent`` is called with a connection that is silent, every second. ``close`` it."""

    def __init__(
        self,
        settings: ClientSettings,
        *,
        network: Network,
        clock: Clock,
        source: random.Random,
        silent: Callable[[Connection], None],
    ) -> None:
        self.transaction_version = 0
        """The finalized level of ``transaction.version``, from the broker with the latest metadata."""
        self._features_epoch = -1
        """Epoch of the cluster's finalized features (KIP-584)."""
        self.is_closed = False
        self.rejection: FatalError | None = None
        """Why a broker has rejected the last connection for good; None: connecting works, or may work again."""
        self.has_met_broker = False
        """Whether any broker has ever answered."""
        self._tried_first_at_ms: int | None = None
        self._settings = settings
        self._network = network
        self._clock = clock
        self._source = source
        self._silent = silent
        self._open: dict[LaneEndpoint, Connection] = {}
        self._opening: dict[LaneEndpoint, asyncio.Task[Connection]] = {}
        self._greeted: dict[LaneEndpoint, Connection] = {}
        """Connections that are being opened and have no answer yet."""
        self._failures: dict[tuple[str, int], _Failures] = {}
        self._pauses_ms = DoublingPauses(settings.reconnect_backoff_ms, settings.reconnect_backoff_max_ms)
        self._secured = Secured(settings, network)
        self._was_served = False
        """Whether a broker has answered more than ApiVersions: then its listener does not require SASL."""
        self._reported: set[tuple[str, int]] = set()
        self._renewing: dict[Connection, asyncio.TimerHandle | asyncio.Task[None]] = {}
        """Connections whose sessions end (KIP-368): when they are renewed, or the renewal."""

    def get(self, endpoint: LaneEndpoint) -> Connection | None:
        """The connection if there is one."""
        connection = self._open.get(endpoint)
        return connection if connection is not None and connection.is_open else None

    def may_try(self, endpoint: LaneEndpoint) -> bool:
        """Whether a connection attempt is allowed: none has just failed there."""
        failures = self._failures.get(endpoint[:2])
        return failures is None or endpoint in self._opening or self._now() >= failures.again_at_ms

    async def connect(self, endpoint: LaneEndpoint) -> Connection:
        """An open connection. Raises Disconnected; at once if connecting has just failed.

        Raises FatalError if the broker rejects the credentials or TLS cannot succeed: no retry would help.
        """
        if self.is_closed:
            raise ClientClosed()
        if self._tried_first_at_ms is None:
            self._tried_first_at_ms = self._now()
        connection = self.get(endpoint)
        if connection is not None:
            return connection
        opening = self._opening.get(endpoint)
        if opening is None:
            if not self.may_try(endpoint):
                raise _again(self._failures[endpoint[:2]].last)
            opening = asyncio.get_running_loop().create_task(self._connect(endpoint))
            self._opening[endpoint] = opening
            opening.add_done_callback(lambda done: self._opened(endpoint, done))
        # Several requests may wait for one connection: a cancelled one must not close it for the others.
        try:
            return await asyncio.shield(opening)
        except asyncio.CancelledError:
            if self.is_closed and opening.cancelled():
                # Closing has cancelled the attempt, and nobody the calls that wait for it.
                raise ClientClosed() from None
            raise

    async def connect_any(self, endpoints: Sequence[LaneEndpoint], avoid: Iterable[Connection] = ()) -> Connection:
        """A connection to one of these brokers, for a request that should not wait. Raises Disconnected.

        Best is one that is idle; then another lane to a broker that answers, then a broker without a connection.
        """
        avoided = list(avoid)
        connected = {endpoint: connection for endpoint in endpoints if (connection := self.get(endpoint)) is not None}
        usable = [endpoint for endpoint, connection in connected.items() if connection not in avoided]
        at = min(usable, key=lambda endpoint: _burden(connected[endpoint]), default=None)
        best = None if at is None else connected[at]
        if best is not None and not best.in_flight:
            return best
        if at is not None and not connected[at].is_silent:
            wanted = [endpoint for endpoint in endpoints if endpoint[:2] == at[:2]]
        else:
            met = [endpoint[:2] for endpoint in connected]
            wanted = [endpoint for endpoint in endpoints if endpoint[:2] not in met]
        last = Disconnected("no broker can be asked", was_sent=False)
        for endpoint in wanted:
            if endpoint not in connected:
                try:
                    return await self.connect(endpoint)
                except Disconnected as error:
                    last = error
        if best is not None and best.is_open:
            return best
        raise last

    @property
    def first_contact_due_ms(self) -> int | None:
        """When a client that has reached no broker yet stops waiting, on the monotonic clock; None: it has reached
        one."""
        if self.has_met_broker or self._tried_first_at_ms is None:
            return None
        return self._tried_first_at_ms + self._settings.bootstrap_timeout_ms

    def has_reached(self, endpoint: LaneEndpoint) -> bool:
        """Whether there ever was a connection to this broker's address."""
        return any(opened[:2] == endpoint[:2] for opened in self._open)

    def last_failures(self) -> str:
        """The connection error of each address; of one whose first attempt still lasts, how far that is."""
        details = {at: failure.last.detail for at, failure in self._failures.items() if failure.last is not None}
        for endpoint in self._opening:
            greeted = self._greeted.get(endpoint)
            why = "no connection yet" if greeted is None else f"no answer yet{self._secured.suspicion(greeted)}"
            details.setdefault(endpoint[:2], f"{endpoint.host}:{endpoint.port}: {why}")
        return "; ".join(details.values())

    def _opened(self, endpoint: LaneEndpoint, done: asyncio.Task[Connection]) -> None:
        self._opening.pop(endpoint, None)
        self._greeted.pop(endpoint, None)
        if not done.cancelled():
            done.exception()

    async def _connect(self, endpoint: LaneEndpoint) -> Connection:
        try:
            connection, lifetime_ms = await self._connect_once(endpoint)
        except ClientClosed:
            raise
        except KafkaError as error:
            self._failed(endpoint, error)
            raise
        if self.is_closed:
            connection.close()
            raise ClientClosed()
        self.has_met_broker = True
        self.rejection = None
        self._failures.pop(endpoint[:2], None)
        self._open[endpoint] = connection
        self._renew_later(connection, lifetime_ms)
        protocol = self._settings.security_protocol
        _log.info("connected", "connected to %(broker)s, %(protocol)s", broker=connection.name, protocol=protocol)
        return connection

    def _failed(self, endpoint: LaneEndpoint, error: KafkaError) -> None:
        failures = self._failures.setdefault(endpoint[:2], _Failures())
        pause_ms = self._pauses_ms.after(failures.count)
        failures.count += 1
        failures.last = error
        if isinstance(error, FatalError):
            self.rejection = error
        failures.again_at_ms = self._now() + int(pause_ms * self._source.uniform(0.8, 1.2))

    async def _connect_once(self, endpoint: LaneEndpoint) -> tuple[Connection, int]:
        """An open, authenticated connection, and its session's lifetime in ms (0: without end)."""
        name = f"{endpoint.host}:{endpoint.port}"

        def make() -> Connection:
            answered = partial(_log_answer, name) if _log.is_on(logging.DEBUG) else None
            return Connection(name, self._settings.client_id, self._silent, failure=Disconnected, answered=answered)

        tls = self._secured.context()
        try:
            async with asyncio.timeout(self._settings.socket_connection_setup_timeout_ms / 1000):
                _transport, connection = await self._network.connect(make, endpoint.host, endpoint.port, tls=tls)
        except (OSError, TimeoutError) as error:
            secured = await self._secured.tls_failure(error, endpoint.host, endpoint.port)
            if isinstance(secured, Disconnected):
                self._report(endpoint, secured.detail)
            raise (secured or Disconnected(f"{name}: {_cause(error)}", was_sent=False)) from error
        assert isinstance(connection, Connection)
        self._greeted[endpoint] = connection
        try:
            await self._learn_versions(connection)
            return connection, await self._authenticate(connection, self._open.get(endpoint))
        except Disconnected as error:
            connection.close()
            # With TLS 1.3 the broker rejects a client's certificate only after the handshake.
            if isinstance(connection.lost_by, ssl.SSLError):
                secured = await self._secured.tls_failure(connection.lost_by, endpoint.host, endpoint.port)
                if secured is not None:
                    raise secured from error
            # Whatever listens there: only an ApiVersions request was sent.
            suspicion = self._secured.suspicion(connection)
            if suspicion:
                self._report(endpoint, f"{error.detail}{suspicion}")
            raise Disconnected(f"{error.detail}{suspicion}", was_sent=False) from error
        except BaseException:
            connection.close()
            raise

    def _report(self, endpoint: LaneEndpoint, detail: str) -> None:
        """Log why connecting fails, if it is more than a broker that is down: once, at the first failure. Attempts
        continue until bootstrap.timeout.ms, for a proxy may behave in this way while a broker starts."""
        if not self.has_met_broker and endpoint[:2] not in self._reported:
            self._reported.add(endpoint[:2])
            _log.warning("connecting_failed", "%(reason)s", reason=detail)

    # --- authentication -------------------------------------------------------------------------------------------

    async def _authenticate(self, connection: Connection, before: Connection | None) -> int:
        if self._secured.sasl is None:
            self._was_served = self._was_served or any(other.was_served for other in self._open.values())
            if before is not None and before.is_cut_off and not self._was_served:
                # Once: without an answer, the next connection is for the request again.
                before.is_cut_off = False
                await self._secured.check_without(connection, self._settings.request_timeout_ms)
            return 0
        return await self._secured.authenticate(connection, self._settings.request_timeout_ms)

    def _renew_later(self, connection: Connection, lifetime_ms: int) -> None:
        """Before the session ends: as Java's client, after 85 to 95 % of its time."""
        if lifetime_ms:
            delay = lifetime_ms * self._source.uniform(0.85, 0.95) / 1000
            loop = asyncio.get_running_loop()
            self._renewing[connection] = loop.call_later(delay, self._begin_renewal, connection)

    def _begin_renewal(self, connection: Connection) -> None:
        self._renewing.pop(connection, None)
        if connection.is_open and not self.is_closed:
            task = asyncio.get_running_loop().create_task(self._renew(connection))
            self._renewing[connection] = task

    async def _renew(self, connection: Connection) -> None:
        """Re-authenticate (KIP-368). A failure ends the connection; the next one raises what is wrong."""
        # Requests before it are answered first, and a broker answers a JoinGroup only when the members have joined.
        timeout_ms = self._settings.request_timeout_ms + getattr(self._settings, "max_poll_interval_ms", 0)
        connection.hold()
        lifetime_ms, why = None, "interrupted"
        try:
            lifetime_ms = await self._secured.authenticate(connection, timeout_ms)
        except KafkaError as error:
            why = error.detail
        finally:
            self._renewing.pop(connection, None)
            if lifetime_ms is None:
                # Requests that were held back fail as not sent.
                connection.abort(f"re-authentication failed: {why}")
            else:
                connection.release()
                self._renew_later(connection, lifetime_ms)

    async def _learn_versions(self, connection: Connection) -> None:
        timeout = min(self._settings.request_timeout_ms, _CHECK_VERSIONS_MS)
        version = _MAX_API_VERSIONS
        while True:
            body = API_VERSIONS.encode_request(version, ApiVersionsRequest("einmal", "0"))
            answer = await connection.send(API_VERSIONS.key, version, (body,), timeout)
            # A broker that is older than this request answers UNSUPPORTED_VERSION, in version 0.
            error_code = int.from_bytes(answer.frame[answer.position : answer.position + 2], "big", signed=True)
            if error_code != ErrorCode.unsupported_version:
                break
            if version == 0:
                raise error_for(ErrorCode.unsupported_version, "ApiVersions")
            version = 0
        response = decode(connection, API_VERSIONS, version, answer)
        if response.error_code is not ErrorCode.none:
            raise error_for(response.error_code, f"ApiVersions at {connection.name}")
        connection.versions = {key.api_key: (key.min_version, key.max_version) for key in response.api_keys}
        for feature in response.finalized_features:
            connection.features[feature.name] = feature.max_version_level
        # A broker that has just started knows no features yet, one that lags has old ones.
        if response.finalized_features_epoch >= self._features_epoch:
            self._features_epoch = response.finalized_features_epoch
            self.transaction_version = connection.features.get("transaction.version", 0)

    def _now(self) -> int:
        return self._clock.now().monotonic_ms

    @property
    def opening(self) -> list[asyncio.Task[Any]]:
        """The connections being opened or authenticated again; a closing client cancels these."""
        renewals = [renewal for renewal in self._renewing.values() if isinstance(renewal, asyncio.Task)]
        return [*self._opening.values(), *renewals]

    def close(self) -> None:
        self.is_closed = True
        for renewal in self._renewing.values():
            renewal.cancel()
        for connection in list(self._open.values()):
            connection.close()


_ASKED_ONE: Final[dict[int, tuple[str, int]]] = {
    ApiKey.OFFSET_FETCH: ("groups", 8),
    ApiKey.FIND_COORDINATOR: ("coordinators", 4),
    ApiKey.DESCRIBE_GROUPS: ("groups", 0),
    ApiKey.DELETE_GROUPS: ("results", 0),
    ApiKey.DESCRIBE_TRANSACTIONS: ("transaction_states", 0),
}
"""The results, and the first version that has them, in responses to requests that this client sends for one item at a
time only."""


def _log_answer(broker: str, api_key: int, version: int, size: int) -> None:
    sentence = "%(broker)s answers %(request)s, version %(version)d, in %(size)d bytes"
    _log.debug("request_answered", sentence, broker=broker, request=_REQUESTS[api_key], version=version, size=size)


def _again(error: KafkaError | None) -> KafkaError:
    """The same error, raised again: a new object, because a traceback grows with every raise."""
    if error is None or isinstance(error, Disconnected):
        return Disconnected("" if error is None else error.detail, was_sent=False)
    return copy.copy(error)


def _cause(error: OSError | TimeoutError) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    if isinstance(error, socket.gaierror):
        return f"the host's name is not known ({error.strerror or error})"
    return str(error) or "no connection in time"


def _burden(connection: Connection) -> tuple[bool, int]:
    return connection.is_silent, connection.in_flight


def decode(connection: Connection, api: Api[Q, R], version: int, answer: Answer) -> R:
    """The response. Raises Disconnected."""
    return decode_by(partial(_decoded, api), connection, version, answer)


def _decoded(api: Api[Q, R], version: int, frame: bytes, position: int) -> R:
    response = api.decode_response(version, frame, position)
    results, first_version = _ASKED_ONE.get(api.key, ("", 0))
    if results and version >= first_version and len(getattr(response, results)) != 1:
        raise Malformed(f"not one of {results}, which is what was asked for")
    return response


def decode_by(decoder: Callable[[int, bytes, int], T], connection: Connection, version: int, answer: Answer) -> T:
    """The decoded answer. A broken one ends the connection: Disconnected."""
    try:
        return decoder(version, answer.frame, answer.position)
    except WireError as error:
        connection.abort(str(error))
        raise Disconnected(f"{connection.name}: broken answer: {error}", was_sent=True) from error
