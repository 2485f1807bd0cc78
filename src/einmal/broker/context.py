"""What a handler gets beside its request, and what it may answer with.

A handler module in ``handlers/`` has ``API_KEY``, ``VERSIONS`` and ``handle(context, request)``. ``handle`` gives, at
once or as a coroutine, one of:

- fields under kio's names (encoded by the router for the version that was asked), or the encoded body, or its parts;
- ``None``: no answer is sent (Produce with ``acks=0``);
- ``Parked``: everything that the request does is done and only its answer waits. The connection goes on with its next
  request; after a coroutine it goes on only when that has ended, as a Kafka broker does for every request.

What grows with a request, or with what the broker has, is a coroutine that iterates with ``context.paced``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

from einmal.broker.authentication import Authentication
from einmal.broker.listeners import Audience
from einmal.broker.refused_batches import RefusedBatches
from einmal.broker.turns import Paced
from einmal.types import ErrorCode, Instant

if TYPE_CHECKING:
    from einmal.broker.node import Node
    from einmal.wire.messages import RequestHeader

log = logging.getLogger(__name__)

T = TypeVar("T")
Buffer: TypeAlias = bytes | bytearray | memoryview
Body: TypeAlias = Mapping[str, Any] | bytes | Sequence[Buffer] | None
"""Fields, an encoded body, an encoded body in parts, or no answer."""


class Parked(NamedTuple):
    """An answer that comes later, of a request whose effects are done. Cancelled when the connection is lost.

    ``bytes_max``: how much memory it may need by then. Its connection starts nothing more while that is too much.
    """

    body: asyncio.Future[Body]
    bytes_max: int = 0


HandlerResult: TypeAlias = Body | Parked | Coroutine[Any, Any, Body | Parked]


class Origin(Protocol):
    """The connection that a request came on."""

    @property
    def number(self) -> int:
        """Grows with every connection that is accepted."""

    @property
    def authentication(self) -> Authentication:
        """What its sender has shown."""

    @property
    def refused_batches(self) -> RefusedBatches:
        """What was refused for now of that which was produced here."""

    def when_lost(self, key: Hashable, callback: Callable[[], None]) -> None:
        """Call back once the connection is lost; at once when it is. A later call with the same key replaces it."""


@dataclass(slots=True)
class RequestContext:
    """``audience``: of the listener that the request came to. ``origin`` None: the node asks itself."""

    node: Node
    header: RequestHeader
    client_address: str
    audience: Audience = Audience.CLIENTS
    origin: Origin | None = None

    @property
    def api_version(self) -> int:
        return self.header.api_version

    @property
    def client_id(self) -> str:
        return self.header.client_id or ""

    @property
    def authentication(self) -> Authentication | None:
        return None if self.origin is None else self.origin.authentication

    @property
    def may_be_from_broker(self) -> bool:
        """Whether a node of the cluster can have sent it; else only a client can."""
        if self.origin is None or self.audience is not Audience.CLIENTS:
            return True
        return self.node.config.clients_may_act_as_brokers

    @property
    def for_brokers(self) -> bool:
        """Whether the sender is to be sent to the listeners of brokers."""
        return self.audience is Audience.BROKERS

    def refuse_client(self, what: str) -> ErrorCode:
        """The error for a client that asks for what only brokers may; noted in the log."""
        message = "only a broker of this cluster may send %s: refused (CLUSTER_AUTHORIZATION_FAILED)"
        log.warning(message, what, extra={"client": self.client_address})
        return ErrorCode.cluster_authorization_failed

    @property
    def now(self) -> Instant:
        return self.node.clock.now()

    def paced(self, items: Iterable[T]) -> Paced[T]:
        """See ``Turns.paced``."""
        return self.node.turns.paced(items)

    def on_connection_lost(self, key: Hashable, callback: Callable[[], None]) -> None:
        """See ``Origin.when_lost``; never called for what the node asks itself."""
        if self.origin is not None:
            self.origin.when_lost(key, callback)


class Versions(NamedTuple):
    """What is spoken of one API, both ends included. ``flexible``: the first version with tagged fields."""

    min: int
    max: int
    flexible: int = 32_767


class Handler(Protocol):
    """A module of ``handlers/``. It may also have ``decode(version, frame, position)``: its own codec.

    And ``FORWARDED = True``: only the active controller can answer, other nodes pass the request on to it.
    """

    API_KEY: int
    VERSIONS: Versions

    def handle(self, context: RequestContext, request: Any) -> HandlerResult: ...
