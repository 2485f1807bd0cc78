"""The client's side of SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), without channel binding, and its keys.

``scram_server`` is the other side. Nodes of a cluster authenticate to each other in the same way, with the cluster's
secret as the password and ``NODE_EXTENSION`` in the first message: no client's user name can be mistaken for a node's.

User and password are UTF-8 as they stand, without SASLprep: Apache Kafka stores and checks credentials so (its
``ScramFormatter.normalize`` only encodes), and a normalised password would not match. ASCII is the same either way.
The nonce is an argument; knows no connection and no clock.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from functools import lru_cache
from typing import Final, NamedTuple

from einmal.security.errors import SaslError
from einmal.security.secret import Secret

HASHES: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
ITERATIONS_MIN: Final = 4_096
"""RFC 7677; fewer make a stolen exchange cheap to search."""
ITERATIONS: Final = 16_384
"""Number of iterations of the passwords that our tools set by default: the most that Apache Kafka accepts.

A client needs some ten milliseconds for them."""
ITERATIONS_MAX: Final = 1_000_000
"""About a second; a hostile broker must not occupy the client for longer."""
NODE_EXTENSION: Final = "einmal=node"
"""By which a node announces that its password is the cluster's secret; an extension of RFC 5802, and signed as such."""
MESSAGE_MAX: Final = 4_096
_NO_BINDING: Final = "biws"
"""``n,,`` in base64."""
_SERVER_FIRST: Final = re.compile(r"r=([!-+\--~]+),s=([A-Za-z0-9+/=]+),i=([0-9]{1,10})(?:,.*)?")
_SERVER_FINAL: Final = re.compile(r"(?:v=([A-Za-z0-9+/=]+)|e=([^,]+))(?:,.*)?")


class ScramKeys(NamedTuple):
    """ClientKey, StoredKey and ServerKey of RFC 5802."""

    client: bytes
    stored: bytes
    server: bytes


class ScramExchange:
    """``first()``, then ``next`` with every answer of the broker until it returns None: authenticated.

    ``nonce``: random and printable, without a comma. ``extension``: ``name=value``. Raises SaslError.
    """

    def __init__(self, mechanism: str, user: str, password: Secret, nonce: str, extension: str = "") -> None:
        self._hash = HASHES[mechanism]
        self._password = password
        self._nonce = nonce
        self._bare = ",".join(filter(None, (f"n={_escaped(user)}", f"r={nonce}", extension)))
        self._signature: bytes | None = None

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def next(self, answer: bytes) -> bytes | None:
        if self._signature is None:
            return self._final(_text(answer))
        self._verify(_text(answer), self._signature)
        return None

    def _final(self, text: str) -> bytes:
        refused = _SERVER_FINAL.fullmatch(text)
        if refused is not None and refused[2]:
            raise SaslError(f"the broker ends the exchange: {refused[2][:100]}")
        match = _SERVER_FIRST.fullmatch(text)
        if match is None:
            raise SaslError("the broker's answer is not a server-first message of SCRAM")
        if not match[1].startswith(self._nonce) or len(match[1]) == len(self._nonce):
            raise SaslError("the broker's nonce does not continue the client's: another exchange's answer")
        iterations = int(match[3])
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise SaslError(
                f"the broker asks for {iterations} iterations; {ITERATIONS_MIN} to {ITERATIONS_MAX} are safe"
            )
        keys = scram_keys(self._hash, self._password, _decoded(match[2]), iterations)
        without_proof = f"c={_NO_BINDING},r={match[1]}"
        auth_message = f"{self._bare},{text},{without_proof}".encode()
        self._signature = hmac.digest(keys.server, auth_message, self._hash)
        signature = hmac.digest(keys.stored, auth_message, self._hash)
        proof = bytes(a ^ b for a, b in zip(keys.client, signature, strict=True))
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def _verify(self, text: str, signature: bytes) -> None:
        match = _SERVER_FINAL.fullmatch(text)
        if match is None:
            raise SaslError("the broker's answer is not a server-final message of SCRAM")
        if match[2]:
            raise SaslError(f"the broker ends the exchange: {match[2][:100]}")
        if not hmac.compare_digest(_decoded(match[1]), signature):
            raise SaslError("the broker does not know the password: its signature is wrong")


@lru_cache(maxsize=64)
def scram_keys(algorithm: str, password: Secret, salt: bytes, iterations: int) -> ScramKeys:
    """Cached, because a client authenticates on every connection, and again when a session ends; each broker may have
    a salt of its own."""
    return keys_of(algorithm, salted_password(algorithm, password, salt, iterations))


def salted_password(algorithm: str, password: Secret, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac(algorithm, password.reveal().encode(), salt, iterations)


def keys_of(algorithm: str, salted: bytes) -> ScramKeys:
    client = hmac.digest(salted, b"Client Key", algorithm)
    return ScramKeys(client, hashlib.new(algorithm, client).digest(), hmac.digest(salted, b"Server Key", algorithm))


def _escaped(user: str) -> str:
    return user.replace("=", "=3D").replace(",", "=2C")


def _text(message: bytes) -> str:
    if len(message) > MESSAGE_MAX:
        raise SaslError(f"the broker's message has {len(message)} bytes; at most {MESSAGE_MAX} are accepted")
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise SaslError("the broker's message is not UTF-8") from None


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise SaslError("the broker's message is not base64") from None
