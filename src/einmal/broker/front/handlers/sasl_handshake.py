"""SaslHandshake: which mechanism the sender authenticates by.

API: 17. Versions: 0-1.
Access: none: it comes before authentication.
Behaviour: UNSUPPORTED_SASL_MECHANISM, with the mechanisms that the listener enables, ends the connection (KIP-43).
ILLEGAL_SASL_STATE while an exchange runs, and within a second after one; later it renews the session (KIP-368). So it
is on a listener without SASL, from which a client learns its mistake.
Version notes: after v0 the messages of the exchange are frames without a header. Some clients, such as librdkafka
2.0.2 (kcat), send v1 and yet do not authenticate at a broker without v0.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import ClassVar

from einmal.broker.front.authentication.failed_authentications import FailedAuthentications
from einmal.broker.front.authentication.sasl import SaslServer
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.types import ErrorCode
from einmal.wire.api.sasl_handshake import API, SaslHandshakeRequest, SaslHandshakeResponse

_NAME_MAX = 40


@handler
class SaslHandshakeHandler:
    """``sasl``: by the names of listeners."""

    api: ClassVar = API
    sasl: Mapping[str, SaslServer]
    failed: FailedAuthentications

    async def handle(self, context: RequestContext, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
        sasl = self.sasl.get(context.listener.name)
        if context.origin is None or sasl is None:
            return SaslHandshakeResponse(ErrorCode.illegal_sasl_state)
        mechanisms = sasl.offered
        error = sasl.begin(context.origin.authentication, request.mechanism, is_bare=context.api_version == 0)
        if error is ErrorCode.unsupported_sasl_mechanism:
            self.failed.log(
                context.client_address,
                context.listener.name,
                repr(request.mechanism[:_NAME_MAX]),
                f"the listener has no such mechanism; it has {', '.join(mechanisms)}",
            )
            await asyncio.sleep(sasl.failed_delay_s)
            context.origin.close_after_answers()
        return SaslHandshakeResponse(error, mechanisms)
