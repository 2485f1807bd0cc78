"""SaslHandshake: which mechanism the sender authenticates by.

API: 17. Versions: 1.
Access: none: it comes before authentication.
Behaviour: SCRAM-SHA-256 is supported, on the listeners of brokers and controllers that ask for it (KIP-43).
Version notes: after v0, which is not supported, the exchange would come in frames without a header.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.types import ErrorCode
from einmal.wire.api.sasl_handshake import API, SaslHandshakeRequest, SaslHandshakeResponse
from einmal.wire.scram import MECHANISM, ScramServer


@handler
class SaslHandshakeHandler:
    """``new_exchange``: begins one with whoever knows the cluster's secret."""

    api: ClassVar = API
    new_exchange: Callable[[], ScramServer]

    def handle(self, context: RequestContext, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
        error = ErrorCode.none
        authentication = context.authentication
        if authentication is None or authentication.is_done:
            error = ErrorCode.illegal_sasl_state
        elif request.mechanism != MECHANISM:
            error = ErrorCode.unsupported_sasl_mechanism
        else:
            authentication.exchange = self.new_exchange()
        return SaslHandshakeResponse(error, [MECHANISM])
