"""How tasks on executors reach the driver's claims: a small TCP service that lives as long as the query.

Theory of operation. All tasks of a batch write under one producer id and epoch. Brokers count sequences per producer
id and partition, so they cannot keep two writers of a partition apart: the second one's batches would be acknowledged
as repeats, and not written. Spark does start a task twice: a retry, a speculative copy, a stage that runs again. So a
task asks the driver before its first record in a partition, and reports after its last acknowledgement.

    task                        driver
    topic(name)             ->  partition count and numbers, fixed for this batch
    claim(number)           ->  AddPartitionsToTxn (TV0 and TV1), then the grant
    records, acknowledged
    report(output)          ->  noted
                                close: every claim is reported, and Spark's result is the same; commit record; EndTxn

Invariants, and the ordering that keeps them:

1. *A partition has one writer per transaction.* The first claim wins, also after its owner has died: records of the
   dead attempt are in the transaction, which must be aborted. The batch is then written again, in a new epoch.
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
   second attempt when the first has succeeded. It waits a bounded time, and only if it owns no partition itself, so no
   two attempts wait for each other.

Connections are mutual TLS under a key pair of the query's own, which reaches tasks inside Spark's tasks: only who has
the key gets beyond the handshake. A stranger has ten seconds for it, and few can try at once: one more ends the oldest,
so that those who stay silent do not keep tasks out; a task whose handshake was ended tries again.

One JSON object per line, each answered by one line; an answer always names what was refused. An attempt is at work as
long as its connection stands; keepalive probes find a machine that died silently. Knows nothing of Spark:
``pipeline.claims`` decides.
"""

from __future__ import annotations

import contextlib
import errno
import json
import logging
import secrets
import socket
import socketserver
import ssl
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, Final

from einmal.pipeline.claims import Claims, Denied, Output
from einmal.pipeline.commit_record import RESERVED_TOPICS
from einmal.security.shared_identity import SharedIdentity
from einmal.spark.options import reserved
from einmal.types import TopicPartition

_logger = logging.getLogger(__name__)

_WELCOME: Final = b"welcome\n"
"""The driver's first line. With TLS 1.3 a client's handshake is over before the driver has verified it."""
_LINE_BYTES_MAX: Final = 64 * 1024
_PORTS_MAX: Final = 16
"""As many as Spark tries for its own services (spark.port.maxRetries)."""
_CONNECT_S: Final = 10.0
_AGAIN_S: Final = 0.05
_STRANGER_S: Final = 10.0
"""For a whole handshake, however many pieces it comes in."""
_STRANGERS_MAX: Final = 64
"""Connections, each with a thread, that have not finished their handshake."""
_LOGGED_MAX: Final = 20
"""Lines about strangers in ``_LOGGED_S``, whatever they do."""
_LOGGED_S: Final = 10.0
_ANSWER_S: Final = 120.0
"""Under TV0 and TV1 the driver adds the partition to the transaction before it answers."""
_WAIT_S: Final = 120.0
"""How long second attempts wait for a partition's owner: an owner that hangs must fail the batch eventually."""
_WAIT_STEP_S: Final = 10.0
_COUNTED_S: Final = 5.0
"""From an owner's report until Spark has counted its success, and has ended the other attempts."""
_KEEPALIVE: Final = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""In seconds, and probes: a machine that died silently is noticed after some 25 s."""


class ClaimRefused(Exception):
    """The driver denies this task the partition: another attempt owns it, or the transaction has ended."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a task finds the service, and how it proves that it is one. Travels inside the task."""

    host: str
    port: int
    identity: SharedIdentity


class TopicTable:
    """The partition counts of one batch. A count is looked up once and does not change until the batch has ended.

    Every partition gets a number, its topic's base plus its own, by which rows are routed.
    """

    def __init__(self, count_of: Callable[[str], int]) -> None:
        self._count_of = count_of
        self._topics: dict[str, tuple[int, int]] = {}
        self._total = 0

    def look_up(self, topic: str) -> tuple[int, int]:
        """(base, count). Raises ClaimRefused for an internal topic, and what ``count_of`` raises."""
        known = self._topics.get(topic)
        if known is None:
            if topic in RESERVED_TOPICS:
                raise ClaimRefused(reserved(topic))
            known = (self._total, self._count_of(topic))
            self._topics[topic] = known
            self._total += known[1]
        return known

    def target(self, number: int) -> TopicPartition:
        for topic, (base, count) in self._topics.items():
            if base <= number < base + count:
                return TopicPartition(topic, number - base)
        raise ClaimRefused(f"no partition has the number {number} in this batch")


