"""Envelope: a broker passes on a client's request that only the active controller can answer.

API: 58. Versions: 0.
Behaviour: the request in it is answered as if it had come here; NOT_CONTROLLER where this node is not active, so that a
request is passed on once only (KIP-590).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from einmal.broker.context import RequestContext, Versions
from einmal.broker.listeners import Audience
from einmal.types import ErrorCode
from einmal.wire.errors import WireError
from einmal.wire.messages import decode_request_header

API_KEY: Final = 58
VERSIONS: Final = Versions(0, 0, flexible=0)


async def handle(context: RequestContext, request: Any) -> dict[str, Any]:
    if not context.node.controller.is_active:
        return _refused(ErrorCode.not_controller)
    router = context.node.routers[Audience.CONTROLLERS]
    frame = bytearray(request.request_data)
    client_address = bytes(request.client_host_address).decode("latin-1")
    try:
        if not router.is_passed_on(decode_request_header(frame)[0].api_key):
            return _refused(ErrorCode.invalid_request)
        result = router.dispatch(frame, client_address)
    except WireError:
        return _refused(ErrorCode.invalid_request)
    if not isinstance(result, list):
        body = await result.body()
        if _names(body, ErrorCode.not_controller):
            # The lead was lost meanwhile: whoever has it now is to be asked, not the client.
            return _refused(ErrorCode.not_controller)
        result = router.encode(result.header, body)
    return {"response_data": b"".join(result)[4:], "error_code": ErrorCode.none}


def _refused(error: ErrorCode) -> dict[str, Any]:
    return {"response_data": None, "error_code": error}


def _names(fields: Any, error: ErrorCode) -> bool:
    """Whether the error is anywhere in an answer."""
    if isinstance(fields, Mapping):
        return any(_names(value, error) for value in fields.values())
    if isinstance(fields, Sequence) and not isinstance(fields, str | bytes):
        return any(_names(value, error) for value in fields)
    return fields is error
