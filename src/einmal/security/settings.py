"""Security settings under librdkafka's and Java's names, normalised into one value. Pure: names files, reads none.

Raises SecuritySettingError for contradictions, with the names of the settings and never with the value of a secret.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from einmal.security.errors import SecuritySettingError
from einmal.security.sasl.jaas import NAME as JAAS
from einmal.security.sasl.jaas import parse_jaas
from einmal.security.sasl.mechanisms import MECHANISMS, OAUTHBEARER
from einmal.security.secret import Secret

PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")
_OWN_HANDLERS: Final = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler",
    "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerLoginCallbackHandler",
)
_HANDLER: Final = "sasl.login.callback.handler.class"
_URL: Final = "sasl.oauthbearer.token.endpoint.url"
_PROVIDER: Final = "sasl.oauthbearer.token.provider"

TokenCallable = Callable[[], Any]
"""Returns a token, or (token, Unix time of its end in seconds); or an awaitable of one."""


@dataclass(frozen=True, slots=True)
class Pem:
    """PEM text in a file or in the setting itself. ``setting``: its name, for errors."""

    setting: str
    location: str | None
    content: Secret | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """``authority`` None: the system's certificate authorities. ``certificate``: of the client, for mutual TLS."""

    authority: Pem | None = None
    certificate: Pem | None = None
    key: Pem | None = None
    key_password: Secret | None = None
    verifies_certificate: bool = True
    verifies_host: bool = True


