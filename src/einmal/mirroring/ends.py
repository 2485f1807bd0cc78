"""Offsets of partitions, each for itself: one whose leader does not answer keeps nobody from the others' ends."""

from __future__ import annotations

from collections.abc import Iterable

from einmal.client.errors import KafkaError, UnknownTopic
from einmal.clusters.kafka_cluster import KafkaCluster
from einmal.types import IsolationLevel, TopicPartition


def offsets_each(
    cluster: KafkaCluster,
    partitions: Iterable[TopicPartition],
    timestamp: int,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> tuple[dict[TopicPartition, int], dict[str, str]]:
    """The offsets at a time, LATEST or EARLIEST, and why there are none, by topic. Raises UnknownTopic, and KafkaError
    where the cluster cannot be reached."""
    offsets: dict[TopicPartition, int] = {}
    reasons: dict[str, str] = {}
    wanted = dict.fromkeys(partitions, timestamp)
    if not wanted:
        return offsets, reasons
    for partition, answer in cluster.admin.list_offsets_each(wanted, isolation=isolation).items():
        if isinstance(answer, UnknownTopic):
            raise answer
        if isinstance(answer, KafkaError):
            reasons.setdefault(
                partition.topic, f"the leader of partition {partition} does not answer as it should: {answer}."
            )
        else:
            offsets[partition] = answer.offset
    return offsets, reasons
