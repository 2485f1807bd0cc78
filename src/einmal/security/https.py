"""Bounded requests over HTTPS, and HTTP, without redirects. They block: for a thread."""

from __future__ import annotations

import http.client
import socket
import ssl
import time
import urllib.request
from typing import Any, Final

TIMEOUT_S: Final = 10.0
"""For connecting, for the TLS handshake, and for a whole answer, however many pieces it comes in."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect could carry the client's secret elsewhere, or bring another's keys."""

    def redirect_request(self, *_: Any) -> None:
        return None


class _AnswerInTime(socket.socket):
    """Reads until ``TIMEOUT_S`` after its first read: a timeout of the socket's own begins again with every byte."""

    _ends_at: float | None = None

    def recv_into(self, *arguments: Any, **keywords: Any) -> int:
        now = time.monotonic()
        if self._ends_at is None:
            self._ends_at = now + TIMEOUT_S
        if now >= self._ends_at:
            raise TimeoutError("no complete answer in time")
        self.settimeout(self._ends_at - now)
        return super().recv_into(*arguments, **keywords)


class _TLSAnswerInTime(_AnswerInTime, ssl.SSLSocket):
    pass


class _HTTPConnection(http.client.HTTPConnection):
    def connect(self) -> None:
        super().connect()
        opened = self.sock
        self.sock = _AnswerInTime(opened.family, opened.type, opened.proto, opened.detach())
        self.sock.settimeout(self.timeout)


class _HTTPHandler(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(_HTTPConnection, req)


def send(request: urllib.request.Request, bytes_max: int, context: ssl.SSLContext | None = None) -> bytes:
    """The answer's first ``bytes_max`` bytes. ``context`` None: the system's authorities.

    Raises OSError, of which urllib's errors are some, and ValueError.
    """
    context = context or ssl.create_default_context()
    context.sslsocket_class = _TLSAnswerInTime
    opener = urllib.request.build_opener(_HTTPHandler, urllib.request.HTTPSHandler(context=context), _NoRedirect)
    try:
        with opener.open(request, timeout=TIMEOUT_S) as response:
            body: bytes = response.read(bytes_max)
    except http.client.HTTPException as error:
        # An answer that is no HTTP may quote what the server has sent.
        raise OSError("its answer is not HTTP") from error
    return body