@dataclass(frozen=True, slots=True)
class TokenFile:
    """A token in a file, read again whenever one is needed."""

    path: str


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """The client credentials grant of OAuth 2 (RFC 6749, 4.4) at an HTTPS endpoint."""

    url: str
    client_id: str
    client_secret: Secret
    scope: str
    authority: Pem | None = None
    """Trusted for the endpoint, beside the system's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SaslSettings:
    """``token``: of OAUTHBEARER; the other mechanisms have a user and a password."""

    mechanism: str
    username: str = ""
    password: Secret = field(default_factory=lambda: Secret(""))
    token: TokenFile | ClientCredentials | TokenCallable | None = None
    extensions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Security:
    """How connections are secured. ``tls`` None: not encrypted; ``sasl`` None: no SASL. ``warnings``: for the log."""

    protocol: str
    tls: TlsSettings | None
    sasl: SaslSettings | None
    warnings: tuple[str, ...] = ()


def normalise(given: Mapping[str, Any]) -> Security:
    """``given``: settings by dotted name, without those that are not set. Raises SecuritySettingError."""
    protocol = str(given.get("security.protocol", "PLAINTEXT"))
    uses_tls = protocol in ("SSL", "SASL_SSL")
    uses_sasl = protocol.startswith("SASL_")
    sasl = _sasl(protocol, given) if uses_sasl else None
    warnings = []
    of_endpoint = _OF_ENDPOINT if sasl is not None and isinstance(sasl.token, ClientCredentials) else ()
    unused = [
        name
        for name in given
        if (not uses_tls and name.startswith(("ssl.", "enable.ssl.")) and name not in of_endpoint)
        or (not uses_sasl and name.startswith("sasl."))
    ]
    if unused:
        warnings.append(f"security.protocol={protocol}: {', '.join(sorted(unused))} have no effect")
    tls = tls_settings(given) if uses_tls else None
    if tls is not None and not tls.verifies_certificate:
        warnings.append("enable.ssl.certificate.verification=false: anyone on the network can pose as the broker")
    elif tls is not None and not tls.verifies_host:
        warnings.append(
            "ssl.endpoint.identification.algorithm=none: whoever has any certificate of a trusted authority can pose "
            "as the broker"
        )
    if sasl is not None and tls is None and sasl.mechanism in ("PLAIN", OAUTHBEARER):
        warnings.append(f"security.protocol=SASL_PLAINTEXT sends the {sasl.mechanism} credentials unencrypted")
    return Security(protocol, tls, sasl, tuple(warnings))


# --- TLS --------------------------------------------------------------------------------------------------------


def tls_settings(given: Mapping[str, Any]) -> TlsSettings:
    """Return the TLS settings of a client, or of a listener: ``given`` as for ``normalise``. Raises
    SecuritySettingError."""
    _check_store(given, "truststore")
    _check_store(given, "keystore")
    authority = _one_of(given, "the trusted certificates", _AUTHORITY)
    whole = _one_of(given, "the client's certificate and key", {"ssl.keystore.location": True})
    certificate = _one_of(given, "the client's certificate", _CERTIFICATE)
    key = _one_of(given, "the client's key", _KEY)
    if whole is not None and (certificate or key):
        other = certificate or key
        assert other is not None
        raise SecuritySettingError(
            f"ssl.keystore.location and {other.setting} both set the client's certificate", "set one of them"
        )
    if whole is not None:
        certificate = key = whole
    if (certificate is None) != (key is None):
        there = certificate or key
        assert there is not None
        missing = "the certificate of this key" if certificate is None else "the key of this certificate"
        raise SecuritySettingError(
            f"{there.setting} is set without {missing}",
            "mutual TLS needs both: ssl.certificate.location and ssl.key.location, or ssl.keystore.certificate.chain "
            "and ssl.keystore.key",
        )
    algorithm = str(given.get("ssl.endpoint.identification.algorithm", "https"))
    verifies = bool(given.get("enable.ssl.certificate.verification", True))
    return TlsSettings(
        authority=authority,
        certificate=certificate,
        key=key,
        key_password=given.get("ssl.key.password"),
        verifies_certificate=verifies,
        verifies_host=verifies and algorithm == "https",
    )


_AUTHORITY: Final = {
    "ssl.ca.location": True,
    "ssl.ca.pem": False,
    "ssl.truststore.location": True,
    "ssl.truststore.certificates": False,
}
_OF_ENDPOINT: Final = frozenset({*_AUTHORITY, "ssl.truststore.type"})
"""Settings by which an HTTPS token endpoint is verified, also where the brokers are not."""
_CERTIFICATE: Final = {
    "ssl.certificate.location": True,
    "ssl.certificate.pem": False,
    "ssl.keystore.certificate.chain": False,
}
_KEY: Final = {"ssl.key.location": True, "ssl.key.pem": False, "ssl.keystore.key": False}
"""Names by what they set, and whether the value is a path."""


def _one_of(given: Mapping[str, Any], what: str, names: Mapping[str, bool]) -> Pem | None:
    there = [name for name in names if given.get(name)]
    if len(there) > 1:
        raise SecuritySettingError(f"{' and '.join(there)} both set {what}", "set one of them")
    if not there:
        return None
    name = there[0]
    if names[name]:
        return Pem(name, str(given[name]))
    value = given[name]
    text = value.reveal() if isinstance(value, Secret) else str(value)
    # In a properties file of one line, line breaks may be written as \n.
    return Pem(name, None, Secret(text.replace("\\n", "\n")))


def _check_store(given: Mapping[str, Any], store: str) -> None:
    """Java's stores: PEM only. JKS and PKCS12 have an answer that converts them."""
    kind = str(given.get(f"ssl.{store}.type") or "").upper()
    location = given.get(f"ssl.{store}.location")
    password = f"ssl.{store}.password"
    if location and kind != "PEM":
        path = str(location)
        what = kind or "JKS, Java's default"
        is_pkcs12 = kind == "PKCS12" or path.lower().endswith((".p12", ".pfx"))
        is_pem = not kind and path.lower().endswith((".pem", ".crt", ".cer"))
        hint = f"set ssl.{store}.type=PEM" if is_pem else _conversion(store, shlex.quote(path), is_pkcs12)
        raise SecuritySettingError(f"ssl.{store}.type is {what}; supported: PEM", hint)
    if kind not in ("", "PEM"):
        raise SecuritySettingError(f"ssl.{store}.type={kind} is not supported", f"set ssl.{store}.type=PEM")
    if given.get(password):
        raise SecuritySettingError(
            f"{password} has no meaning for a store of type PEM", "leave it out; ssl.key.password decrypts the key"
        )


