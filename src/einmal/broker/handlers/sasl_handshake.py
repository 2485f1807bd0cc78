"""SaslHandshake: which mechanism the sender authenticates by.

API: 17. Versions: 1.
Behaviour: SCRAM-SHA-256 is supported, on the listeners of brokers and controllers that ask for it (KIP-43).
Version notes: after v0, which is not supported, the exchange would come in frames without a header.
"""

from __future__ import annotations

from typing import Any, Final

from einmal.broker.context import RequestContext, Versions
from einmal.types import ErrorCode
from einmal.wire.scram import MECHANISM, ScramServer

API_KEY: Final = 17
VERSIONS: Final = Versions(1, 1)


def handle(context: RequestContext, request: Any) -> dict[str, Any]:
    error = ErrorCode.none
    authentication = context.authentication
    if authentication is None or authentication.is_done:
        error = ErrorCode.illegal_sasl_state
    elif request.mechanism != MECHANISM:
        error = ErrorCode.unsupported_sasl_mechanism
    else:
        authentication.exchange = ScramServer(context.node.cluster_secret, context.node.new_nonce())
    return {"error_code": error, "mechanisms": [MECHANISM]}
