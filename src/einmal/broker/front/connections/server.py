"""A listening port: bytes of a connection to frames, frames to the router, answers back in the order of the requests.

A connection may pipeline. Its requests start one after the other; a parked answer (Produce that waits for its flush,
Fetch that waits for data) does not delay the start of the next request, but answers never overtake each other.

The cost of connections is bounded. Of one: time and bytes per turn of the event loop, requests parked, bytes of answers
that wait, size of a frame, time to complete a frame, time to receive an answer, idle time. Of all of a node:
connections, in all and of an address, bytes of requests (``queued.max.request.bytes``) and of answers. When the node's
memory is short, stalled connections that hold memory are disconnected first. Broken input closes the connection and is
logged in one line.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Final, cast

from einmal.broker.front.connections.arrivals import Arrivals
from einmal.broker.front.connections.connection_table import ConnectionTable
from einmal.broker.front.connections.muting import Muting
from einmal.broker.front.context import Body, Parked
from einmal.broker.front.produce.refused_batches import RefusedBatches
from einmal.broker.front.routing.router import Deferred, Parts, Router
from einmal.broker.resources.memory_budget import MemoryBudget, Share
from einmal.broker.rpc.authentication import Authentication
from einmal.event_log import EventLog
from einmal.seams import Clock
from einmal.wire.errors import OtherProtocol, WireError
from einmal.wire.frames import FrameReceiver

if TYPE_CHECKING:
    from einmal.broker.config import BrokerConfig

log = EventLog(__name__)
_CLOSED: Final = "connection closed: %(reason)s"

TURN_BYTES: Final = 256 * 1024
TURN_MS: Final = 2
"""After so many request bytes, or so long, other connections get their turn."""
PARKED_MAX: Final = 256
"""Requests of one connection whose answers wait; librdkafka and the Java client have far fewer in flight."""
HELD_BYTES_MAX: Final = 8 * 1024 * 1024
"""Above this many bytes of answers that wait, or may come to wait, no further request of the connection is started."""
_SCRATCH_BYTES: Final = 256 * 1024
_JOINED_BYTES_MAX: Final = 64 * 1024
"""Answers of one turn are sent together up to so many bytes: one call for many small ones, no copy of large ones."""
WRITE_BUFFER_HIGH: Final = 64 * 1024
"""Above this many unsent bytes no further request of the connection is started."""
_FRAME_OVERHEAD: Final = 128
"""Overhead of a frame beside its bytes."""
STALLED_MS_MAX: Final = 30_000
"""A client that stops receiving an answer, or stops sending a request, is disconnected after this."""
STALLED_SHORT_MS_MAX: Final = 2_000
"""The same while the node's memory is short."""
_UNAUTHENTICATED_PART: Final = 8
"""Connections that have not authenticated hold at most this part of ``queued.max.request.bytes``, beside the others."""
_CLOSE_SECONDS: Final = 5.0
"""How long a closing connection may receive its last answers."""
_WATCH_SECONDS: Final = 1.0


