"""Certificates of tests: an authority, and what it signs. Nothing is trusted beyond a test."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from einmal.security.secret import Secret
from einmal.security.shared_identity import SharedIdentity


class Authority:
    """Signs certificates. ``pem``: its own certificate, for those that trust it."""

    def __init__(self, name: str = "einmal tests") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        basic = x509.BasicConstraints(ca=True, path_length=0)
        builder = _builder(self._name, self._name, self._key.public_key(), days=3)
        usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
        builder = builder.add_extension(basic, critical=True).add_extension(usage, critical=True)
        self.pem = _pem(builder.sign(self._key, hashes.SHA256()))

    def __getstate__(self) -> dict[str, Any]:
        """As text: the authority of a shared server signs in other processes, too."""
        form, clear = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        return {"pem": self.pem, "key": self._key.private_bytes(serialization.Encoding.PEM, form, clear)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.pem = state["pem"]
        self._name = x509.load_pem_x509_certificate(self.pem.encode()).subject
        key = serialization.load_pem_private_key(state["key"], None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        self._key = key

    def write(self, path: Path) -> Path:
        path.write_text(self.pem)
        return path

    def issue(
        self,
        directory: Path,
        name: str,
        hosts: Sequence[str] = ("localhost", "127.0.0.1"),
        *,
        days: int = 3,
        password: str | None = None,
    ) -> Certificate:
        """A certificate that ends ``days`` from now; negative: that has expired. An empty name: without a subject."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([_host(each) for each in hosts])
        builder = _builder(_name(name), self._name, key.public_key(), days=days).add_extension(names, critical=False)
        encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password is not None:
            encryption = serialization.BestAvailableEncryption(password.encode())
        form = serialization.PrivateFormat.PKCS8
        secret = key.private_bytes(serialization.Encoding.PEM, form, encryption).decode()
        return Certificate(directory / (name or "nameless"), _pem(builder.sign(self._key, hashes.SHA256())), secret)


class Certificate:
    """A certificate and its key, as text and as files: ``certificate``, ``key``, and both in ``store``."""

    def __init__(self, stem: Path, certificate_pem: str, key_pem: str) -> None:
        self.certificate_pem = certificate_pem
        self.key_pem = key_pem
        self.certificate, self.key, self.store = (stem.with_suffix(each) for each in (".crt", ".key", ".pem"))
        self.certificate.write_text(certificate_pem)
        self.key.write_text(key_pem)
        self.store.write_text(key_pem + certificate_pem)


def shared_identity() -> SharedIdentity:
    """As a driver's JVM makes one for a query."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("einmal query")
    certificate = _builder(name, name, key.public_key(), days=3).sign(key, hashes.SHA256())
    form = serialization.PrivateFormat.PKCS8
    secret = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()
    return SharedIdentity(_pem(certificate), Secret(secret))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, *, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return x509.CertificateBuilder(
        issuer, subject, key, x509.random_serial_number(), now - timedelta(days=9), now + timedelta(days=days)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)] if text else [])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()
