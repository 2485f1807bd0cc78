"""A compacted topic on three brokers of ours, seen by those who read it: whoever leads, and however it was cleaned."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, field
from typing import Final

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from tests.interop.cluster import Cluster
from tests.interop.topics import at_last
from tests.suite.shared import unique

pytestmark = pytest.mark.interop

KEYS: Final = 12
_SEGMENT_MS: Final = 300
_SETTINGS: Final = {
    "cleanup.policy": "compact",
    # A new segment with whatever comes after a pause.
    "segment.ms": str(_SEGMENT_MS),
    "min.cleanable.dirty.ratio": "0.01",
    "delete.retention.ms": "0",
}


@dataclass
class Table:
    """The last value of each key, as its writers mean it, and the topic that holds it."""

    cluster: Cluster
    topic: str
    rows: dict[bytes, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.plain = Producer({"bootstrap.servers": self.cluster.bootstrap, "enable.idempotence": True})
        self.transactional = self.transactional_producer("writer")
        self._rounds = itertools.count()

    def transactional_producer(self, name: str) -> Producer:
        told = {"bootstrap.servers": self.cluster.bootstrap, "transactional.id": f"{name}-of-{self.topic}"}
        producer = Producer(told)
        producer.init_transactions(120)
        return producer

    def write(self) -> None:
        """Every key a few times: plain, in a transaction, in an aborted one; some are deleted."""
        number = next(self._rounds)
        for turn in range(3):
            self._put(self.plain, f"plain {number}.{turn}", range(KEYS))
            assert self.plain.flush(120) == 0
            self.transactional.begin_transaction()
            self._put(self.transactional, f"aborted {number}.{turn}", range(KEYS), counts=False)
            self.transactional.abort_transaction(120)
            self.transactional.begin_transaction()
            self._put(self.transactional, f"committed {number}.{turn}", range(turn, KEYS, 3))
            self._put(self.transactional, None, [KEYS - 1 - turn])
            self.transactional.commit_transaction(120)
            # The next turn is in the next segment.
            time.sleep(1.2 * _SEGMENT_MS / 1000)
        # The last closed segment has no key of the table.
        for _ in range(2):
            self.plain.produce(self.topic, key=b"end", value=b"", partition=0)
            assert self.plain.flush(120) == 0
            time.sleep(1.2 * _SEGMENT_MS / 1000)

    def _put(self, producer: Producer, value: str | None, keys: range | list[int], *, counts: bool = True) -> None:
        for key in (b"key %d" % each for each in keys):
            producer.produce(self.topic, key=key, value=value, partition=0)
            if counts and value is None:
                self.rows.pop(key, None)
            elif counts and value is not None:
                self.rows[key] = value.encode()

    def read(self) -> list[tuple[bytes, bytes | None]]:
        """What a committed reader gets, from the beginning to the end."""
        told = {"group.id": "reader", "enable.auto.commit": False, "enable.partition.eof": True}
        consumer = Consumer({"bootstrap.servers": self.cluster.bootstrap, **told})
        consumer.assign([TopicPartition(self.topic, 0, 0)])
        found: list[tuple[bytes, bytes | None]] = []
        try:
            while True:
                message = consumer.poll(120)
                assert message is not None, "the end does not come"
                error = message.error()
                if error is None:
                    found.append((message.key() or b"", message.value()))
                elif error.name() == "_PARTITION_EOF":
                    return [each for each in found if each[0] != b"end"]
                else:
                    raise KafkaException(error)
        finally:
            consumer.close()

    def check(self) -> None:
        rows: dict[bytes, bytes] = {}
        for key, value in self.read():
            if value is None:
                rows.pop(key, None)
            else:
                rows[key] = value
        assert rows == self.rows

    def wait_until_clean(self) -> None:
        """Of each key there is one record left, its last. (A tombstone goes with what is cleaned later.)"""
        found = at_last(self.read, lambda found: len({key for key, _ in found}) == len(found))
        assert {key: value for key, value in found if value is not None} == self.rows

    def new_leader(self) -> int:
        """Stop the leader; the one who leads then. The stopped one."""
        stopped = self.cluster.leader(self.topic)
        self.cluster.stop_node(stopped)
        return stopped


@pytest.fixture
def table(three_brokers: Cluster) -> Table:
    topic = unique("table")
    three_brokers.create_topic(topic, configs=_SETTINGS)
    return Table(three_brokers, topic)


def test_every_replica_comes_to_hold_the_last_value_of_each_key(table: Table) -> None:
    table.write()
    table.check()
    table.wait_until_clean()
    leaders = [table.cluster.leader(table.topic)]
    for _ in range(2):
        stopped = table.new_leader()
        table.wait_until_clean()
        leaders.append(table.cluster.leader(table.topic))
        table.cluster.start_node(stopped)
        table.cluster.wait_until_in_sync(table.topic)
    assert len(set(leaders)) > 1


def test_a_replica_that_was_down_during_cleaning_gets_the_remaining_records(table: Table) -> None:
    table.write()
    away = table.new_leader()
    table.write()
    table.wait_until_clean()
    table.cluster.start_node(away)
    table.cluster.wait_until_in_sync(table.topic)
    stopped = table.new_leader()
    # The first of the replicas is preferred, and this is the one that was away.
    assert table.cluster.leader(table.topic) == away
    table.check()
    table.wait_until_clean()
    table.cluster.start_node(stopped)
    table.write()
    table.check()


@pytest.mark.long
def test_an_open_transaction_is_not_cleaned_and_counts_from_its_commit_on(table: Table) -> None:
    table.write()
    late = table.transactional_producer("late")
    late.begin_transaction()
    late.produce(table.topic, key=b"key 0", value=b"late", partition=0)
    late.produce(table.topic, key=b"late", value=b"late", partition=0)
    assert late.flush(120) == 0
    before = dict(table.rows)
    # All behind an open transaction, so nobody sees it yet.
    for _ in range(4):
        table.plain.produce(table.topic, key=b"key 1", value=b"after", partition=0)
        assert table.plain.flush(120) == 0
        time.sleep(1.2 * _SEGMENT_MS / 1000)
    table.check()
    stopped = table.new_leader()
    table.check()
    assert before == table.rows
    late.commit_transaction(120)
    table.rows |= {b"key 0": b"late", b"late": b"late", b"key 1": b"after"}
    at_last(lambda: dict(table.read()).get(b"late"), lambda value: value == b"late")
    table.check()
    table.cluster.start_node(stopped)
    table.write()
    table.wait_until_clean()
