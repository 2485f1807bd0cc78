"""The client's side of an authentication over SaslHandshake and SaslAuthenticate (KIP-43, KIP-152, KIP-368)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, Final

from einmal.rpc.connection import Connection
from einmal.security.mechanisms import SaslExchange
from einmal.types import ErrorCode
from einmal.wire.messages import decode_response, encode_request

SASL_HANDSHAKE: Final = 17
SASL_AUTHENTICATE: Final = 36
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
    answer = await _ask(connection, SASL_HANDSHAKE, _HANDSHAKE_VERSION, {"mechanism": mechanism}, timeout_ms)
    if answer.error_code is not ErrorCode.none:
        raise SaslRefused(answer.error_code, mechanisms=tuple(map(str, answer.mechanisms)))


async def authenticate(connection: Connection, mechanism: str, exchange: SaslExchange, timeout_ms: int) -> int:
    """Authenticate, or renew the session. Returns its lifetime in ms, 0 if it does not end.

    Raises SaslRefused, SaslError if the other side does not follow the exchange, WireError for an answer that cannot be
    read, and the connection's failure.
    """
    await handshake(connection, mechanism, timeout_ms)
    message: bytes | None = exchange.first()
    lifetime_ms = 0
    while message is not None:
        fields = {"auth_bytes": message}
        answer = await _ask(connection, SASL_AUTHENTICATE, _AUTHENTICATE_VERSION, fields, timeout_ms)
        if answer.error_code is not ErrorCode.none:
            raise SaslRefused(answer.error_code, answer.error_message or "")
        lifetime_ms = max(0, answer.session_lifetime // timedelta(milliseconds=1))
        message = exchange.next(bytes(answer.auth_bytes))
    return lifetime_ms


async def _ask(connection: Connection, api_key: int, version: int, fields: Mapping[str, Any], timeout_ms: int) -> Any:
    body = encode_request(api_key, version, fields)
    wait_ms = timeout_ms if connection.in_flight else 0
    answer = await connection.send(api_key, version, (body,), timeout_ms, wait_ms=wait_ms, is_authentication=True)
    return decode_response(api_key, version, answer.frame, answer.position)
