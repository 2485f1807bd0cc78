"""Requests that only the active controller can answer, passed on to it (KIP-590)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, cast

from einmal.broker.control.controller_runtime import ControllerRuntime
from einmal.broker.front.context import Body, HandlerResult, Parked, RequestContext
from einmal.broker.rpc.controller_channel import ControllerChannel
from einmal.event_log import EventLog
from einmal.rpc.connection import NoAnswer
from einmal.types import ErrorCode
from einmal.wire.api.envelope import API as ENVELOPE
from einmal.wire.api.envelope import EnvelopeRequest
from einmal.wire.errors import Malformed, WireError
from einmal.wire.messages import response_body_position
from einmal.wire.principal import encode_principal

log = EventLog(__name__)
_NOT_FORWARDED: Final = "a request was not passed on to the controller: %(error)s"

_TIMEOUT_MS: Final = 10_000
_ENVELOPE_BYTES: Final = 256
"""Maximum size of an Envelope without the request and its principal."""


@dataclass(frozen=True, slots=True)
class Forwarding:
    """``frame_bytes_max``: maximum size of a request to a controller."""

    controller: ControllerRuntime
    channel: ControllerChannel
    frame_bytes_max: int

    @property
    def is_needed(self) -> bool:
        """Whether another node is the active controller, or none."""
        return not self.controller.is_active

    async def forward(self, context: RequestContext, frame: bytes, handle_here: Callable[[], HandlerResult]) -> Body:
        """The active controller's answer; if none comes, ``handle_here``'s: NOT_CONTROLLER in the API's own form.

        Raises Malformed for a request that fits in no Envelope.
        """
        sender = context.client_address.encode()
        principal = None if context.principal is None else encode_principal(context.principal)
        # The controller would close the connection, on which other clients' requests wait as well.
        if len(frame) + len(principal or b"") + _ENVELOPE_BYTES > self.frame_bytes_max:
            raise Malformed(f"request of {len(frame)} bytes to api key {context.header.api_key}, for the controller")
        request = EnvelopeRequest(frame, principal, sender)
        try:
            envelope = await self.channel.ask(ENVELOPE, 0, request, timeout_ms=_TIMEOUT_MS)
            if envelope.error_code is ErrorCode.none and envelope.response_data is not None:
                answer = envelope.response_data
                return answer[response_body_position(context.header.api_key, context.api_version, answer) :]
            log.warning("forwarding_failed", _NOT_FORWARDED, error=envelope.error_code.name)
        except (NoAnswer, WireError) as error:
            log.warning("forwarding_failed", _NOT_FORWARDED, error=error)
        result = handle_here()
        if inspect.iscoroutine(result):
            result = await result
        return await result.body if isinstance(result, Parked) else cast(Body, result)
