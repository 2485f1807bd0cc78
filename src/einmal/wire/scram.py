"""SCRAM-SHA-256 (RFC 5802, RFC 7677) for one shared secret: both sides prove that they know it, neither sends it.

The secret is the password of every user name. Nonces are arguments; knows no connection and no clock.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from typing import Final

from einmal.security.scram import HASHES, scram_keys
from einmal.security.secret import Secret

MECHANISM: Final = "SCRAM-SHA-256"
_HASH: Final = HASHES[MECHANISM]
_ITERATIONS: Final = 4_096
"""RFC 7677's minimum: the secret is random, so iterations add nothing."""
_ITERATIONS_MAX: Final = 100_000
_MESSAGE_MAX: Final = 1_024
_NO_BINDING: Final = "biws"
"""``n,,`` in base64: no channel binding."""
_CLIENT_FIRST: Final = re.compile(r"n,(?:a=[^,]*)?,(n=([^,]+),r=([!-+\--~]{8,}))(?:,.*)?")
_SERVER_FIRST: Final = re.compile(r"r=([!-+\--~]+),s=([A-Za-z0-9+/=]+),i=([0-9]{1,6})")
_CLIENT_FINAL: Final = re.compile(r"(c=([A-Za-z0-9+/=]+),r=([!-+\--~]+)),p=([A-Za-z0-9+/=]+)")


class AuthenticationFailed(Exception):
    """The other side does not know the secret, or does not follow the exchange."""


class ScramServer:
    """The server's side of one exchange. ``nonce``: random and printable, without a comma."""

    def __init__(self, secret: str, nonce: str) -> None:
        self._secret = secret
        self._nonce = nonce
        self._client_nonce: str | None = None
        self._asked = ""
        self.user: str | None = None
        """Who has authenticated; None: nobody yet."""

    def answer(self, message: bytes) -> bytes:
        """The answer to the client's next message. Raises AuthenticationFailed."""
        if self._client_nonce is None:
            return self._first(_text(message))
        if self.user is not None:
            raise AuthenticationFailed("the exchange is over")
        return self._final(_text(message))

    def _first(self, text: str) -> bytes:
        match = _CLIENT_FIRST.fullmatch(text)
        if match is None:
            raise AuthenticationFailed("not a client-first message of SCRAM without channel binding")
        bare, self._user, self._client_nonce = match.groups()
        salt = base64.b64encode(_salt(self._secret)).decode()
        answer = f"r={self._client_nonce}{self._nonce},s={salt},i={_ITERATIONS}"
        self._asked = f"{bare},{answer}"
        return answer.encode()

    def _final(self, text: str) -> bytes:
        match = _CLIENT_FINAL.fullmatch(text)
        if match is None or match[2] != _NO_BINDING or match[3] != f"{self._client_nonce}{self._nonce}":
            raise AuthenticationFailed("not the client-final message of this exchange")
        keys = scram_keys(_HASH, Secret(self._secret), _salt(self._secret), _ITERATIONS)
        auth_message = f"{self._asked},{match[1]}".encode()
        client_key = _xor(_decoded(match[4]), _hmac(keys.stored, auth_message))
        if not hmac.compare_digest(hashlib.sha256(client_key).digest(), keys.stored):
            raise AuthenticationFailed(f"{self._user} does not know the secret")
        self.user = self._user
        return b"v=" + base64.b64encode(_hmac(keys.server, auth_message))


class ScramClient:
    """The client's side of one exchange: ``first``, then ``final``, then ``verify``."""

    def __init__(self, user: str, secret: str, nonce: str) -> None:
        self._secret = secret
        self._nonce = nonce
        self._bare = f"n={user},r={nonce}"
        self._signature = b""

    def first(self) -> bytes:
        return f"n,,{self._bare}".encode()

    def final(self, answer: bytes) -> bytes:
        """Raises AuthenticationFailed."""
        text = _text(answer)
        match = _SERVER_FIRST.fullmatch(text)
        if match is None or not match[1].startswith(self._nonce) or len(match[1]) == len(self._nonce):
            raise AuthenticationFailed("not the server-first message of this exchange")
        iterations = int(match[3])
        if not _ITERATIONS <= iterations <= _ITERATIONS_MAX:
            raise AuthenticationFailed(f"{iterations} iterations")
        keys = scram_keys(_HASH, Secret(self._secret), _decoded(match[2]), iterations)
        without_proof = f"c={_NO_BINDING},r={match[1]}"
        auth_message = f"{self._bare},{text},{without_proof}".encode()
        self._signature = _hmac(keys.server, auth_message)
        proof = _xor(keys.client, _hmac(keys.stored, auth_message))
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()

    def verify(self, answer: bytes) -> None:
        """Whether the server knows the secret. Raises AuthenticationFailed."""
        if not hmac.compare_digest(answer, b"v=" + base64.b64encode(self._signature)):
            raise AuthenticationFailed("the server does not know the secret")


def _salt(secret: str) -> bytes:
    """One for the whole cluster, so that its nodes derive their keys once."""
    return hashlib.sha256(b"einmal salt" + secret.encode()).digest()[:16]


def _hmac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, _HASH)


def _xor(one: bytes, other: bytes) -> bytes:
    if len(one) != len(other):
        raise AuthenticationFailed(f"a proof of {len(one)} bytes")
    return bytes(a ^ b for a, b in zip(one, other, strict=True))


def _text(message: bytes) -> str:
    if len(message) > _MESSAGE_MAX:
        raise AuthenticationFailed(f"a message of {len(message)} bytes")
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise AuthenticationFailed("a message that is not UTF-8") from None


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise AuthenticationFailed("not base64") from None
