"""SaslAuthenticate: a message of the exchange that SaslHandshake has begun.

API: 36. Versions: 0-2.
Access: none: it is the authentication.
Behaviour: SASL_AUTHENTICATION_FAILED for whoever does not know the secret; after it a new SaslHandshake is needed
(KIP-152).
Version notes: v1 the lifetime of a session (KIP-368); ours end with the connection.
"""

from __future__ import annotations

import logging
from typing import ClassVar

from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.types import ErrorCode
from einmal.wire.api.sasl_authenticate import API, SaslAuthenticateRequest, SaslAuthenticateResponse
from einmal.wire.scram import AuthenticationFailed

log = logging.getLogger(__name__)


@handler
class SaslAuthenticateHandler:
    api: ClassVar = API

    def handle(self, context: RequestContext, request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
        authentication = context.authentication
        if authentication is None or authentication.exchange is None or authentication.is_done:
            return SaslAuthenticateResponse(ErrorCode.illegal_sasl_state, "SaslHandshake comes first.")
        try:
            answer = authentication.exchange.answer(request.auth_bytes)
        except AuthenticationFailed as failure:
            authentication.exchange = None
            log.warning("authentication failed: %s", failure, extra={"client": context.client_address})
            error = ErrorCode.sasl_authentication_failed
            return SaslAuthenticateResponse(error, "Authentication failed: another cluster's secret.")
        return SaslAuthenticateResponse(error_message=None, auth_bytes=answer)
