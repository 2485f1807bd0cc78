"""SaslAuthenticate: a message of the exchange that SaslHandshake has begun.

API: 36. Versions: 0-2.
Access: none: it is the authentication.
Behaviour: SASL_AUTHENTICATION_FAILED ends the connection, after ``connection.failed.authentication.delay.ms``, during
which other connections are served; the message does not reveal whether the user exists (KIP-152). ILLEGAL_SASL_STATE
without a SaslHandshake. The session of another user, or mechanism, is not renewed (KIP-368).
Version notes: v1 the lifetime of a session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import ClassVar, Final

from einmal.broker.front.authentication.failed_authentications import FailedAuthentications
from einmal.broker.front.authentication.sasl import SaslServer
from einmal.broker.front.context import Origin, RequestContext
from einmal.broker.front.handler import handler
from einmal.security.errors import SaslError
from einmal.security.sasl.mechanisms import OAUTHBEARER
from einmal.types import ErrorCode
from einmal.wire.api.sasl_authenticate import API, SaslAuthenticateRequest, SaslAuthenticateResponse

_USER_MAX: Final = 100
_HINTS: Final = {
    OAUTHBEARER: "Check that the token is for this broker's issuer and audience, and has not expired.",
}
_HINT: Final = "Check user and password; a user has a password of its own for each SCRAM mechanism."


@handler
class SaslAuthenticateHandler:
    """``sasl``: by the names of listeners."""

    api: ClassVar = API
    sasl: Mapping[str, SaslServer]
    failed: FailedAuthentications

    async def handle(self, context: RequestContext, request: SaslAuthenticateRequest) -> SaslAuthenticateResponse:
        origin = context.origin
        if origin is None or origin.authentication.exchange is None:
            return SaslAuthenticateResponse(ErrorCode.illegal_sasl_state, "SaslHandshake comes first.")
        try:
            answer = await self.sasl[context.listener.name].proceed(origin.authentication, request.auth_bytes)
        except SaslError as error:
            return await self._refuse(context, origin, str(error))
        if answer.refusal:
            self._log(context, origin, answer.refusal)
        return SaslAuthenticateResponse(
            error_message=None, auth_bytes=answer.message, session_lifetime=answer.lifetime_ms
        )

    async def _refuse(self, context: RequestContext, origin: Origin, reason: str) -> SaslAuthenticateResponse:
        authentication = origin.authentication
        mechanism = authentication.mechanism
        cause = getattr(authentication.exchange, "refusal", "")
        if not cause:
            self._log(context, origin, reason)
        await asyncio.sleep(self.sasl[context.listener.name].failed_delay_s)
        origin.close_after_answers()
        kind = "re-authentication" if authentication.is_done else "authentication"
        message = f"{mechanism} {kind} failed{': ' + cause if cause else ''}. {_HINTS.get(mechanism, _HINT)}"
        return SaslAuthenticateResponse(ErrorCode.sasl_authentication_failed, message)

    def _log(self, context: RequestContext, origin: Origin, reason: str) -> None:
        authentication = origin.authentication
        exchange = authentication.exchange
        user = "" if exchange is None else exchange.user
        self.failed.log(
            context.client_address,
            context.listener.name,
            authentication.mechanism,
            f"user {user[:_USER_MAX]!r}: {reason}" if user else reason,
        )
