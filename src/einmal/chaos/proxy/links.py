"""One connection of a client through the proxy, and its own connection to the broker.

Requests reach the broker in the client's order, and answers reach the client in the order of its requests, unless a
fault changes the former. Every request has a slot for its answer; a slot that stays empty silences the connection,
because a client cannot be sent a later answer first.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, Protocol

from einmal.chaos.proxy.addresses import Route, behind_proxy
from einmal.chaos.proxy.frames import AnswerFrame, RequestFrame, correlation_id
from einmal.chaos.proxy.refusals import refusal
from einmal.chaos.proxy.rules import Disturbance, RequestFault
from einmal.event_log import EventLog
from einmal.wire.errors import WireError
from einmal.wire.frames import frame

_logger = EventLog(__name__)

_LENGTH_BYTES: Final = 4
_FRAME_BYTES_MAX: Final = 128 * 1024 * 1024
_SASL_HANDSHAKE: Final = 17


class Hooks(Protocol):
    """The calls of a link to its proxy, in the proxy's thread."""

    def decide(self, request: RequestFrame) -> RequestFault | None: ...

    def saw_request(self, at: float, request: RequestFrame) -> None: ...

    def saw_answer(self, at: float, answer: AnswerFrame) -> None: ...

    def fired(self, at: float, request: RequestFrame, fault: RequestFault) -> None: ...


class _NoAnswer(Enum):
    """The ways in which a request stays without an answer."""

    BY_REQUEST = auto()
    """As Produce with acks=0."""
    DISCONNECT = auto()


@dataclass(slots=True, eq=False)
class _Slot:
    """The answer to a request, once it is known."""

    request: RequestFrame | None
    future: asyncio.Future[bytes | _NoAnswer]
    fault: RequestFault | None = None

    def resolve(self, answer: bytes | _NoAnswer) -> None:
        if not self.future.done():
            self.future.set_result(answer)


_OF_ANSWERS: Final = frozenset((Disturbance.DROP_ANSWER, Disturbance.DISCONNECT_AFTER, Disturbance.DELAY_ANSWER))


@dataclass(slots=True)
class Gates:
    """Wait while the broker is partitioned from its clients, in one direction each."""

    requests: Callable[[], Awaitable[None]]
    answers: Callable[[], Awaitable[None]]


