"""Bounded requests over HTTPS, without redirects. They block: for a thread."""

from __future__ import annotations

import http.client
import ssl
import urllib.request
from typing import Any, Final

TIMEOUT_S: Final = 10.0


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect could carry the client's secret elsewhere, or bring another's keys."""

    def redirect_request(self, *_: Any) -> None:
        return None


def send(request: urllib.request.Request, bytes_max: int, context: ssl.SSLContext | None = None) -> bytes:
    """The answer's first ``bytes_max`` bytes. ``context`` None: the system's authorities.

    Raises OSError, of which urllib's errors are some, and ValueError.
    """
    opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context), _NoRedirect)
    try:
        with opener.open(request, timeout=TIMEOUT_S) as response:
            body: bytes = response.read(bytes_max)
    except http.client.HTTPException as error:
        raise OSError(f"broken answer: {type(error).__name__}") from error
    return body
