"""A handler's context and its possible results.

A handler answers, at once or as a coroutine, with one of:

- its response (encoded by the router for the version that was asked), or the encoded body, or its parts;
- ``None``: no answer is sent (Produce with ``acks=0``);
- ``Parked``: the request is carried out and only its answer waits. The connection continues with its next request;
    after a coroutine it continues only when that has ended, as a Kafka broker does for every request.

Work that grows with the request, or with the broker's data, is a coroutine that iterates with ``context.paced``.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias, TypeVar

from einmal.broker.front.produce.refused_batches import RefusedBatches
from einmal.broker.front.quotas.charge import Charge
from einmal.broker.listeners import PLAINTEXT, Audience, Endpoint, NamedListener
from einmal.broker.resources.turns import Paced, Turns
from einmal.broker.rpc.authentication import Authentication
from einmal.event_log import EventLog
from einmal.security.principal import Principal
from einmal.types import ErrorCode
from einmal.wire.messages import Values

if TYPE_CHECKING:
    from einmal.wire.messages import RequestHeader

log = EventLog(__name__)

T = TypeVar("T")
_OF_CLIENTS: Final = NamedListener(PLAINTEXT, Endpoint("", 0), PLAINTEXT)
_CHUNK: Final = 1_000
Buffer: TypeAlias = bytes | bytearray | memoryview
Body: TypeAlias = Values | bytes | list[Buffer] | None
"""A response, an encoded body, an encoded body in parts, or no answer."""


class Parked(NamedTuple):
    """The later answer to a request that is carried out. Cancelled when the connection is lost.

    ``bytes_max``: how much memory it may need by then. Its connection starts no more requests while that is too much.
    """

    body: asyncio.Future[Body]
    bytes_max: int = 0


HandlerResult: TypeAlias = Body | Parked | Coroutine[Any, Any, Body | Parked]


class Origin(Protocol):
    """The connection of a request."""

    @property
    def number(self) -> int:
        """Grows with every connection that is accepted."""

    @property
    def authentication(self) -> Authentication:
        """Authentication of its sender."""

    @property
    def refused_batches(self) -> RefusedBatches:
        """Batches that were produced here and refused for now."""

    def mute(self, milliseconds: int) -> None:
        """Neither read nor start requests for so long; answers still go out."""

    def close_after_answers(self) -> None:
        """Begin no more requests, and close the connection when those that have begun are answered."""

    def when_lost(self, key: Hashable, callback: Callable[[], None]) -> None:
        """Call back once the connection is lost; at once if it is lost already. A later call with the same key replaces
        it."""


@dataclass(slots=True)
class RequestContext:
    """``listener``: the one that the request came to. ``origin`` None: the node asks itself.

    ``principal``: who has sent it; None: a node of the cluster, by its secret. ``charge``: what it costs under quotas;
    None: nothing, as there are none for its sender.
    """

    header: RequestHeader
    client_address: str
    turns: Turns
    listener: NamedListener = _OF_CLIENTS
    origin: Origin | None = None
    principal: Principal | None = None
    charge: Charge | None = None

    @property
    def audience(self) -> Audience:
        return self.listener.audience

    @property
    def api_version(self) -> int:
        return self.header.api_version

    @property
    def client_id(self) -> str:
        return self.header.client_id or ""

    @property
    def sender(self) -> Hashable:
        """With whom the sender shares its turns: all connections of a user that has authenticated, else only this."""
        if self.listener.authenticates or self.origin is None:
            return self.principal
        return self.origin.number

    @property
    def may_be_from_broker(self) -> bool:
        """Whether a node of the cluster can have sent the request; else only a client can.

        Where nodes do not authenticate, they cannot be distinguished from clients on the listeners that they use.
        """
        if self.origin is None or self.listener.authenticates:
            return self.principal is None
        return self.listener.is_between_nodes

    def refuse_client(self, what: str) -> ErrorCode:
        """The error for a client that sends a request for brokers only; logged."""
        message = "only a broker of this cluster may send %(request)s: refused (CLUSTER_AUTHORIZATION_FAILED)"
        log.warning("client_refused", message, request=what, client=self.client_address)
        return ErrorCode.cluster_authorization_failed

    def paced(self, items: Iterable[T]) -> Paced[T]:
        """See ``Turns.paced``."""
        return self.turns.paced(items)

    async def paced_chunks(self, items: Iterable[T]) -> AsyncIterator[list[T]]:
        """The items in chunks, one per turn of the event loop, for a state machine that decides each chunk at once.

        At least one chunk, which may be empty: an empty request has the state machine's errors too.
        """
        chunk: list[T] = []
        async for item in self.paced(items):
            if len(chunk) == _CHUNK:
                yield chunk
                chunk = []
            chunk.append(item)
        yield chunk

    def on_connection_lost(self, key: Hashable, callback: Callable[[], None]) -> None:
        """See ``Origin.when_lost``; never called for the node's own requests."""
        if self.origin is not None:
            self.origin.when_lost(key, callback)
