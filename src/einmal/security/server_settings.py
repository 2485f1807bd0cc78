"""How the clients of a listener authenticate, from the values of Kafka's settings. Pure."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from einmal.security.errors import SecuritySettingError
from einmal.security.sasl.jaas import NAME as JAAS
from einmal.security.sasl.jaas import LoginModule, parse_jaas
from einmal.security.sasl.mechanisms import MECHANISMS, OAUTHBEARER, PLAIN
from einmal.security.secret import Secret

_PACKAGE: Final = "org.apache.kafka.common.security.oauthbearer"
CALLBACK_HANDLERS: Final = (
    f"{_PACKAGE}.OAuthBearerValidatorCallbackHandler",
    f"{_PACKAGE}.secured.OAuthBearerValidatorCallbackHandler",
)
TOKEN_VALIDATORS: Final = (f"{_PACKAGE}.DefaultJwtValidator", f"{_PACKAGE}.BrokerJwtValidator")
"""Classes of Apache Kafka that do what we do."""
_USER: Final = "user_"
_PREFIX: Final = "sasl.oauthbearer."


class Lookup(Protocol):
    def __call__(self, name: str, mechanism: str = "") -> Any:
        """The value of a setting for the listener: the mechanism's own, else the listener's own, else that of all."""


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
    for mechanism in mechanisms:
        if mechanism not in MECHANISMS:
            raise SecuritySettingError(
                f"sasl.enabled.mechanisms: {mechanism} is not supported", f"supported are {', '.join(MECHANISMS)}"
            )
    warnings: list[str] = []
    modules = {mechanism: _module(find, mechanism, warnings) for mechanism in mechanisms}
    return SaslServerSettings(
        mechanisms,
        _plain_users(modules[PLAIN]) if PLAIN in modules else {},
        {mechanism: find("connections.max.reauth.ms", mechanism) for mechanism in mechanisms},
        find("connection.failed.authentication.delay.ms"),
        find("sasl.server.max.receive.size"),
        _jwt_settings(find, modules[OAUTHBEARER], warnings) if OAUTHBEARER in modules else None,
        tuple(warnings),
    )


def _list(text: str) -> list[str]:
    return [value.strip() for value in text.split(",") if value.strip()]


def _module(find: Lookup, mechanism: str, warnings: list[str]) -> LoginModule | None:
    """The module of the mechanism; None: none is configured."""
    text = find(JAAS, mechanism).reveal()
    if not text:
        return None
    module = parse_jaas(text)
    if mechanism not in module.mechanisms:
        if text == find(JAAS).reveal():
            # It is for all mechanisms, of which it can serve only some.
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
            f"set listener.name.<listener>.plain.{JAAS}=org.apache.kafka.common.security.plain.PlainLoginModule "
            'required user_alice="..."; with one user_NAME for each user',
        )
    return users


def _jwt_settings(find: Lookup, module: LoginModule | None, warnings: list[str]) -> JwtSettings:
    def of(name: str) -> Any:
        return find(_PREFIX + name, OAUTHBEARER)

    if module is not None and any(name.startswith("unsecured") for name in module.options):
        raise SecuritySettingError(
            f"oauthbearer.{JAAS}: unsecured tokens are not supported: anybody can write one",
            f"remove the options that begin with unsecured, and set {_PREFIX}jwks.endpoint.url",
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
        of("expected.issuer"),
        of("sub.claim.name"),
        of("scope.claim.name"),
        of("clock.skew.seconds"),
        of("jwks.endpoint.refresh.ms"),
        of("jwks.endpoint.retry.backoff.ms"),
        of("jwks.endpoint.retry.backoff.max.ms"),
    )


def _jwks_url(url: str) -> str:
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