class OpenTransaction:
    """The transaction that is open, as the service sees it.

    ``add`` adds a partition to it (TV0 and TV1) before its claim is granted; ``reported`` is called with every result.
    Without ``exclusive`` every attempt may write every partition: at least once, no transaction at all.
    """

    def __init__(
        self,
        topics: TopicTable,
        *,
        add: Callable[[TopicPartition], None],
        reported: Callable[[Output], None],
        exclusive: bool = True,
    ) -> None:
        self.token: Final = secrets.token_hex(8)
        self._claims = Claims(self.token) if exclusive else None
        self._topics = topics
        self._add = add
        self._reported = reported
        self._lock = threading.Condition()
        self._at_work: dict[int, set[object]] = {}
        """The connections of every task attempt; none where it has left."""
        self._left: dict[int, float] = {}
        self._contested: dict[TopicPartition, float] = {}

    def look_up(self, topic: str) -> int:
        """The topic's number of partitions, fixed from now on."""
        with self._lock:
            return self._topics.look_up(topic)[1]

    def close(self, collected: Iterable[Output]) -> tuple[Output, ...] | Denied:
        """No claim is granted any more; the outputs, if all claims were reported and ``collected`` agrees."""
        with self._lock:
            self._lock.notify_all()
            return tuple(sorted(collected)) if self._claims is None else self._claims.close(collected)

    def leave(self, connection: object) -> None:
        """A connection has ended: the task attempt behind it is done, or dead."""
        with self._lock:
            for attempt_id, connections in self._at_work.items():
                if connection in connections:
                    connections.remove(connection)
                    self._left[attempt_id] = time.monotonic()
            self._lock.notify_all()

    def answer(self, request: dict[str, Any], connection: object) -> dict[str, Any]:
        # One request at a time: a grant must not overtake the AddPartitionsToTxn it stands for.
        with self._lock:
            self._at_work.setdefault(request["attempt"], set()).add(connection)
            match request["ask"]:
                case "topic":
                    base, count = self._topics.look_up(request["topic"])
                    return {"base": base, "count": count}
                case "claim":
                    return self._claim(request)
                case "report":
                    return self._report(request)
                case other:
                    return {"denied": f"unknown question {other!r}"}

    def _claim(self, request: dict[str, Any]) -> dict[str, Any]:
        target = self._topics.target(request["number"])
        if self._claims is not None:
            answer = self._claims.claim(self.token, request["attempt"], target)
            if isinstance(answer, Denied):
                wait_s = 0.0 if answer.by is None else self._may_wait(target, answer.by)
                if wait_s > 0:
                    self._lock.wait(wait_s)
                    return {"later": True}
                return {"denied": answer.reason}
            if answer.add:
                self._add(target)
        return {"topic": target.topic, "partition": target.partition}

    def _may_wait(self, target: TopicPartition, owner: int) -> float:
        """How long a second attempt may wait now, in seconds."""
        assert self._claims is not None
        now = time.monotonic()
        patience = self._contested.setdefault(target, now) + _WAIT_S - now
        if not self._at_work[owner]:
            counted = self._left.get(owner, now) + _COUNTED_S - now
            patience = min(patience, counted if self._claims.is_reported(target) else 0.0)
        return min(patience, _WAIT_STEP_S)

    def _report(self, request: dict[str, Any]) -> dict[str, Any]:
        output = Output(**request["output"])
        if self._claims is not None:
            answer = self._claims.report(self.token, request["attempt"], output)
            if isinstance(answer, Denied):
                return {"denied": answer.reason}
        self._reported(output)
        return {}


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
        self._thread = threading.Thread(target=self._server.serve_forever, name="einmal-claims", daemon=True)
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
        self._server.shutdown()
        self._server.server_close()

    def answer(self, request: dict[str, Any], connection: object) -> dict[str, Any]:
        transaction = self._transaction
        if transaction is None or request.get("token") != transaction.token:
            return {"denied": "the claim belongs to a transaction that has ended"}
        return transaction.answer(request, connection)

    def leave(self, connection: object) -> None:
        """The connection has ended."""
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
        with contextlib.suppress(OSError):
            # Not SSLSocket's shutdown: it would end TLS under the thread that is in the handshake.
            socket.socket.shutdown(oldest, socket.SHUT_RDWR)

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
            "the claim service has disconnected %s:%s, which is no task of this query (%s)", *peer[:2], reason
        )


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 256
    service: ClaimService
    context: ssl.SSLContext

    def __init__(self, address: tuple[str, int], handler: type[_Handler]) -> None:
        super().__init__(address, handler)
        self.strangers = _Strangers()

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
        for name, value in _KEEPALIVE.items():
            if hasattr(socket, name):
                self.connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def handle(self) -> None:
        if not self._is_task():
            return
        # A task may compute and write for as long as it takes between two questions.
        self.connection.settimeout(None)
        try:
            while (line := self.rfile.readline(_LINE_BYTES_MAX)) and self._answer(line):
                pass
        except OSError:
            # The task is gone.
            pass
        finally:
            self.server.service.leave(self)

    def _is_task(self) -> bool:
        try:
            self.connection.do_handshake()
            self.wfile.write(_WELCOME)
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
            request = json.loads(line)
        except ValueError:
            return False
        if not isinstance(request, dict):
            return False
        try:
            answer = self.server.service.answer(request, self)
        except Exception as error:  # noqa: BLE001 - the task must learn why, whatever it is
            answer = {"denied": f"{type(error).__name__}: {error}"}
        self.wfile.write(json.dumps(answer).encode() + b"\n")
        return "denied" not in answer


