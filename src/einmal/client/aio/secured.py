"""How the connections of one client are secured: TLS, SASL over SaslHandshake and SaslAuthenticate (KIP-43, KIP-152).

``authenticate`` also renews a session on a connection in use (KIP-368). Errors name the next step; none has a secret.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import secrets
import ssl
from datetime import timedelta
from typing import Any, Final

from einmal.client.config import ClientSettings
from einmal.client.errors import (
    ConfigError,
    Disconnected,
    KafkaError,
    SaslAuthenticationFailed,
    SslHandshakeFailed,
    error_for,
)
from einmal.rpc.connection import Connection
from einmal.rpc.strangers import AFTER_THE_FIRST_ANSWER
from einmal.seams import Network
from einmal.security.errors import SaslError, SecuritySettingError, TokenError
from einmal.security.handshake import explained, names_of
from einmal.security.mechanisms import PLAIN, OAuthBearerExchange, PlainExchange, SaslExchange
from einmal.security.scram import ScramExchange
from einmal.security.settings import ClientCredentials, SaslSettings, TlsSettings
from einmal.security.tls import tls_context
from einmal.security.tokens import Tokens
from einmal.types import ErrorCode
from einmal.wire.errors import WireError
from einmal.wire.messages import decode_response, encode_request

_log = logging.getLogger("einmal.client")
_logged: Final[set[str]] = set()
"""Warnings of this process: a program may create many clients with the same settings."""

_HANDSHAKE: Final = 17
_AUTHENTICATE: Final = 36
_HANDSHAKE_VERSION: Final = 1
_AUTHENTICATE_VERSION: Final = 2
_NAMES_S: Final = 5.0
_NO_MECHANISM: Final = "NONE"
"""No listener has it enabled: one with SASL answers by those that it has."""
_MAY_REQUIRE_CERTIFICATE: Final = "a listener that requires a client certificate may behave like this, too"
_TEXT_MAX: Final = 300


class Secured:
    """Of one client. Reads the files of the settings at the first connection."""

    def __init__(self, settings: ClientSettings, network: Network) -> None:
        security = settings.security
        self._network = network
        self._tls = security.tls
        self.sasl = security.sasl
        self._context: ssl.SSLContext | None = None
        self._tokens: Tokens | None = None
        for warning in security.warnings:
            if warning not in _logged:
                _logged.add(warning)
                _log.warning("%s", warning)

    # --- TLS ------------------------------------------------------------------------------------------------------

    def context(self) -> ssl.SSLContext | None:
        """None: not encrypted. Raises ConfigError."""
        if self._tls is not None and self._context is None:
            self._context = _context(self._tls)
        return self._context

    async def tls_failure(self, error: BaseException, host: str, port: int) -> KafkaError | None:
        """What an error of a secured connection means; None: TLS is not to blame."""
        found = None if self._tls is None else explained(error)
        if found is None:
            return None
        where = f"{host}:{port}"
        if not found.is_final:
            has_none = self._tls is not None and self._tls.certificate is None
            more = f"; {_MAY_REQUIRE_CERTIFICATE}" if has_none else ""
            return Disconnected(f"{where}: SSL handshake failed: {found.reason}; {found.hint}{more}", was_sent=False)
        detail, hint = f"{where}: {found.reason}", found.hint
        if found.is_wrong_host and (names := await self._certificate_names(host, port)):
            detail += f"; its names: {names}"
        return SslHandshakeFailed(detail=detail, what_to_do=hint)

    def suspicion(self, connection: Connection) -> str:
        """What may be wrong with an address that accepts connections and does not answer as a broker; else nothing."""
        if self._tls is None or not connection.suspicion:
            return connection.suspicion
        if self._tls.certificate is None:
            return f"; {_MAY_REQUIRE_CERTIFICATE}"
        return "; is this the port of a Kafka listener?"

    async def _certificate_names(self, host: str, port: int) -> str:
        """The names in the broker's certificate, by a second handshake that does not check them and sends nothing."""
        assert self._tls is not None
        context = _context(dataclasses.replace(self._tls, verifies_host=False))
        try:
            async with asyncio.timeout(_NAMES_S):
                transport, _ = await self._network.connect(asyncio.Protocol, host, port, tls=context)
        except (OSError, TimeoutError):
            return ""
        try:
            return names_of(transport.get_extra_info("peercert"))
        finally:
            transport.abort()

    # --- SASL -----------------------------------------------------------------------------------------------------

    async def authenticate(self, connection: Connection, timeout_ms: int) -> int:
        """Authenticate, or renew the session. Returns its lifetime in ms, 0 if it does not end.

        Raises SaslAuthenticationFailed, another FatalError, or Disconnected.
        """
        assert self.sasl is not None
        exchange = await self._exchange(connection, self.sasl)
        fields: dict[str, Any] = {"mechanism": self.sasl.mechanism}
        shaken = await _ask(connection, _HANDSHAKE, _HANDSHAKE_VERSION, fields, timeout_ms)
        if shaken.error_code is not ErrorCode.none:
            raise _handshake_refused(connection, self.sasl.mechanism, shaken)
        try:
            message: bytes | None = exchange.first()
            lifetime_ms = 0
            while message is not None:
                fields = {"auth_bytes": message}
                answer = await _ask(connection, _AUTHENTICATE, _AUTHENTICATE_VERSION, fields, timeout_ms)
                if answer.error_code is not ErrorCode.none:
                    raise _refused(connection, self.sasl, answer, getattr(exchange, "refusal", ""))
                lifetime_ms = _milliseconds(answer.session_lifetime)
                message = exchange.next(bytes(answer.auth_bytes))
            return lifetime_ms
        except SaslError as error:
            raise SaslAuthenticationFailed(
                ErrorCode.sasl_authentication_failed,
                f"{connection.name}: {error}",
                meaning=f"the {self.sasl.mechanism} exchange failed",
                what_to_do="check that the address is the broker's and sasl.mechanism the one of these credentials",
            ) from error

    async def check_without(self, connection: Connection, timeout_ms: int) -> None:
        """Raise SaslAuthenticationFailed if the listener requires SASL, which this client does not have set.

        A broker closes such a connection at its first request without an answer, as it might for other reasons. It
        answers SaslHandshake, on a listener without SASL by ILLEGAL_SASL_STATE.
        """
        if _HANDSHAKE not in connection.versions:
            return
        fields = {"mechanism": _NO_MECHANISM}
        try:
            shaken = await _ask(connection, _HANDSHAKE, _HANDSHAKE_VERSION, fields, timeout_ms)
        except Disconnected as error:
            raise Disconnected(f"{error.detail}{AFTER_THE_FIRST_ANSWER}", was_sent=False) from error
        if shaken.error_code is not ErrorCode.unsupported_sasl_mechanism:
            return
        protocol = "SASL_PLAINTEXT" if self._tls is None else "SASL_SSL"
        raise SaslAuthenticationFailed(
            ErrorCode.illegal_sasl_state,
            connection.name,
            meaning="the listener requires SASL, and the client has no credentials",
            what_to_do=f"set security.protocol={protocol}, credentials, and sasl.mechanism to one that the listener "
            f"supports: {_offered(shaken)}",
        )

    async def _exchange(self, connection: Connection, sasl: SaslSettings) -> SaslExchange:
        if sasl.mechanism == PLAIN:
            return PlainExchange(sasl.username, sasl.password)
        if sasl.token is None:
            return ScramExchange(sasl.mechanism, sasl.username, sasl.password, secrets.token_urlsafe(24))
        if self._tokens is None:
            self._tokens = Tokens(sasl.token, self._endpoint_context(sasl))
        try:
            return OAuthBearerExchange(await self._tokens.get(), sasl.extensions)
        except (TokenError, SaslError) as error:
            if isinstance(error, TokenError) and error.may_pass:
                raise Disconnected(f"{connection.name}: {error}", was_sent=False) from error
            raise SaslAuthenticationFailed(
                ErrorCode.sasl_authentication_failed,
                str(error),
                meaning="no usable OAuth token",
                what_to_do="check the sasl.oauthbearer.* settings and the token endpoint",
            ) from error

    def _endpoint_context(self, sasl: SaslSettings) -> ssl.SSLContext | None:
        """The token endpoint is verified by the system's authorities and the one of the settings."""
        if not isinstance(sasl.token, ClientCredentials):
            return None
        context = _context(TlsSettings(authority=sasl.token.authority))
        context.load_default_certs()
        return context


