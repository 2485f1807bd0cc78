"""A key pair and a self-signed certificate for one query.

Python's standard library cannot make certificates, and the processes that need one have neither a JVM at hand nor the
package ``cryptography``. So the key and one signature are computed here, on the curve P-256 (FIPS 186-5); everything
after that is OpenSSL's. The certificate is encoded by RFC 5280, version 1: it needs no extension, because it is trusted
as it is.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from typing import Final

from einmal.security.secret import Secret
from einmal.security.shared_identity import SharedIdentity

_FIELD: Final = 2**256 - 2**224 + 2**192 + 2**96 - 1
_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_BASE: Final = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
_SIZE: Final = 32
_EC_KEY: Final = bytes.fromhex("301306072a8648ce3d020106082a8648ce3d030107")
"""AlgorithmIdentifier: id-ecPublicKey on prime256v1."""
_ECDSA_WITH_SHA256: Final = bytes.fromhex("300a06082a8648ce3d040302")
_COMMON_NAME: Final = bytes.fromhex("0603550403")
_SEQUENCE: Final = 0x30
_SET: Final = 0x31
_INTEGER: Final = 0x02
_BIT_STRING: Final = 0x03
_OCTET_STRING: Final = 0x04
_UTF8: Final = 0x0C
_UTC_TIME: Final = 0x17
_GENERALIZED_TIME: Final = 0x18
_FROM: Final = b"700101000000Z"
"""Before the time on any executor's clock; the certificate ends with the query, which forgets the key."""
_NO_END: Final = b"99991231235959Z"
"""RFC 5280, 4.1.2.5: no well-defined end."""

_Point = tuple[int, int] | None
"""A point of the curve; None: the point at infinity."""


def ephemeral_identity() -> SharedIdentity:
    """A new one."""
    key = 1 + secrets.randbelow(_ORDER - 1)
    public = _bits(b"\x04" + b"".join(_bytes(each) for each in _times(key)))
    name = _der(_SEQUENCE, _der(_SET, _der(_SEQUENCE, _COMMON_NAME + _der(_UTF8, b"einmal query"))))
    unsigned = _der(
        _SEQUENCE,
        _der(_INTEGER, b"\x01" + secrets.token_bytes(16))
        + _ECDSA_WITH_SHA256
        + name
        + _der(_SEQUENCE, _der(_UTC_TIME, _FROM) + _der(_GENERALIZED_TIME, _NO_END))
        + name
        + _der(_SEQUENCE, _EC_KEY + public),
    )
    certificate = _der(_SEQUENCE, unsigned + _ECDSA_WITH_SHA256 + _bits(_signature(key, unsigned)))
    private = _der(_SEQUENCE, _integer(1) + _der(_OCTET_STRING, _bytes(key)))
    pkcs8 = _der(_SEQUENCE, _integer(0) + _EC_KEY + _der(_OCTET_STRING, private))
    return SharedIdentity(_pem("CERTIFICATE", certificate), Secret(_pem("PRIVATE KEY", pkcs8)))


def _signature(key: int, message: bytes) -> bytes:
    """ECDSA with SHA-256, as DER."""
    digest = int.from_bytes(hashlib.sha256(message).digest())
    nonce = 1 + secrets.randbelow(_ORDER - 1)
    r = _times(nonce)[0] % _ORDER
    s = pow(nonce, -1, _ORDER) * (digest + r * key) % _ORDER
    return _der(_SEQUENCE, _integer(r) + _integer(s))


def _times(factor: int) -> tuple[int, int]:
    """The curve's base point, so many times."""
    found: _Point = None
    doubled: _Point = _BASE
    while factor:
        if factor & 1:
            found = _sum(found, doubled)
        doubled = _sum(doubled, doubled)
        factor >>= 1
    assert found is not None, "the factor is less than the order"
    return found


def _sum(one: _Point, other: _Point) -> _Point:
    if one is None or other is None:
        return one or other
    (x1, y1), (x2, y2) = one, other
    if x1 == x2 and (y1 + y2) % _FIELD == 0:
        return None
    if one == other:
        slope = 3 * (x1 * x1 - 1) * pow(2 * y1, -1, _FIELD) % _FIELD
    else:
        slope = (y2 - y1) * pow(x2 - x1, -1, _FIELD) % _FIELD
    x = (slope * slope - x1 - x2) % _FIELD
    return x, (slope * (x1 - x) - y1) % _FIELD


def _bytes(number: int) -> bytes:
    return number.to_bytes(_SIZE)


def _integer(number: int) -> bytes:
    """With a leading zero where the first bit would make it negative."""
    return _der(_INTEGER, number.to_bytes(number.bit_length() // 8 + 1))


def _bits(content: bytes) -> bytes:
    return _der(_BIT_STRING, b"\x00" + content)


def _der(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + content


def _pem(label: str, content: bytes) -> str:
    return f"-----BEGIN {label}-----\n{base64.encodebytes(content).decode()}-----END {label}-----\n"
