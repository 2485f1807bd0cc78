"""A TCP proxy before PostgreSQL that loses what a network can lose: the answer to COMMIT, or COMMIT itself."""

from __future__ import annotations

import contextlib
import socket
import threading
from enum import Enum, auto
from typing import Final

_COMMIT: Final = b"COMMIT\x00"
_CHUNK: Final = 65_536


class Fault(Enum):
    """What happens to the next COMMIT."""

    NONE = auto()
    CUT_BEFORE = auto()
    """It never reaches the server; both sides see the connection end."""
    LOSE_ANSWER = auto()
    """The server gets it; the client's connection ends, the server's stays open until the proxy is closed."""


class Proxy:
    """``with Proxy(port) as proxy``: forwards ``proxy.port``. ``fault`` applies to one COMMIT, then it is NONE."""

    def __init__(self, server_port: int) -> None:
        self._server_port = server_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.fault = Fault.NONE
        self._open: list[socket.socket] = []

    def __enter__(self) -> Proxy:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        for each in self._open:
            _end(each)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._server_port))
                except OSError:
                    client.close()
                    continue
                self._open += [client, server]
                threading.Thread(target=self._forward, args=(client, server), daemon=True).start()
                threading.Thread(target=_copy, args=(server, client), daemon=True).start()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(_CHUNK):
                if _COMMIT in data and self.fault is not Fault.NONE:
                    # Before either side can notice: who got an error reads here whether it came from the fault.
                    fault, self.fault = self.fault, Fault.NONE
                    if fault is Fault.LOSE_ANSWER:
                        # The client is gone first, so that no answer can overtake the fault.
                        _end(client)
                        server.sendall(data)
                    else:
                        _end(server)
                        _end(client)
                    return
                server.sendall(data)
        _end(server)


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(_CHUNK):
            sink.sendall(data)
    _end(sink)


def _end(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
