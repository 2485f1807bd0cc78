"""The client's side of an authentication over SaslHandshake and SaslAuthenticate (KIP-43, KIP-152, KIP-368)."""

from __future__ import annotations

from typing import Final

from einmal.rpc.connection import Connection
from einmal.security.sasl.mechanisms import SaslExchange
from einmal.types import ErrorCode
from einmal.wire.api.sasl_authenticate import API as SASL_AUTHENTICATE
from einmal.wire.api.sasl_authenticate import SaslAuthenticateRequest
from einmal.wire.api.sasl_handshake import API as SASL_HANDSHAKE
from einmal.wire.api.sasl_handshake import SaslHandshakeRequest
from einmal.wire.messages import Api, Q, R

_HANDSHAKE_VERSION: Final = 1
_AUTHENTICATE_VERSION: Final = 2


class SaslRefused(Exception):
    """The other side's error. ``mechanisms``: those that it offers instead; None: it has refused the credentials."""

    def __init__(self, code: ErrorCode, message: str = "", mechanisms: tuple[str, ...] | None = None) -> None:
        super().__init__(message or code.name.upper())
        self.code = code
        self.message = message
        self.mechanisms = mechanisms


async def handshake(connection: Connection, mechanism: str, timeout_ms: int) -> None:
    """Begin an authentication by this mechanism. Raises SaslRefused, WireError, and the connection's failure."""
    answer = await _ask(connection, SASL_HANDSHAKE, _HANDSHAKE_VERSION, SaslHandshakeRequest(mechanism), timeout_ms)
    if answer.error_code is not ErrorCode.none:
        raise SaslRefused(answer.error_code, mechanisms=tuple(answer.mechanisms))


async def authenticate(connection: Connection, mechanism: str, exchange: SaslExchange, timeout_ms: int) -> int:
    """Authenticate, or renew the session. Returns its lifetime in ms, 0 if it does not end.

    Raises SaslRefused, SaslError if the other side does not follow the exchange, WireError for an answer that cannot be
    read, and the connection's failure.
    """
    await handshake(connection, mechanism, timeout_ms)
    message: bytes | None = exchange.first()
    lifetime_ms = 0
    while message is not None:
        request = SaslAuthenticateRequest(message)
        answer = await _ask(connection, SASL_AUTHENTICATE, _AUTHENTICATE_VERSION, request, timeout_ms)
        if answer.error_code is not ErrorCode.none:
            raise SaslRefused(answer.error_code, answer.error_message or "")
        lifetime_ms = max(0, answer.session_lifetime)
        message = exchange.next(bytes(answer.auth_bytes))
    return lifetime_ms


async def _ask(connection: Connection, api: Api[Q, R], version: int, request: Q, timeout_ms: int) -> R:
    body = api.encode_request(version, request)
    wait_ms = timeout_ms if connection.in_flight else 0
    answer = await connection.send(api.key, version, (body,), timeout_ms, wait_ms=wait_ms, is_authentication=True)
    return api.decode_response(version, answer.frame, answer.position)
