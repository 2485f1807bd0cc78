"""Requests of this node to other nodes of its cluster, and to itself.

A connection is opened when it is first needed, one for each node and lane (``addresses``), and kept. Where the other
side's listener authenticates, it is one only after both sides have shown that they know the cluster's secret. A request
to this node itself takes the way through its router and no socket. Nodes are of one version: none asks for versions.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeAlias

from einmal.broker.listeners import Audience
from einmal.broker.resources.counts import ChannelCounts
from einmal.broker.rpc.addresses import Addresses, PeerLocation, audience_of
from einmal.broker.rpc.authentication import Credentials, authenticate_node
from einmal.broker.tls import NodeTls
from einmal.event_log import EventLog
from einmal.rpc.connection import Answer, Connection, NoAnswer
from einmal.rpc.sasl import SaslRefused
from einmal.seams import Network
from einmal.security.errors import SaslError
from einmal.security.sasl.handshake import explained
from einmal.wire.frames import Part
from einmal.wire.messages import Api, Q, R, encode_request_header, response_body_position

log = EventLog(__name__)

AnswerItself: TypeAlias = Callable[[Audience, bytearray], Awaitable[bytes]]
"""The node's own answer to a request frame, as to one that came to the listener for that audience."""


class Asker(Protocol):
    """Asks other nodes: ``Peers``, or in tests a network of theirs."""

    async def ask(
        self,
        node_id: int,
        api: Api[Q, R],
        version: int,
        request: Q,
        *,
        timeout_ms: int,
        lane: str = "control",
    ) -> R: ...


class Peers:
    def __init__(
        self,
        addresses: Addresses,
        credentials: Credentials,
        tls: NodeTls,
        network: Network,
        answer_itself: AnswerItself,
    ) -> None:
        self._addresses = addresses
        self._credentials = credentials
        self._tls = tls
        self._network = network
        self._answer_itself = answer_itself
        self._connections: dict[PeerLocation, Connection] = {}
        self._opening: dict[PeerLocation, asyncio.Task[Connection]] = {}
        self._is_closed = False
        self.to_controllers = ChannelCounts()

    # --- asking --------------------------------------------------------------------------------------------------

    async def ask(
        self,
        node_id: int,
        api: Api[Q, R],
        version: int,
        request: Q,
        *,
        timeout_ms: int,
        lane: str = "control",
    ) -> R:
        """The answer. Raises NoAnswer, or WireError for an answer that cannot be read."""
        body = api.encode_request(version, request)
        answer = await self.exchange(node_id, api.key, version, [body], timeout_ms=timeout_ms, lane=lane)
        return api.decode_response(version, answer.frame, answer.position)

    async def exchange(
        self, node_id: int, api_key: int, version: int, body: Sequence[Part], *, timeout_ms: int, lane: str
    ) -> Answer:
        """As ``ask``, of and into bytes. Raises NoAnswer."""
        if node_id == self._addresses.node_id:
            return await self._ask_self(api_key, version, body, lane)
        location = self._addresses.location_of(node_id, lane)
        if location is None:
            raise NoAnswer(f"node {node_id} is not known, or has no inter.broker.listener.name", was_sent=False)
        connection = await self._connection(location, timeout_ms)
        if audience_of(lane) is not Audience.CONTROLLERS:
            return await connection.send(api_key, version, body, timeout_ms)
        counts = self.to_controllers
        counts.requests += 1
        counts.bytes_out += sum(map(len, body))
        answer = await connection.send(api_key, version, body, timeout_ms)
        counts.responses += 1
        counts.bytes_in += len(answer.frame)
        return answer

    async def _ask_self(self, api_key: int, version: int, body: Sequence[Part], lane: str) -> Answer:
        frame = bytearray(encode_request_header(api_key, version, 0, self._credentials.user))
        for chunk in body:
            frame += chunk
        answer = await self._answer_itself(audience_of(lane), frame)
        return Answer(answer, response_body_position(api_key, version, answer))

    # --- connections ---------------------------------------------------------------------------------------------

    async def _connection(self, location: PeerLocation, timeout_ms: int) -> Connection:
        connection = self._connections.get(location)
        if connection is not None and connection.is_open:
            return connection
        opening = self._opening.get(location)
        if opening is None:
            opening = asyncio.get_running_loop().create_task(self._open(location, timeout_ms))
            self._opening[location] = opening
            opening.add_done_callback(lambda done: self._opened(location, done))
        # Several requests may wait for it: one that is given up must not take it from the others.
        return await asyncio.shield(opening)

    def _opened(self, location: PeerLocation, done: asyncio.Task[Connection]) -> None:
        self._opening.pop(location, None)
        if not done.cancelled():
            done.exception()

    async def _open(self, location: PeerLocation, timeout_ms: int) -> Connection:
        name = f"{location.host}:{location.port}"
        if self._is_closed:
            raise NoAnswer(f"{name}: this node is stopping", was_sent=False)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                _transport, connection = await self._network.connect(
                    lambda: Connection(name, self._credentials.user),
                    location.host,
                    location.port,
                    tls=self._context(location),
                )
                assert isinstance(connection, Connection)
                if location.authenticates:
                    await self._authenticate(connection, timeout_ms)
        except ssl.SSLError as error:
            failure = explained(error)
            reason = f"{failure.reason}: {failure.hint}" if failure is not None else str(error)
            failed = "TLS handshake with another node failed: %(reason)s"
            log.warning("node_handshake_failed", failed, reason=reason, peer=name)
            raise NoAnswer(f"{name}: TLS handshake failed: {reason}", was_sent=False) from error
        except (OSError, TimeoutError) as error:
            raise NoAnswer(f"{name}: {error or 'no connection in time'}", was_sent=False) from error
        if self._is_closed:
            connection.close()
            raise NoAnswer(f"{name}: this node is stopping", was_sent=False)
        self._connections[location] = connection
        return connection

    def _context(self, location: PeerLocation) -> ssl.SSLContext | None:
        """None: the listener there is not encrypted."""
        if not location.is_encrypted:
            return None
        tls = self._tls.of(location.listener)
        if tls is None:
            raise NoAnswer(
                f"{location.host}:{location.port} has TLS, and {location.listener} here has not", was_sent=False
            )
        return tls.client

    async def _authenticate(self, connection: Connection, timeout_ms: int) -> None:
        credentials = self._credentials
        try:
            await authenticate_node(
                connection, credentials.user, credentials.secret, credentials.new_nonce(), timeout_ms
            )
        except BaseException as error:
            connection.close()
            if isinstance(error, NoAnswer) and isinstance(error.__cause__, SaslRefused | SaslError):
                log.warning("node_authentication_failed", "%(reason)s", reason=error.detail, peer=connection.name)
            raise

    def close(self) -> None:
        self._is_closed = True
        for task in list(self._opening.values()):
            task.cancel()
        for connection in self._connections.values():
            connection.close()
