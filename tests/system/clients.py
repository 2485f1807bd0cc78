"""The clients of a load as processes, and what must hold when they have ended: see ``load.py``.

Knows nothing of who kills what meanwhile.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaError, Message, TopicPartition

from tests.interop import raw
from tests.interop.topics import Broker, at_last
from tests.suite.warm import WarmProcess
from tests.system.load import COPIES, PARTITIONS, TOPICS
from tests.system.secured import client_security
from tests.system.verdict import Values, judge_copies, judge_plain, judge_reader, judge_transactions

PATIENCE_S: Final = 600.0
ANOMALIES: Final = ("lost", "doubled", "out_of_order", "torn")
_PAUSE_S: Final = 0.02
_LOOK_S: Final = 0.5
_STOPPED_FIRST: Final = ("idempotent", "transactional")


class Part(NamedTuple):
    """One client of a load."""

    role: str
    seed: int
    library: str = "confluent"


class Client:
    """A client process and its report."""

    def __init__(self, part: Part, bootstrap: str, directory: Path) -> None:
        self.role = part.role
        self.name = f"{part.role}-{part.seed}"
        self._report = directory / f"{self.name}.jsonl"
        self._report.touch()
        self._errors = directory / f"{self.name}.log"
        command = ["tests.system.run_load", part.role, "--library", part.library]
        command += ["--bootstrap", bootstrap, "--report", str(self._report), "--seed", str(part.seed)]
        with self._errors.open("w") as errors:
            self.process = WarmProcess(command, output=errors.fileno(), errors=errors.fileno())

    def size(self) -> int:
        """Grows with whatever the client gets done."""
        assert self.process.poll() is None, f"{self.name} died: {self._errors.read_text()[-2000:]}"
        return self._report.stat().st_size

    def place(self) -> str:
        """Its name, and where in the program it is."""
        self.process.send_signal(signal.SIGUSR1)
        time.sleep(_LOOK_S)
        return f"{self.name}\n{self._errors.read_text()[-2000:]}"

    def so_far(self) -> list[dict[str, Any]]:
        """Its report up to the last whole line."""
        return [json.loads(line) for line in self._report.read_text().splitlines(keepends=True) if line[-1] == "\n"]

    def finish(self) -> list[dict[str, Any]]:
        """Let it end what it has begun; its report."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE_S) == 0, f"{self.name}: {self._errors.read_text()[-2000:]}"
        return [json.loads(line) for line in self._report.read_text().splitlines()]


@contextmanager
def load_on(bootstrap: str, directory: Path, parts: Sequence[Part]) -> Iterator[list[Client]]:
    clients = [Client(part, bootstrap, directory) for part in parts]
    try:
        yield clients
    finally:
        for client in clients:
            if client.process.poll() is None:
                client.process.kill()
                client.process.wait()


def everybody_gets_something_done(clients: list[Client]) -> None:
    before = {client.name: client.size() for client in clients}
    until(lambda: all(client.size() > before[client.name] for client in clients), lambda: _idle(clients, before))


def _idle(clients: list[Client], before: dict[str, int]) -> str:
    return ", ".join(client.place() for client in clients if client.size() == before[client.name])


def until(claim: Callable[[], bool], what: Callable[[], str] = lambda: "it") -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not claim():
        assert time.monotonic() < deadline, f"it takes too long: {what()}"
        time.sleep(_PAUSE_S)


def committed_so_far(clients: list[Client]) -> int:
    """How many transactions of those that only write."""
    reports = [client.so_far() for client in clients if client.role == "transactional"]
    return sum(line.get("outcome") == "committed" for report in reports for line in report)


def finish(clients: list[Client]) -> dict[str, list[dict[str, Any]]]:
    """The reports, once all have ended: those that write first, so that the copiers find an end."""
    first = [client for client in clients if client.role in _STOPPED_FIRST]
    last = [client for client in clients if client.role not in _STOPPED_FIRST]
    return {client.name: client.finish() for client in (*first, *last)}


def location(message: Message[bytes, bytes]) -> tuple[str, int, int]:
    """Topic, partition and offset of a record."""
    topic, partition, offset = message.topic(), message.partition(), message.offset()
    assert topic is not None and partition is not None and offset is not None
    return topic, partition, offset


def text(message: Message[bytes, bytes]) -> str:
    """The value of a record that has one."""
    value = message.value()
    assert value is not None
    return value.decode()


def read_all(bootstrap: str) -> Values:
    """Everything that is committed, as a new reader finds it."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "judge",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            **client_security(),
        }
    )
    places = [TopicPartition(topic, index, 0) for topic in TOPICS for index in range(PARTITIONS)]
    consumer.assign(places)
    found: Values = {}
    ended: set[tuple[str, int]] = set()
    deadline = time.monotonic() + PATIENCE_S
    while len(ended) < len(places):
        assert time.monotonic() < deadline, "reading everything takes too long"
        for message in consumer.consume(1_000, 1.0):
            error = message.error()
            if error is None:
                found[location(message)] = text(message)
            else:
                assert error.code() == KafkaError._PARTITION_EOF, error
                topic, partition = message.topic(), message.partition()
                assert topic is not None and partition is not None
                ended.add((topic, partition))
    consumer.close()
    return found


def no_transaction_is_left_open(leader_of: Callable[[str, int], Broker]) -> None:
    """The last stable offset reaches the high watermark in every partition."""

    def end(topic: str, index: int, isolation_level: int) -> int:
        asked = [{"name": topic, "partitions": [{"partition_index": index, "timestamp": -1}]}]
        with leader_of(topic, index).connect() as connection:
            answer = connection.call(raw.LIST_OFFSETS, 7, replica_id=-1, isolation_level=isolation_level, topics=asked)
        return int(answer.topics[0].partitions[0].offset)

    def ends_of(topic: str, index: int) -> tuple[int, int]:
        return end(topic, index, 1), end(topic, index, 0)

    for topic in TOPICS:
        for index in range(PARTITIONS):
            at_last(
                partial(ends_of, topic, index),
                lambda ends: ends[0] == ends[1],
            )


def judge(values: Values, reports: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Nothing lost, doubled, out of order or torn; the figures. Raises AssertionError."""
    acknowledged = judge_plain(values, reports)
    outcomes = judge_transactions(values, reports)
    seen = judge_reader(values, reports)
    copiers = [name for name in reports if name.startswith("copier")]
    judge_copies(values, len(copiers))
    # Each of the four checks raises at the first anomaly.
    return {
        **dict.fromkeys(ANOMALIES, 0),
        "acknowledged": acknowledged,
        "transactions": dict(outcomes),
        "copied": sum(topic in COPIES for topic, _partition, _offset in values),
        "copy_transactions": sum("outcome" in line for name in copiers for line in reports[name]),
        "seen_by_the_readers": seen,
    }
