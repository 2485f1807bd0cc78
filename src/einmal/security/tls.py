"""``ssl`` contexts of clients and listeners from TLS settings: TLS 1.2 or newer. Reads the files that they name."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from einmal.security.errors import SecuritySettingError
from einmal.security.secret import Secret
from einmal.security.settings import Pem, TlsSettings

_CERTIFICATE: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"
_KEY_END: Final = "PRIVATE KEY-----"
_ENCRYPTED: Final = ("BEGIN ENCRYPTED PRIVATE KEY", "Proc-Type: 4,ENCRYPTED")
_PEM_MAX: Final = 16 * 1024 * 1024
_VERIFICATION: Final = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_SUITES_OF_13: Final = ("TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256", "TLS_AES_128_GCM_SHA256")


class ServerOptions(NamedTuple):
    """Options of a listener, as its settings have them."""

    client_auth: str
    protocols: str
    cipher_suites: str


def tls_context(settings: TlsSettings) -> ssl.SSLContext:
    """A client's context, with a CA, a client certificate and verification as set. Raises SecuritySettingError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.check_hostname = settings.verifies_host
    context.verify_mode = ssl.CERT_REQUIRED if settings.verifies_certificate else ssl.CERT_NONE
    if settings.authority is None:
        context.load_default_certs()
    else:
        _load_authority(context, settings.authority)
    if settings.certificate is not None and settings.key is not None:
        _load_certificate(context, settings, settings.certificate, settings.key)
    return context


