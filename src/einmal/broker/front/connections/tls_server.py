"""TLS of one listener: between the sockets and the connections of ``server``, which see decrypted bytes only.

A connection is one of its listener, with its limits, before its handshake begins. Handshakes are bounded: in number (a
new one replaces the oldest), in time and bytes each, and in the share of the event loop that all of them take, so that
a flood of them stalls nobody else. Neither memory nor a thread belongs to a connection beside OpenSSL's own state:
asyncio's and uvloop's TLS would keep a buffer of 256 KiB each.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from typing import Any, Final, cast

from einmal.broker.front.connections.server import Connection, Server
from einmal.broker.rpc.authentication import Authentication
from einmal.broker.tls import ListenerTls
from einmal.event_log import EventLog
from einmal.security.principal_mapping import NoRuleMatches
from einmal.security.sasl.handshake import refusal_of_client
from einmal.wire.frames import other_protocol

log = EventLog(__name__)

PENDING_MAX: Final = 1_000
"""Handshakes of a listener that have not ended."""
HANDSHAKE_MS_MAX: Final = 10_000
_HANDSHAKE_BYTES_MAX: Final = 128 * 1024
"""From one client: chains of certificates have some KB."""
_TURN_MS: Final = 2
"""Time on the event loop in one turn, for all handshakes."""
_WATCH_SECONDS: Final = 1.0
_FIRST_BYTES: Final = 5
_RECORD_BYTES: Final = 16 * 1024
"""Size of one TLS record; smaller pieces are joined."""
_CHUNK_BYTES: Final = 64 * 1024
"""So much is encrypted at once, before the socket takes more."""
_HINT: Final = "set the client's security.protocol to {protocol}, or use the port of a listener of its protocol"


class TlsServer:
    """Accepts the connections of a server's listener, whose TLS is ``tls``."""

    def __init__(self, server: Server, tls: ListenerTls) -> None:
        self.server = server
        self.tls = tls
        self._pending: dict[int, TlsLink] = {}
        """Handshakes that have not ended, oldest first."""
        self._waiting: deque[TlsLink] = deque()
        """Those of them whose client has sent something."""
        self._is_scheduled = False
        self._watch_timer: asyncio.TimerHandle | None = None

    def connection(self) -> asyncio.Protocol:
        """The protocol of a connection that is being accepted."""
        return cast(asyncio.Protocol, TlsLink(self, cast(Connection, self.server.connection())))

    def stop(self) -> None:
        if self._watch_timer is not None:
            self._watch_timer.cancel()

    # --- handshakes ------------------------------------------------------------------------------------------------

    def begin(self, link: TlsLink) -> None:
        if len(self._pending) >= PENDING_MAX:
            next(iter(self._pending.values())).fail(f"{PENDING_MAX} TLS handshakes are pending, its own for longest")
        self._pending[link.number] = link
        if self._watch_timer is None:
            self._watch_timer = asyncio.get_running_loop().call_later(_WATCH_SECONDS, self._watch)

    def end(self, link: TlsLink) -> None:
        self._pending.pop(link.number, None)

    def proceed(self, link: TlsLink) -> None:
        """Take the next step of a handshake, in turn with those of others."""
        self._waiting.append(link)
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._take_steps)

    def _take_steps(self) -> None:
        ends_ms = self.server.now_ms() + _TURN_MS
        while self._waiting and self.server.now_ms() < ends_ms:
            self._waiting.popleft().shake()
        self._is_scheduled = bool(self._waiting)
        if self._is_scheduled:
            asyncio.get_running_loop().call_soon(self._take_steps)

    def _watch(self) -> None:
        now_ms = self.server.now_ms()
        for link in list(self._pending.values()):
            if now_ms - link.begun_ms < HANDSHAKE_MS_MAX:
                break
            link.fail(f"its TLS handshake has not ended within {HANDSHAKE_MS_MAX // 1000} seconds")
        again = asyncio.get_running_loop().call_later
        self._watch_timer = again(_WATCH_SECONDS, self._watch) if self._pending else None


