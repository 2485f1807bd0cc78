"""The server's side of SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677), without channel binding.

Whoever asks under an unknown user name gets the same exchange as for a wrong password, also in its timing: a made-up
salt and number of iterations, always the same for this name, and a refusal at the end. Nonces are arguments; knows no
connection, no clock and no store of users.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable
from typing import Final, NamedTuple, TypeAlias

from einmal.security.errors import SaslError
from einmal.security.sasl.scram import (
    HASHES,
    ITERATIONS,
    ITERATIONS_MIN,
    MESSAGE_MAX,
    NODE_EXTENSION,
    keys_of,
    scram_keys,
)
from einmal.security.secret import HIDDEN, Secret

SALT_LENGTH: Final = 26
"""Length of the salts that we make: letters and digits with more than 130 random bits, as those of Kafka's tools."""
_ALPHABET: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_CLIENT_FIRST: Final = re.compile(r"(n,(?:a=([^,]+))?,)(n=([^,]+),r=([!-+\--~]{8,})((?:,[^,=]+=[^,]*)*))")
_CLIENT_FINAL: Final = re.compile(r"(c=([A-Za-z0-9+/=]+),r=([!-+\--~]+)(?:,[^,=]+=[^,]*)*),p=([A-Za-z0-9+/=]+)")
_TOKEN_EXTENSION: Final = "tokenauth=true"
_BAD_ESCAPE: Final = re.compile(r"=(?!2C|3D)")


class ScramCredential(NamedTuple):
    """Derivation of a password that a server stores: enough to check it, too little to log in with."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        return f"ScramCredential({HIDDEN}, iterations={self.iterations})"


FindCredential: TypeAlias = Callable[[str], ScramCredential | None]
"""Function that returns the credential of a user."""


class ScramUsers(NamedTuple):
    """Against whom one exchange is checked.

    ``find``: of clients. ``seed``: secret bytes for made-up salts, the same on all brokers. ``node``: of the
    cluster's secret; None: it has none. ``nodes_only``: every user name is a node's.
    """

    find: FindCredential
    seed: bytes
    node: ScramCredential | None = None
    nodes_only: bool = False


def credential_of(mechanism: str, password: Secret, salt: bytes, iterations: int) -> ScramCredential:
    """Takes milliseconds per thousand iterations the first time."""
    keys = scram_keys(HASHES[mechanism], password, salt, iterations)
    return ScramCredential(salt, keys.stored, keys.server, iterations)


def credential_of_salted(mechanism: str, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
    keys = keys_of(HASHES[mechanism], salted)
    return ScramCredential(salt, keys.stored, keys.server, iterations)


def salt_of(source: bytes) -> bytes:
    """A salt from as many bytes of randomness as it has."""
    return "".join(_ALPHABET[byte % len(_ALPHABET)] for byte in source[:SALT_LENGTH]).encode()


def node_credential(secret: Secret, salt: bytes) -> ScramCredential:
    """Return the credential of the cluster's secret. ``salt``: independent of the secret, since anybody may ask for it;
    one per node.

    The secret is random, so iterations add nothing to the minimum.
    """
    return credential_of("SCRAM-SHA-256", secret, salt, ITERATIONS_MIN)


class ScramServerExchange:
    """One exchange: ``next`` twice, then ``is_done``. ``nonce``: random and printable, without a comma."""

    def __init__(self, mechanism: str, nonce: str, users: ScramUsers) -> None:
        self._hash = HASHES[mechanism]
        self._nonce = nonce
        self._users = users
        self._credential: ScramCredential | None = None
        self._is_known = False
        self._header = ""
        self._asked = ""
        self._nonces: tuple[str, ...] = ()
        """Values that the client may state as both nonces: also its own one twice, as librdkafka before 2.6.1 does.

        The server's is at the end in any case: the message of another exchange cannot be replayed."""
        self.user = ""
        """Who wants to authenticate, unless ``is_done``."""
        self.is_node = False
        """Whether it was the cluster's secret that was proven, if ``is_done``."""
        self.is_done = False

    def next(self, message: bytes) -> bytes:
        """The answer to the client's next message. Raises SaslError."""
        if self.is_done:
            raise SaslError("the exchange is over")
        text = _text(message)
        return self._first(text) if self._credential is None else self._final(text, self._credential)

    def _first(self, text: str) -> bytes:
        match = _CLIENT_FIRST.fullmatch(text)
        if match is None:
            raise SaslError("not a client-first message of SCRAM without channel binding")
        self._header, authorization_id, bare, name, client_nonce, listed = match.groups()
        extensions = listed.split(",")
        if _TOKEN_EXTENSION in extensions:
            raise SaslError("delegation tokens are not supported")
        self.user = _unescaped(name)
        if authorization_id is not None and _unescaped(authorization_id) != self.user:
            raise SaslError("another authorization id than the user")
        self.is_node = self._users.nodes_only or NODE_EXTENSION in extensions
        self._credential = self._choose()
        both_nonces = f"{client_nonce}{self._nonce}"
        self._nonces = (both_nonces, f"{client_nonce}{both_nonces}")
        salt = base64.b64encode(self._credential.salt).decode()
        answer = f"r={both_nonces},s={salt},i={self._credential.iterations}"
        self._asked = f"{bare},{answer}"
        return answer.encode()

    def _choose(self) -> ScramCredential:
        """The credential of the user, or a made-up one, which is derived in any case: it takes the same time."""
        made_up = self._made_up()
        credential = self._users.node if self.is_node else self._users.find(self.user)
        self._is_known = credential is not None
        return credential or made_up

    def _made_up(self) -> ScramCredential:
        def derived(purpose: bytes) -> bytes:
            return hmac.digest(self._users.seed, purpose + self.user.encode(), self._hash)

        # Not the number of any user: it would change with that user.
        return ScramCredential(salt_of(derived(b"salt:")), derived(b"stored:"), derived(b"server:"), ITERATIONS)

    def _final(self, text: str, credential: ScramCredential) -> bytes:
        match = _CLIENT_FINAL.fullmatch(text)
        header = base64.b64encode(self._header.encode()).decode()
        if match is None or match[2] != header or match[3] not in self._nonces:
            raise SaslError("not the client-final message of this exchange")
        auth_message = f"{self._asked},{match[1]}".encode()
        signature = hmac.digest(credential.stored_key, auth_message, self._hash)
        proof = _decoded(match[4])
        if len(proof) != len(signature):
            raise SaslError(f"expected a proof of {len(signature)} bytes, found {len(proof)}")
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        is_right = hmac.compare_digest(hashlib.new(self._hash, client_key).digest(), credential.stored_key)
        answer = b"v=" + base64.b64encode(hmac.digest(credential.server_key, auth_message, self._hash))
        if not (is_right and self._is_known):
            raise SaslError("unknown user or wrong password" if not self.is_node else "not the cluster's secret")
        self.is_done = True
        return answer


def _unescaped(name: str) -> str:
    if _BAD_ESCAPE.search(name):
        raise SaslError("a user name with a wrong escape")
    return name.replace("=2C", ",").replace("=3D", "=")


def _text(message: bytes) -> str:
    if len(message) > MESSAGE_MAX:
        raise SaslError(f"expected a message of at most {MESSAGE_MAX} bytes, found {len(message)}")
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise SaslError("a message that is not UTF-8") from None


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise SaslError("not base64") from None
