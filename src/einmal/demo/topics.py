"""Reading a topic of the demo from its beginning."""

from __future__ import annotations

from collections.abc import Iterator

from einmal.client import Consumer
from einmal.demo.verdict import Record


def reader(bootstrap_servers: str, topic: str, isolation: str = "read_committed") -> Consumer:
    """A consumer of all partitions, at their beginnings."""
    config = {"bootstrap.servers": bootstrap_servers, "isolation.level": isolation, "max.poll.records": 100_000}
    consumer = Consumer(config)
    partitions = consumer.partitions_for_topic(topic)
    consumer.assign(partitions)
    consumer.seek_to_beginning(*partitions)
    return consumer


def read(bootstrap_servers: str, topic: str, isolation: str = "read_committed") -> Iterator[Record]:
    """Key and value of every record up to the end."""
    with reader(bootstrap_servers, topic, isolation) as consumer:
        partitions = consumer.assignment()
        ends = consumer.end_offsets(*partitions)
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            for record in consumer.poll(1_000):
                yield record.key, record.value