@dataclass(slots=True)
class Streams:
    """Both ends of one connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def read(self) -> bytes:
        """Raises IncompleteReadError at the end, and WireError for a length that no frame has."""
        length = int.from_bytes(await self.reader.readexactly(_LENGTH_BYTES), "big", signed=True)
        if not 0 <= length <= _FRAME_BYTES_MAX:
            raise WireError(f"frame of {length} bytes; does the other side use TLS?")
        return await self.reader.readexactly(length)

    async def write(self, message: bytes) -> None:
        self.writer.write(frame(message))
        await self.writer.drain()


@dataclass(slots=True)
class ProxyLink:
    """``broker``: the node id of the broker, once it is known. ``route``: where the proxy listens for a broker."""

    number: int
    client: Streams
    upstream: Streams
    broker: Callable[[], int | None]
    route: Route
    gates: Gates
    hooks: Hooks
    _slots: asyncio.Queue[_Slot] = field(default_factory=asyncio.Queue)
    _forwarded: deque[_Slot] = field(default_factory=deque)
    """In the order in which the broker got the requests."""
    _overtaken: list[_Slot] = field(default_factory=list)
    _is_opaque: bool = False
    """Whether tokens of SASL follow, which have no headers (SaslHandshake v0)."""
    _is_deaf: bool = False
    """Whether the broker gets no more requests."""

    async def run(self) -> None:
        """Forward until one side closes its connection, or a fault does."""
        tasks = [asyncio.create_task(coroutine) for coroutine in (self._requests(), self._answers(), self._deliver())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if tasks[1] in done:
                # The broker has closed its connection: its last answers, and then the end, are on their way.
                await asyncio.wait({tasks[0], tasks[2]}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            for outcome in await asyncio.gather(*tasks, return_exceptions=True):
                if isinstance(outcome, WireError):
                    _logger.warning(
                        "proxy_connection_failed",
                        "connection %(number)d to broker %(broker)s: %(error)s",
                        number=self.number,
                        broker=self.broker(),
                        error=outcome,
                    )
                elif isinstance(outcome, Exception) and not isinstance(outcome, OSError):
                    _logger.error(
                        "proxy_connection_defect",
                        "connection %(number)d to broker %(broker)s",
                        number=self.number,
                        broker=self.broker(),
                        exc_info=outcome,
                    )

    # --- from the client to the broker --------------------------------------------------------------------------------

    async def _requests(self) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError):
            while True:
                message = await self.client.read()
                slot = _Slot(self._parsed(message), asyncio.get_running_loop().create_future())
                self._slots.put_nowait(slot)
                if slot.request is not None:
                    self.hooks.saw_request(time.time(), slot.request)
                    slot.fault = self.hooks.decide(slot.request)
                await self._forward(slot, message)

    def _parsed(self, message: bytes) -> RequestFrame | None:
        """None for a frame without a header."""
        if self._is_opaque:
            return None
        try:
            request = RequestFrame(message, self.number, self.broker())
        except WireError:
            return None
        self._is_opaque = request.header[:2] == (_SASL_HANDSHAKE, 0)
        return request

    async def _forward(self, slot: _Slot, message: bytes) -> None:
        kind = slot.fault and slot.fault.kind
        match kind:
            case Disturbance.DISCONNECT:
                slot.resolve(_NoAnswer.DISCONNECT)
            case Disturbance.DROP_REQUEST:
                self._is_deaf = True
            case Disturbance.ERROR:
                assert slot.request is not None and slot.fault is not None
                try:
                    slot.resolve(refusal(slot.request, slot.fault.error))
                except WireError as error:
                    forwarded = "%(api)s is forwarded: %(error)s"
                    _logger.warning("proxy_request_forwarded", forwarded, api=slot.request.api, error=error)
                    slot.fault = kind = None
            case Disturbance.DELAY:
                assert slot.fault is not None
                await asyncio.sleep(slot.fault.seconds)
        if kind not in _OF_ANSWERS:
            self._note(slot)
        if kind in (Disturbance.DISCONNECT, Disturbance.DROP_REQUEST, Disturbance.ERROR) or self._is_deaf:
            return
        await self.gates.requests()
        if kind is Disturbance.REORDER:
            assert slot.fault is not None
            self._overtaken.append(slot)
            asyncio.get_running_loop().call_later(slot.fault.seconds, self._forward_overtaken)
            return
        self._send(slot, message)
        if kind is Disturbance.DUPLICATE:
            self._send(_Slot(slot.request, asyncio.get_running_loop().create_future()), message)
        self._forward_overtaken()
        await self.upstream.writer.drain()

    def _note(self, slot: _Slot) -> None:
        if slot.request is not None and slot.fault is not None:
            self.hooks.fired(time.time(), slot.request, slot.fault)

    def _forward_overtaken(self) -> None:
        overtaken, self._overtaken = self._overtaken, []
        for slot in overtaken:
            if slot.request is not None and not self.upstream.writer.is_closing():
                self._send(slot, slot.request.frame)

    def _send(self, slot: _Slot, message: bytes) -> None:
        self._forwarded.append(slot)
        self.upstream.writer.write(frame(message))

    # --- from the broker to the client --------------------------------------------------------------------------------

    async def _answers(self) -> None:
        try:
            with contextlib.suppress(asyncio.IncompleteReadError):
                while True:
                    self._pair(await self.upstream.read())
        finally:
            for slot in self._forwarded:
                slot.resolve(_NoAnswer.DISCONNECT)
            end = asyncio.get_running_loop().create_future()
            end.set_result(_NoAnswer.DISCONNECT)
            self._slots.put_nowait(_Slot(None, end))

    def _pair(self, message: bytes) -> None:
        """Find the request of an answer. Those forwarded before it have none, as Produce with acks=0."""
        while self._forwarded:
            slot = self._forwarded.popleft()
            if slot.request is None:
                return slot.resolve(message)
            if slot.request.header.correlation_id == correlation_id(message):
                return self._answer(slot, AnswerFrame(slot.request, message))
            slot.resolve(_NoAnswer.BY_REQUEST)
        raise WireError("the broker sent an answer that no request asked for")

    def _answer(self, slot: _Slot, answer: AnswerFrame) -> None:
        self.hooks.saw_answer(time.time(), answer)
        kind = slot.fault and slot.fault.kind
        if kind in _OF_ANSWERS:
            self._note(slot)
        match kind:
            case Disturbance.DROP_ANSWER:
                return
            case Disturbance.DISCONNECT_AFTER:
                return slot.resolve(_NoAnswer.DISCONNECT)
        try:
            message = behind_proxy(answer, self.route)
        except WireError as error:
            unchanged = "an answer to %(api)s passes unchanged: %(error)s"
            _logger.warning("proxy_answer_unchanged", unchanged, api=answer.request.api, error=error)
            message = answer.frame
        slot.resolve(message)

    async def _deliver(self) -> None:
        while True:
            slot = await self._slots.get()
            message = await slot.future
            if message is _NoAnswer.BY_REQUEST:
                continue
            if slot.fault is not None and slot.fault.kind is Disturbance.DELAY_ANSWER:
                await asyncio.sleep(slot.fault.seconds)
            await self.gates.answers()
            if message is _NoAnswer.DISCONNECT:
                return
            await self.client.write(message)
