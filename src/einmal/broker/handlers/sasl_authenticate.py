"""SaslAuthenticate: a message of the exchange that SaslHandshake has begun.

API: 36. Versions: 0-2.
Behaviour: SASL_AUTHENTICATION_FAILED for whoever does not know the secret; after it a new SaslHandshake is needed
(KIP-152).
Version notes: v1 the lifetime of a session (KIP-368); ours end with the connection.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from einmal.broker.context import RequestContext, Versions
from einmal.types import ErrorCode
from einmal.wire.scram import AuthenticationFailed

log = logging.getLogger(__name__)

API_KEY: Final = 36
VERSIONS: Final = Versions(0, 2, flexible=2)


def handle(context: RequestContext, request: Any) -> dict[str, Any]:
    authentication = context.authentication
    if authentication is None or authentication.exchange is None or authentication.is_done:
        return _refused(ErrorCode.illegal_sasl_state, "SaslHandshake comes first.")
    try:
        answer = authentication.exchange.answer(bytes(request.auth_bytes))
    except AuthenticationFailed as error:
        authentication.exchange = None
        log.warning("authentication failed: %s", error, extra={"client": context.client_address})
        return _refused(ErrorCode.sasl_authentication_failed, "Authentication failed: another cluster's secret.")
    return {"error_code": ErrorCode.none, "error_message": None, "auth_bytes": answer}


def _refused(error: ErrorCode, message: str) -> dict[str, Any]:
    return {"error_code": error, "error_message": message, "auth_bytes": b""}