class TlsLink(asyncio.BufferedProtocol):
    """The protocol of a socket, and the transport of a ``Connection``."""

    def __init__(self, owner: TlsServer, connection: Connection) -> None:
        self._owner = owner
        self._connection = connection
        self.number = connection.number
        self.begun_ms = owner.server.now_ms()
        self._loop = asyncio.get_running_loop()
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls: ssl.SSLObject | None = None
        """None: the client has sent nothing."""
        self._first = b""
        self._handshake_bytes = 0
        self._is_waiting = False
        """For its turn to take a step of the handshake."""
        self._is_open = False
        self._is_closing = False
        self._is_lost = False
        self._is_reading = True
        self._can_write = True
        self._backlog: deque[memoryview] = deque()
        """Data that is not encrypted yet, because the socket is full."""
        self._backlog_bytes = 0

    # --- what the event loop calls ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._raw = cast(asyncio.Transport, transport)
        self._owner.begin(self)
        self._connection.connection_made(self)  # type: ignore[arg-type]  # as much of a transport as it uses

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._owner.server.scratch)

    def buffer_updated(self, nbytes: int) -> None:
        self.data_received(memoryview(self._owner.server.scratch)[:nbytes])

    def data_received(self, data: bytes | memoryview) -> None:
        if self._is_closing:
            return
        self._incoming.write(data)
        if self._is_open:
            self._read()
            return
        self._handshake_bytes += len(data)
        if len(self._first) < _FIRST_BYTES:
            self._first += bytes(data[:_FIRST_BYTES])
        if not self._is_waiting:
            self._is_waiting = True
            # The rest is the client's to keep until it is its turn.
            self._raw.pause_reading()
            self._owner.proceed(self)

    def pause_writing(self) -> None:
        self._can_write = False
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._can_write = True
        self._pump()
        if self._backlog or not self._can_write:
            return
        if self._is_closing:
            self._finish()
        self._connection.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        if self._tls is not None and not self._is_open and not self._is_closing:
            reason = "the client has ended the TLS handshake: it may not trust this broker's certificate"
            self._log_closed(reason)
        self._is_closing = self._is_lost = True
        self._owner.end(self)
        self._backlog.clear()
        # This object and its connection refer to each other, and wait for the collector: what is large does not.
        self._tls = None
        self._incoming = self._outgoing = ssl.MemoryBIO()
        self._connection.connection_lost(error)

    # --- handshake -------------------------------------------------------------------------------------------------

    def shake(self) -> None:
        """Take a step."""
        self._is_waiting = False
        if self._is_closing:
            return
        if self._is_reading:
            self._raw.resume_reading()
        if self._tls is None:
            spoken = other_protocol(self._first)
            if spoken != "TLS":
                mismatch = f"the client speaks {spoken}" if spoken else "the client does not speak TLS"
                protocol = self._owner.tls.listener.protocol
                self.fail(f"{mismatch}, and this listener is {protocol}: {_HINT.format(protocol=protocol)}")
                return
            self._tls = self._owner.tls.server.wrap_bio(self._incoming, self._outgoing, server_side=True)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            if self._handshake_bytes > _HANDSHAKE_BYTES_MAX:
                self.fail(f"its TLS handshake has more than {_HANDSHAKE_BYTES_MAX} bytes")
            return
        except ssl.SSLError as error:
            # With the alert by which the client learns why.
            self._flush()
            self.fail(f"TLS handshake failed: {refusal_of_client(error)}", is_sent=True)
            return
        self._flush()
        self._opened(self._tls.getpeercert(binary_form=True))

    def _opened(self, certificate: bytes | None) -> None:
        if certificate is not None:
            assert self._tls is not None
            try:
                principal = self._owner.tls.principal_of(certificate, is_resumed=bool(self._tls.session_reused))
            except (NoRuleMatches, ValueError) as error:
                self.fail(f"the client's certificate names nobody: {error}")
                return
            self._connection.authentication = Authentication(principal)
        self._is_open = True
        self._owner.end(self)
        self._pump()
        self._read()

    def fail(self, reason: str, *, is_sent: bool = False) -> None:
        """Disconnect. ``is_sent``: after the bytes that the socket has not taken."""
        self._log_closed(reason)
        self._is_closing = True
        self._owner.end(self)
        if is_sent:
            self._raw.close()
        else:
            self._raw.abort()

    def _log_closed(self, reason: str) -> None:
        log.warning(
            "connection_closed",
            "connection closed: %(reason)s",
            reason=reason,
            client=self._connection.address,
            listener=self._owner.tls.listener.name,
        )

    # --- reading ---------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Pass on what can be decrypted, until the connection wants no more."""
        assert self._tls is not None
        try:
            while self._is_reading and not self._is_closing:
                # The buffer may have to grow for the next bytes, which it cannot while we look at it.
                with self._connection.get_buffer(-1) as buffer:
                    count = cast(int, self._tls.read(len(buffer), cast(bytearray, buffer)))
                if not count:
                    self._end()
                    return
                self._connection.buffer_updated(count)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self._end()
            return
        except ssl.SSLError as error:
            self.fail(f"broken TLS: {refusal_of_client(error)}")
            return
        if self._outgoing.pending and not self._is_lost:
            # An answer of TLS itself, such as to a change of keys.
            if not self._can_write:
                self.fail("it does not receive the answers of TLS")
            else:
                self._flush()

    def _end(self) -> None:
        """The client sends no more."""
        self._is_closing = True
        self._raw.close()

    def _read_on(self) -> None:
        if self._is_open and not self._is_closing:
            self._read()

    # --- what the connection calls: a transport --------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._raw.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._raw.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        return self._backlog_bytes + self._raw.get_write_buffer_size()

    def pause_reading(self) -> None:
        self._is_reading = False
        if not self._is_waiting and not self._is_closing:
            self._raw.pause_reading()

    def resume_reading(self) -> None:
        self._is_reading = True
        if not self._is_waiting and not self._is_closing:
            self._raw.resume_reading()
        self._loop.call_soon(self._read_on)

    def write(self, data: bytes) -> None:
        self.writelines((data,))

    def writelines(self, parts: Iterable[bytes | bytearray | memoryview]) -> None:
        if self._is_closing:
            return
        for data in parts:
            if data:
                view = memoryview(data)
                self._backlog.append(view)
                self._backlog_bytes += len(view)
        self._pump()

    def close(self) -> None:
        """Close once everything is sent."""
        if self._is_closing:
            return
        self._is_closing = True
        if not self._backlog:
            self._finish()

    def abort(self) -> None:
        self._is_closing = True
        self._raw.abort()

    # --- writing ---------------------------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Encrypt what the socket takes."""
        while self._backlog and self._can_write and self._is_open and not self._is_lost:
            assert self._tls is not None
            piece = self._next_piece()
            self._backlog_bytes -= len(piece)
            self._tls.write(piece)
            self._flush()

    def _next_piece(self) -> bytes | memoryview:
        first = self._backlog.popleft()
        if len(first) > _CHUNK_BYTES:
            self._backlog.appendleft(first[_CHUNK_BYTES:])
            return first[:_CHUNK_BYTES]
        if len(first) >= _RECORD_BYTES or not self._backlog:
            return first
        parts, size = [first], len(first)
        while self._backlog and size < _RECORD_BYTES:
            view = self._backlog.popleft()
            if len(view) > _RECORD_BYTES - size:
                self._backlog.appendleft(view[_RECORD_BYTES - size :])
                view = view[: _RECORD_BYTES - size]
            parts.append(view)
            size += len(view)
        return b"".join(parts)

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._raw.write(self._outgoing.read())

    def _finish(self) -> None:
        """Announce the end, and close."""
        if self._is_open and self._tls is not None and not self._is_lost:
            # It raises an error unless the client has said the same: we do not wait for that.
            with suppress(ssl.SSLError):
                self._tls.unwrap()
            self._flush()
        self._raw.close()
