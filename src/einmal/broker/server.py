"""A listening port: bytes of a connection to frames, frames to the router, answers back in the order of the requests.

A connection may pipeline. Its requests start one after the other; an answer that is parked (Produce that waits for its
flush, Fetch that waits for data) does not hold up the start of the next one, but answers never overtake each other.
What one connection can cost is bounded: bytes handled per turn of the event loop, requests parked, bytes waiting in the
write buffer, size of a frame, idle time. Broken input closes the connection and is logged in one line.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Final, cast

from einmal.broker.authentication import Authentication
from einmal.broker.context import Body, Parked
from einmal.broker.refused_batches import RefusedBatches
from einmal.broker.router import Deferred, Parts, Router
from einmal.seams import Clock
from einmal.wire.errors import WireError
from einmal.wire.frames import FrameReceiver

if TYPE_CHECKING:
    from einmal.broker.config import BrokerConfig

log = logging.getLogger(__name__)

TURN_BYTES: Final = 256 * 1024
"""After so many request bytes other connections get their turn."""
PARKED_MAX: Final = 256
"""Requests of one connection whose answers wait; librdkafka and the Java client have far fewer in flight."""
_SCRATCH_BYTES: Final = 256 * 1024
_JOINED_BYTES_MAX: Final = 64 * 1024
"""Answers of one turn are sent together up to so many bytes: one call for many small ones, no copy of large ones."""
WRITE_BUFFER_HIGH: Final = 8 * 1024 * 1024
"""Above this many unsent bytes no further request of the connection is started."""


class Server:
    """All connections of one listener."""

    def __init__(self, router: Router, config: BrokerConfig, clock: Clock) -> None:
        self.router = router
        self.config = config
        self.clock = clock
        self.connections: dict[int, Connection] = {}
        self.scratch = bytearray(_SCRATCH_BYTES)
        """Where every connection's next bytes go: the loops that we run on read and report in one step."""
        self.is_serving = False
        self._next_id = 0
        self._idle_timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to serve. Requests that came before have waited."""
        self.is_serving = True
        self._watch_idle()
        for connection in list(self.connections.values()):
            connection.resume()

    def connection(self) -> asyncio.Protocol:
        """The protocol of a connection that is being accepted."""
        self._next_id += 1
        # It has both: ``data_received``, and the methods by which a real loop reads right into the frames.
        return cast(asyncio.Protocol, Connection(self, self._next_id))

    def stop(self) -> None:
        """Close every connection; what they have parked is dropped."""
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        for connection in list(self.connections.values()):
            connection.close()

    def _watch_idle(self) -> None:
        limit = self.config.connections_max_idle_ms
        self._idle_timer = asyncio.get_running_loop().call_later(limit / 2000, self._watch_idle)
        oldest = self.clock.now().monotonic_ms - limit
        for connection in list(self.connections.values()):
            if connection.last_active_ms < oldest and connection.is_idle:
                connection.close()


class Connection(asyncio.BufferedProtocol):
    def __init__(self, server: Server, connection_id: int) -> None:
        self._server = server
        self._id = connection_id
        self._loop = asyncio.get_running_loop()
        self._receiver = FrameReceiver(server.config.socket_request_max_bytes, server.scratch)
        self._frames: deque[bytearray] = deque()
        self._answers: deque[_Answer] = deque()
        self._unsent: Parts = []
        self._unsent_bytes = 0
        self._running: asyncio.Task[Body | Parked] | None = None
        self._is_scheduled = False
        self._is_reading = True
        self._can_write = True
        self._is_closed = False
        self._when_lost: dict[Hashable, Callable[[], None]] = {}
        self._is_lost = False
        self._address = "?"
        self.authentication = Authentication()
        self.refused_batches = RefusedBatches()
        self.last_active_ms = server.clock.now().monotonic_ms

    # --- what the event loop calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self._address = str(peer[0]) if peer else "?"
        if len(self._server.connections) >= self._server.config.max_connections:
            log.warning("connection refused: too many", extra={"client": self._address})
            self.close()
            return
        self._server.connections[self._id] = self
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_HIGH)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_closed:
            return
        try:
            self._frames.extend(self._receiver.received(nbytes))
        except WireError as error:
            self._refuse(error)
            return
        if not self._is_scheduled:
            self._run()

    def data_received(self, data: bytes) -> None:
        """For networks that bring bytes of their own."""
        rest = memoryview(data)
        while rest and not self._is_closed:
            room = self._receiver.buffer()[: len(rest)]
            room[:] = rest[: len(room)]
            rest = rest[len(room) :]
            self.buffer_updated(len(room))

    def pause_writing(self) -> None:
        self._can_write = False

    def resume_writing(self) -> None:
        self._can_write = True
        self._run()

    def connection_lost(self, error: Exception | None) -> None:
        self._is_closed = self._is_lost = True
        self._server.connections.pop(self._id, None)
        self._frames.clear()
        for answer in self._answers:
            answer.abandon()
        self._answers.clear()
        when_lost, self._when_lost = self._when_lost, {}
        for callback in when_lost.values():
            callback()

    @property
    def number(self) -> int:
        return self._id

    def when_lost(self, key: Hashable, callback: Callable[[], None]) -> None:
        """See ``context.Origin``."""
        if self._is_lost:
            self._loop.call_soon(callback)
        else:
            self._when_lost[key] = callback

    # --- requests ---

    @property
    def is_idle(self) -> bool:
        return not self._frames and not self._answers

    def resume(self) -> None:
        if not self._is_scheduled:
            self._run()

    def close(self) -> None:
        self._is_closed = True
        self._transport.close()

    def _run(self) -> None:
        """Start requests until there are none, one must end first, a limit is met, or it is another's turn."""
        self._is_scheduled = False
        self.last_active_ms = self._server.clock.now().monotonic_ms
        budget = TURN_BYTES
        while self._frames and self._may_start():
            if budget <= 0:
                self._is_scheduled = True
                self._loop.call_soon(self._run)
                break
            frame = self._frames.popleft()
            budget -= len(frame)
            self._start(frame)
            if self._unsent_bytes > _JOINED_BYTES_MAX:
                # The transport says at once when its buffer is full: then the loop ends.
                self._send()
        self._send()
        self._control_reading()

    def _send(self) -> None:
        """Hand the answers so far to the transport, small ones in one piece."""
        if not self._unsent:
            return
        unsent, self._unsent = self._unsent, []
        size, self._unsent_bytes = self._unsent_bytes, 0
        if size <= _JOINED_BYTES_MAX:
            self._transport.write(b"".join(unsent))
        else:
            self._transport.writelines(unsent)
            # asyncio's writelines of Python 3.12 and 3.13 forgets to look whether the buffer is too full now.
            self._transport.set_write_buffer_limits(high=WRITE_BUFFER_HIGH)

    def _may_start(self) -> bool:
        return (
            self._running is None
            and self._can_write
            and len(self._answers) < PARKED_MAX
            and self._server.is_serving
            and not self._is_closed
        )

    def _control_reading(self) -> None:
        """Stop reading while complete requests wait here: the peer's window, not our memory, holds the rest."""
        wants_more = not self._frames
        if wants_more != self._is_reading and not self._is_closed:
            self._is_reading = wants_more
            if wants_more:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _start(self, frame: bytearray) -> None:
        try:
            result = self._server.router.dispatch(frame, self._address, self)
        except WireError as error:
            self._refuse(error)
        except Exception as error:  # noqa: BLE001 - a bug in a handler ends its connection, never the broker.
            self._fail(error)
        else:
            if isinstance(result, Deferred):
                self._wait(result)
            elif self._answers:
                self._answers.append(_Answer(result))
            else:
                self._unsent += result
                self._unsent_bytes += sum(map(len, result))

    def _wait(self, deferred: Deferred) -> None:
        answer = _Answer(None)
        self._answers.append(answer)
        if deferred.parked is not None:
            self._park(answer, deferred, deferred.parked)
        else:
            assert deferred.running is not None
            self._running = self._loop.create_task(deferred.running)
            self._running.add_done_callback(lambda result: self._end(answer, deferred, result))

    def _park(self, answer: _Answer, deferred: Deferred, parked: Parked) -> None:
        answer.parked = parked.body
        answer.parked.add_done_callback(lambda body: self._complete(answer, deferred, body))

    def _end(self, answer: _Answer, deferred: Deferred, result: asyncio.Future[Body | Parked]) -> None:
        self._running = None
        is_answered = not result.cancelled() and result.exception() is None
        if is_answered and isinstance(parked := result.result(), Parked):
            self._park(answer, deferred, parked)
            if self._is_lost:
                answer.abandon()
        else:
            self._complete(answer, deferred, cast("asyncio.Future[Body]", result))
        if not self._is_scheduled and not self._is_closed:
            self._run()

    def _complete(self, answer: _Answer, deferred: Deferred, body: asyncio.Future[Body]) -> None:
        if body.cancelled():
            self.close()
            return
        error = body.exception()
        if error is not None:
            self._fail(error)
            return
        if self._is_closed:
            return
        answer.parts = self._server.router.encode(deferred.header, body.result())
        if answer is not self._answers[0]:
            return
        was_full = len(self._answers) >= PARKED_MAX
        while self._answers and (parts := self._answers[0].parts) is not None:
            self._unsent += parts
            self._unsent_bytes += sum(map(len, parts))
            self._answers.popleft()
        self._send()
        self.last_active_ms = self._server.clock.now().monotonic_ms
        if was_full and not self._is_scheduled:
            self._run()

    # --- failures ---

    def _refuse(self, error: WireError) -> None:
        log.warning("connection closed: %s: %s", type(error).__name__, error, extra={"client": self._address})
        self._abort()

    def _fail(self, error: BaseException) -> None:
        self._loop.call_exception_handler({"message": f"request of {self._address} failed", "exception": error})
        self._abort()

    def _abort(self) -> None:
        self._is_closed = True
        self._frames.clear()
        # What is answered already may still be sent.
        self._send()
        self._transport.close()


class _Answer:
    """The place of one answer in a connection's order."""

    __slots__ = ("parked", "parts")

    def __init__(self, parts: Parts | None) -> None:
        self.parts = parts
        self.parked: asyncio.Future[Body] | None = None

    def abandon(self) -> None:
        if self.parked is not None:
            self.parked.cancel()