def _conversion(store: str, path: str, is_pkcs12: bool) -> str:
    """The commands that make PEM of a store."""
    if store == "truststore":
        command = (
            f"openssl pkcs12 -in {path} -nokeys -out ca.pem"
            if is_pkcs12
            else f"keytool -list -rfc -keystore {path} > ca.pem"
        )
        return f"convert it: {command}; then set ssl.truststore.type=PEM and ssl.truststore.location=ca.pem"
    command = "openssl pkcs12 -in client.p12 -out client.pem"
    if is_pkcs12:
        command = command.replace("client.p12", path)
    else:
        command = (
            f"keytool -importkeystore -srckeystore {path} -destkeystore client.p12 -deststoretype PKCS12 && {command}"
        )
    return (
        f"convert it: {command}; then set ssl.keystore.type=PEM, ssl.keystore.location=client.pem and ssl.key.password"
    )


# --- SASL -------------------------------------------------------------------------------------------------------


def _sasl(protocol: str, given: Mapping[str, Any]) -> SaslSettings:
    mechanism = _mechanism(protocol, given)
    options = _jaas_options(mechanism, given)
    if mechanism == OAUTHBEARER:
        return _oauth(given, options)
    username = _once(given, "sasl.username", options.get("username"))
    password = _once(given, "sasl.password", options.get("password"))
    for name, value in (("sasl.username", username), ("sasl.password", password)):
        if not value:
            raise SecuritySettingError(
                f"security.protocol={protocol} with sasl.mechanism={mechanism} needs {name}",
                f"set sasl.username and sasl.password, or {JAAS}",
            )
        _check_text(name, value)
    return SaslSettings(mechanism=mechanism, username=username, password=Secret(password))


