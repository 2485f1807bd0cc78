"""The server's side of PLAIN (RFC 4616) and OAUTHBEARER (RFC 7628), and what every mechanism's server has. Pure.

SCRAM is in ``scram_server``. A token is verified elsewhere: ``OAuthBearerServerExchange`` asks for it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol

from einmal.security.errors import SaslError
from einmal.security.secret import Secret

TOKEN_MAX: Final = 64 * 1024
"""Maximum size of a bearer token; identity providers issue a few kilobytes."""
_SEPARATOR: Final = "\x01"
_HEADER: Final = re.compile(r"n,(?:a=([^,]*))?,")
_PAIR: Final = re.compile(r"([A-Za-z]+)=([\x20-\x7e\t\r\n]*)")
_BEARER: Final = re.compile(r"bearer +([A-Za-z0-9\-._~+/]+=*) *", re.IGNORECASE)
_ABSENT: Final = Secret("")


class TokenToVerify(NamedTuple):
    """The exchange continues with ``verified`` or ``refused``."""

    token: Secret


class ServerExchange(Protocol):
    """One authentication, from the server's side."""

    @property
    def user(self) -> str:
        """Who has authenticated, if ``is_done``; else who wants to."""

    @property
    def is_node(self) -> bool:
        """Whether the cluster's secret was proven, not a user's password."""

    @property
    def is_done(self) -> bool:
        """Whether the client has authenticated."""

    def next(self, message: bytes) -> bytes | TokenToVerify:
        """The answer to the client's next message. Raises SaslError: the authentication has failed."""


class PlainServerExchange:
    """``users``: their passwords."""

    is_node: Final = False

    def __init__(self, users: Mapping[str, Secret]) -> None:
        self._users = users
        self.user = ""
        self.is_done = False

    def next(self, message: bytes) -> bytes:
        if self.is_done:
            raise SaslError("the exchange is over")
        try:
            parts = message.decode().split("\0")
        except UnicodeDecodeError:
            raise SaslError("a message that is not UTF-8") from None
        if len(parts) != 3 or not parts[1] or not parts[2]:
            raise SaslError("not a message of PLAIN: authorization id, user and password")
        authorization_id, self.user, password = parts
        expected = self._users.get(self.user, _ABSENT)
        # Digests are of one length: their comparison does not depend on that of the password.
        is_right = hmac.compare_digest(_digest(password), _digest(expected.reveal()))
        if not is_right or self.user not in self._users:
            raise SaslError("unknown user or wrong password")
        if authorization_id and authorization_id != self.user:
            raise SaslError("another authorization id than the user")
        self.is_done = True
        return b""


class OAuthBearerServerExchange:
    """``next``, then ``verified`` or ``refused``; after ``refused`` the client acknowledges and ``next`` fails."""

    is_node: Final = False

    def __init__(self) -> None:
        self._authorization_id = ""
        self.refusal = ""
        """Why the token was refused."""
        self._is_asked = False
        self.user = ""
        self.is_done = False
        self.ends_ms: int | None = None
        """When the token ends, as Unix time."""

    def next(self, message: bytes) -> TokenToVerify:
        if self.refusal:
            raise SaslError(f"the token was refused: {self.refusal}")
        if self._is_asked:
            raise SaslError("the exchange is over")
        self._is_asked = True
        if len(message) > TOKEN_MAX:
            raise SaslError(f"expected a message of at most {TOKEN_MAX} bytes, found {len(message)}")
        try:
            header, *pairs = message.decode().split(_SEPARATOR)
        except UnicodeDecodeError:
            raise SaslError("a message that is not UTF-8") from None
        match = _HEADER.fullmatch(header)
        if match is None or pairs[-2:] != ["", ""]:
            raise SaslError("not a client's first message of OAUTHBEARER")
        self._authorization_id = (match[1] or "").replace("=2C", ",").replace("=3D", "=")
        return TokenToVerify(_token_of(pairs[:-2]))

    def verified(self, user: str, ends_ms: int) -> bytes:
        """The token is ``user``'s. Raises SaslError."""
        self.user = user
        if self._authorization_id and self._authorization_id != user:
            raise SaslError("another authorization id than the token's user")
        self.is_done, self.ends_ms = True, ends_ms
        return b""

    def refused(self, reason: str) -> bytes:
        """The error, which the client acknowledges by a last message (RFC 7628, 3.2.2). ``reason``: for the log."""
        self.refusal = reason
        return json.dumps({"status": "invalid_token"}).encode()


def _token_of(pairs: list[str]) -> Secret:
    values: dict[str, str] = {}
    for pair in pairs:
        match = _PAIR.fullmatch(pair)
        if match is None or match[1] in values:
            raise SaslError("a broken key-value pair")
        values[match[1]] = match[2]
    bearer = _BEARER.fullmatch(values.get("auth", ""))
    if bearer is None:
        raise SaslError("no bearer token")
    return Secret(bearer[1])


def _digest(password: str) -> bytes:
    return hashlib.sha256(password.encode(errors="surrogatepass")).digest()
