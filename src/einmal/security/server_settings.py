"""Settings by which the clients of a listener authenticate, from Kafka's names of them. Pure.

``sasl_server_settings`` asks for each setting by its name without ``listener.name.<listener>.``; settings of one
mechanism have its name in front, in lower case: ``plain.sasl.jaas.config``.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from einmal.security.errors import SecuritySettingError
from einmal.security.jaas import NAME as JAAS
from einmal.security.jaas import LoginModule, parse_jaas
from einmal.security.mechanisms import MECHANISMS, OAUTHBEARER, PLAIN
from einmal.security.secret import Secret

Lookup: TypeAlias = Callable[[str], str | None]
"""The value of a setting; None: it is not set."""
_INT_MAX: Final = 2**31 - 1
_LONG_MAX: Final = 2**63 - 1
_USER: Final = "user_"
_DELAY: Final = "connection.failed.authentication.delay.ms"
_RECEIVE: Final = "sasl.server.max.receive.size"
_RECEIVE_MIN: Final = 1_024
"""ApiVersions and the messages of SCRAM need some hundred bytes."""
_HANDLER: Final = "sasl.server.callback.handler.class"
_VALIDATOR: Final = "sasl.oauthbearer.jwt.validator.class"
_PACKAGE: Final = "org.apache.kafka.common.security.oauthbearer"
_KNOWN_CLASSES: Final = (
    f"{_PACKAGE}.OAuthBearerValidatorCallbackHandler",
    f"{_PACKAGE}.secured.OAuthBearerValidatorCallbackHandler",
    f"{_PACKAGE}.DefaultJwtValidator",
    f"{_PACKAGE}.BrokerJwtValidator",
)
"""Classes of Apache Kafka that do what we do."""
_MODULES: Final = {PLAIN: "PlainLoginModule", OAUTHBEARER: "OAuthBearerLoginModule"}
_PREFIX: Final = "sasl.oauthbearer."


@dataclass(frozen=True, slots=True)
class JwtSettings:
    """How bearer tokens are verified. ``audiences``: one of them must be the token's; empty: any will do."""

    jwks_url: str
    audiences: tuple[str, ...] = ()
    issuer: str = ""
    sub_claim: str = "sub"
    scope_claim: str = "scope"
    clock_skew_s: int = 30
    refresh_ms: int = 3_600_000
    retry_backoff_ms: int = 100
    retry_backoff_max_ms: int = 10_000


@dataclass(frozen=True, slots=True)
class SaslServerSettings:
    """``mechanisms``: for clients, maybe none. ``max_reauth_ms``: by mechanism; 0: sessions do not end.

    ``failed_delay_ms``: before the answer to a failed authentication. ``receive_max``: bytes of a request before.
    """

    mechanisms: tuple[str, ...] = ()
    plain_users: Mapping[str, Secret] = field(default_factory=dict)
    max_reauth_ms: Mapping[str, int] = field(default_factory=dict)
    failed_delay_ms: int = 100
    receive_max: int = 524_288
    jwt: JwtSettings | None = None
    warnings: tuple[str, ...] = ()


def sasl_server_settings(find: Lookup) -> SaslServerSettings:
    """Raises SecuritySettingError, whose text never quotes a secret."""
    mechanisms = tuple(dict.fromkeys(_list(find("sasl.enabled.mechanisms"))))
    for each in mechanisms:
        if each not in MECHANISMS:
            raise SecuritySettingError(
                f"sasl.enabled.mechanisms: {each} is not supported", f"supported are {', '.join(MECHANISMS)}"
            )
    warnings: list[str] = []
    modules = {each: _module(find, each, warnings) for each in mechanisms}
    return SaslServerSettings(
        mechanisms,
        _plain_users(modules[PLAIN]) if PLAIN in modules else {},
        {each: _max_reauth_ms(find, each) for each in mechanisms},
        _number(_DELAY, find(_DELAY), 100, _INT_MAX),
        _number(_RECEIVE, find(_RECEIVE), 524_288, _INT_MAX, _RECEIVE_MIN),
        _jwt_settings(find, modules[OAUTHBEARER], warnings) if OAUTHBEARER in modules else None,
        tuple(warnings),
    )


def _list(text: str | None) -> list[str]:
    return [each.strip() for each in (text or "").split(",") if each.strip()]


def _of_mechanism(find: Lookup, mechanism: str, name: str) -> str | None:
    own = find(f"{mechanism.lower()}.{name}")
    return find(name) if own is None else own


def _max_reauth_ms(find: Lookup, mechanism: str) -> int:
    name = "connections.max.reauth.ms"
    return _number(name, _of_mechanism(find, mechanism, name), 0, _LONG_MAX, 0)


