"""``KafkaProxy``: the listening ports of a proxy, in a thread with an event loop of its own."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final, Protocol, Self, TypeVar

from einmal.chaos.proxy.addresses import Address
from einmal.chaos.proxy.frames import AnswerFrame, RequestFrame
from einmal.chaos.proxy.links import Gates, ProxyLink, Streams
from einmal.chaos.proxy.rules import RequestFault, Rule, Rules, Trigger, filter_of
from einmal.client.blocking.loop_thread import run_in
from einmal.event_log import EventLog

_logger = EventLog(__name__)

_CONNECT_S: Final = 10.0
_CLOSE_S: Final = 1.0
T = TypeVar("T")


class FrameObserver(Protocol):
    """Gets every frame, in the proxy's thread; ``at``: seconds since the epoch, when the proxy has read it."""

    def saw_request(self, at: float, request: RequestFrame) -> None: ...

    def saw_answer(self, at: float, answer: AnswerFrame) -> None:
        """The answer as the broker sent it, also one that the client does not get."""


@dataclass(frozen=True, slots=True)
class FaultRecord:
    """A fault that occurred. ``at``: seconds since the epoch. ``connection``: its number in the proxy."""

    at: float
    api: str
    version: int
    correlation_id: int
    client_id: str | None
    broker: int | None
    connection: int
    what: str

    def __str__(self) -> str:
        when = time.strftime("%H:%M:%S", time.localtime(self.at))
        return f"{when} {self.api} v{self.version} of {self.client_id!r} to broker {self.broker}: {self.what}"


@dataclass(slots=True, eq=False)
class _Listener:
    """One port of the proxy. ``broker``: None until an answer has named the broker at the address."""

    address: Address
    socket: socket.socket
    broker: int | None = None

    @property
    def port(self) -> int:
        return int(self.socket.getsockname()[1])


