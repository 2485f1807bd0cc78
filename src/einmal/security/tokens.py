"""Tokens of OAUTHBEARER: from a function, a file, or the client credentials grant over HTTPS; cached.

Blocking work runs in a thread. A token is used for four fifths of its life.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import http.client
import inspect
import json
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Final, NamedTuple

from einmal.security import https
from einmal.security.errors import TokenError
from einmal.security.secret import Secret
from einmal.security.settings import ClientCredentials, TokenCallable, TokenFile

_ANSWER_MAX: Final = 64 * 1024
_FRESH: Final = 0.8
"""Part of a token's life in which it is used again."""


class _Token(NamedTuple):
    value: Secret
    until_s: float | None
    """End of its use, in Unix time; None: it does not expire, as far as is known."""


class Tokens:
    """The tokens of one client. ``context``: the certificates that the endpoint is verified by."""

    def __init__(
        self, source: TokenFile | ClientCredentials | TokenCallable, context: ssl.SSLContext | None = None
    ) -> None:
        self._source = source
        self._context = context
        self._cached: _Token | None = None
        self._lock = asyncio.Lock()

    async def get(self) -> Secret:
        """A token that has not expired. Raises TokenError."""
        async with self._lock:
            now = time.time()
            cached = self._cached
            if cached is not None and cached.until_s is not None and now < cached.until_s:
                return cached.value
            value, expires_at = await self._fetch()
            if expires_at is None:
                expires_at = _expiry(value)
            if expires_at is not None and expires_at <= now:
                raise TokenError("the token has expired: the broker would refuse it", may_pass=False)
            until = None if expires_at is None else now + (expires_at - now) * _FRESH
            self._cached = _Token(Secret(value), until)
            return self._cached.value

    async def _fetch(self) -> tuple[str, float | None]:
        source = self._source
        if isinstance(source, TokenFile):
            return await asyncio.to_thread(_read, source.path), None
        if isinstance(source, ClientCredentials):
            return await asyncio.to_thread(_ask, source, self._context)
        try:
            answer = await asyncio.to_thread(_called, source)
            if inspect.isawaitable(answer):
                answer = await answer
        except Exception as error:
            raise TokenError(f"the token provider failed: {type(error).__name__}", may_pass=False) from error
        return _provided(answer)


def _called(source: TokenCallable) -> Any:
    try:
        return source()
    except StopIteration as error:
        # No future can carry it: nothing would ever connect.
        raise TokenError("the token provider failed: StopIteration", may_pass=False) from error


def _provided(answer: Any) -> tuple[str, float | None]:
    value, expires_at = answer if isinstance(answer, tuple) and len(answer) == 2 else (answer, None)
    if isinstance(value, Secret):
        value = value.reveal()
    if not isinstance(value, str) or not isinstance(expires_at, int | float | None):
        raise TokenError("the token provider returns a token, or (token, Unix time of its end)", may_pass=False)
    return value, expires_at


def _read(path: str) -> str:
    try:
        with Path(path).open(encoding="utf-8") as file:
            return file.read(_ANSWER_MAX).strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise TokenError(f"the token file {path} cannot be read: {reason}", may_pass=False) from error


def _ask(source: ClientCredentials, context: ssl.SSLContext | None) -> tuple[str, float | None]:
    host = urllib.parse.urlsplit(source.url).hostname
    fields = {"grant_type": "client_credentials"} | ({"scope": source.scope} if source.scope else {})
    credentials = f"{source.client_id}:{source.client_secret.reveal()}".encode()
    request = urllib.request.Request(source.url, urllib.parse.urlencode(fields).encode(), method="POST")
    request.add_header("Authorization", f"Basic {base64.b64encode(credentials).decode()}")
    request.add_header("Accept", "application/json")
    try:
        body = https.send(request, _ANSWER_MAX + 1, context)
    except urllib.error.HTTPError as error:
        with error:
            reason = _refusal(error)
        detail = f"the token endpoint {host} answers {error.code}{reason}"
        raise TokenError(detail, may_pass=error.code >= 500 or error.code == 429) from None
    except (OSError, ValueError) as error:
        cause: object = error.reason if isinstance(error, urllib.error.URLError) else error
        may_pass = not isinstance(cause, ssl.SSLError)
        raise TokenError(f"the token endpoint {host}: {cause}", may_pass=may_pass) from None
    if len(body) > _ANSWER_MAX:
        raise TokenError(f"the token endpoint {host} answers with more than {_ANSWER_MAX} bytes", may_pass=False)
    try:
        answer = json.loads(body)
        value, lifetime = answer["access_token"], answer.get("expires_in")
        if not isinstance(value, str):
            raise TypeError(type(value))
        return value, None if lifetime is None else time.time() + float(lifetime)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        raise TokenError(f"the token endpoint {host} answers without an access_token", may_pass=False) from None


def _refusal(response: urllib.error.HTTPError) -> str:
    """The error code of RFC 6749, 5.2, which has no secrets; the description could quote one."""
    try:
        code = json.loads(response.read(_ANSWER_MAX))["error"]
    except (ValueError, TypeError, LookupError, RecursionError, OSError, http.client.HTTPException):
        return ""
    return f": {code[:60]}" if isinstance(code, str) and code.replace("_", "").isalnum() else ""


def _expiry(token: str) -> float | None:
    """``exp`` of a JWT, unverified: the broker verifies it. None: no JWT, or without an end."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return float(claims["exp"])
    except (ValueError, TypeError, LookupError, RecursionError, binascii.Error):
        return None
