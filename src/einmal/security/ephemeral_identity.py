"""A key pair and a self-signed certificate for one query."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from einmal.security.secret import Secret
from einmal.security.shared_identity import SharedIdentity

_NAME: Final = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "einmal query")])
_FROM: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""Before the time on any executor's clock; the certificate ends with the query, which forgets the key."""
_NO_END: Final = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
"""RFC 5280, 4.1.2.5: no well-defined end."""


def ephemeral_identity() -> SharedIdentity:
    """A new one, on the curve P-256."""
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        x509.CertificateBuilder(_NAME, _NAME, key.public_key(), x509.random_serial_number(), _FROM, _NO_END)
    ).sign(key, hashes.SHA256())
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return SharedIdentity(certificate.public_bytes(Encoding.PEM).decode(), Secret(private.decode()))
