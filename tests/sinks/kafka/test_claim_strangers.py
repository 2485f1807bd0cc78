"""Claims about strangers at the claim service: they take no claim, learn nothing, and stall neither driver nor task."""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import socket
import ssl
import threading
import time
from collections.abc import Iterator

import pytest

from einmal.commit_protocol.claims import Task
from einmal.security.shared_identity import SharedIdentity
from einmal.sinks.kafka import claim_client, claim_service
from einmal.sinks.kafka.claim_client import Address, ClaimClient, ClaimRefused
from einmal.sinks.kafka.claim_messages import Claim
from einmal.sinks.kafka.claim_service import ClaimService
from einmal.sinks.kafka.open_transaction import OpenTransaction, TopicTable
from einmal.types import TopicPartition
from tests.security.certificates import shared_identity
from tests.suite.patience import patient

TOPIC = "topic-of-the-query"
CLIENT_HELLO = bytes.fromhex("1603010200010001fc0303")
"""The beginning of one, which announces more than follows."""


class Driver:
    """A driver with an open transaction, and who was granted what."""

    def __init__(self) -> None:
        self.service = ClaimService(shared_identity(), "127.0.0.1", "127.0.0.1")
        self.granted: list[TopicPartition] = []
        self.transaction = OpenTransaction(TopicTable(lambda _: 3), add=self.granted.append, reported=print)
        self.service.begin(self.transaction)
        self.transaction.look_up(TOPIC)

    @property
    def place(self) -> tuple[str, int]:
        return self.service.address.host, self.service.address.port

    def task(self, attempt_id: int = 1, port: int | None = None) -> ClaimClient:
        address = self.service.address
        return ClaimClient(
            Address(address.host, port or address.port, address.identity),
            self.transaction.token,
            Task(0, attempt_id),
            attempt_id,
        )

    def still_serves(self) -> None:
        """A task is granted a claim, soon."""
        began = time.monotonic()
        with self.task() as task:
            assert task.claim([1]) == [Claim(1, TopicPartition(TOPIC, 1), 0)]
        assert time.monotonic() - began < patient(5)
        assert self.granted == [TopicPartition(TOPIC, 1)]


@pytest.fixture
def driver() -> Iterator[Driver]:
    driver = Driver()
    yield driver
    driver.service.close()


def sent(place: tuple[str, int], data: bytes) -> bytes:
    """Everything that the service answers to these bytes, until it closes the connection."""
    answer = b""
    with socket.create_connection(place, timeout=60) as stranger, contextlib.suppress(ConnectionError):
        stranger.sendall(data)
        with contextlib.suppress(OSError):
            # ENOTCONN, which is no ConnectionError: the service was faster.
            stranger.shutdown(socket.SHUT_WR)
        while piece := stranger.recv(4096):
            answer += piece
    return answer


def the_line(caplog: pytest.LogCaptureFixture) -> str:
    """The only one. A stranger may know that it is refused before the service's thread has written why."""
    deadline = time.monotonic() + patient(20)
    while not caplog.records and time.monotonic() < deadline:
        time.sleep(0.01)
    (line,) = (record.getMessage() for record in caplog.records)
    return line


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b'{"ask": "claim", "number": 0, "attempt": 1}\n',
        b"\xff" * 65_536,
        os.urandom(4 * 1024 * 1024),
        CLIENT_HELLO,
        b"\x16\x03\x01\xff\xff" + b"\x00" * 70_000,
        b"",
    ],
    ids=["http", "question", "huge record", "noise", "half a hello", "endless record", "nothing"],
)
def test_a_stranger_that_sends_anything_but_tls_is_disconnected_and_learns_nothing(
    driver: Driver, caplog: pytest.LogCaptureFixture, data: bytes
) -> None:
    with caplog.at_level(logging.WARNING):
        answer = sent(driver.place, data)
        driver.still_serves()
    # At most an alert of TLS.
    assert len(answer) <= 7
    assert "127.0.0.1:" in the_line(caplog)


@pytest.mark.parametrize("has_a_key", [False, True])
def test_a_stranger_that_speaks_tls_without_the_querys_key_is_not_welcomed(
    driver: Driver, caplog: pytest.LogCaptureFixture, has_a_key: bool
) -> None:
    context = shared_identity().context(is_server=False) if has_a_key else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    received = b""
    with (
        caplog.at_level(logging.WARNING),
        socket.create_connection(driver.place, timeout=60) as plain,
        pytest.raises(OSError),
        context.wrap_socket(plain) as stranger,
    ):
        stranger.sendall(b'{"ask": "topic", "topic": "a", "attempt": 1}\n')
        while True:
            received += stranger.recv(4096) or pytest.fail("the connection ended without an alert")
    assert received == b""
    driver.still_serves()
    line = the_line(caplog)
    assert "127.0.0.1:" in line
    assert "no task of this query" in line


