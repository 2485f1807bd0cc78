"""``einmal mirror`` between two real brokers, killed with -9 at random moments while transactions are written."""

from __future__ import annotations

import random
import subprocess
import threading
from pathlib import Path

import pytest

from einmal.client import Admin, Consumer, NewTopic, Producer
from einmal.types import TopicPartition
from tests.interop.einmal_broker import EinmalBroker
from tests.suite.warm import WarmProcess

pytestmark = [pytest.mark.system, pytest.mark.slow]

PARTITIONS = 3
RECORDS = 4
"""Of one transaction."""


class Writer(threading.Thread):
    """Transactions over random partitions, one of four aborted, until it is stopped. ``committed``: their numbers."""

    def __init__(self, servers: str, name: str, seed: int) -> None:
        super().__init__()
        self.committed: list[str] = []
        self._servers, self._name, self._random = servers, name, random.Random(seed)
        self._stopping = threading.Event()

    def run(self) -> None:
        settings = {"bootstrap.servers": self._servers, "transactional.id": self._name}
        with Producer(settings) as producer:
            producer.init_transactions()
            number = 0
            while not self._stopping.is_set():
                number += 1
                producer.begin_transaction()
                for index in range(RECORDS):
                    value = f"{self._name}.{number}.{index}"
                    producer.send("orders", value, partition=self._random.randrange(PARTITIONS))
                    self._stopping.wait(self._random.choice((0.0, 0.002)))
                if self._random.random() < 0.25:
                    producer.abort_transaction()
                else:
                    producer.commit_transaction()
                    self.committed.append(f"{self._name}.{number}")

    def stop(self) -> None:
        self._stopping.set()
        self.join()


def mirror(directory: Path, *options: str) -> WarmProcess:
    return WarmProcess(["einmal", "mirror", "A->B", *options], cwd=directory)


def read(servers: str, topic: str) -> list[list[str]]:
    """All committed values below the last stable offsets of now, by partition."""
    places = [TopicPartition(topic, index) for index in range(PARTITIONS)]
    found: dict[TopicPartition, list[str]] = {each: [] for each in places}
    with Consumer({"bootstrap.servers": servers, "isolation.level": "read_committed"}) as consumer:
        consumer.assign(places)
        consumer.seek_to_beginning(*places)
        ends = consumer.end_offsets(*places)
        while any(consumer.position(each) < ends[each] for each in places):
            for record in consumer.poll(100):
                assert record.value is not None
                found[TopicPartition(record.topic, record.partition)].append(record.value.decode())
    return list(found.values())


def torn(partitions: list[list[str]]) -> list[str]:
    """Transactions of which some records are there and others are not."""
    counts: dict[str, int] = {}
    for value in (value for values in partitions for value in values):
        name = value.rpartition(".")[0]
        counts[name] = counts.get(name, 0) + 1
    return [name for name, count in counts.items() if count != RECORDS]


@pytest.mark.parametrize("kills", [2, pytest.param(8, marks=pytest.mark.long)])
def test_a_killed_mirror_loses_repeats_and_tears_nothing(
    brokers: tuple[EinmalBroker, EinmalBroker], tmp_path: Path, kills: int
) -> None:
    source, target = brokers
    with Admin({"bootstrap.servers": source.bootstrap}) as admin:
        admin.create_topics([NewTopic("orders", num_partitions=PARTITIONS)])
    writers = [Writer(source.bootstrap, f"w{number}", number) for number in range(2)]
    for writer in writers:
        writer.start()
    moments = random.Random(7)
    for _ in range(kills):
        process = mirror(tmp_path)
        assert process.stdout is not None
        process.stdout.readline()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(moments.uniform(0.0, 1.0))
        process.kill()
        process.wait()
        process.stdout.close()
        # The coordinator of the target ends what it has decided; then no reader sees a part of anything.
        with Producer({"bootstrap.servers": target.bootstrap, "transactional.id": "einmal-mirror-A-B"}) as fencing:
            fencing.init_transactions()
        assert torn(read(target.bootstrap, "A.orders")) == []
    for writer in writers:
        writer.stop()
    assert mirror(tmp_path, "--available-now").wait(300) == 0
    copied = read(target.bootstrap, "A.orders")
    assert copied == read(source.bootstrap, "orders")
    names = {value.rpartition(".")[0] for values in copied for value in values}
    assert names == {name for writer in writers for name in writer.committed}
