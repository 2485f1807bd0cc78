"""A handler, and what the router takes from it to answer a request.

A handler in ``handlers/`` is a class under ``@handler``: its fields are the parts of the node that it uses, ``api``
names its API, and ``handle(context, request)`` answers. It sees no bytes but where it encodes an answer in its own
time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeVar, runtime_checkable

from einmal.broker.front.context import HandlerResult, RequestContext
from einmal.wire.messages import Api, Frame, Values, Versions

Q = TypeVar("Q", bound=Values)
REQUEST_BYTES_MAX: Final = 16 * 1024 * 1024
"""Maximum size of any request but Produce, whose records stay bytes: a decoded request takes ten times as much
memory."""


class Handler(Protocol[Q]):
    @property
    def api(self) -> Api[Q, Values]:
        """Its key, its versions, and the types of its request and response."""

    def handle(self, context: RequestContext, request: Q) -> HandlerResult:
        """The answer: see ``context``. Raises WireError: the connection is to be closed."""


@runtime_checkable
class SometimesForwarded(Protocol):
    """A handler of an API that is forwarded, of which some requests are not."""

    def is_of_this_node(self, request: Any) -> bool:
        """Whether the request is about the node that it is sent to."""


class ApiRoute(NamedTuple):
    """``prepare`` decodes the request in a frame, from a position on, to a call of its handler; it raises WireError.

    ``prepare_in_steps``: the same for a wide request; its last step is the call.
    ``is_forwarded``: only the active controller can answer, other nodes pass the request on to it, unless
    ``is_of_this_node`` of the request; None: none is.
    ``has_schema``: it is decoded by a generated schema, which the first request of a version imports.
    """

    key: int
    versions: Versions
    prepare: Callable[[RequestContext, Frame, int], partial[HandlerResult]]
    prepare_in_steps: Callable[[RequestContext, Frame, int], Iterator[partial[HandlerResult] | None]]
    encode: Callable[[int, Values], bytes]
    slices: Callable[[int, Values], Iterator[bytes]]
    is_forwarded: bool
    has_schema: bool
    is_of_this_node: Callable[[Any], bool] | None

    def forwards(self, call: partial[HandlerResult]) -> bool:
        """``call``: what ``prepare`` made of the request."""
        return self.is_forwarded and (self.is_of_this_node is None or not self.is_of_this_node(call.args[1]))


def route(handler: Handler[Q], *, is_forwarded: bool = False) -> ApiRoute:
    api, handle = handler.api, handler.handle

    def prepare(context: RequestContext, frame: Frame, position: int) -> partial[HandlerResult]:
        return partial(handle, context, api.decode_request(context.header.api_version, frame, position))

    def prepare_in_steps(
        context: RequestContext, frame: Frame, position: int
    ) -> Iterator[partial[HandlerResult] | None]:
        for request in api.decode_request_in_steps(context.header.api_version, frame, position):
            yield None if request is None else partial(handle, context, request)

    return ApiRoute(
        api.key,
        api.versions,
        prepare,
        prepare_in_steps,
        api.encode_response,
        api.response_slices,
        is_forwarded,
        has_schema=api.decode is None,
        is_of_this_node=handler.is_of_this_node if isinstance(handler, SometimesForwarded) else None,
    )
