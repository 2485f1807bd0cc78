"""A network in memory: the seam's interface, with the delays and failures of a real network.

Bytes of one connection arrive in order; connections overtake each other. A connection may stall, it may be reset, and
then bytes in flight may still arrive: a request whose sender has given up (a *late request*), or an answer that is lost
after its request was carried out. A link is one direction between two hosts: it may be cut, and bytes in flight wait
(TCP retransmits them), or it may be slow. The machine of a host may lose its power, without notice to its peers. All of
this is drawn from the injected random source only.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections import deque
from dataclasses import dataclass
from typing import Any, Final, cast

from einmal.seams import ListenError, ProtocolFactory
from einmal.simulation.loop import Host, SimulatedLoop
from einmal.simulation.trace import Trace

_FIRST_FREE_PORT: Final = 40_000
_RETRANSMIT: Final = 0.1
_HIGH_WATER: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkFaults:
    """Delays in seconds; probabilities are per write, of any connection."""

    delay_min: float = 0.0002
    delay_max: float = 0.002
    spike: float = 0.0
    spike_max: float = 0.5
    split: float = 0.02
    reset: float = 0.0
    """Both ends notice; bytes in flight are lost."""
    give_up: float = 0.0
    """The client's end is reset; its requests in flight arrive late, up to ``late_max`` seconds, and are never
    answered."""
    late_max: float = 3.0
    stall: float = 0.0
    stall_max: float = 2.0
    late: float = 0.0
    """As ``give_up``, only for requests of ``late_apis``."""
    late_apis: tuple[int, ...] = ()


QUIET: Final = NetworkFaults()


class SimulatedNetwork:
    """The wire between all hosts; ``of(host)`` is a host's own view: the seam."""

    def __init__(self, loop: SimulatedLoop, source: random.Random, trace: Trace, faults: NetworkFaults = QUIET) -> None:
        self.loop = loop
        self.source = source
        self.trace = trace
        self.faults = faults
        self._listeners: dict[tuple[str, int], _Listener] = {}
        self._ends: dict[int, _End] = {}
        self._next_port = _FIRST_FREE_PORT
        self._next_connection = 0
        self._cuts: dict[tuple[str, str], int] = {}
        self._slow: dict[tuple[str, str], float] = {}
        self._dark: dict[str, list[_End]] = {}

    def of(self, host: Host) -> HostNetwork:
        return HostNetwork(self, host)

    # --- faults from outside ---

    def cut(self, source: str, target: str) -> None:
        """Cut the link from one host to another; bytes in flight wait. Cuts are counted."""
        self._cuts[(source, target)] = self._cuts.get((source, target), 0) + 1

    def mend(self, source: str, target: str) -> None:
        """Undo one cut."""
        left = self._cuts.get((source, target), 0) - 1
        if left > 0:
            self._cuts[(source, target)] = left
        else:
            self._cuts.pop((source, target), None)

    def slow_down(self, source: str, target: str, seconds: float) -> None:
        """Slow the link from one host to another; 0: back to normal."""
        if seconds > 0:
            self._slow[(source, target)] = seconds
        else:
            self._slow.pop((source, target), None)

    def heal(self) -> None:
        """No link is cut or slow."""
        self._cuts.clear()
        self._slow.clear()

    def is_cut(self, source: str, target: str) -> bool:
        return (source, target) in self._cuts

    def lose(self, host: Host, *, silently: bool = False) -> None:
        """The host's process has died: its listeners vanish, its peers' connections are reset.

        ``silently``: the machine is off, and its peers notice only when it is on again (``light``).
        """
        for address, listener in list(self._listeners.items()):
            if listener.host is host:
                del self._listeners[address]
        if silently:
            self._dark.setdefault(host.name, [])
        for end in list(self._ends.values()):
            if end.host is host:
                if silently:
                    self._dark[host.name].append(end.peer)
                end.vanish(silently=silently)

    def light(self, name: str) -> None:
        """The machine is on again: it knows nothing of the connections that it had."""
        for end in self._dark.pop(name, ()):
            end.lose_later(ConnectionResetError(104, "connection reset by peer"))

    def reset_all(self, host: Host) -> None:
        """Reset every connection of a host."""
        for end in list(self._ends.values()):
            if end.host is host and end.number in self._ends:
                end.reset()

    def sever(self, one: str, other: str) -> None:
        """Reset every connection between two hosts: bytes in flight between them are lost."""
        for end in list(self._ends.values()):
            if end.host.name == one and end.peer.host.name == other and end.number in self._ends:
                end.reset()

    # --- for the views and ends ---

    def bind(self, listener: _Listener, host: str, port: int) -> int:
        if port == 0:
            self._next_port += 1
            port = self._next_port
        if (host, port) in self._listeners:
            raise ListenError(OSError(98, "address already in use"), host, port)
        self._listeners[(host, port)] = listener
        return port

    def unbind(self, host: str, port: int) -> None:
        self._listeners.pop((host, port), None)

    def delay(self, source: str, target: str) -> float:
        faults = self.faults
        slow = self._slow.get((source, target), 0.0) if self._slow else 0.0
        if faults.spike and self.source.random() < faults.spike:
            return slow + self.source.uniform(faults.delay_max, faults.spike_max)
        return slow + faults.delay_min + (faults.delay_max - faults.delay_min) * self.source.random()

    async def connect(
        self, client: Host, factory: ProtocolFactory, host: str, port: int
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        await asyncio.sleep(self.delay(client.name, host))
        if self.is_cut(client.name, host) or self.is_cut(host, client.name) or host in self._dark:
            await asyncio.sleep(self.source.uniform(0.5, 2.0))
            raise TimeoutError(110, f"{host}:{port} cannot be reached")
        listener = self._listeners.get((host, port))
        if listener is None or not listener.host.is_alive:
            raise ConnectionRefusedError(111, f"nobody listens on {host}:{port}")
        self._next_connection += 2
        number = self._next_connection
        near = _End(self, client, number, (host, port), is_client=True)
        far = _End(self, listener.host, number + 1, (client.name, number))
        near.peer, far.peer = far, near
        self._ends[number], self._ends[number + 1] = near, far
        self.trace.event(self.loop.time(), f"connect {client.name} {host}:{port} {number}")
        self.loop.call_soon(far.open, listener.factory, context=listener.host.context.copy())
        protocol = factory()
        near.set_protocol(protocol)
        protocol.connection_made(near)
        return near, protocol

    def forget(self, end: _End) -> None:
        self._ends.pop(end.number, None)


class HostNetwork:
    """The seam of one host."""

    def __init__(self, network: SimulatedNetwork, host: Host) -> None:
        self._network = network
        self._host = host

    async def listen(self, factory: ProtocolFactory, host: str, port: int) -> _Listener:
        return _Listener(self._network, self._host, factory, host, port)

    async def connect(
        self, factory: ProtocolFactory, host: str, port: int, *, tls: ssl.SSLContext | None = None
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        assert tls is None, "the simulated network does not encrypt"
        return await self._network.connect(self._host, factory, host, port)


class _Listener:
    def __init__(self, network: SimulatedNetwork, host: Host, factory: ProtocolFactory, name: str, port: int) -> None:
        self.host = host
        self.factory = factory
        self._network = network
        self._name = name
        self._port = network.bind(self, name, port)

    @property
    def port(self) -> int:
        return self._port

    def close(self) -> None:
        self._network.unbind(self._name, self._port)


class _End(asyncio.Transport):
    """One end of a connection, as the transport of its protocol."""

    peer: _End

    def __init__(
        self,
        network: SimulatedNetwork,
        host: Host,
        number: int,
        peername: tuple[str, int],
        *,
        is_client: bool = False,
    ) -> None:
        super().__init__({"peername": peername})
        self.host = host
        self.number = number
        self._network = network
        self._loop = network.loop
        self._is_client = is_client
        self._context = host.context.copy()
        self._protocol: asyncio.Protocol | None = None
        self._arrives_at = 0.0
        self._in_flight = 0
        self._high, self._low = _HIGH_WATER, _HIGH_WATER // 4
        self._is_write_paused = False
        self._is_read_paused = False
        self._waiting: deque[bytes] = deque()
        self._held: list[bytes] = []
        self._is_closing = False
        self._is_lost = False
        self._is_deaf = False

    # --- the transport's interface ---

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = cast(asyncio.Protocol, protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def is_closing(self) -> bool:
        return self._is_closing

    def is_reading(self) -> bool:
        return not self._is_read_paused

    def pause_reading(self) -> None:
        self._is_read_paused = True

    def resume_reading(self) -> None:
        self._is_read_paused = False
        if self._waiting:
            self._loop.call_soon(self._receive, context=self._context)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = _HIGH_WATER if high is None else high
        self._low = self._high // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return self._in_flight

    def can_write_eof(self) -> bool:
        return False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing or self._is_lost or not len(data):
            return
        sent = bytes(data)
        faults = self._network.faults
        source = self._network.source
        if faults.reset and source.random() < faults.reset:
            self._lose_connection(sent)
            return
        if self._is_client and faults.give_up and source.random() < faults.give_up:
            self._give_up(sent)
            return
        if self._is_client and faults.late and _api_key(sent) in faults.late_apis and source.random() < faults.late:
            self._give_up(sent)
            return
        if faults.stall and source.random() < faults.stall:
            self._arrives_at = max(self._arrives_at, self._loop.time()) + source.uniform(0.0, faults.stall_max)
        if faults.split and len(sent) > 1 and source.random() < faults.split:
            middle = source.randrange(1, len(sent))
            self._send(sent[:middle])
            sent = sent[middle:]
        self._send(sent)

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def close(self) -> None:
        """Close after what was written has arrived."""
        if not self._is_closing:
            self._is_closing = True
            self._loop.call_soon(self._lost, None, context=self._context)
            self.peer.lose_later(None)

    def abort(self) -> None:
        self._is_closing = True
        self._loop.call_soon(self._lost, None, context=self._context)
        self._after_delay(self.peer, ConnectionResetError(104, "connection reset by peer"))

    # --- bytes under way ---

    def _send(self, data: bytes) -> None:
        self._in_flight += len(data)
        self._at_arrival(self.peer._arrive, data)
        if self._in_flight > self._high and not self._is_write_paused:
            self._is_write_paused = True
            self._protocol_or_fail().pause_writing()

    def _at_arrival(self, deliver: Any, value: Any) -> None:
        # Never before earlier bytes: a connection keeps its order.
        delay = self._network.delay(self.host.name, self.peer.host.name)
        self._arrives_at = max(self._arrives_at, self._loop.time() + delay)
        self._loop.call_at(self._arrives_at, deliver, value, context=self.peer._context)

    def lose_later(self, error: Exception | None) -> None:
        """The peer has died: this end notices after the peer's bytes have arrived."""
        self.peer._at_arrival(self._learn, error)

    def _learn(self, error: Exception | None) -> None:
        if self._held or self._network.is_cut(self.peer.host.name, self.host.name):
            self._loop.call_later(_RETRANSMIT, self._learn, error, context=self._context)
            return
        self._lost(error)

    def _arrive(self, data: bytes) -> None:
        if self._held or self._network.is_cut(self.peer.host.name, self.host.name):
            if not self._held:
                self._loop.call_later(_RETRANSMIT, self._retransmit, context=self._context)
            self._held.append(data)
            return
        self.peer._has_arrived(len(data))
        if self._is_lost or self._is_deaf:
            return
        self._waiting.append(data)
        self._receive()

    def _retransmit(self) -> None:
        if self._network.is_cut(self.peer.host.name, self.host.name):
            self._loop.call_later(_RETRANSMIT, self._retransmit, context=self._context)
            return
        held, self._held = self._held, []
        for data in held:
            self._arrive(data)

    def _has_arrived(self, size: int) -> None:
        self._in_flight -= size
        if self._is_write_paused and self._in_flight <= self._low and not self._is_lost:
            self._is_write_paused = False
            self._loop.call_soon(self._protocol_or_fail().resume_writing, context=self._context)

    def _receive(self) -> None:
        while self._waiting and not self._is_read_paused and not self._is_lost:
            data = self._waiting.popleft()
            self._network.trace.event(self._loop.time(), f"{self.host.name}<{self.number}", data)
            self._protocol_or_fail().data_received(data)

    def _protocol_or_fail(self) -> asyncio.Protocol:
        assert self._protocol is not None
        return self._protocol

    # --- beginnings and ends ---

    def open(self, factory: ProtocolFactory) -> None:
        """The accepting side: its protocol begins."""
        if self._is_lost:
            return
        self._protocol = factory()
        self._protocol.connection_made(self)

    def reset(self) -> None:
        """Both ends notice, each after its delay; bytes in flight are lost."""
        error = ConnectionResetError(104, "connection reset by peer")
        self._is_deaf = self.peer._is_deaf = True
        self._after_delay(self, error)
        self._after_delay(self.peer, error)

    def vanish(self, *, silently: bool) -> None:
        """This end's process has died. Its bytes in flight still arrive, then the peer notices, unless it must not."""
        self._is_lost = True
        self._network.forget(self)
        if not silently:
            self.peer.lose_later(ConnectionResetError(104, "connection reset by peer"))

    def _lose_connection(self, sent: bytes) -> None:
        """A reset in the middle of a write: it may have arrived or not, and its answer is lost."""
        if self._network.source.random() < 0.5:
            self._at_arrival(self.peer._arrive, sent)
            self._in_flight += len(sent)
            error = ConnectionResetError(104, "connection reset by peer")
            self._is_deaf = True
            self._after_delay(self, error)
            self.peer.lose_later(error)
        else:
            self.reset()

    def _give_up(self, sent: bytes) -> None:
        """This end is reset at once; its bytes stay in flight, and are late."""
        self._arrives_at = max(self._arrives_at, self._loop.time()) + self._network.source.uniform(
            0.0, self._network.faults.late_max
        )
        self._in_flight += len(sent)
        self._at_arrival(self.peer._arrive, sent)
        self._is_deaf = True
        error = ConnectionResetError(104, "connection reset by peer")
        self._after_delay(self, error)
        self.peer.lose_later(error)

    def _after_delay(self, end: _End, error: Exception | None) -> None:
        end._is_closing = True
        delay = self._network.delay(end.peer.host.name, end.host.name)
        self._loop.call_later(delay, end._lost, error, context=end._context)

    def _lost(self, error: Exception | None) -> None:
        if self._is_lost:
            return
        self._is_lost = self._is_closing = True
        self._waiting.clear()
        self._network.forget(self)
        self._network.trace.event(self._loop.time(), f"{self.host.name} lost {self.number}")
        if self._protocol is not None:
            self._protocol.connection_lost(error)


def _api_key(sent: bytes) -> int:
    """The API key of the request at the start of a write."""
    return int.from_bytes(sent[4:6], "big") if len(sent) >= 6 else -1
