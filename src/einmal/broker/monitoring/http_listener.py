"""A small HTTP server for GET: one request on a connection, of bounded size, in bounded time.

On the broker's event loop, as everything: who gets an answer knows that the loop turns.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, NamedTuple, cast

CONNECTIONS_MAX: Final = 32
HEAD_BYTES_MAX: Final = 8 * 1024
HEAD_SECONDS: Final = 5.0
ANSWER_SECONDS: Final = 60.0
"""Until the client has received the whole answer."""
_REASONS: Final = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed",
                   431: "Request Header Fields Too Large", 500: "Internal Server Error",
                   503: "Service Unavailable"}  # fmt: skip


class HttpAnswer(NamedTuple):
    status: int
    content_type: str
    body: Sequence[bytes]
    """In parts."""


Answering = Callable[[], Awaitable[HttpAnswer]]


def plain(status: int) -> HttpAnswer:
    return HttpAnswer(status, "text/plain; charset=utf-8", (f"{_REASONS[status]}\n".encode(),))


class HttpServer:
    """``pages``: by their paths."""

    def __init__(self, pages: Mapping[str, Answering]) -> None:
        self.pages = pages
        self._connections: dict[_HttpConnection, None] = {}
        """The oldest first."""

    def connection(self) -> asyncio.Protocol:
        """The protocol of a connection that is being accepted."""
        return _HttpConnection(self)

    def admit(self, connection: _HttpConnection) -> bool:
        """Whether a new connection may stay. Where there are too many, the oldest without a request goes."""
        if len(self._connections) >= CONNECTIONS_MAX:
            silent = next((other for other in self._connections if other.is_waiting), None)
            if silent is None:
                return False
            silent.abort()
            self.forget(silent)
        self._connections[connection] = None
        return True

    def forget(self, connection: _HttpConnection) -> None:
        self._connections.pop(connection, None)

    def stop(self) -> None:
        for connection in list(self._connections):
            connection.abort()


class _HttpConnection(asyncio.Protocol):
    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._received = bytearray()
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self.is_waiting = True
        """Whether its request is not whole yet."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self._server.admit(self):
            self._timer = asyncio.get_running_loop().call_later(HEAD_SECONDS, self.abort)
        else:
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._server.forget(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if not self.is_waiting:
            return
        self._received += data
        end = self._received.find(b"\r\n\r\n")
        if 0 <= end <= HEAD_BYTES_MAX:
            self._begin(self._received.partition(b"\r\n")[0])
        elif len(self._received) > HEAD_BYTES_MAX:
            self._send(plain(431), has_body=True)

    def _begin(self, line: bytearray) -> None:
        """Answer the request with this first line."""
        method, _, rest = line.decode("latin-1").partition(" ")
        target, _, protocol = rest.partition(" ")
        if not protocol.startswith("HTTP/1."):
            self._send(plain(400), has_body=True)
        elif method not in ("GET", "HEAD"):
            self._send(plain(405), has_body=True)
        elif (answering := self._server.pages.get(target.partition("?")[0])) is None:
            self._send(plain(404), has_body=method == "GET")
        else:
            self._await_receipt()
            self._task = asyncio.get_running_loop().create_task(self._answer(answering, has_body=method == "GET"))

    async def _answer(self, answering: Answering, *, has_body: bool) -> None:
        try:
            answer = await answering()
        except Exception as error:  # noqa: BLE001 - a bug in a page ends its request, never the broker.
            asyncio.get_running_loop().call_exception_handler({"message": "a page failed", "exception": error})
            answer = plain(500)
        self._task = None
        self._send(answer, has_body=has_body)

    def _await_receipt(self) -> None:
        self.is_waiting = False
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(ANSWER_SECONDS, self.abort)

    def _send(self, answer: HttpAnswer, *, has_body: bool) -> None:
        self._await_receipt()
        assert self._transport is not None, "only a connection receives"
        head = (
            f"HTTP/1.1 {answer.status} {_REASONS[answer.status]}\r\n"
            f"Content-Type: {answer.content_type}\r\n"
            f"Content-Length: {sum(map(len, answer.body))}\r\n"
            "Connection: close\r\n\r\n"
        )
        self._transport.writelines((head.encode(), *(answer.body if has_body else ())))
        self._transport.close()
