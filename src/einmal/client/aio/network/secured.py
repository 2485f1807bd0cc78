"""How the connections of one client are secured: TLS, SASL over SaslHandshake and SaslAuthenticate (KIP-43, KIP-152).

``authenticate`` also renews a session on a connection in use (KIP-368). Errors name the next step; none has a secret.
"""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
import ssl
from typing import TYPE_CHECKING, Final

from einmal.client.config import ClientSettings
from einmal.client.errors import (
    ConfigError,
    Disconnected,
    KafkaError,
    SaslAuthenticationFailed,
    SslHandshakeFailed,
    error_for,
)
from einmal.event_log import EventLog
from einmal.rpc.connection import Connection
from einmal.rpc.sasl import SaslRefused, authenticate, handshake
from einmal.rpc.strangers import AFTER_THE_FIRST_ANSWER
from einmal.seams import Network
from einmal.security.errors import SaslError, SecuritySettingError, TokenError
from einmal.security.sasl.handshake import explained, names_of
from einmal.security.sasl.mechanisms import PLAIN, OAuthBearerExchange, PlainExchange, SaslExchange
from einmal.security.sasl.scram import ScramExchange
from einmal.security.settings import ClientCredentials, SaslSettings, TlsSettings
from einmal.security.tls import tls_context
from einmal.types import ErrorCode
from einmal.wire.api.sasl_handshake import API as SASL_HANDSHAKE
from einmal.wire.errors import WireError

if TYPE_CHECKING:
    from einmal.security.tokens import Tokens

_log = EventLog("einmal.client")
_logged: Final[set[str]] = set()
"""Warnings of this process: a program may create many clients with the same settings."""

_NAMES_S: Final = 5.0
_NO_MECHANISM: Final = "NONE"
"""No listener has it enabled: one with SASL answers by those that it has."""
_MAY_REQUIRE_CERTIFICATE: Final = "a listener that requires a client certificate may behave like this, too"
_TEXT_MAX: Final = 300


class Secured:
    """TLS and SASL of one client. Reads the files of the settings at the first connection."""

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
                _log.warning("security_setting_risky", "%(warning)s", warning=warning)

    # --- TLS ------------------------------------------------------------------------------------------------------

    def context(self) -> ssl.SSLContext | None:
        """None: not encrypted. Raises ConfigError."""
        if self._tls is not None and self._context is None:
            self._context = _context(self._tls)
        return self._context

    async def tls_failure(self, error: BaseException, host: str, port: int) -> KafkaError | None:
        """Return what an error of a secured connection means; None: TLS is not to blame."""
        failure = None if self._tls is None else explained(error)
        if failure is None:
            return None
        where = f"{host}:{port}"
        if not failure.is_final:
            has_none = self._tls is not None and self._tls.certificate is None
            more = f"; {_MAY_REQUIRE_CERTIFICATE}" if has_none else ""
            return Disconnected(
                f"{where}: SSL handshake failed: {failure.reason}; {failure.hint}{more}", was_sent=False
            )
        detail, hint = f"{where}: {failure.reason}", failure.hint
        if failure.is_wrong_host and (names := await self._certificate_names(host, port)):
            detail += f"; its names: {names}"
        return SslHandshakeFailed(detail=detail, what_to_do=hint)

    def suspicion(self, connection: Connection) -> str:
        """Return what may be wrong with an address that accepts connections and does not answer as a broker; else
        nothing."""
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
        try:
            return await authenticate(connection, self.sasl.mechanism, exchange, timeout_ms)
        except SaslRefused as refused:
            if refused.mechanisms is not None:
                raise _handshake_refused(connection, self.sasl.mechanism, refused) from None
            raise _refused(connection, self.sasl, refused, getattr(exchange, "refusal", "")) from None
        except WireError as error:
            connection.abort(str(error))
            raise Disconnected(f"{connection.name}: broken answer to SASL: {error}", was_sent=False) from error
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
        if SASL_HANDSHAKE.key not in connection.versions:
            return
        try:
            await handshake(connection, _NO_MECHANISM, timeout_ms)
        except Disconnected as error:
            raise Disconnected(f"{error.detail}{AFTER_THE_FIRST_ANSWER}", was_sent=False) from error
        except WireError as error:
            connection.abort(str(error))
            raise Disconnected(f"{connection.name}: broken answer to SASL: {error}", was_sent=False) from error
        except SaslRefused as refused:
            if refused.code is not ErrorCode.unsupported_sasl_mechanism:
                return
            protocol = "SASL_PLAINTEXT" if self._tls is None else "SASL_SSL"
            raise SaslAuthenticationFailed(
                ErrorCode.illegal_sasl_state,
                connection.name,
                meaning="the listener requires SASL, and the client has no credentials",
                what_to_do=f"set security.protocol={protocol}, credentials, and sasl.mechanism to one that the "
                f"listener supports: {_offered(refused)}",
            ) from None

    async def _exchange(self, connection: Connection, sasl: SaslSettings) -> SaslExchange:
        if sasl.mechanism == PLAIN:
            return PlainExchange(sasl.username, sasl.password)
        if sasl.token is None:
            return ScramExchange(sasl.mechanism, sasl.username, sasl.password, secrets.token_urlsafe(24))
        if self._tokens is None:
            # It imports the modules of HTTP and of mail, and few clients have tokens.
            from einmal.security.tokens import Tokens

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


def _handshake_refused(connection: Connection, mechanism: str, refused: SaslRefused) -> KafkaError:
    code = refused.code
    if code is ErrorCode.unsupported_sasl_mechanism:
        return SaslAuthenticationFailed(
            code,
            connection.name,
            meaning=f"the listener does not support sasl.mechanism={mechanism}",
            what_to_do=f"set sasl.mechanism to one that it supports: {_offered(refused)}",
        )
    if code is ErrorCode.illegal_sasl_state:
        return SaslAuthenticationFailed(
            code,
            connection.name,
            meaning="the listener does not use SASL",
            what_to_do="set security.protocol to SSL or PLAINTEXT, or use the port of a listener with SASL",
        )
    return error_for(code, f"SaslHandshake at {connection.name}")


def _offered(refused: SaslRefused) -> str:
    return ", ".join(_readable(mechanism) for mechanism in (refused.mechanisms or ())[:10]) or "none"


def _refused(connection: Connection, sasl: SaslSettings, refused: SaslRefused, refusal: str) -> KafkaError:
    reason = "; ".join(filter(None, (_readable(refused.message), refusal)))
    detail = f"{connection.name}: {reason or refused.code.name.upper()}"
    if refused.code is not ErrorCode.sasl_authentication_failed:
        return error_for(refused.code, detail)
    if sasl.token is not None:
        hint = "check that the token is of the broker's issuer and audience, and has not expired"
    else:
        hint = f"correct sasl.username (now {sasl.username!r}) and sasl.password; a user has a password per mechanism"
    return SaslAuthenticationFailed(refused.code, detail, what_to_do=hint)


def _readable(text: str) -> str:
    return "".join(character if character.isprintable() else "?" for character in text[:_TEXT_MAX])
