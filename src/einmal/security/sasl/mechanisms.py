"""The mechanisms PLAIN (RFC 4616) and OAUTHBEARER (RFC 7628), and the exchange of each mechanism. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Final, Protocol

from einmal.security.errors import SaslError
from einmal.security.sasl.scram import HASHES
from einmal.security.secret import Secret

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
MECHANISMS: Final = (PLAIN, *HASHES, OAUTHBEARER)
_SEPARATOR: Final = "\x01"
_ANSWER_MAX: Final = 4_096
_TOKEN: Final = re.compile(r"[A-Za-z0-9\-._~+/]+=*")


class SaslExchange(Protocol):
    """One authentication: ``first()``, then ``next`` with every answer until it returns None. Raises SaslError."""

    def first(self) -> bytes: ...

    def next(self, answer: bytes) -> bytes | None: ...


class PlainExchange:
    """One message with user and password (RFC 4616); the broker's answer is empty."""

    def __init__(self, user: str, password: Secret) -> None:
        self._user = user
        self._password = password

    def first(self) -> bytes:
        return f"\0{self._user}\0{self._password.reveal()}".encode()

    def next(self, answer: bytes) -> bytes | None:
        if answer:
            raise SaslError("PLAIN has one message; the broker expects another one")
        return None


class OAuthBearerExchange:
    """One message with a bearer token (RFC 7628). An answer is the broker's reason for refusing it, as JSON.

    ``extensions``: SASL extensions (KIP-342). ``refusal``: the reason, once the broker has sent it.
    """

    def __init__(self, token: Secret, extensions: Mapping[str, str]) -> None:
        if not _TOKEN.fullmatch(token.reveal()):
            raise SaslError("the token is not a bearer token: it has characters outside RFC 6750's, or is empty")
        self._token = token
        self._extensions = extensions
        self.refusal = ""

    def first(self) -> bytes:
        pairs = [
            f"auth=Bearer {self._token.reveal()}",
            *(f"{name}={extension}" for name, extension in self._extensions.items()),
        ]
        return (_SEPARATOR.join(["n,,", *pairs]) + _SEPARATOR * 2).encode()

    def next(self, answer: bytes) -> bytes | None:
        if not answer:
            return None
        if self.refusal:
            raise SaslError(f"the broker refuses the token: {self.refusal}")
        self.refusal = _reason(answer)
        # RFC 7628, 3.2.3: the client acknowledges, then the broker ends the exchange with its error.
        return _SEPARATOR.encode()


def _reason(answer: bytes) -> str:
    """The broker's error, such as ``status=invalid_token``; only known keys, and bounded."""
    try:
        error = json.loads(answer[:_ANSWER_MAX])
        fields = [
            f"{key}={str(error[key])[:200]}" for key in ("status", "scope", "openid-configuration") if error.get(key)
        ]
    except (ValueError, AttributeError, RecursionError):
        fields = []
    return ", ".join(fields) or "without a reason that this client can read"