def _check_text(name: str, value: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise SecuritySettingError(f"{name} is not UTF-8", "write it in UTF-8") from None
    if "\0" in value:
        raise SecuritySettingError(f"{name} has a NUL character", "remove it: SASL separates its fields with NUL")


def _mechanism(protocol: str, given: Mapping[str, Any]) -> str:
    named = [str(given[name]) for name in ("sasl.mechanism", "sasl.mechanisms") if given.get(name)]
    if len({mechanism.upper() for mechanism in named}) > 1:
        raise SecuritySettingError("sasl.mechanism and sasl.mechanisms name different mechanisms", "set one of them")
    supported = ", ".join(MECHANISMS)
    if not named:
        raise SecuritySettingError(
            f"security.protocol={protocol} needs sasl.mechanism",
            f"set the one that the listener has enabled: {supported}",
        )
    if named[0].upper() not in MECHANISMS:
        raise SecuritySettingError(f"unsupported sasl.mechanism {named[0]!r}", f"supported: {supported}")
    return named[0].upper()


def _jaas_options(mechanism: str, given: Mapping[str, Any]) -> dict[str, str]:
    if not given.get(JAAS):
        return {}
    value = given[JAAS]
    module = parse_jaas(value.reveal() if isinstance(value, Secret) else str(value))
    if mechanism not in module.mechanisms:
        raise SecuritySettingError(
            f"{JAAS} has a login module of {' and '.join(module.mechanisms)}, and sasl.mechanism is {mechanism}",
            "set the mechanism that the module is of",
        )
    return module.options


def _once(given: Mapping[str, Any], name: str, from_jaas: str | None) -> str:
    """The value of a setting that ``sasl.jaas.config`` can have, too."""
    value = given.get(name)
    if value is not None and from_jaas is not None:
        raise SecuritySettingError(f"{name} and {JAAS} both set it", "set one of them")
    text = from_jaas if value is None else value.reveal() if isinstance(value, Secret) else str(value)
    return text or ""


_ID_NAMES: Final = ("sasl.oauthbearer.client.id", "sasl.oauthbearer.client.credentials.client.id")
_SECRET_NAMES: Final = ("sasl.oauthbearer.client.secret", "sasl.oauthbearer.client.credentials.client.secret")


def _oauth(given: Mapping[str, Any], options: Mapping[str, str]) -> SaslSettings:
    handler = given.get(_HANDLER)
    if handler and handler not in _OWN_HANDLERS:
        raise SecuritySettingError(
            f"{_HANDLER}={handler} is a Java class, which does not run here",
            f"set {_URL} (https:// or file://), or pass {_PROVIDER}, a Python function that returns a token",
        )
    extensions = {
        name.removeprefix("extension_"): value for name, value in options.items() if name.startswith("extension_")
    }
    for pair in filter(None, str(given.get("sasl.oauthbearer.extensions", "")).split(",")):
        name, _, value = pair.strip().partition("=")
        extensions[name] = value
    for name, value in extensions.items():
        # KIP-342: names are letters; a value must not end its pair. "auth" is the token's own.
        if not (name.isascii() and name.isalpha()) or name == "auth" or not value or "\x01" in value:
            raise SecuritySettingError(f"sasl.oauthbearer.extensions: {name!r} is no extension", "write name=value,...")
    return SaslSettings(mechanism=OAUTHBEARER, token=_token(given, options), extensions=extensions)


def _token(given: Mapping[str, Any], options: Mapping[str, str]) -> TokenFile | ClientCredentials | TokenCallable:
    provider, url = given.get(_PROVIDER), given.get(_URL)
    if bool(provider) == bool(url):
        raise SecuritySettingError(
            f"sasl.mechanism=OAUTHBEARER needs {'one of ' if provider else ''}{_URL} or {_PROVIDER}"
            + (", not both" if provider else ""),
            f"set {_URL} to https://... with client id and secret, or to file:///path/of/a/token",
        )
    if provider:
        if not callable(provider):
            raise SecuritySettingError(f"{_PROVIDER} is not a function", "pass one that returns a token")
        function: TokenCallable = provider
        return function
    parts = urlsplit(str(url))
    if parts.scheme == "file" and parts.path:
        return TokenFile(unquote(parts.path))
    if parts.scheme != "https" or not parts.hostname:
        raise SecuritySettingError(
            f"{_URL} is neither an https:// nor a file:// address", "a token endpoint is used over HTTPS only"
        )
    if parts.username or parts.password:
        raise SecuritySettingError(f"{_URL} contains credentials", f"set {_ID_NAMES[0]} and {_SECRET_NAMES[0]} instead")
    client_id = _first(given, _ID_NAMES) or options.get("clientId", "")
    secret = _first(given, _SECRET_NAMES) or options.get("clientSecret", "")
    if not client_id or not secret:
        raise SecuritySettingError(
            f"{_URL} needs a client's id and secret", f"set {_ID_NAMES[0]} and {_SECRET_NAMES[0]}"
        )
    _check_text(_ID_NAMES[0], client_id)
    _check_text(_SECRET_NAMES[0], secret)
    scope = str(given.get("sasl.oauthbearer.scope") or options.get("scope", ""))
    return ClientCredentials(str(url), client_id, Secret(secret), scope, _endpoint_authority(given, options))


def _endpoint_authority(given: Mapping[str, Any], options: Mapping[str, str]) -> Pem | None:
    """Java's client has settings of the endpoint's own among the options of its login module."""
    own = any(name in _AUTHORITY for name in options)
    source: Mapping[str, Any] = options if own else given
    _check_store(source, "truststore")
    return _one_of(source, "the trusted certificates", _AUTHORITY)


def _first(given: Mapping[str, Any], names: tuple[str, ...]) -> str:
    there = [given[name] for name in names if given.get(name)]
    if len(there) > 1:
        raise SecuritySettingError(f"{' and '.join(names)} are both set", "set one of them")
    return "" if not there else there[0].reveal() if isinstance(there[0], Secret) else str(there[0])
