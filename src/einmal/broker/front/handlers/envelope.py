"""Envelope: a broker passes on a client's request that only the active controller can answer.

API: 58. Versions: 0.
Access: CLUSTER_ACTION on Cluster, and only nodes of the cluster.
Behaviour: the request in it is answered as if it had come here; NOT_CONTROLLER where this node is not active, so that a
request is passed on once only (KIP-590).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar

from einmal.broker.control.controller_runtime import ControllerRuntime
from einmal.broker.front.authorization.access import Access, AuthorizerNotReady
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.broker.front.routing.router import Router
from einmal.types import ErrorCode
from einmal.wire.api.envelope import API, EnvelopeRequest, EnvelopeResponse
from einmal.wire.errors import WireError
from einmal.wire.principal import decode_principal


@handler
class EnvelopeHandler:
    """``router``: of the APIs that are passed on, and no others."""

    api: ClassVar = API
    access: Access
    controller: ControllerRuntime
    router: Router

    async def handle(self, context: RequestContext, request: EnvelopeRequest) -> EnvelopeResponse:
        if refused := self.access.refusal_of_client(context, "Envelope"):
            return EnvelopeResponse(error_code=refused)
        if not self.controller.is_active:
            return EnvelopeResponse(error_code=ErrorCode.not_controller)
        # Whatever is wrong with one client's request, the broker's connection stays: those of others are on it.
        try:
            return await self._answer(request)
        except AuthorizerNotReady:
            # The broker tries again.
            return EnvelopeResponse(error_code=ErrorCode.not_controller)
        except WireError:
            return EnvelopeResponse(error_code=ErrorCode.invalid_request)
        except Exception as error:  # noqa: BLE001 - a bug in a handler.
            what = {"message": "a request in an Envelope failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(what)
            return EnvelopeResponse(error_code=ErrorCode.unknown_server_error)

    async def _answer(self, request: EnvelopeRequest) -> EnvelopeResponse:
        """Raises WireError."""
        encoded = request.request_principal
        principal = None if encoded is None else decode_principal(encoded)
        client_address = request.client_host_address.decode("latin-1")
        result = self.router.dispatch(bytearray(request.request_data), client_address, principal=principal)
        if not isinstance(result, list):
            body = await result.body()
            if _names(body, ErrorCode.not_controller):
                # The lead was lost meanwhile: whoever has it now is to be asked, not the client.
                return EnvelopeResponse(error_code=ErrorCode.not_controller)
            result = self.router.encode(result.header, body)
        return EnvelopeResponse(response_data=b"".join(result)[4:])


def _names(value: object, error: ErrorCode) -> bool:
    """Whether the error is anywhere in an answer."""
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return any(_names(nested, error) for nested in value)
    return value is error
