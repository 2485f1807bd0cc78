"""One connection to one broker: requests go out in order, and answers come back in that order.

Knows no metadata and no retry. Every failure is a ``NoAnswer``, or the error that its user has in place of that, with
whether the request had been sent: if it had, the broker may have carried it out. A request without an answer in time
closes the connection, because nothing behind it on the same connection could be answered either.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, cast

from einmal.rpc.strangers import AFTER_THE_FIRST_ANSWER, HEAD_SIZE, suspicion
from einmal.wire.errors import WireError
from einmal.wire.frames import FrameSplitter, Part, frame
from einmal.wire.messages import encode_request_header, response_body_position

MAX_ANSWER_BYTES: Final = 128 * 1024 * 1024
"""More than any fetch.max.bytes in use; a longer length is a broken stream."""

PATIENCE_S: Final = 1.0
"""After this an answer is overdue, unless the broker was allowed to wait."""


_BY_THE_BROKER: Final = "closed by the broker"
_AUTHENTICATION: Final = (17, 36)
"""SaslHandshake, SaslAuthenticate."""


class NoAnswer(Exception):
    """A request has no answer: the connection was lost, or there is none. ``detail``: which connection, and why."""

    def __init__(self, detail: str, *, was_sent: bool) -> None:
        super().__init__(detail)
        self.detail = detail
        self.was_sent = was_sent


class Failure(Protocol):
    """Makes the error of a request that has no answer."""

    def __call__(self, detail: str, *, was_sent: bool) -> Exception: ...


class Answer(NamedTuple):
    """A response frame and where its body begins."""

    frame: bytes
    position: int


class _Held(NamedTuple):
    """A request that waits for the end of an authentication; ``future`` None: it has no answer."""

    api_key: int
    version: int
    body: Sequence[Part]
    timeout_ms: int
    wait_ms: int
    future: asyncio.Future[Answer] | None


@dataclass(slots=True)
class _Pending:
    correlation_id: int
    api_key: int
    version: int
    future: asyncio.Future[Answer]
    timer: asyncio.TimerHandle
    due: float


class Connection(asyncio.Protocol):
    """``silent`` is called every second while an answer is overdue: see ``is_silent``. ``answered`` is called with the
    API's key and version and the answer's size.

    Between ``hold`` and ``release`` only requests of an authentication are written; the others keep their order.
    """

    def __init__(
        self,
        name: str,
        client_id: str,
        silent: Callable[[Connection], None] | None = None,
        *,
        failure: Failure = NoAnswer,
        answered: Callable[[int, int, int], None] | None = None,
    ) -> None:
        self.name = name
        self.versions: dict[int, tuple[int, int]] = {}
        self.features: dict[str, int] = {}
        self._client_id = client_id
        self._loop = asyncio.get_running_loop()
        self._splitter = FrameSplitter(MAX_ANSWER_BYTES)
        self._pending: deque[_Pending] = deque()
        self._next_correlation_id = 0
        self._transport: asyncio.Transport | None = None
        self._why_lost = _BY_THE_BROKER
        self._answers = 0
        self._may_be_unread = False
        """Whether a request without an answer was written: then nothing shows that the broker has it all."""
        self.lost_by: Exception | None = None
        """The error that has ended the connection, such as an alert of TLS 1.3 after the handshake."""
        self.is_cut_off = False
        """Whether the broker has closed the connection at the first request after ApiVersions."""
        self._held: list[_Held] | None = None
        self._head: bytes | None = b""
        """The first bytes that came; None once an answer was understood."""
        self._silent = silent
        self._failure = failure
        self._answered = answered
        self._watch: asyncio.TimerHandle | None = None

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    @property
    def suspicion(self) -> str:
        """Suspected fault of an address that has never answered as a broker does; else empty."""
        return "" if self._head is None else suspicion(self._head)

    @property
    def was_served(self) -> bool:
        """Whether the broker has answered more than ApiVersions."""
        return self._answers > 1

    @property
    def in_flight(self) -> int:
        return len(self._pending) + len(self._held or ())

    @property
    def is_silent(self) -> bool:
        """Whether the oldest request has no answer though its sender thought that it would have one by now."""
        return bool(self._pending) and self._loop.time() >= self._pending[0].due

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's and the simulator's transports are no subclass of asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self.lost_by = error
        detail = f"{self.name}: {self._why_lost if error is None else error}"
        is_closed = (error is None or isinstance(error, ConnectionError)) and self._why_lost is _BY_THE_BROKER
        if is_closed and self._answers == 1 and self._pending and self._pending[0].api_key not in _AUTHENTICATION:
            self.is_cut_off = True
            detail += AFTER_THE_FIRST_ANSWER
        if self._watch is not None:
            self._watch.cancel()
        pending, self._pending = self._pending, deque()
        for request in pending:
            request.timer.cancel()
            if not request.future.done():
                request.future.set_exception(self._failure(detail, was_sent=True))
        held, self._held = self._held or (), None
        for waiting in held:
            if waiting.future is not None and not waiting.future.done():
                waiting.future.set_exception(self._failure(detail, was_sent=False))

    def data_received(self, data: bytes) -> None:
        if self._head is not None:
            self._head = (self._head + data[:HEAD_SIZE])[:HEAD_SIZE]
        try:
            for answer in self._splitter.feed(data):
                self._receive(answer)
        except WireError as error:
            self.abort(f"broken answer: {error}")

    def _receive(self, answer: bytes) -> None:
        if not self._pending:
            raise WireError("an answer that nothing asked for")
        pending = self._pending.popleft()
        pending.timer.cancel()
        try:
            correlation_id = int.from_bytes(answer[:4], "big", signed=True)
            if correlation_id != pending.correlation_id:
                raise WireError(f"answer {correlation_id} came where {pending.correlation_id} was due")
            result = Answer(answer, response_body_position(pending.api_key, pending.version, answer))
        except WireError as error:
            if not pending.future.done():
                pending.future.set_exception(self._failure(f"{self.name}: {error}", was_sent=True))
            raise
        self._head = None
        self._answers += 1
        if self._answered is not None:
            self._answered(pending.api_key, pending.version, len(answer))
        if not pending.future.done():
            pending.future.set_result(result)

    def hold(self) -> None:
        """Keep back every request but those of an authentication."""
        if self.is_open and self._held is None:
            self._held = []

    def release(self) -> None:
        """Write what was kept back, in order."""
        held, self._held = self._held or (), None
        for request in held:
            if request.future is None:
                self._write(request.api_key, request.version, request.body)
            elif not request.future.done():
                self._send(request)

    def send(
        self,
        api_key: int,
        version: int,
        body: Sequence[Part],
        timeout_ms: int,
        *,
        wait_ms: int = 0,
        is_authentication: bool = False,
    ) -> asyncio.Future[Answer]:
        """Write one request; the future gives its answer, or the ``failure``.

        ``wait_ms``: how long the broker may let it wait on purpose.
        """
        future: asyncio.Future[Answer] = self._loop.create_future()
        if self._transport is None or self._transport.is_closing():
            future.set_exception(self._failure(f"{self.name}: not connected", was_sent=False))
            return future
        request = _Held(api_key, version, body, timeout_ms, wait_ms, future)
        if self._held is not None and not is_authentication:
            self._held.append(request)
        else:
            self._send(request)
        return future

    def _send(self, request: _Held) -> None:
        api_key, version, body, timeout_ms, wait_ms, future = request
        assert future is not None
        correlation_id = self._write(api_key, version, body)
        timer = self._loop.call_later(timeout_ms / 1000, self.abort, f"no answer within {timeout_ms} ms")
        due = self._loop.time() + PATIENCE_S + wait_ms / 1000
        self._pending.append(_Pending(correlation_id, api_key, version, future, timer, due))
        if self._watch is None and self._silent is not None:
            self._watch = self._loop.call_later(PATIENCE_S, self._look)

    def _look(self) -> None:
        """Once a second while something is in flight."""
        self._watch = None
        if self._pending and self._silent is not None:
            self._watch = self._loop.call_later(PATIENCE_S, self._look)
            if self.is_silent:
                self._silent(self)

    def send_unanswered(self, api_key: int, version: int, body: Sequence[Part]) -> bool:
        """Write a request to which the broker gives no answer (Produce with acks=0). False: not connected."""
        if not self.is_open:
            return False
        self._may_be_unread = True
        if self._held is not None:
            self._held.append(_Held(api_key, version, body, 0, 0, None))
            return True
        self._write(api_key, version, body)
        return True

    def _write(self, api_key: int, version: int, body: Sequence[Part]) -> int:
        assert self._transport is not None
        correlation_id = self._next_correlation_id
        self._next_correlation_id = (correlation_id + 1) & 0x7FFFFFFF
        header = encode_request_header(api_key, version, correlation_id, self._client_id)
        self._transport.write(frame(header, *body))
        return correlation_id

    def abort(self, why: str) -> None:
        """Drop the connection; requests without an answer fail."""
        if self._transport is not None:
            self._why_lost = why
            self._transport.abort()

    def close(self) -> None:
        if self._transport is not None:
            self._why_lost = "closed by this client"
            if self._transport.get_extra_info("ssl_object") is not None and not self._may_be_unread:
                # Frames end by their length: there is no need to wait for the broker's end of TLS.
                self._transport.abort()
            else:
                self._transport.close()