def _number(name: str, text: str | None, default: int, high: int, low: int = 0) -> int:
    if text is None or not text.strip():
        return default
    try:
        value = int(text)
    except ValueError:
        raise SecuritySettingError(f"{name} is a whole number, not {text!r}", "correct it") from None
    if not low <= value <= high:
        raise SecuritySettingError(f"{name}={value} is not between {low} and {high}", "correct it")
    return value


# --- login modules -----------------------------------------------------------------------------------------------


def _module(find: Lookup, mechanism: str, warnings: list[str]) -> LoginModule | None:
    """The module of the mechanism; None: none is configured."""
    own = find(f"{mechanism.lower()}.{JAAS}")
    text = find(JAAS) if own is None else own
    if not text:
        return None
    module = parse_jaas(text)
    if mechanism not in module.mechanisms:
        if own is None:
            return None
        raise SecuritySettingError(
            f"{mechanism.lower()}.{JAAS} has the login module of {', '.join(module.mechanisms)}",
            f"configure {mechanism.lower()}.{JAAS} with the login module of {mechanism}",
        )
    unused = sorted({"username", "password"} & module.options.keys())
    if unused:
        warnings.append(
            f"{JAAS} of {mechanism}: {' and '.join(unused)} are not used: brokers authenticate to each other by "
            "einmal.cluster.secret.file"
        )
    return module


def _plain_users(module: LoginModule | None) -> Mapping[str, Secret]:
    options = {} if module is None else module.options
    users = {
        name.removeprefix(_USER): Secret(value) for name, value in options.items() if name.startswith(_USER) and value
    }
    if not users:
        raise SecuritySettingError(
            f"PLAIN is enabled, and no user has a password in plain.{JAAS}",
            f'set listener.name.<listener>.plain.{JAAS}=org.apache.kafka.common.security.plain.PlainLoginModule required '
            'user_alice="..."; with one user_NAME for each user',
        )
    return users


# --- OAUTHBEARER -------------------------------------------------------------------------------------------------


def _jwt_settings(find: Lookup, module: LoginModule | None, warnings: list[str]) -> JwtSettings:
    def of(name: str) -> str | None:
        return _of_mechanism(find, OAUTHBEARER, _PREFIX + name)

    if module is not None and any(name.startswith("unsecured") for name in module.options):
        raise SecuritySettingError(
            f"oauthbearer.{JAAS}: unsecured tokens are not supported: anybody can write one",
            f"remove the options that begin with unsecured, and set {_PREFIX}jwks.endpoint.url",
        )
    for name in (_HANDLER, _VALIDATOR):
        value = _of_mechanism(find, OAUTHBEARER, name)
        if value and value not in _KNOWN_CLASSES:
            raise SecuritySettingError(
                f"{name}={value} is not supported: there are no classes of your own",
                f"remove it; tokens are verified by the keys of {_PREFIX}jwks.endpoint.url",
            )
    audiences = tuple(_list(of("expected.audience")))
    if not audiences:
        warnings.append(
            f"{_PREFIX}expected.audience is not set: tokens that the same issuer has issued for other services are "
            "accepted here"
        )
    return JwtSettings(
        _jwks_url(of("jwks.endpoint.url")),
        audiences,
        of("expected.issuer") or "",
        of("sub.claim.name") or "sub",
        of("scope.claim.name") or "scope",
        _number(f"{_PREFIX}clock.skew.seconds", of("clock.skew.seconds"), 30, _INT_MAX),
        _number(f"{_PREFIX}jwks.endpoint.refresh.ms", of("jwks.endpoint.refresh.ms"), 3_600_000, _LONG_MAX, 1_000),
        _number(f"{_PREFIX}jwks.endpoint.retry.backoff.ms", of("jwks.endpoint.retry.backoff.ms"), 100, _LONG_MAX, 1),
        _number(
            f"{_PREFIX}jwks.endpoint.retry.backoff.max.ms",
            of("jwks.endpoint.retry.backoff.max.ms"),
            10_000,
            _LONG_MAX,
            1,
        ),
    )


def _jwks_url(url: str | None) -> str:
    name = f"{_PREFIX}jwks.endpoint.url"
    if not url:
        raise SecuritySettingError(
            f"OAUTHBEARER is enabled, and {name} is not set: no token could be verified",
            "set it to the https:// address of the identity provider's keys, or to a file:// with them",
        )
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("https", "file") or (parts.scheme == "https" and not parts.hostname):
        raise SecuritySettingError(
            f"{name} is neither https:// nor file://", "keys that come unencrypted could be anybody's: use https://"
        )
    return url
