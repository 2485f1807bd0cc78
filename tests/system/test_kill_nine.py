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
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from tests.interop import raw
from tests.interop.einmal_broker import EinmalBroker
from tests.interop.topics import Broker, at_last, create_topic
from tests.system.load import COPIES, PARTITIONS, PLAIN, TRANSACTIONS

pytestmark = [pytest.mark.system, pytest.mark.slow]

KILLS: Final = int(os.environ.get("EINMAL_KILLS", "5"))
SEED: Final = 20_261
_PATIENCE_S: Final = 90.0
_PAUSE_S: Final = 0.02
_UNREST_S: Final = 0.7
_ROLES: Final = {"idempotent": 2, "transactional": 2, "copier": 1, "reader": 1}
_STOPPED_FIRST: Final = ("idempotent", "transactional")

Place = tuple[str, int, int]
Values = dict[Place, str]


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


# --- the verdict -----------------------------------------------------------------------------------------------


def per_partition(values: Values, topic: str) -> dict[int, list[str]]:
    """The values of a topic in the order of their offsets."""
    partitions: dict[int, list[str]] = defaultdict(list)
    for place in sorted(values):
        if place[0] == topic:
            partitions[place[1]].append(values[place])
    return partitions


def doubled(values: Values, topic: str) -> list[str]:
    counts = Counter(value for place, value in values.items() if place[0] == topic)
    return [value for value, count in counts.items() if count > 1]


def judge_plain(values: Values, reports: Mapping[str, list[dict[str, Any]]]) -> int:
    """Everything acknowledged is where the acknowledgement said, once and in order. Returns how much that was."""
    wanted: dict[int, dict[str, list[str]]] = defaultdict(dict)
    acknowledged = 0
    for name, report in reports.items():
        if not name.startswith("idempotent"):
            continue
        seed = name.rpartition("-")[2]
        assert not [line for line in report if "failed" in line]
        for line in report:
            if "offset" in line:
                assert values.get((PLAIN, line["partition"], line["offset"])) == line["value"], f"lost: {line}"
                acknowledged += 1
        for partition, count in enumerate(report[-1]["wrote"]):
            wanted[partition][seed] = [f"{seed}:{partition}:{number}" for number in range(count)]
    for partition, found in per_partition(values, PLAIN).items():
        for seed, expected in wanted[partition].items():
            assert [value for value in found if value.startswith(f"{seed}:")] == expected
    assert doubled(values, PLAIN) == []
    assert acknowledged == sum(len(numbers) for seeds in wanted.values() for numbers in seeds.values())
    return acknowledged


def judge_transactions(values: Values, reports: Mapping[str, list[dict[str, Any]]]) -> Counter[str]:
    """Committed ones are there whole, aborted ones not at all, the others whole or not at all. Returns the outcomes."""
    visible = {value for place, value in values.items() if place[0] == TRANSACTIONS}
    outcomes: Counter[str] = Counter()
    for name, report in reports.items():
        if not name.startswith("transactional"):
            continue
        written = {line["transaction"]: line["values"] for line in report if "values" in line}
        known = {line["transaction"]: line["outcome"] for line in report if "outcome" in line}
        for number, expected in written.items():
            outcome = known[number]
            outcomes[outcome] += 1
            seen = [value for value in expected if value in visible]
            assert outcome != "committed" or seen == expected, f"{name}: lost of transaction {number}: {seen}"
            assert outcome != "aborted" or not seen, f"{name}: aborted and seen: {seen}"
            assert seen in ([], expected), f"{name}: transaction {number} is torn: {seen} of {expected}"
    assert doubled(values, TRANSACTIONS) == []
    for found in per_partition(values, TRANSACTIONS).values():
        for seed in {value.partition(":")[0] for value in found}:
            numbers = [tuple(map(int, value.split(":"))) for value in found if value.startswith(f"{seed}:")]
            assert numbers == sorted(numbers), "a writer's transactions are out of order"
    return outcomes


def judge_reader(values: Values, reports: Mapping[str, list[dict[str, Any]]]) -> int:
    """What was seen while the broker was dying is what is there now, each record once and in order."""
    seen = 0
    for name, report in reports.items():
        if not name.startswith("reader"):
            continue
        last: dict[tuple[str, int], int] = {}
        for line in report:
            topic, partition, offset = line["at"]
            assert values.get((topic, partition, offset)) == line["value"], f"seen and gone: {line}"
            assert offset > last.get((topic, partition), -1), f"seen twice: {line}"
            last[topic, partition] = offset
            seen += 1
    return seen


def test_nothing_acknowledged_is_lost_doubled_or_torn_by_kill_9(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    broker = EinmalBroker(tmp_path / "broker")
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
    assert per_partition(values, COPIES) == per_partition(values, PLAIN), "a copy is missing, doubled or out of order"
    figures = {
        "kills": KILLS,
        "acknowledged": acknowledged,
        "transactions": dict(outcomes),
        "copy_transactions": len(reports["copier-0"]),
        "seen_by_the_reader": seen,
        "restart_s_max": round(max(restarts, default=0), 2),
        "restart_s_mean": round(sum(restarts) / max(1, len(restarts)), 2),
    }
    (tmp_path / "figures.json").write_text(json.dumps(figures))
    print(json.dumps(figures))
