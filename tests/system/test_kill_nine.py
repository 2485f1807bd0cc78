"""Claims about a broker that is killed with -9, again and again, while real clients write and read.

Four kinds of client (``load.py``) run as processes throughout. ``EINMAL_KILLS`` says how often the broker dies; the
default is 5.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.interop import raw
from tests.interop.einmal_broker import EinmalBroker
from tests.interop.topics import Broker, at_last, create_topic
from tests.system.load import COPIES, PARTITIONS, PLAIN, TRANSACTIONS
from tests.system.verdict import Values, judge_copies, judge_plain, judge_reader, judge_transactions

pytestmark = [pytest.mark.system, pytest.mark.slow]

KILLS: Final = int(os.environ.get("EINMAL_KILLS", "5"))
SEED: Final = 20_261
_PATIENCE_S: Final = 90.0
_PAUSE_S: Final = 0.02
_UNREST_S: Final = 0.7
_ROLES: Final = {"idempotent": 2, "transactional": 2, "copier": 1, "reader": 1}
_FLUSH: Final = {"page-cache": {}, "every-message": {"log.flush.interval.messages": "1"}}
_STOPPED_FIRST: Final = ("idempotent", "transactional")


class Client:
    """A client process and its report."""

    def __init__(self, role: str, seed: int, bootstrap: str, directory: Path) -> None:
        self.role = role
        self.name = f"{role}-{seed}"
        self._report = directory / f"{self.name}.jsonl"
        self._report.touch()
        self._errors = directory / f"{self.name}.log"
        command = [sys.executable, "-m", "tests.system.load", role]
        command += ["--bootstrap", bootstrap, "--report", str(self._report), "--seed", str(seed)]
        with self._errors.open("w") as errors:
            self.process = subprocess.Popen(command, stdout=errors, stderr=errors)

    def size(self) -> int:
        """Grows with whatever the client gets done."""
        assert self.process.poll() is None, f"{self.name} died: {self._errors.read_text()[-2000:]}"
        return self._report.stat().st_size

    def finish(self) -> list[dict[str, Any]]:
        """Let it end what it has begun; its report."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(_PATIENCE_S) == 0, f"{self.name}: {self._errors.read_text()[-2000:]}"
        return [json.loads(line) for line in self._report.read_text().splitlines()]


@contextmanager
def load_on(broker: EinmalBroker, directory: Path) -> Iterator[list[Client]]:
    clients = [
        Client(role, seed, broker.bootstrap, directory) for role, count in _ROLES.items() for seed in range(count)
    ]
    try:
        yield clients
    finally:
        for client in clients:
            if client.process.poll() is None:
                client.process.kill()
                client.process.wait()


def everybody_gets_something_done(clients: list[Client]) -> None:
    before = {client.name: client.size() for client in clients}
    until(lambda: all(client.size() > before[client.name] for client in clients))


def until(claim: Callable[[], bool]) -> None:
    deadline = time.monotonic() + _PATIENCE_S
    while not claim():
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(_PAUSE_S)


def read_all(bootstrap: str) -> Values:
    """Everything that is committed, as a new reader finds it."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "judge",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    places = [TopicPartition(topic, index, 0) for topic in (PLAIN, TRANSACTIONS, COPIES) for index in range(PARTITIONS)]
    consumer.assign(places)
    found: Values = {}
    ended: set[tuple[str, int]] = set()
    deadline = time.monotonic() + _PATIENCE_S
    while len(ended) < len(places):
        assert time.monotonic() < deadline, "reading everything takes too long"
        for message in consumer.consume(1_000, 1.0):
            if message.error() is None:
                found[message.topic(), message.partition(), message.offset()] = message.value().decode()
            else:
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                ended.add((message.topic(), message.partition()))
    consumer.close()
    return found


def no_transaction_is_left_open(broker: EinmalBroker) -> None:
    """The last stable offset reaches the high watermark in every partition."""
    with Broker(broker.host, broker.port).connect() as connection:

        def ends(isolation_level: int) -> list[int]:
            topics = [
                {
                    "name": topic,
                    "partitions": [{"partition_index": index, "timestamp": -1} for index in range(PARTITIONS)],
                }
                for topic in (PLAIN, TRANSACTIONS, COPIES)
            ]
            answer = connection.call(raw.LIST_OFFSETS, 7, replica_id=-1, isolation_level=isolation_level, topics=topics)
            return [each.offset for topic in answer.topics for each in topic.partitions]

        at_last(lambda: ends(1), lambda stable: stable == ends(0))


@pytest.mark.parametrize("flush", ["page-cache", "every-message"])
def test_nothing_acknowledged_is_lost_doubled_or_torn_by_kill_9(tmp_path: Path, flush: str) -> None:
    chance = random.Random(SEED)
    broker = EinmalBroker(tmp_path / "broker", _FLUSH[flush])
    broker.start()
    restarts = []
    try:
        for topic in (PLAIN, TRANSACTIONS, COPIES):
            create_topic(Broker(broker.host, broker.port), topic, PARTITIONS)
        with load_on(broker, tmp_path) as clients:
            for _ in range(KILLS):
                everybody_gets_something_done(clients)
                time.sleep(chance.uniform(0, _UNREST_S))
                broker.kill()
                began = time.monotonic()
                broker.start()
                restarts.append(time.monotonic() - began)
            everybody_gets_something_done(clients)
            first = [client for client in clients if client.role in _STOPPED_FIRST]
            last = [client for client in clients if client.role not in _STOPPED_FIRST]
            reports = {client.name: client.finish() for client in (*first, *last)}
        no_transaction_is_left_open(broker)
        values = read_all(broker.bootstrap)
    finally:
        broker.stop()
    acknowledged = judge_plain(values, reports)
    outcomes = judge_transactions(values, reports)
    assert outcomes["committed"] > KILLS
    seen = judge_reader(values, reports)
    judge_copies(values)
    figures = {
        "kills": KILLS,
        "flush": flush,
        "acknowledged": acknowledged,
        "transactions": dict(outcomes),
        "copy_transactions": len(reports["copier-0"]),
        "seen_by_the_reader": seen,
        "restart_s_max": round(max(restarts, default=0), 2),
        "restart_s_mean": round(sum(restarts) / max(1, len(restarts)), 2),
    }
    (tmp_path / "figures.json").write_text(json.dumps(figures))
    print(json.dumps(figures))
