"""Requests of this node to other nodes of its cluster, and to itself.

Several connections may lead to one node: each *lane* is one of its own, so that a long poll holds up no vote and no
heartbeat. What concerns the quorum goes to a node's controller listener, all else to its listener for brokers. Where
that listener authenticates, a connection is one only after both sides have shown that they know the cluster's secret.
A request to this node itself takes the way through the router and no socket. All nodes are of one version: none asks
for versions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from einmal.broker.authentication import authenticate
from einmal.broker.listeners import PROTOCOLS, SASL_PLAINTEXT, Audience
from einmal.client.aio.connection import Answer, Connection, Disconnected
from einmal.types import BrokerId, ErrorCode
from einmal.wire.frames import Part
from einmal.wire.messages import decode_response, encode_request, encode_request_header, response_body_position
from einmal.wire.scram import AuthenticationFailed

if TYPE_CHECKING:
    from einmal.broker.node import Node

log = logging.getLogger(__name__)

_CONTROLLER_LANES: Final = ("quorum", "quorum-fetch", "controller", "heartbeat")
_RETRY_SECONDS: Final = 0.05
_LOOK_SECONDS: Final = 0.2
"""How often it is looked whether whoever is asked still is the controller."""


class _Place(NamedTuple):
    host: str
    port: int
    lane: str
    authenticates: bool


def client_id(node_id: int) -> str:
    """As whom a node asks others."""
    return f"node-{node_id}"


class Peers:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._client_id = client_id(node.config.node_id)
        self._connections: dict[_Place, Connection] = {}
        self._opening: dict[_Place, asyncio.Task[Connection]] = {}
        self._is_closed = False

    # --- asking --------------------------------------------------------------------------------------------------

    async def ask(
        self,
        node_id: int,
        api_key: int,
        version: int,
        fields: Mapping[str, Any],
        *,
        timeout_ms: int,
        lane: str = "control",
    ) -> Any:
        """The answer, as kio has it. Raises Disconnected, or WireError for an answer that cannot be read."""
        body = encode_request(api_key, version, fields)
        answer = await self.exchange(node_id, api_key, version, [body], timeout_ms=timeout_ms, lane=lane)
        return decode_response(api_key, version, answer.frame, answer.position)

    async def exchange(
        self, node_id: int, api_key: int, version: int, body: Sequence[Part], *, timeout_ms: int, lane: str
    ) -> Answer:
        """As ``ask``, of and into bytes. Raises Disconnected."""
        if node_id == self._node.config.node_id:
            return await self._ask_self(api_key, version, body, lane)
        connection = await self._connection(self._place(node_id, lane), timeout_ms)
        return await connection.send(api_key, version, body, timeout_ms)

    async def ask_controller(self, api_key: int, version: int, fields: Mapping[str, Any], *, timeout_ms: int) -> Any:
        """Ask the active controller, whoever that is by then, until one answers. Raises Disconnected.

        The request may be carried out more than once.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_ms / 1000
        failure = Disconnected("no active controller is known", was_sent=False)
        while (left := end - loop.time()) > 0:
            controller = await self._node.quorum.leader_known(left)
            if controller is None:
                break
            try:
                answer = await self._ask_while_it_leads(controller, api_key, version, fields, max(1, int(left * 1000)))
            except Disconnected as error:
                failure = error
            else:
                if not _is_refused(answer):
                    return answer
            await asyncio.sleep(min(_RETRY_SECONDS, max(0.0, end - loop.time())))
        raise failure

    async def _ask_while_it_leads(
        self, controller: int, api_key: int, version: int, fields: Mapping[str, Any], timeout_ms: int
    ) -> Any:
        """As ``ask``, and given up when the node there is known not to be the controller any more: it may hang."""
        asking = asyncio.get_running_loop().create_task(
            self.ask(controller, api_key, version, fields, timeout_ms=timeout_ms, lane="controller")
        )
        try:
            while True:
                try:
                    async with asyncio.timeout(_LOOK_SECONDS):
                        return await asyncio.shield(asking)
                except TimeoutError:
                    if self._node.quorum.leader_id != controller:
                        raise Disconnected(f"node {controller} is not the controller any more", was_sent=True) from None
        finally:
            asking.cancel()

    async def _ask_self(self, api_key: int, version: int, body: Sequence[Part], lane: str) -> Answer:
        node = self._node
        frame = bytearray(encode_request_header(api_key, version, 0, self._client_id))
        for part in body:
            frame += part
        audience = Audience.CONTROLLERS if lane in _CONTROLLER_LANES else Audience.CLIENTS
        answer = await node.routers[audience].answer(frame, "itself")
        return Answer(answer, response_body_position(api_key, version, answer))

    # --- connections ---------------------------------------------------------------------------------------------

    def _place(self, node_id: int, lane: str) -> _Place:
        """Raises Disconnected: nobody knows where the node is."""
        voter = self._node.config.quorum_voters.get(node_id)
        broker = self._node.metadata.image.brokers.get(BrokerId(node_id))
        if voter is not None and (lane in _CONTROLLER_LANES or broker is None):
            return _Place(*voter, lane, self._node.config.named_listeners.controllers_authenticate)
        if broker is None or not broker.end_points:
            raise Disconnected(f"node {node_id} is not known", was_sent=False)
        point = broker.end_point(for_brokers=True)
        return _Place(point.host, point.port, lane, PROTOCOLS[point.security_protocol] == SASL_PLAINTEXT)

    async def _connection(self, place: _Place, timeout_ms: int) -> Connection:
        connection = self._connections.get(place)
        if connection is not None and connection.is_open:
            return connection
        opening = self._opening.get(place)
        if opening is None:
            opening = asyncio.get_running_loop().create_task(self._open(place, timeout_ms))
            self._opening[place] = opening
            opening.add_done_callback(lambda done: self._opened(place, done))
        # Several requests may wait for it: one that is given up must not take it from the others.
        return await asyncio.shield(opening)

    def _opened(self, place: _Place, done: asyncio.Task[Connection]) -> None:
        self._opening.pop(place, None)
        if not done.cancelled():
            done.exception()

    async def _open(self, place: _Place, timeout_ms: int) -> Connection:
        name = f"{place.host}:{place.port}"
        if self._is_closed:
            raise Disconnected(f"{name}: this node is stopping", was_sent=False)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                _transport, connection = await self._node.network.connect(
                    lambda: Connection(name, self._client_id), place.host, place.port
                )
                assert isinstance(connection, Connection)
                if place.authenticates:
                    await self._authenticate(connection, timeout_ms)
        except (OSError, TimeoutError) as error:
            raise Disconnected(f"{name}: {error or 'no connection in time'}", was_sent=False) from error
        if self._is_closed:
            connection.close()
            raise Disconnected(f"{name}: this node is stopping", was_sent=False)
        self._connections[place] = connection
        return connection

    async def _authenticate(self, connection: Connection, timeout_ms: int) -> None:
        try:
            await authenticate(
                connection, self._client_id, self._node.cluster_secret, self._node.new_nonce(), timeout_ms
            )
        except BaseException as error:
            connection.close()
            if isinstance(error, Disconnected) and isinstance(error.__cause__, AuthenticationFailed):
                log.warning("%s", error.detail, extra={"peer": connection.name})
            raise

    def close(self) -> None:
        self._is_closed = True
        for task in list(self._opening.values()):
            task.cancel()
        for connection in self._connections.values():
            connection.close()


def _is_refused(answer: Any) -> bool:
    """Whether whoever answered is not the active controller any more."""
    errors = [getattr(answer, "error_code", ErrorCode.none)]
    errors += [getattr(topic, "error_code", ErrorCode.none) for topic in getattr(answer, "topics", None) or ()]
    return ErrorCode.not_controller in errors