def _context(tls: TlsSettings) -> ssl.SSLContext:
    try:
        return tls_context(tls)
    except SecuritySettingError as error:
        raise ConfigError(meaning=error.meaning, what_to_do=error.hint) from None


async def _ask(connection: Connection, api_key: int, version: int, fields: dict[str, Any], timeout_ms: int) -> Any:
    body = encode_request(api_key, version, fields)
    wait_ms = timeout_ms if connection.in_flight else 0
    answer = await connection.send(api_key, version, (body,), timeout_ms, wait_ms=wait_ms, is_authentication=True)
    try:
        return decode_response(api_key, version, answer.frame, answer.position)
    except WireError as error:
        connection.abort(str(error))
        raise Disconnected(f"{connection.name}: broken answer to SASL: {error}", was_sent=False) from error


def _milliseconds(lifetime: timedelta) -> int:
    return max(0, lifetime // timedelta(milliseconds=1))


def _handshake_refused(connection: Connection, mechanism: str, answer: Any) -> KafkaError:
    code = answer.error_code
    if code is ErrorCode.unsupported_sasl_mechanism:
        return SaslAuthenticationFailed(
            code,
            connection.name,
            meaning=f"the listener does not support sasl.mechanism={mechanism}",
            what_to_do=f"set sasl.mechanism to one that it supports: {_offered(answer)}",
        )
    if code is ErrorCode.illegal_sasl_state:
        return SaslAuthenticationFailed(
            code,
            connection.name,
            meaning="the listener does not use SASL",
            what_to_do="set security.protocol to SSL or PLAINTEXT, or use the port of a listener with SASL",
        )
    return error_for(code, f"SaslHandshake at {connection.name}")


def _offered(answer: Any) -> str:
    return ", ".join(_readable(str(each)) for each in list(answer.mechanisms)[:10]) or "none"


def _refused(connection: Connection, sasl: SaslSettings, answer: Any, refusal: str) -> KafkaError:
    reason = "; ".join(filter(None, (_readable(answer.error_message or ""), refusal)))
    detail = f"{connection.name}: {reason or answer.error_code.name.upper()}"
    if answer.error_code is not ErrorCode.sasl_authentication_failed:
        return error_for(answer.error_code, detail)
    if sasl.token is not None:
        hint = "check that the token is of the broker's issuer and audience, and has not expired"
    else:
        hint = f"correct sasl.username (now {sasl.username!r}) and sasl.password; a user has a password per mechanism"
    return SaslAuthenticationFailed(answer.error_code, detail, what_to_do=hint)


def _readable(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text[:_TEXT_MAX])
