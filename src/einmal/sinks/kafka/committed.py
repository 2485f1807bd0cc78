"""The commit records of all pipelines of a cluster, as its commit topic has them."""

from __future__ import annotations

from collections.abc import Iterator

from einmal.client.cores.fetched import RawBatch
from einmal.client.errors import UnknownTopic
from einmal.clusters.kafka_cluster import KafkaCluster
from einmal.commit_protocol.commit_record import COMMIT_TOPIC
from einmal.sinks.commit_point import Committed
from einmal.sinks.kafka.commit_log import (
    BatchReader,
    Value,
    batches_below,
    candidates,
    is_commit,
    value_of,
)
from einmal.types import TopicPartition


def committed(cluster: KafkaCluster) -> dict[str, Committed]:
    """The last committed record of every pipeline, by transactional id. Raises KafkaError."""
    try:
        partitions = cluster.partitions([COMMIT_TOPIC])
    except UnknownTopic:
        return {}
    ends = cluster.latest(partitions, committed=False)
    by_name: dict[str, dict[TopicPartition, Value]] = {}
    for partition, values in _last_values(batches_below(cluster, ends)).items():
        for name, value in values.items():
            by_name.setdefault(name, {})[partition] = value
    last = {name: _last_of(name, by_partition, len(partitions)) for name, by_partition in sorted(by_name.items())}
    return {
        name: Committed(name, value.record, value.timestamp, value.problem)
        for name, value in last.items()
        if value.record is not None or value.problem
    }


def _last_values(batches: Iterator[RawBatch]) -> dict[TopicPartition, dict[str, Value]]:
    """The last committed value of every name, by partition; what is undecided does not count."""
    last_values: dict[TopicPartition, dict[str, Value]] = {}
    open_values: dict[tuple[TopicPartition, int], dict[str, Value]] = {}
    reader = BatchReader()
    for batch in batches:
        partition = batch.topic_partition
        if batch.header.is_control:
            undecided = open_values.pop((partition, batch.header.producer_id), {})
            if is_commit(batch):
                last_values.setdefault(partition, {}).update(undecided)
            continue
        values = {
            (record.key or b"").decode(errors="replace"): value_of(record, batch) for record in reader.records(batch)
        }
        if batch.header.is_transactional:
            open_values.setdefault((partition, batch.header.producer_id), {}).update(values)
        else:
            last_values.setdefault(partition, {}).update(values)
    return last_values


def _last_of(name: str, by_partition: dict[TopicPartition, Value], partitions: int) -> Value:
    """Where a pipeline would look for it; a record that is nowhere there is no pipeline's, and is shown."""
    return next(
        (by_partition[candidate] for candidate in candidates(name, partitions) if candidate in by_partition),
        next(iter(by_partition.values())),
    )
