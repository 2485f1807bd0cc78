"""A key pair and a self-signed certificate for one query, made by the driver's JVM.

Python's standard library cannot make certificates, and the JVM is there anyway: its providers draw the key and sign;
here the certificate is only encoded (RFC 5280, version 1: it needs no extension, because it is trusted as it is).
"""

from __future__ import annotations

import base64
import secrets
from typing import TYPE_CHECKING, Any, Final

from einmal.security.secret import Secret
from einmal.security.shared_identity import SharedIdentity

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_CURVE_BITS: Final = 256
_ECDSA_WITH_SHA256: Final = bytes.fromhex("300a06082a8648ce3d040302")
_COMMON_NAME: Final = bytes.fromhex("0603550403")
_SEQUENCE: Final = 0x30
_SET: Final = 0x31
_INTEGER: Final = 0x02
_BIT_STRING: Final = 0x03
_UTF8: Final = 0x0C
_UTC_TIME: Final = 0x17
_GENERALIZED_TIME: Final = 0x18
_FROM: Final = b"700101000000Z"
"""Before the time on any executor's clock; the certificate ends with the query, which forgets the key."""
_NO_END: Final = b"99991231235959Z"
"""RFC 5280, 4.1.2.5: no well-defined end."""


def ephemeral_identity(spark: SparkSession) -> SharedIdentity:
    """A new one, on the curve P-256."""
    jvm: Any = spark._jvm
    pairs = jvm.java.security.KeyPairGenerator.getInstance("EC")
    pairs.initialize(_CURVE_BITS)
    pair = pairs.generateKeyPair()
    name = _der(_SEQUENCE, _der(_SET, _der(_SEQUENCE, _COMMON_NAME + _der(_UTF8, b"einmal query"))))
    unsigned = _der(
        _SEQUENCE,
        _der(_INTEGER, b"\x01" + secrets.token_bytes(16))
        + _ECDSA_WITH_SHA256
        + name
        + _der(_SEQUENCE, _der(_UTC_TIME, _FROM) + _der(_GENERALIZED_TIME, _NO_END))
        + name
        + _encoded(jvm, pair.getPublic(), "X509"),
    )
    signer = jvm.java.security.Signature.getInstance("SHA256withECDSA")
    signer.initSign(pair.getPrivate())
    signer.update(unsigned)
    signature = _der(_BIT_STRING, b"\x00" + bytes(signer.sign()))
    certificate = _der(_SEQUENCE, unsigned + _ECDSA_WITH_SHA256 + signature)
    key = _encoded(jvm, pair.getPrivate(), "PKCS8")
    return SharedIdentity(_pem("CERTIFICATE", certificate), Secret(_pem("PRIVATE KEY", key)))


def _encoded(jvm: Any, key: Any, form: str) -> bytes:
    # Keys are objects of their provider's, whose methods py4j may not call.
    spec = jvm.java.lang.Class.forName(f"java.security.spec.{form}EncodedKeySpec")
    return bytes(jvm.java.security.KeyFactory.getInstance("EC").getKeySpec(key, spec).getEncoded())


def _der(tag: int, content: bytes) -> bytes:
    size = len(content)
    if size < 0x80:
        return bytes((tag, size)) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes((tag, 0x80 | len(length))) + length + content


def _pem(label: str, content: bytes) -> str:
    return f"-----BEGIN {label}-----\n{base64.encodebytes(content).decode()}-----END {label}-----\n"
