"""Bearer tokens, verified by the keys that an identity provider publishes, which are fetched again and again.

Fetched in the background, by ``Disk.in_background``: when the node starts, regularly, after a failure with a growing
pause, and when a token names a key that is not known; this at most once in ``UNKNOWN_KEY_MS``, so that invented names
of keys do not become requests.
"""

from __future__ import annotations

import asyncio
import urllib.parse
import urllib.request
from pathlib import PurePosixPath
from typing import Final

from einmal.broker.front.authentication.sasl import Bearer
from einmal.event_log import EventLog
from einmal.log.disk import Disk
from einmal.pauses import DoublingPauses
from einmal.security import https
from einmal.security.bearer_tokens import KeySet, UnknownKey, verified
from einmal.security.secret import Secret
from einmal.security.server_settings import JwtSettings

log = EventLog(__name__)
_NO_KEYS: Final = "sasl.oauthbearer.jwks.endpoint.url: no keys: %(error)s; trying again in %(pause_ms)d ms"

UNKNOWN_KEY_MS: Final = 10_000
_DOCUMENT_MAX: Final = 1024 * 1024
_PATIENCE_S: Final = 5.0
"""How long an authentication waits for keys."""


class PublishedKeys:
    """Published keys of one provider."""

    def __init__(self, settings: JwtSettings, disk: Disk) -> None:
        self._settings = settings
        self._disk = disk
        self._keys: KeySet | None = None
        self._refreshing: asyncio.Task[None] | None = None
        self._refreshed_s = float("-inf")
        """When the last fetch began, on the loop's clock."""
        self._timer: asyncio.TimerHandle | None = None
        self._failures = 0
        self._pauses_ms = DoublingPauses(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        self._is_stopped = False

    def start(self) -> None:
        self._refresh()

    def stop(self) -> None:
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()
        if self._refreshing is not None:
            self._refreshing.cancel()

    async def verify(self, token: Secret) -> Bearer:
        """See ``sasl.TokenVerifier``."""
        try:
            return self._verify(token)
        except UnknownKey:
            if not self._may_refresh():
                raise
        fetching = self._refresh()
        try:
            async with asyncio.timeout(_PATIENCE_S):
                # Several authentications may wait for it.
                await asyncio.shield(fetching)
        except TimeoutError:
            pass
        return self._verify(token)

    def _verify(self, token: Secret) -> Bearer:
        if self._keys is None:
            raise UnknownKey("the identity provider's keys are not known yet", may_pass=True)
        claims = verified(token, self._keys, self._settings)
        return Bearer(claims.user, int(claims.ends_s * 1000))

    def _may_refresh(self) -> bool:
        now_s = asyncio.get_running_loop().time()
        return self._refreshing is not None or now_s - self._refreshed_s >= UNKNOWN_KEY_MS / 1000

    def _refresh(self) -> asyncio.Task[None]:
        if self._refreshing is None:
            self._refreshing = asyncio.get_running_loop().create_task(self._fetch())
        return self._refreshing

    async def _fetch(self) -> None:
        loop = asyncio.get_running_loop()
        self._refreshed_s = loop.time()
        if self._timer is not None:
            self._timer.cancel()
        try:
            self._keys = KeySet(await self._disk.in_background(self._read))
        except (OSError, ValueError) as error:
            pause_ms = self._pauses_ms.after(self._failures)
            self._failures += 1
            log.warning("jwks_failed", _NO_KEYS, error=error, pause_ms=pause_ms)
        else:
            self._failures, pause_ms = 0, self._settings.refresh_ms
            fetched = "sasl.oauthbearer.jwks.endpoint.url: keys fetched: %(count)d"
            log.info("jwks_fetched", fetched, count=len(self._keys))
        self._refreshing = None
        if not self._is_stopped:
            self._timer = loop.call_later(pause_ms / 1000, self._refresh)

    def _read(self) -> bytes:
        """The document. Blocks. Raises OSError or ValueError."""
        parts = urllib.parse.urlsplit(self._settings.jwks_url)
        if parts.scheme == "file":
            document = self._disk.read_file(PurePosixPath(urllib.parse.unquote(parts.path)))
        else:
            request = urllib.request.Request(self._settings.jwks_url, headers={"Accept": "application/json"})
            document = https.send(request, _DOCUMENT_MAX + 1)
        if len(document) > _DOCUMENT_MAX:
            raise ValueError(f"more than {_DOCUMENT_MAX} bytes")
        return document