class KafkaProxy:
    """``with KafkaProxy("broker:9092") as proxy``: clients connect to ``proxy.bootstrap_servers``.

    ``port``: for the first bootstrap server; 0: any. ``upstream_tls``: for connections to the brokers. ``tls``: for
    connections of clients; its certificate must name ``host``, the loopback address that the proxy listens on and names
    in answers. ``faults`` lists the faults that occurred, oldest first.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        upstream_tls: ssl.SSLContext | None = None,
        tls: ssl.SSLContext | None = None,
        observer: FrameObserver | None = None,
    ) -> None:
        """Raises ValueError for an address without a port."""
        self._bootstrap = [_address(server) for server in bootstrap_servers.split(",")]
        self._host = host
        self._port = port
        self._upstream_tls = upstream_tls
        self._tls = tls
        self._observer = observer
        self._rules = Rules()
        self._listeners: list[_Listener] = []
        self._faults: list[FaultRecord] = []
        self._connections = 0
        self._cut: dict[str, Collection[int] | None] = {}
        """By direction the partitioned brokers; None: all of them."""
        self._healed = asyncio.Event()
        self._links: dict[asyncio.Task[None], Streams] = {}
        self._is_closing = False
        self._servers: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kafka-proxy", daemon=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> None:
        """Listen for clients, one port for each bootstrap server. Raises OSError for a port that is in use."""
        self._thread.start()
        ports = (self._port, *(0 for _ in self._bootstrap[1:]))
        try:
            self._run(
                lambda: [self._listen(address, port) for address, port in zip(self._bootstrap, ports, strict=True)]
            )
        except OSError:
            self.close()
            raise

    def close(self) -> None:
        """Close all connections and ports."""
        run_in(self._loop, self._close)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def bootstrap_servers(self) -> str:
        """Where clients connect to."""
        return ",".join(f"{self._host}:{listener.port}" for listener in self._listeners[: len(self._bootstrap)])

    @property
    def brokers(self) -> list[int]:
        """The ids that clients have received in metadata."""
        return sorted(listener.broker for listener in list(self._listeners) if listener.broker is not None)

    @property
    def faults(self) -> list[FaultRecord]:
        return list(self._faults)

    def take_faults(self) -> list[FaultRecord]:
        """Return those that occurred, and forget them: a proxy may run for days."""

        def take() -> list[FaultRecord]:
            taken, self._faults = self._faults, []
            return taken

        return self._run(take)

    # --- faults -------------------------------------------------------------------------------------------------------

    def on(
        self,
        *apis: str,
        client_id: str | None = None,
        transactional_id: str | None = None,
        broker: int | None = None,
    ) -> Trigger:
        """Choose requests: of these APIs (none: of all), such as ``EndTxn``, and with these values.

        Raises ValueError for an API that does not exist.
        """
        return Trigger(filter_of(apis, client_id, transactional_id, broker), self.add)

    def add(self, rule: Rule) -> None:
        """Activate a rule behind those that are active."""
        self._run(lambda: self._rules.add(rule))

    def clear(self) -> None:
        """Remove all rules. A partition lasts until ``heal``."""
        self._run(self._rules.clear)

    def partition(self, *brokers: int, requests: bool = True, answers: bool = True) -> None:
        """Let no request reach these brokers (none named: any broker), and no answer a client, until ``heal``.

        Connections stay open. What was sent meanwhile arrives late, as TCP does it after a partition. A broker's id is
        known once a client has received metadata through the proxy.
        """

        def cut() -> None:
            directions = [*(["requests"] if requests else []), *(["answers"] if answers else [])]
            self._cut = dict.fromkeys(directions, brokers or None)

        self._run(cut)

    def heal(self) -> None:
        """End all partitions."""

        def heal() -> None:
            self._cut = {}
            self._healed.set()
            self._healed = asyncio.Event()

        self._run(heal)

    # --- hooks of links, in the proxy's thread ------------------------------------------------------------------------

    def decide(self, request: RequestFrame) -> RequestFault | None:
        return self._rules.decide(request)

    def saw_request(self, at: float, request: RequestFrame) -> None:
        if self._observer is not None:
            self._observer.saw_request(at, request)

    def saw_answer(self, at: float, answer: AnswerFrame) -> None:
        if self._observer is not None:
            self._observer.saw_answer(at, answer)

    def fired(self, at: float, request: RequestFrame, fault: RequestFault) -> None:
        key_and_version = request.header.api_version, request.header.correlation_id, request.header.client_id
        self._faults.append(
            FaultRecord(at, request.api, *key_and_version, request.broker, request.connection, str(fault))
        )

    # --- ports and connections ----------------------------------------------------------------------------------------

    def _listen(self, address: Address, port: int = 0) -> _Listener:
        # Bound at once, so that an answer can name the port; connections wait until the server accepts them.
        try:
            listening = socket.create_server((self._host, port))
        except OSError as error:
            raise OSError(f"{self._host}:{port} cannot be listened on: {os.strerror(error.errno or 0)}") from error
        listener = _Listener(address, listening)
        self._listeners.append(listener)
        self._servers.add(self._loop.create_task(self._serve(listener)))
        return listener

    async def _serve(self, listener: _Listener) -> None:
        if self._is_closing:
            return
        server = await asyncio.start_server(
            lambda reader, writer: self._accepted(listener, Streams(reader, writer)),
            sock=listener.socket,
            ssl=self._tls,
            # Cancelled while it begins to serve, it would accept connections for ever.
            start_serving=False,
        )
        async with server:
            await server.serve_forever()

    def _route(self, broker: int, address: Address) -> Address:
        """The proxy's address for a broker; a broker that has moved keeps its port."""
        listener = next((listener for listener in self._listeners if listener.broker == broker), None)
        if listener is None:
            listener = next(
                (listener for listener in self._listeners if (listener.broker, listener.address) == (None, address)),
                None,
            )
        if listener is None:
            listener = self._listen(address)
        listener.broker, listener.address = broker, address
        return self._host, listener.port

    def _accepted(self, listener: _Listener, client: Streams) -> None:
        self._connections += 1
        task = self._loop.create_task(self._link(listener, client, self._connections))
        self._links[task] = client
        task.add_done_callback(lambda _: self._links.pop(task, None))

    async def _link(self, listener: _Listener, client: Streams, number: int) -> None:
        gates = Gates(lambda: self._gate("requests", listener), lambda: self._gate("answers", listener))
        try:
            await gates.requests()
            upstream = await self._connect(listener)
            try:
                await ProxyLink(number, client, upstream, lambda: listener.broker, self._route, gates, self).run()
            finally:
                await _closed(upstream)
        except (OSError, TimeoutError) as error:
            host, port = listener.address
            unconnected = "no connection to %(host)s:%(port)d: %(error)s"
            _logger.warning("proxy_unconnected", unconnected, host=host, port=port, error=error)
        finally:
            await _closed(client)

    async def _connect(self, listener: _Listener) -> Streams:
        host, port = listener.address
        async with asyncio.timeout(_CONNECT_S):
            return Streams(*await asyncio.open_connection(host, port, ssl=self._upstream_tls))

    async def _gate(self, direction: str, listener: _Listener) -> None:
        while direction in self._cut:
            brokers = self._cut[direction]
            if brokers is not None and listener.broker not in brokers:
                return
            await self._healed.wait()

    async def _close(self) -> None:
        self._is_closing = True
        # asyncio's own tasks of accepted connections close nothing unless they took their first step, and they take it
        # only while the server is open.
        for listener in self._listeners:
            self._loop.remove_reader(listener.socket)
        await asyncio.sleep(0)
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            for task in tasks:
                task.cancel()
            # A link that is cancelled before its first step closes nothing. From Python 3.12 on a server waits until
            # all of its connections are closed.
            for client in self._links.values():
                client.writer.transport.abort()
            await asyncio.gather(*tasks, return_exceptions=True)
        # Transports close in the next step.
        await asyncio.sleep(0)
        for listener in self._listeners:
            listener.socket.close()

    def _run(self, call: Callable[[], T]) -> T:
        """Call in the proxy's thread, and wait for the result."""

        async def run() -> T:
            return call()

        return run_in(self._loop, run)


async def _closed(streams: Streams) -> None:
    streams.writer.close()
    try:
        async with asyncio.timeout(_CLOSE_S):
            await streams.writer.wait_closed()
    except (OSError, TimeoutError):
        pass
    finally:
        # With TLS it waits until the other side closes, too, and not every one does.
        streams.writer.transport.abort()


def _address(text: str) -> Address:
    host, _, port = text.strip().rpartition(":")
    if not host or not port.isdecimal():
        raise ValueError(f"bootstrap server {text.strip()!r} is not host:port")
    return host.strip("[]"), int(port)
