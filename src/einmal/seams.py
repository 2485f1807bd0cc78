"""The seams between einmal and the machine: clock and network. (The third, the disk, is ``log/disk.py``.)

The broker and the client use time and other machines only through these, so that the simulator can run the same code.
Timers come from the running event loop (``call_later``, ``asyncio.sleep``): in the simulator that loop has virtual
time.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable
from typing import Protocol

from einmal.types import Instant

ProtocolFactory = Callable[[], asyncio.Protocol]


class Clock(Protocol):
    def now(self) -> Instant: ...


class Listener(Protocol):
    """A listening socket."""

    @property
    def port(self) -> int: ...

    def close(self) -> None:
        """Stop accepting. Existing connections stay open."""


class ListenError(OSError):
    """Cannot listen on ``host:port``; ``errno``: why, or None if the name has no address."""

    def __init__(self, reason: OSError, host: str, port: int) -> None:
        super().__init__(reason.errno, reason.strerror or str(reason))
        self.host = host
        self.port = port


class Network(Protocol):
    async def listen(self, factory: ProtocolFactory, host: str, port: int) -> Listener:
        """Accept connections on ``host:port`` (port 0: a free one). Raises ListenError."""

    async def connect(
        self, factory: ProtocolFactory, host: str, port: int, *, tls: ssl.SSLContext | None = None
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        """Open a connection; ``tls``: encrypt it. Raises OSError, of which ssl.SSLError is one."""


class SystemClock:
    def now(self) -> Instant:
        return Instant(time.time_ns() // 1_000_000, time.monotonic_ns() // 1_000_000)


class _TcpListener:
    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        # A closed server has none.
        self._port = int(server.sockets[0].getsockname()[1])

    @property
    def port(self) -> int:
        return self._port

    def close(self) -> None:
        self._server.close()


class TcpNetwork:
    """The real network, through the running event loop. Failures are OSErrors."""

    async def listen(self, factory: ProtocolFactory, host: str, port: int) -> Listener:
        loop = asyncio.get_running_loop()
        # As in Java, ``::`` is every address, those of IPv4, too; asyncio's socket of it has those of IPv6 alone.
        where = "" if host == "::" else host
        try:
            server = await loop.create_server(factory, where, port, backlog=1024)
            ports = [opened.getsockname()[1] for opened in server.sockets]
            if len(set(ports)) > 1:
                # A socket for each version of IP, on any port.
                server.close()
                server = await loop.create_server(factory, where, ports[0], backlog=1024)
        except UnicodeError:
            raise ListenError(_no_host(host), host, port) from None
        except OSError as error:
            raise ListenError(error, host, port) from error
        return _TcpListener(server)

    async def connect(
        self, factory: ProtocolFactory, host: str, port: int, *, tls: ssl.SSLContext | None = None
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        try:
            return await asyncio.get_running_loop().create_connection(factory, host, port, ssl=tls)
        except ssl.SSLError:
            # An error of a certificate is a ValueError, too.
            raise
        except UnicodeError as error:
            raise _no_host(host) from error
        except (ValueError, OverflowError) as error:
            # A NUL in a name, or an invalid port: brokers may advertise anything.
            raise OSError(f"{host!r}, port {port} is not an address: {error}") from error


def _no_host(host: str) -> OSError:
    """An invalid host name (``a..b``) fails in Python's own encoding, before it is resolved."""
    return socket.gaierror(socket.EAI_NONAME, f"{host!r} is not a host's name")