class Server:
    """All connections of one listener. ``arrivals`` None: no rate limits new ones."""

    def __init__(
        self,
        router: Router,
        config: BrokerConfig,
        clock: Clock,
        request_memory: MemoryBudget,
        response_memory: MemoryBudget,
        arrivals: Arrivals | None = None,
        unauthenticated_max: int | None = None,
    ) -> None:
        self.router = router
        self.config = config
        self.clock = clock
        self.request_memory = request_memory
        self.response_memory = response_memory
        self.arrivals = arrivals
        self.connections: ConnectionTable[Connection] = ConnectionTable(
            config.max_connections, config.max_connections_per_ip, config.connection_overrides
        )
        self.scratch = bytearray(_SCRATCH_BYTES)
        """Where every connection's next bytes go: the loops that we run on read and report in one step."""
        self.unauthenticated_max = unauthenticated_max
        """Bytes of a request before authentication; None: this listener needs none."""
        self.unauthenticated_memory = MemoryBudget(max(1, request_memory.limit // _UNAUTHENTICATED_PART))
        """The bytes of requests before authentication: who has authenticated does not wait for them."""
        self.is_serving = False
        self._next_id = 0
        self._watch_timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to serve, also the requests that have waited."""
        self.is_serving = True
        self._watch()
        for connection in self.connections.all():
            connection.resume()

    def connection(self) -> asyncio.Protocol:
        """The protocol of a connection that is being accepted."""
        self._next_id += 1
        # It has both: ``data_received``, and the methods by which a real loop reads directly into the frames.
        return cast(asyncio.Protocol, Connection(self, self._next_id))

    def stop(self) -> None:
        """Close every connection; their parked answers are dropped."""
        if self._watch_timer is not None:
            self._watch_timer.cancel()
        for connection in self.connections.all():
            connection.close()

    def admit(self, connection: Connection) -> bool:
        """Whether a new connection may stay. The one that has been idle for longest is closed for it."""
        problem = self.connections.problem_of(connection.address)
        if problem is None and self.connections.is_full:
            idlest = self.connections.idlest(self.now_ms())
            if idlest is None:
                problem = f"all {len(self.connections)} connections are in use (max.connections)"
            else:
                self.connections.remove(idlest)
                idlest.drop("idle for longest, and max.connections are reached")
        if problem is not None:
            log.warning(
                "connection_refused", "connection refused: %(reason)s", reason=problem, client=connection.address
            )
            return False
        self.connections.add(connection)
        return True

    def now_ms(self) -> int:
        return self.clock.now().monotonic_ms

    def _watch(self) -> None:
        """Close connections that are idle, and those that have stopped half-way."""
        self._watch_timer = asyncio.get_running_loop().call_later(_WATCH_SECONDS, self._watch)
        now_ms = self.now_ms()
        for memory in (self.request_memory, self.unauthenticated_memory):
            if memory.is_exhausted:
                self._make_room(memory, now_ms)
        idle_since = now_ms - self.config.connections_max_idle_ms
        for connection in self.connections.all():
            reason = connection.stalled(now_ms)
            if reason is not None:
                connection.drop(reason)
            elif connection.last_active_ms < idle_since and connection.is_idle:
                connection.close()
            else:
                # The memory that it waited for may be available by now.
                connection.control_reading()

    def _make_room(self, memory: MemoryBudget, now_ms: int) -> None:
        """Drop the requests that have been incomplete for longest: while memory is short they keep others out."""
        excess = memory.held - memory.limit * 3 // 4
        half_here = [
            connection
            for connection in self.connections.all()
            # Requests that a throttled client has sent beforehand must not keep others out either.
            if connection.requests.budget is memory
            and (
                now_ms - connection.begun_ms >= STALLED_SHORT_MS_MAX
                or (connection.muting.is_on and connection.requests.held)
            )
        ]
        for connection in sorted(half_here, key=lambda connection: connection.begun_ms):
            if excess > 0:
                excess -= connection.requests.held
                connection.drop("queued.max.request.bytes are reached, and its requests have been here for longest")


class Connection(asyncio.BufferedProtocol):
    def __init__(self, server: Server, connection_id: int) -> None:
        self._server = server
        self.number = connection_id
        self._loop = asyncio.get_running_loop()
        self._is_limited = server.unauthenticated_max is not None
        """Whether requests are limited further until the sender has authenticated."""
        self._receiver = FrameReceiver(
            server.unauthenticated_max or server.config.socket_request_max_bytes, server.scratch
        )
        self._frames: deque[bytearray] = deque()
        self._waiting_bytes = 0
        """Memory of these frames."""
        self._answers: deque[_Answer] = deque()
        self._unsent: Parts = []
        self._unsent_bytes = 0
        self._running: asyncio.Task[Body | Parked] | None = None
        self._is_scheduled = False
        self._is_reading = True
        self._can_write = True
        self._is_closed = False
        self._is_ending = False
        """Whether it is closed once its last answer is sent."""
        self._when_lost: dict[Hashable, Callable[[], None]] = {}
        self._is_lost = False
        self.address = "?"
        self.authentication = Authentication()
        self.refused_batches = RefusedBatches()
        self.requests = Share(server.unauthenticated_memory if self._is_limited else server.request_memory)
        """Memory of its requests that have not begun: frames that wait or are incomplete."""
        self._held = Share(server.response_memory)
        """Answers that wait for earlier ones."""
        self._leaving = Share(server.response_memory)
        """Answers that the client has not received."""
        self._reserved = 0
        """The size that parked answers may reach."""
        self._close_timer: asyncio.TimerHandle | None = None
        self.last_active_ms = server.now_ms()
        self._received_ms = self.last_active_ms
        """When bytes came last."""
        self.begun_ms: float = math.inf
        """When the incomplete request began."""
        self._taken_ms = self.last_active_ms
        """When the client last received a part of a pending answer."""
        self.muting = Muting(self._loop, self.resume)

    # --- what the event loop calls ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if peer else "?"
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_HIGH)
        if not self._server.admit(self):
            self.close()
        elif self._server.arrivals is not None:
            # Only then the transport reads, and can stop: that of uvloop would begin after this.
            self._loop.call_soon(self._server.arrivals.pace, self)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.buffer()

    def buffer_updated(self, nbytes: int) -> None:
        if self._is_closed:
            return
        if self._is_limited and self.authentication.is_done:
            self._is_limited = False
            self.requests.set(0)
            self.requests = Share(self._server.request_memory)
            self._receiver.limit(self._server.config.socket_request_max_bytes)
        try:
            frames = self._receiver.received(nbytes)
        except WireError as error:
            self._refuse(error)
            return
        self._received_ms = self._server.now_ms()
        if not self._receiver.filled:
            self.begun_ms = math.inf
        elif frames or self.begun_ms == math.inf:
            self.begun_ms = self._received_ms
        if frames:
            self._frames.extend(frames)
            self._waiting_bytes += sum(map(len, frames)) + _FRAME_OVERHEAD * len(frames)
            self._server.connections.used(self)
        if not self._is_scheduled:
            self._run()

    def data_received(self, data: bytes) -> None:
        """For networks that pass their own bytes."""
        rest = memoryview(data)
        while rest and not self._is_closed:
            room = self._receiver.buffer()[: len(rest)]
            room[:] = rest[: len(room)]
            rest = rest[len(room) :]
            self.buffer_updated(len(room))

    def pause_writing(self) -> None:
        self._can_write = False
        self._taken_ms = self._server.now_ms()

    def resume_writing(self) -> None:
        self._can_write = True
        self._leaving.set(0)
        if not self._is_closed:
            self._run()

    def connection_lost(self, error: Exception | None) -> None:
        is_ended_here = self._is_closed or self._is_ending or self._running is not None
        has_begun = self._receiver.filled > 0 or self.authentication.exchange is not None
        if self._is_limited and has_begun and not is_ended_here:
            reason = "the client has left in the middle of its authentication"
            listener = self._server.router.listener.name
            log.warning("connection_closed", _CLOSED, reason=reason, client=self.address, listener=listener)
        self._is_closed = self._is_lost = True
        if self._close_timer is not None:
            self._close_timer.cancel()
        self.muting.stop()
        self._server.connections.remove(self)
        self._frames.clear()
        for answer in self._answers:
            answer.abandon()
        self._answers.clear()
        for share in (self.requests, self._held, self._leaving):
            share.set(0)
        when_lost, self._when_lost = self._when_lost, {}
        for callback in when_lost.values():
            callback()

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

    def mute(self, milliseconds: int) -> None:
        """See ``context.Origin``."""
        if not self._is_lost:
            self.muting.extend(self._server.now_ms(), milliseconds)
            self.control_reading()

    def resume(self) -> None:
        if not self._is_scheduled:
            self._run()

    def close_after_answers(self) -> None:
        """See ``context.Origin``."""
        self._is_ending = True

    def close(self) -> None:
        """Close when the client has received its answers, but do not wait for ever."""
        self._is_closed = True
        self._transport.close()
        if self._close_timer is None and not self._is_lost:
            self._close_timer = self._loop.call_later(_CLOSE_SECONDS, self._transport.abort)

    def turn_away(self, milliseconds: int) -> None:
        """See ``arrivals.Arriving``."""
        if self._is_closed:
            return
        self._is_closed = True
        self._transport.pause_reading()
        self._close_timer = self._loop.call_later(milliseconds / 1000, self._transport.abort)

    def drop(self, reason: str) -> None:
        """Disconnect at once: unsent answers are lost."""
        listener = self._server.router.listener.name
        log.warning("connection_closed", _CLOSED, reason=reason, client=self.address, listener=listener)
        self._is_closed = True
        self._transport.abort()

    def stalled(self, now_ms: int) -> str | None:
        """Return what the client has left incomplete for too long."""
        if not self._can_write:
            left = self._transport.get_write_buffer_size()
            if left < self._leaving.held:
                self._taken_ms = now_ms
                self._leaving.set(left)
            is_short = self._server.response_memory.is_exhausted
            if now_ms - self._taken_ms >= (STALLED_SHORT_MS_MAX if is_short else STALLED_MS_MAX):
                return f"{left} bytes of its answers are not taken"
        begun = self._receiver.filled
        if begun and self._is_reading and now_ms - self._received_ms >= STALLED_MS_MAX:
            return f"{begun} bytes of a request came, and no more"
        return None

    def _run(self) -> None:
        """Start requests until there are none, one must end first, a limit is met, or it is another's turn."""
        self._is_scheduled = False
        now_ms = self.last_active_ms = self._server.now_ms()
        budget, ends_ms = TURN_BYTES, now_ms + TURN_MS
        while self._frames and self._may_start():
            if budget <= 0 or now_ms >= ends_ms:
                self._is_scheduled = True
                self._loop.call_soon(self._run)
                break
            frame = self._frames.popleft()
            budget -= len(frame)
            self._waiting_bytes -= len(frame) + _FRAME_OVERHEAD
            self._start(frame)
            now_ms = self._server.now_ms()
            if self._unsent_bytes > _JOINED_BYTES_MAX:
                # The transport reports at once when its buffer is full: then the loop ends.
                self._send()
        self._send()
        self.requests.set(self._receiver.reserved + self._waiting_bytes)
        self.control_reading()

    def _send(self) -> None:
        """Hand the answers so far to the transport, and close it after the last one."""
        if self._unsent:
            self._write()
        if self._is_ending and not self._answers:
            self.close()

    def _write(self) -> None:
        """Small answers in one piece."""
        unsent, self._unsent = self._unsent, []
        size, self._unsent_bytes = self._unsent_bytes, 0
        if size <= _JOINED_BYTES_MAX:
            self._transport.write(b"".join(unsent))
        else:
            self._transport.writelines(unsent)
            # asyncio's writelines of Python 3.12 and 3.13 does not check whether the buffer is too full now.
            self._transport.set_write_buffer_limits(high=WRITE_BUFFER_HIGH)
        if not self._can_write:
            self._leaving.set(self._transport.get_write_buffer_size())

    def _may_start(self) -> bool:
        return (
            self._running is None
            and not self.muting.is_on
            and self._can_write
            and len(self._answers) < PARKED_MAX
            and self._held.held + self._reserved < HELD_BYTES_MAX
            and self._server.is_serving
            and not self._is_closed
            and not self._is_ending
        )

    def control_reading(self) -> None:
        """Stop reading while muted, or while complete requests wait here: the peer's window, not our memory, holds the
        rest.

        The same for an incomplete request, while the requests of all connections together are too large.
        """
        is_ready = not self._frames and not self.muting.is_on
        wants_more = is_ready and not (self._receiver.reserved and self.requests.budget.is_exhausted)
        if wants_more != self._is_reading and not self._is_closed:
            self._is_reading = wants_more
            if wants_more:
                self._received_ms = self._server.now_ms()
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _start(self, frame: bytearray) -> None:
        try:
            result = self._server.router.dispatch(frame, self.address, self)
        except WireError as error:
            self._refuse(error)
        except Exception as error:  # noqa: BLE001 - a bug in a handler ends its connection, never the broker.
            self._fail(error)
        else:
            if isinstance(result, Deferred):
                self._wait(result)
            elif self._answers:
                self._answers.append(_Answer(result))
                self._held.add(sum(map(len, result)))
            else:
                self._unsent += result
                self._unsent_bytes += sum(map(len, result))

    def _wait(self, deferred: Deferred) -> None:
        answer = _Answer(None)
        self._answers.append(answer)
        if deferred.parked is not None:
            self._park(answer, deferred, deferred.parked)
        else:
            self._running = self._loop.create_task(self._server.router.finish(deferred))
            self._running.add_done_callback(lambda task: self._end(answer, deferred, task))

    def _park(self, answer: _Answer, deferred: Deferred, parked: Parked) -> None:
        answer.parked = parked
        # Hundreds of Fetches may be parked in a row. Woken together, they would hold gigabytes.
        self._reserved += parked.bytes_max
        parked.body.add_done_callback(lambda body: self._complete(answer, deferred, body))

    def _end(self, answer: _Answer, deferred: Deferred, task: asyncio.Task[Body | Parked]) -> None:
        self._running = None
        if not task.cancelled() and task.exception() is None and isinstance(parked := task.result(), Parked):
            if self._is_lost:
                parked.body.cancel()
            else:
                self._park(answer, deferred, parked)
        else:
            self._complete(answer, deferred, cast("asyncio.Future[Body]", task))
        if not self._is_scheduled and not self._is_closed:
            self._run()

    def _complete(self, answer: _Answer, deferred: Deferred, body: asyncio.Future[Body]) -> None:
        if body.cancelled():
            self.close()
            return
        error = body.exception()
        if isinstance(error, WireError):
            self._refuse(error)
            return
        if error is not None:
            self._fail(error)
            return
        if self._is_closed:
            return
        router = self._server.router
        answer.parts = router.encode(deferred.header, body.result(), deferred.charge)
        router.answered(deferred.header, deferred.begun)
        if answer.parked is not None:
            self._reserved -= answer.parked.bytes_max
        self._held.add(sum(map(len, answer.parts)))
        if answer is not self._answers[0]:
            return
        while self._answers and (parts := self._answers[0].parts) is not None:
            size = sum(map(len, parts))
            self._held.add(-size)
            self._unsent += parts
            self._unsent_bytes += size
            self._answers.popleft()
        self._send()
        self.last_active_ms = self._server.now_ms()
        if self._frames and not self._is_scheduled:
            self._run()

    # --- failures ---

    def _refuse(self, error: WireError) -> None:
        listener = self._server.router.listener
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, OtherProtocol):
            reason = (
                f"{error}, and this listener is {listener.protocol}: set the client's security.protocol to "
                f"{listener.protocol}, or use the port of a listener of its protocol"
            )
        log.warning("connection_closed", _CLOSED, reason=reason, client=self.address, listener=listener.name)
        self._abort()

    def _fail(self, error: BaseException) -> None:
        self._loop.call_exception_handler({"message": f"request of {self.address} failed", "exception": error})
        self._abort()

    def _abort(self) -> None:
        self._is_closed = True
        self._frames.clear()
        # Existing answers may still be sent.
        self._send()
        self.close()


class _Answer:
    """The position of one answer in a connection's order."""

    __slots__ = ("parked", "parts")

    def __init__(self, parts: Parts | None) -> None:
        self.parts = parts
        self.parked: Parked | None = None

    def abandon(self) -> None:
        if self.parked is not None:
            self.parked.body.cancel()