def test_a_task_of_one_query_cannot_claim_in_another(driver: Driver) -> None:
    host, port = driver.place
    with (
        ClaimClient(Address(host, port, shared_identity()), driver.transaction.token, Task(0, 0), 1) as foreign,
        pytest.raises(ClaimRefused, match="belongs to another query"),
    ):
        foreign.claim([0])
    assert driver.granted == []


def test_a_version_of_tls_without_encrypted_certificates_is_not_accepted(driver: Driver) -> None:
    context = driver.service.address.identity.context(is_server=False)
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_connection(driver.place, timeout=60) as plain, pytest.raises(ssl.SSLError):
        context.wrap_socket(plain)


def test_a_stranger_that_sends_a_byte_now_and_then_has_the_time_of_one_handshake(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_service._Handler, "timeout", 0.5)
    # All these bytes are half a minute, and no whole hello.
    with socket.create_connection(driver.place, timeout=60) as stranger, pytest.raises(OSError):
        for byte in CLIENT_HELLO + bytes(500):
            stranger.sendall(bytes((byte,)))
            stranger.settimeout(0.05)
            with contextlib.suppress(TimeoutError):
                if stranger.recv(1) == b"":
                    raise ConnectionResetError


def test_many_silent_strangers_keep_no_task_out_and_occupy_few_threads(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claim_service, "_STRANGERS_MAX", 8)
    # None of them leaves by itself.
    monkeypatch.setattr(claim_service._Handler, "timeout", 600)
    threads = threading.active_count()
    with contextlib.ExitStack() as strangers:
        for _ in range(100):
            strangers.enter_context(socket.create_connection(driver.place, timeout=60))
        driver.still_serves()
        deadline = time.monotonic() + patient(10)
        while threading.active_count() > threads + 8:
            assert time.monotonic() < deadline, "threads of strangers that were ended"
            time.sleep(0.01)


def test_a_task_whose_handshake_was_ended_tries_again(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it happens while many strangers connect: here the first two connections end."""
    count = 0
    do_handshake = ssl.SSLSocket.do_handshake

    def ended(connection: ssl.SSLSocket, block: bool = False) -> None:
        nonlocal count
        if connection.server_side:
            count += 1
            if count <= 2:
                socket.socket.shutdown(connection, socket.SHUT_RDWR)
        do_handshake(connection, block)

    monkeypatch.setattr(ssl.SSLSocket, "do_handshake", ended)
    driver.still_serves()
    assert count == 3


def test_lines_about_strangers_are_bounded(driver: Driver, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        for _ in range(60):
            sent(driver.place, b"\n")
    assert 1 <= len(caplog.records) <= claim_service._LOGGED_MAX


class Wire:
    """Between a task and the driver: passes everything on, and keeps it."""

    def __init__(self, place: tuple[str, int]) -> None:
        self._place = place
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.from_task = b""
        self.from_driver = b""
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        task, _ = self._listener.accept()
        driver = socket.create_connection(self._place)
        back = threading.Thread(target=self._pass, args=(driver, task, "from_driver"), daemon=True)
        back.start()
        self._pass(task, driver, "from_task")
        back.join(60)

    def _pass(self, source: socket.socket, target: socket.socket, name: str) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(65_536):
                setattr(self, name, getattr(self, name) + piece)
                target.sendall(piece)
            target.shutdown(socket.SHUT_WR)

    def join(self) -> None:
        self._thread.join(60)
        self._listener.close()


def test_whoever_records_a_connection_learns_nothing_and_cannot_replay_it(driver: Driver) -> None:
    wire = Wire(driver.place)
    with driver.task(7, wire.port) as task:
        assert task.topic(TOPIC) == (0, 3)
        assert task.claim([0]) == [Claim(0, TopicPartition(TOPIC, 0), 0)]
    # It is kept for the next task of this process.
    claim_client._unused.pop(task._address).close()
    wire.join()
    identity = driver.service.address.identity
    for text in (TOPIC, driver.transaction.token, "attempt", "welcome", "einmal query"):
        assert text.encode() not in wire.from_task + wire.from_driver
    driver.granted.clear()
    answer = sent(driver.place, wire.from_task)
    assert driver.granted == []
    assert b"welcome" not in answer
    assert isinstance(identity, SharedIdentity)
    driver.still_serves()


def test_the_key_travels_with_a_task_and_shows_in_no_text_of_it(driver: Driver) -> None:
    address = driver.service.address
    key = address.identity.key.reveal()
    assert pickle.loads(pickle.dumps(address)) == address
    assert "PRIVATE KEY" in key
    secret = key.splitlines()[1]
    for shown in (repr(address), str(address.identity), f"{address.identity.key}", repr(driver.task())):
        assert secret not in shown