def server_context(settings: TlsSettings, options: ServerOptions) -> ssl.SSLContext:
    """A listener's context. Raises SecuritySettingError."""
    if settings.certificate is None or settings.key is None:
        raise SecuritySettingError(
            "a listener with SSL or SASL_SSL has no certificate",
            "set ssl.keystore.type=PEM and ssl.keystore.location; or ssl.keystore.key and its certificate.chain",
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    oldest, newest = _versions(options.protocols)
    context.minimum_version, context.maximum_version = oldest, newest
    # A session that is resumed would bring back a certificate that may have expired since. While a connection of TLS
    # 1.2 lasts, others can resume its session all the same: whoever accepts them looks at the end again.
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0
    context.verify_mode = _VERIFICATION[options.client_auth]
    if options.client_auth != "none":
        if settings.authority is None:
            context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
        else:
            _load_authority(context, settings.authority)
    if options.cipher_suites:
        _set_ciphers(context, options.cipher_suites)
    _load_certificate(context, settings, settings.certificate, settings.key)
    return context


def leaf_of(settings: TlsSettings) -> bytes:
    """The own certificate in DER. Raises SecuritySettingError."""
    assert settings.certificate is not None
    try:
        return ssl.PEM_cert_to_DER_cert(_certificates(text_of(settings.certificate)).partition(_END)[0] + _END)
    except ValueError as error:
        raise SecuritySettingError(f"{_named(settings.certificate)} has no certificate in PEM", "check it") from error


def read_into(pem: Pem | None, read: Callable[[str], str]) -> Pem | None:
    """The same with the file's content, which ``read`` returns. Raises SecuritySettingError."""
    if pem is None or pem.location is None:
        return pem
    try:
        return Pem(_named(pem), None, Secret(read(pem.location)))
    except OSError as error:
        raise _unreadable(pem, error) from error


def text_of(pem: Pem) -> str:
    """Content of the file or of the setting. Raises SecuritySettingError."""
    if pem.content is not None:
        return pem.content.reveal()
    assert pem.location is not None
    try:
        with Path(pem.location).open(encoding="utf-8", errors="replace") as file:
            return file.read(_PEM_MAX)
    except OSError as error:
        raise _unreadable(pem, error) from error


def _versions(protocols: str) -> tuple[ssl.TLSVersion, ssl.TLSVersion]:
    named = [protocol.strip() for protocol in protocols.split(",") if protocol.strip()]
    unknown = [protocol for protocol in named if protocol not in _VERSIONS]
    if unknown or not named:
        raise SecuritySettingError(
            f"ssl.enabled.protocols={protocols}: {', '.join(unknown) or 'none'} is not supported",
            f"supported: {', '.join(_VERSIONS)}",
        )
    versions = [_VERSIONS[protocol] for protocol in named]
    return min(versions), max(versions)


def _set_ciphers(context: ssl.SSLContext, suites: str) -> None:
    """Suites by Java's or OpenSSL's names. Those of TLS 1.3 are all on, or all off: Python cannot choose among them."""
    named = [suite.strip() for suite in suites.split(",") if suite.strip()]
    of_13 = [suite for suite in named if suite in _SUITES_OF_13]
    older = [_openssl_name(suite) for suite in named if suite not in _SUITES_OF_13]
    if of_13 and len(of_13) < len(_SUITES_OF_13) and context.maximum_version is ssl.TLSVersion.TLSv1_3:
        raise SecuritySettingError(
            f"ssl.cipher.suites={suites}: the suites of TLS 1.3 cannot be chosen one by one",
            f"name all of them ({', '.join(_SUITES_OF_13)}) or none",
        )
    if not of_13:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    if not older:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    if context.minimum_version > context.maximum_version:
        raise SecuritySettingError(
            f"ssl.cipher.suites={suites} has no suite of a version in ssl.enabled.protocols", "correct one of them"
        )
    for suite in older:
        try:
            context.set_ciphers(suite)
        except ssl.SSLError:
            raise SecuritySettingError(
                f"ssl.cipher.suites: OpenSSL has no {suite}", "see `openssl ciphers -stdname` for names"
            ) from None
    if older:
        context.set_ciphers(":".join(older))


def _openssl_name(suite: str) -> str:
    """TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256 is ECDHE-RSA-AES128-GCM-SHA256 to OpenSSL."""
    if not suite.startswith("TLS_") or "_WITH_" not in suite:
        return suite
    exchange, _, cipher = suite.removeprefix("TLS_").partition("_WITH_")
    cipher = cipher.removesuffix("_SHA256") if cipher.startswith("CHACHA20") else cipher
    cipher = cipher.replace("AES_", "AES").replace("_CBC", "").replace("_", "-")
    return cipher if exchange == "RSA" else f"{exchange.replace('_', '-')}-{cipher}"


def _load_authority(context: ssl.SSLContext, pem: Pem) -> None:
    if pem.location is not None and Path(pem.location).is_dir():
        # OpenSSL's directory of certificates by the hashes of their names, as librdkafka accepts it.
        context.load_verify_locations(capath=pem.location)
        return
    text = text_of(pem)
    try:
        if _CERTIFICATE not in text:
            raise ValueError("no certificate")
        context.load_verify_locations(cadata=_certificates(text))
    except (ssl.SSLError, ValueError) as error:
        raise SecuritySettingError(
            f"{_named(pem)} has no certificate in PEM", "it contains -----BEGIN CERTIFICATE----- of the authority"
        ) from error


def _load_certificate(context: ssl.SSLContext, settings: TlsSettings, certificate: Pem, key: Pem) -> None:
    chain, secret = text_of(certificate), text_of(key)
    if _CERTIFICATE not in chain:
        raise SecuritySettingError(
            f"{_named(certificate)} has no certificate in PEM", "it begins -----BEGIN CERTIFICATE"
        )
    if _KEY_END not in secret:
        raise SecuritySettingError(f"{_named(key)} has no private key in PEM", "it begins -----BEGIN PRIVATE KEY-----")
    password = settings.key_password
    if password is None and any(mark in secret for mark in _ENCRYPTED):
        raise SecuritySettingError(f"{_named(key)} is encrypted", "set ssl.key.password")
    try:
        with as_file(chain) as chain_path, as_file(secret) as key_path:
            # Without a password OpenSSL would ask on the terminal.
            context.load_cert_chain(chain_path, key_path, password=lambda: password.reveal() if password else "")
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise SecuritySettingError(
                f"{_named(key)} is not the key of the certificate in {_named(certificate)}", "use a matching pair"
            ) from None
        if password is not None:
            raise SecuritySettingError(f"{_named(key)} cannot be decrypted", "correct ssl.key.password") from None
        raise SecuritySettingError(
            f"{_named(certificate)} or {_named(key)} cannot be used: {error.reason or 'broken PEM'}", "check the files"
        ) from None


def _unreadable(pem: Pem, error: OSError) -> SecuritySettingError:
    return SecuritySettingError(
        f"{_named(pem)} cannot be read: {error.strerror or error}", "correct the path or its permissions"
    )


def _named(pem: Pem) -> str:
    return pem.setting if pem.location is None else f"{pem.setting}={pem.location}"


def _certificates(text: str) -> str:
    """Only the certificates: keytool and openssl write their names between them, in any encoding."""
    certificates = [_CERTIFICATE + chunk.partition(_END)[0] + _END for chunk in text.split(_CERTIFICATE)[1:]]
    return "\n".join(certificates) + "\n"


@contextmanager
def as_file(text: str) -> Iterator[str]:
    """``ssl`` reads certificates and keys from files only. This one has no name in any directory."""
    # It imports many other modules, and most processes have no certificate.
    import tempfile

    with tempfile.TemporaryFile() as file:
        file.write(text.encode())
        file.flush()
        file.seek(0)
        yield f"/dev/fd/{file.fileno()}"
