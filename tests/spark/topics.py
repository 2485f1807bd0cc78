"""Topics of the Spark tests: made, filled and read back with our own client."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from einmal.client import OffsetRange, Producer, RangeReader
from einmal.clusters.kafka_cluster import KafkaCluster
from einmal.commit_protocol.commit_record import COMMIT_TOPIC, CommitRecord
from einmal.sinks.kafka.commit_log import PARTITIONS, TOPIC_CONFIG, CommitLog
from einmal.types import TopicPartition
from einmal.wire.record_batch import Record

Bootstrap = str | Mapping[str, str]
"""A cluster: its address, or the settings of a client, for one that is secured."""


def client_of(bootstrap: Bootstrap) -> dict[str, str]:
    return {"bootstrap.servers": bootstrap} if isinstance(bootstrap, str) else dict(bootstrap)


def create(bootstrap: Bootstrap, *topics: str, partitions: int = 2, settings: Mapping[str, str] | None = None) -> None:
    """Without retention, which would take the records of years ago that some tests write.

    The commit topic is made as a pipeline makes it: it is shared with all other tests on the broker.
    """
    cluster = KafkaCluster(client_of(bootstrap))
    try:
        for topic in topics:
            if topic == COMMIT_TOPIC:
                cluster.create_topic(topic, PARTITIONS, TOPIC_CONFIG)
            else:
                cluster.create_topic(topic, partitions, {"retention.ms": "-1", **(settings or {})})
        cluster.partitions(topics)
    finally:
        cluster.close()


def fill(bootstrap: Bootstrap, topic: str, numbers: Iterable[int], **settings: str) -> None:
    """One record per number: key ``k<number % 5>``, value the number."""
    with Producer(client_of(bootstrap), **settings) as producer:
        for number in numbers:
            producer.send(topic, str(number), f"k{number % 5}")


def records(bootstrap: Bootstrap, topic: str, *, committed: bool = True) -> list[tuple[TopicPartition, Record]]:
    """Everything in the topic, in order per partition."""
    cluster = KafkaCluster(client_of(bootstrap))
    isolation = "read_committed" if committed else "read_uncommitted"
    try:
        partitions = cluster.partitions([topic])
        starts, ends = cluster.earliest(partitions), cluster.latest(partitions, committed=committed)
    finally:
        cluster.close()
    bounds = {each: OffsetRange(starts[each], ends[each]) for each in partitions}
    with RangeReader({**client_of(bootstrap), "isolation.level": isolation}) as reader:
        return [
            (batch.topic_partition, record)
            for batch in reader.read(bounds)
            for record in batch.records(bounds[batch.topic_partition])
        ]


def commit_record(bootstrap: Bootstrap, name: str) -> CommitRecord | None:
    """What is committed under a name, also where the open transaction of another hides it from readers."""
    client = client_of(bootstrap)
    cluster = KafkaCluster(client)
    try:
        return CommitLog(cluster, client, name).look()
    finally:
        cluster.close()


def values(bootstrap: Bootstrap, topic: str, *, committed: bool = True) -> list[str]:
    return [(record.value or b"").decode() for _, record in records(bootstrap, topic, committed=committed)]


def pairs(bootstrap: Bootstrap, topic: str) -> list[tuple[str, str]]:
    """The committed keys and values; what is missing is empty."""
    found = records(bootstrap, topic)
    return [((record.key or b"").decode(), (record.value or b"").decode()) for _, record in found]


def numbers(bootstrap: Bootstrap, topic: str, *, committed: bool = True) -> list[int]:
    """The values as numbers, sorted."""
    return sorted(int(value) for value in values(bootstrap, topic, committed=committed))
