"""How tasks on executors reach the driver's claims: a small TCP service that lives as long as the query.

Theory of operation. All tasks of a batch write under one producer id and epoch. Brokers count sequences per producer
id and partition, so they cannot keep two writers of a partition apart: the second one's batches would be acknowledged
as repeats, and not written. So tasks take turns: one asks the driver for partitions before it writes there, and
reports after the last acknowledgement; the next one continues at the sequence that follows. And Spark does start a task
twice: a retry, a speculative copy, a stage that runs again. Only the first attempt with a claim ever gets one.

    task                        driver
    topic(name)             ->  partition count and numbers, fixed for this batch
    claim(numbers)          ->  AddPartitionsToTxn (TV0 and TV1), then the grant of those that are free
    records, acknowledged
    report(output)          ->  noted, and the partition is free
    leave                   ->  the attempt is done
                                close: every claim is reported, and Spark's result is the same; commit record; EndTxn

Invariants, and the ordering that keeps them:

1. *A partition has one writer at a time, a task one in all.* A claim ends with its report, never with its holder's
   death: the dead attempt may have requests under way, and its records are in the transaction, which must be aborted.
   The batch is then written again, in a new epoch. After a report nothing is under way but repeats of what was
   acknowledged, whose sequences are behind: brokers do not write those.
2. *The coordinator knows every partition before the first record.* A grant follows the answer to AddPartitionsToTxn.
   Requests of one transaction are answered one at a time, under its lock, so no grant overtakes another's request.
3. *No claim outlives its transaction.* ``end`` closes the claims under the same lock before EndTxn is sent: an
   AddPartitionsToTxn after EndTxn would open the next transaction. A late task names an old token, and is refused.
4. *A transaction is committed only if every claim is reported.* A task that has not reported may have a produce request
   under way, which a broker can still accept between EndTxn's answer and the marker
   (docs/decisions/0001-shared-producer-id-on-apache-kafka.md).
5. *A topic's partition count is fixed by the first question of a batch.* Two tasks with different counts would send one
   key to two partitions.
6. *A second attempt waits instead of failing*, because four failures of a task end Spark's job, and Spark ends the
   second attempt when the first has succeeded. So does a task whose partitions are all being written. It waits as long
   as something is reported now and then, and only if it has no partition itself, so no two attempts wait for each
   other.

Connections are mutual TLS under a key pair of the query's own, which reaches tasks inside Spark's tasks: only who has
the key gets beyond the handshake. A stranger has ten seconds for it, and few can try at once: one more ends the oldest,
so that those who stay silent do not keep tasks out; a task whose handshake was ended tries again.

``claim_messages`` has the questions and answers; a refusal always names what was refused. An attempt is at work until
it leaves or its connection ends; time-outs of TCP find a machine that died silently. Connections stay for the next task
of the worker. Knows nothing of Spark: ``open_transaction`` answers, ``commit_protocol.claims`` decides.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import socketserver
import ssl
import threading
import time
from typing import Any, Final

from einmal.event_log import EventLog
from einmal.security.shared_identity import SharedIdentity
from einmal.sinks.kafka.claim_client import WELCOME, Address
from einmal.sinks.kafka.claim_messages import (
    LINE_BYTES_MAX,
    Answer,
    ClaimDenied,
    LeaveService,
    Noted,
    Question,
    decode_question,
    encode,
)
from einmal.sinks.kafka.open_transaction import OpenTransaction

_logger = EventLog(__name__)

_PORTS_MAX: Final = 16
"""As many as Spark tries for its own services (spark.port.maxRetries)."""
_STRANGER_S: Final = 10.0
"""For a whole handshake, however many pieces it comes in."""
_STRANGERS_MAX: Final = 64
"""Connections, each with a thread, that have not finished their handshake."""
_LOGGED_MAX: Final = 20
"""Lines about strangers in ``_LOGGED_S``, whatever they do."""
_LOGGED_S: Final = 10.0
_POLL_S: Final = 0.05
"""How long ``close`` may wait for the thread."""
_SILENCE: Final = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 25_000}
"""In seconds, and probes: a machine that died silently, or is cut off, is noticed after some 25 s. The last one in
milliseconds: nothing is probed while an answer is not acknowledged, which TCP would send again for a quarter of an
hour."""


class ClaimService:
    """Listens from construction to ``close``. ``begin`` and ``end`` frame a transaction.

    ``identity``: of this query alone. ``port``: 0, or the first one to try; the queries of a driver take one each.
    Raises OSError.
    """

    def __init__(self, identity: SharedIdentity, bind: str, advertised: str, port: int = 0) -> None:
        self._transaction: OpenTransaction | None = None
        self._server = _listening(bind, port)
        self._server.service = self
        self._server.context = identity.context(is_server=True)
        self.address = Address(advertised, self._server.server_address[1], identity)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="einmal-claims", daemon=True
        )
        self._thread.start()

    def begin(self, transaction: OpenTransaction) -> None:
        self._transaction = transaction

    def end(self) -> None:
        """No claim is granted any more, and none is on its way: an AddPartitionsToTxn that came after EndTxn would
        open the transaction again."""
        transaction, self._transaction = self._transaction, None
        if transaction is not None:
            transaction.close(())

    def close(self) -> None:
        """Ends every connection."""
        self._server.shutdown()
        self._server.server_close()
        self._server.tasks.close()

    def answer(self, question: Question, connection: object) -> Answer:
        if isinstance(question, LeaveService):
            self.leave(connection)
            return Noted()
        transaction = self._transaction
        if transaction is None or question.attempt.token != transaction.token:
            return ClaimDenied("the claim belongs to a transaction that has ended")
        return transaction.answer(question, connection)

    def leave(self, connection: object) -> None:
        """Whoever was behind the connection is not any more."""
        transaction = self._transaction
        if transaction is not None:
            transaction.leave(connection)


class _Strangers:
    """The connections that have not proven yet that they are tasks'. Bounded, and so are the log lines about them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connections: dict[socket.socket, None] = {}
        self._logged_since = 0.0
        self._logged = 0

    def add(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections[connection] = None
            if len(self._connections) <= _STRANGERS_MAX:
                return
            oldest = next(iter(self._connections))
            del self._connections[oldest]
        _hang_up(oldest)

    def remove(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.pop(connection, None)

    def log(self, peer: tuple[Any, ...], error: OSError) -> None:
        with self._lock:
            now = time.monotonic()
            if now - self._logged_since >= _LOGGED_S:
                self._logged_since, self._logged = now, 0
            self._logged += 1
            if self._logged > _LOGGED_MAX:
                return
        reason = getattr(error, "reason", None) or error.strerror or "no handshake in time"
        _logger.warning(
            "claim_service_stranger",
            "the claim service has disconnected %(host)s:%(port)s, which is no task of this query (%(reason)s)",
            host=peer[0],
            port=peer[1],
            reason=reason,
        )


class _Tasks:
    """The connections of tasks, which stay when the task is done."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._is_closed = False

    def add(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.add(connection)
            if self._is_closed:
                _hang_up(connection)

    def remove(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.discard(connection)

    def close(self) -> None:
        with self._lock:
            self._is_closed = True
            for connection in self._connections:
                _hang_up(connection)


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        # Not SSLSocket's shutdown: it would end TLS under the thread that uses it.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256
    service: ClaimService
    context: ssl.SSLContext

    def __init__(self, address: tuple[str, int], handler: type[_Handler]) -> None:
        super().__init__(address, handler)
        self.strangers = _Strangers()
        self.tasks = _Tasks()

    def get_request(self) -> tuple[ssl.SSLSocket, Any]:
        connection, peer = super().get_request()
        # The handshake is the connection's own thread's: one that takes its time must not delay the next one.
        secured = self.context.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        self.strangers.add(secured)
        return secured, peer


def _listening(bind: str, port: int) -> _Server:
    for candidate in range(port, port + _PORTS_MAX) if port else ():
        try:
            return _Server((bind, candidate), _Handler)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
    if port:
        raise OSError(errno.EADDRINUSE, f"no port of {port} to {port + _PORTS_MAX - 1} is free on {bind}")
    return _Server((bind, 0), _Handler)


class _Handler(socketserver.StreamRequestHandler):
    server: _Server
    connection: ssl.SSLSocket
    timeout = _STRANGER_S

    def setup(self) -> None:
        super().setup()
        # Nothing else detects an executor's machine that died silently.
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _SILENCE.items():
            if hasattr(socket, name):
                self.connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def handle(self) -> None:
        if not self._is_task():
            return
        # A task may compute and write for as long as it takes between two questions.
        self.connection.settimeout(None)
        self.server.tasks.add(self.connection)
        try:
            while (line := self.rfile.readline(LINE_BYTES_MAX)) and self._answer(line):
                pass
        except OSError:
            # The task is gone.
            pass
        finally:
            self.server.tasks.remove(self.connection)
            self.server.service.leave(self)

    def _is_task(self) -> bool:
        try:
            self.connection.do_handshake()
            self.wfile.write(WELCOME)
        except OSError as error:
            self.server.strangers.log(self.client_address, error)
            return False
        finally:
            self.server.strangers.remove(self.connection)
        return True

    def finish(self) -> None:
        with contextlib.suppress(OSError):
            super().finish()

    def _answer(self, line: bytes) -> bool:
        """Whether the connection stays open."""
        try:
            question = decode_question(line)
        except ValueError:
            return False
        try:
            answer = self.server.service.answer(question, self)
        except Exception as error:  # noqa: BLE001 - the task must learn why, whatever it is
            answer = ClaimDenied(f"{type(error).__name__}: {error}")
        self.wfile.write(encode(answer))
        return not isinstance(answer, ClaimDenied)
