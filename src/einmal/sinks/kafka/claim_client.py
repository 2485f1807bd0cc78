"""How a task asks the driver for partitions to write to: the other side of ``claim_service``, which explains both."""

from __future__ import annotations

import atexit
import contextlib
import socket
import ssl
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Protocol, Self

from einmal.commit_protocol.claims import Output, Task
from einmal.security.shared_identity import SharedIdentity
from einmal.sinks.kafka.claim_messages import (
    CLAIMS_MAX,
    LINE_BYTES_MAX,
    Answer,
    AskAgain,
    Claim,
    ClaimDenied,
    ClaimingAttempt,
    ClaimPartitions,
    ClaimsGranted,
    LeaveService,
    LookUpTopic,
    Noted,
    Question,
    ReportOutputs,
    TopicNumbers,
    decode_answer,
    encode,
)

WELCOME: Final = b"welcome\n"
"""The driver's first line. With TLS 1.3 a client's handshake is over before the driver has verified it."""
_CONNECT_S: Final = 10.0
_AGAIN_S: Final = 0.05
_ANSWER_S: Final = 120.0
"""Under TV0 and TV1 the driver adds the partition to the transaction before it answers."""
_UNUSED_MAX: Final = 4


class ClaimRefused(Exception):
    """The driver denies this task the partition: another attempt owns it, or the transaction has ended."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a task finds the service, and how it proves that it is one. Travels inside the task."""

    host: str
    port: int
    identity: SharedIdentity


class _Connection:
    """To one claim service. Raises OSError."""

    def __init__(self, address: Address) -> None:
        """Raises ClaimRefused."""
        self._socket = _connected(address)
        self._socket.settimeout(_ANSWER_S)
        self._lines = self._socket.makefile("rb")

    def ask(self, question: Question) -> Answer | None:
        """None: the driver has closed the connection."""
        self._socket.sendall(encode(question))
        line = self._lines.readline(LINE_BYTES_MAX)
        return decode_answer(line) if line else None

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


_unused: dict[Address, _Connection] = {}
"""Connections that this worker keeps for its next task: in a small batch a handshake takes longer than its records."""


@atexit.register
def _close_unused() -> None:
    while _unused:
        _unused.popitem()[1].close()


class Claimant(ABC):
    """A task's side, of one attempt. Used by one thread, in ``with``: the task is done then."""

    def __init__(self, token: str, task: Task, attempt_id: int) -> None:
        self._attempt = ClaimingAttempt(token, task, attempt_id)

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(self, kind: object, *_: object) -> None: ...

    @abstractmethod
    def _answer(self, question: Question) -> Answer | None:
        """None: nobody answers any more."""

    def topic(self, topic: str) -> TopicNumbers:
        """Raises ClaimRefused."""
        answer = self._ask(LookUpTopic(self._attempt, topic))
        assert isinstance(answer, TopicNumbers), answer
        return answer

    def claim(self, numbers: Sequence[int], most: int = 1) -> list[Claim]:
        """At least one of these partitions, and not more than ``most``, first those that come first; waits while other
        tasks write them all, or another attempt writes for this one. Raises ClaimRefused."""
        question = ClaimPartitions(self._attempt, tuple(numbers[:CLAIMS_MAX]), most)
        while isinstance(answer := self._ask(question), AskAgain):
            pass
        assert isinstance(answer, ClaimsGranted), answer
        return list(answer.claims)

    def report(self, outputs: Sequence[Output]) -> None:
        """Every acknowledgement for these partitions is in: other tasks may claim them. Raises ClaimRefused."""
        for start in range(0, len(outputs), CLAIMS_MAX):
            self._ask(ReportOutputs(self._attempt, tuple(outputs[start : start + CLAIMS_MAX])))

    def _ask(self, question: Question) -> Answer:
        answer = self._answer(question)
        if answer is None:
            raise ClaimRefused("the driver closed the connection: the query has ended")
        if isinstance(answer, ClaimDenied):
            raise ClaimRefused(answer.reason)
        return answer


class Turn(Protocol):
    """How the task attempt that runs here claims in a transaction, which ``token`` names."""

    @property
    def token(self) -> str: ...

    def claims(self) -> Claimant: ...


class ClaimClient(Claimant):
    """From another process. Connects with its first question, or takes the connection of an earlier task. Its questions
    raise OSError, too."""

    def __init__(self, address: Address, token: str, task: Task, attempt_id: int) -> None:
        super().__init__(token, task, attempt_id)
        self._address = address
        self._connection: _Connection | None = None

    def __exit__(self, kind: object, *_: object) -> None:
        """After an error the connection is not kept."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            is_kept = kind is None and isinstance(connection.ask(LeaveService()), Noted)
        except OSError:
            is_kept = False
        if not is_kept or self._address in _unused:
            connection.close()
            return
        while len(_unused) >= _UNUSED_MAX:
            _unused.pop(next(iter(_unused))).close()
        _unused[self._address] = connection

    def _answer(self, question: Question) -> Answer | None:
        if self._connection is None and (kept := _unused.pop(self._address, None)) is not None:
            # It may have ended since. No question does anything more when it is asked twice.
            with contextlib.suppress(OSError):
                if (answer := kept.ask(question)) is not None:
                    self._connection = kept
                    return answer
            kept.close()
        if self._connection is None:
            self._connection = _Connection(self._address)
        return self._connection.ask(question)


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
        while len(received) < len(WELCOME):
            piece = secured.recv(len(WELCOME) - len(received))
            if not piece:
                raise ConnectionAbortedError("the driver has closed the connection")
            received += piece
        if received != WELCOME:
            raise OSError("no claim service answers")
    except BaseException:
        secured.close()
        raise
    return secured


@lru_cache(maxsize=4)
def _context(identity: SharedIdentity) -> ssl.SSLContext:
    """Return the TLS context of one query; Spark's Python workers serve many of its tasks."""
    return identity.context(is_server=False)


def _unreachable(address: Address, error: OSError) -> str:
    return (
        f"the driver cannot be reached from this executor at {address.host}:{address.port} ({error}); set "
        "spark.driver.host to a name that executors know, and spark.einmal.claims.port to a port that the network lets "
        "through"
    )