class ClaimClient:
    """A task's side. Connects with its first question. Used by one thread; ``with`` closes it."""

    def __init__(self, address: Address, token: str, attempt_id: int) -> None:
        self._known = {"token": token, "attempt": attempt_id}
        self._address = address
        self._socket: socket.socket | None = None

    def __enter__(self) -> ClaimClient:
        return self

    def __exit__(self, *_: object) -> None:
        if self._socket is not None:
            self._lines.close()
            self._socket.close()

    def topic(self, topic: str) -> tuple[int, int]:
        """(base, count) of a topic in this batch. Raises ClaimRefused."""
        answer = self._ask(ask="topic", topic=topic)
        return answer["base"], answer["count"]

    def claim(self, number: int) -> TopicPartition:
        """The partition behind a number, which this task alone may write from now on; waits while another attempt of
        it does. Raises ClaimRefused."""
        while "later" in (answer := self._ask(ask="claim", number=number)):
            pass
        return TopicPartition(answer["topic"], answer["partition"])

    def report(self, output: Output) -> None:
        """Every acknowledgement for the partition is in. Raises ClaimRefused."""
        self._ask(ask="report", output=asdict(output))

    def _ask(self, **question: Any) -> dict[str, Any]:
        if self._socket is None:
            self._socket = _connected(self._address)
            self._socket.settimeout(_ANSWER_S)
            self._lines = self._socket.makefile("rb")
        self._socket.sendall(json.dumps(self._known | question).encode() + b"\n")
        line = self._lines.readline(_LINE_BYTES_MAX)
        if not line:
            raise ClaimRefused("the driver closed the connection: the query has ended")
        answer: dict[str, Any] = json.loads(line)
        if "denied" in answer:
            raise ClaimRefused(answer["denied"])
        return answer


def _connected(address: Address) -> ssl.SSLSocket:
    """A connection that the driver has welcomed. Raises ClaimRefused."""
    until = time.monotonic() + _CONNECT_S
    while True:
        try:
            connection = socket.create_connection((address.host, address.port), timeout=_CONNECT_S)
        except OSError as error:
            raise ClaimRefused(_unreachable(address, error)) from error
        try:
            return _welcomed(connection, address.identity)
        except ssl.SSLCertVerificationError as error:
            raise ClaimRefused(
                f"{address.host}:{address.port} belongs to another query, or is not the driver of this one: it has "
                "another key"
            ) from error
        except (ssl.SSLEOFError, ConnectionError) as error:
            # The driver ends handshakes while many strangers connect.
            if time.monotonic() >= until:
                raise ClaimRefused(_unreachable(address, error)) from error
            time.sleep(_AGAIN_S)
        except OSError as error:
            raise ClaimRefused(_unreachable(address, error)) from error


def _welcomed(connection: socket.socket, identity: SharedIdentity) -> ssl.SSLSocket:
    secured = _context(identity).wrap_socket(connection)
    try:
        received = b""
        while len(received) < len(_WELCOME):
            piece = secured.recv(len(_WELCOME) - len(received))
            if not piece:
                raise ConnectionAbortedError("the driver has closed the connection")
            received += piece
        if received != _WELCOME:
            raise OSError("no claim service answers")
    except BaseException:
        secured.close()
        raise
    return secured


@lru_cache(maxsize=4)
def _context(identity: SharedIdentity) -> ssl.SSLContext:
    """Of one query; Spark's Python workers serve many of its tasks."""
    return identity.context(is_server=False)


def _unreachable(address: Address, error: OSError) -> str:
    return (
        f"the driver cannot be reached from this executor at {address.host}:{address.port} ({error}); set "
        "spark.driver.host to a name that executors know, and spark.einmal.claims.port to a port that the network lets "
        "through"
    )
