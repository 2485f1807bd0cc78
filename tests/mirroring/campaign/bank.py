"""A bank at the source of a mirror: transfers over several partitions, and an application that bills each of them.

A transfer is a transaction whose parts add up to 0. The application consumes, and writes its output and its offsets in
one transaction; so it processes each part once, at whichever cluster it runs.
"""

from __future__ import annotations

import contextlib
import json
import random
import threading
from bisect import bisect_left
from collections import Counter
from typing import Any

from einmal.client import Consumer, Producer
from einmal.client.errors import AbortableError, KafkaError
from einmal.client.records import OffsetAndMetadata
from einmal.types import TopicPartition

TRANSFERS = "transfers"
BILLED = "billed"
GROUP = "billing"
PARTITIONS = 4
PARTS_MAX = 4
_PAUSE_S = (0.0, 0.03)
_TIMES: dict[str, Any] = {
    "delivery.timeout.ms": 30_000,
    "request.timeout.ms": 5_000,
    "max.block.ms": 30_000,
    "transaction.timeout.ms": 20_000,
}


class Worker(threading.Thread):
    """Works until it is stopped, with new clients after each error."""

    def __init__(self, servers: str) -> None:
        super().__init__(daemon=True)
        self.stopping = threading.Event()
        self._servers = servers

    def run(self) -> None:
        while not self.stopping.is_set():
            with contextlib.suppress(KafkaError):
                self.work()

    def work(self) -> None:
        raise NotImplementedError

    def stop(self) -> None:
        self.stopping.set()
        self.join()


class Teller(Worker):
    """Makes transfers; one of five is aborted. ``committed``: those that were acknowledged."""

    def __init__(self, servers: str, name: str, seed: int) -> None:
        super().__init__(servers)
        self.committed: set[str] = set()
        self._name, self._chance, self._number = name, random.Random(seed), 0

    def work(self) -> None:
        with Producer({"bootstrap.servers": self._servers, "transactional.id": self._name, **_TIMES}) as producer:
            producer.init_transactions()
            while not self.stopping.is_set():
                self._transfer(producer)
                self.stopping.wait(self._chance.uniform(*_PAUSE_S))

    def _transfer(self, producer: Producer) -> None:
        self._number += 1
        name = f"{self._name}.{self._number}"
        amounts = [self._chance.randint(1, 50) for _ in range(self._chance.randrange(1, PARTS_MAX))]
        producer.begin_transaction()
        try:
            for index, amount in enumerate([-sum(amounts), *amounts]):
                part = {"transfer": name, "part": index, "parts": len(amounts) + 1, "amount": amount}
                producer.send(TRANSFERS, json.dumps(part), partition=self._chance.randrange(PARTITIONS))
                self.stopping.wait(self._chance.choice((0.0, 0.0, 0.002)))
            if self._chance.random() < 0.2:
                producer.abort_transaction()
                return
            producer.commit_transaction()
        except AbortableError:
            producer.abort_transaction()
            return
        self.committed.add(name)


class Billing(Worker):
    """The application: each part of ``topic`` becomes one record of ``BILLED`` in the same cluster."""

    def __init__(self, servers: str, topic: str) -> None:
        super().__init__(servers)
        self._topic = topic

    def work(self) -> None:
        settings = {
            "bootstrap.servers": self._servers,
            "group.id": GROUP,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "session.timeout.ms": 10_000,
        }
        with (
            Producer({"bootstrap.servers": self._servers, "transactional.id": GROUP, **_TIMES}) as producer,
            Consumer(settings) as consumer,
        ):
            producer.init_transactions()
            consumer.subscribe([self._topic])
            while not self.stopping.is_set():
                if records := consumer.poll(200):
                    ends = {
                        TopicPartition(each.topic, each.partition): OffsetAndMetadata(each.offset + 1)
                        for each in records
                    }
                    with producer.transaction() as transaction:
                        for each in records:
                            transaction.send(BILLED, each.value)
                        transaction.send_offsets(ends, consumer.group_metadata())


class Ledger:
    """Reads a topic of parts as its ``read_committed`` readers see it, from where it has ended before."""

    def __init__(self, servers: str, topic: str, partitions: int = PARTITIONS) -> None:
        self._servers = servers
        self._places = [TopicPartition(topic, index) for index in range(partitions)]
        self._positions = dict.fromkeys(self._places, 0)
        self.values: dict[int, list[str]] = {each.partition: [] for each in self._places}
        self._offsets: dict[int, list[int]] = {each.partition: [] for each in self._places}
        self.parts: Counter[str] = Counter()
        self.sizes: dict[str, int] = {}
        self.balance = 0

    @property
    def ends(self) -> dict[TopicPartition, int]:
        """Up to where it was read."""
        return self._positions

    def before(self, place: TopicPartition, offset: int) -> int:
        """How many records are below an offset."""
        return bisect_left(self._offsets[place.partition], offset)

    def read(self) -> int:
        """Up to the last stable offsets of now; how many records there are. Raises KafkaError."""
        settings = {"bootstrap.servers": self._servers, "isolation.level": "read_committed"}
        with Consumer(settings) as consumer:
            consumer.assign(self._places)
            for place, position in self._positions.items():
                consumer.seek(place, position)
            ends = consumer.end_offsets(*self._places)
            while any(consumer.position(each) < ends[each] for each in self._places):
                for record in consumer.poll(100):
                    if record.offset < ends[TopicPartition(record.topic, record.partition)]:
                        self._offsets[record.partition].append(record.offset)
                        self._take(record.partition, record.value)
            # What was polled beyond the ends is read the next time.
            self._positions = dict(ends)
        return sum(map(len, self.values.values()))

    def _take(self, partition: int, value: bytes | None) -> None:
        assert value is not None
        part = json.loads(value)
        # The whole record: an amount that differs is another one.
        self.values[partition].append(value.decode())
        self.parts[part["transfer"]] += 1
        self.sizes[part["transfer"]] = part["parts"]
        self.balance += part["amount"]

    @property
    def torn(self) -> list[str]:
        """Transfers of which some parts are visible, and others are not."""
        return [name for name, count in self.parts.items() if count < self.sizes[name]]

    @property
    def doubled(self) -> list[str]:
        counts = Counter(value for values in self.values.values() for value in values)
        return [value for value, count in counts.items() if count > 1]
