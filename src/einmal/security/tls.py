"""An ``ssl`` context from TLS settings: TLS 1.2 or newer. Reads the files that the settings name."""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from einmal.security.errors import SecuritySettingError
from einmal.security.settings import Pem, TlsSettings

_CERTIFICATE: Final = "-----BEGIN CERTIFICATE-----"
_KEY_END: Final = "PRIVATE KEY-----"
_ENCRYPTED: Final = ("BEGIN ENCRYPTED PRIVATE KEY", "Proc-Type: 4,ENCRYPTED")
_PEM_MAX: Final = 16 * 1024 * 1024


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


def _load_authority(context: ssl.SSLContext, pem: Pem) -> None:
    if pem.location is not None and Path(pem.location).is_dir():
        # OpenSSL's directory of certificates by the hashes of their names, as librdkafka accepts it.
        context.load_verify_locations(capath=pem.location)
        return
    text = _text(pem)
    try:
        if _CERTIFICATE not in text:
            raise ValueError("no certificate")
        context.load_verify_locations(cadata=_certificates(text))
    except (ssl.SSLError, ValueError) as error:
        raise SecuritySettingError(
            f"{_named(pem)} has no certificate in PEM", "it contains -----BEGIN CERTIFICATE----- of the authority"
        ) from error


def _load_certificate(context: ssl.SSLContext, settings: TlsSettings, certificate: Pem, key: Pem) -> None:
    chain, secret = _text(certificate), _text(key)
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


def _text(pem: Pem) -> str:
    if pem.content is not None:
        return pem.content.reveal()
    assert pem.location is not None
    try:
        with Path(pem.location).open(encoding="utf-8", errors="replace") as file:
            return file.read(_PEM_MAX)
    except OSError as error:
        raise SecuritySettingError(
            f"{_named(pem)} cannot be read: {error.strerror or error}", "correct the path or its permissions"
        ) from error


def _named(pem: Pem) -> str:
    return pem.setting if pem.location is None else f"{pem.setting}={pem.location}"


def _certificates(text: str) -> str:
    """Only the certificates: keytool and openssl write their names between them, in any encoding."""
    end = "-----END CERTIFICATE-----"
    found = [_CERTIFICATE + each.partition(end)[0] + end for each in text.split(_CERTIFICATE)[1:]]
    return "\n".join(found) + "\n"


@contextmanager
def as_file(text: str) -> Iterator[str]:
    """``ssl`` reads certificates and keys from files only. This one has no name in any directory."""
    with tempfile.TemporaryFile() as file:
        file.write(text.encode())
        file.flush()
        file.seek(0)
        yield f"/dev/fd/{file.fileno()}"
