"""Offsets of partitions, each for itself: one whose leader does not answer keeps nobody from the others' ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from einmal.client.errors import KafkaError, UnknownTopic
from einmal.client.records import OffsetAndTimestamp
from einmal.clusters.kafka_cluster import KafkaCluster
from einmal.types import EpochEnd, ErrorCode, IsolationLevel, TopicPartition

_T = TypeVar("_T")


def offsets_each(
    cluster: KafkaCluster,
    partitions: Iterable[TopicPartition],
    timestamp: int,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> tuple[dict[TopicPartition, int], dict[str, str]]:
    """The offsets at a time, LATEST or EARLIEST, and why there are none, by topic. Raises UnknownTopic, and KafkaError
    where the cluster cannot be reached."""
    positions, reasons = positions_each(cluster, partitions, timestamp, isolation)
    return {partition: position.offset for partition, position in positions.items()}, reasons


def positions_each(
    cluster: KafkaCluster,
    partitions: Iterable[TopicPartition],
    timestamp: int,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> tuple[dict[TopicPartition, OffsetAndTimestamp], dict[str, str]]:
    """As ``offsets_each``, with leader epochs."""
    wanted = dict.fromkeys(partitions, timestamp)
    return _sorted_out(cluster.admin.list_offsets_each(wanted, isolation=isolation) if wanted else {})


def epoch_ends_each(
    cluster: KafkaCluster, epochs: Mapping[TopicPartition, int]
) -> tuple[dict[TopicPartition, EpochEnd], dict[str, str]]:
    """The ends of leader epochs, and why they are not known; none where the brokers do not report them. Raises as
    ``offsets_each``."""
    answers = cluster.admin.epoch_ends_each(epochs) if epochs else {}
    return _sorted_out(
        {
            partition: answer
            for partition, answer in answers.items()
            if not isinstance(answer, KafkaError) or answer.code is not ErrorCode.unsupported_version
        }
    )


def _sorted_out(answers: Mapping[TopicPartition, _T | KafkaError]) -> tuple[dict[TopicPartition, _T], dict[str, str]]:
    results: dict[TopicPartition, _T] = {}
    reasons: dict[str, str] = {}
    for partition, answer in answers.items():
        if isinstance(answer, UnknownTopic):
            raise answer
        if isinstance(answer, KafkaError):
            reasons.setdefault(
                partition.topic, f"the leader of partition {partition} does not answer as it should: {answer}."
            )
        else:
            results[partition] = answer
    return results, reasons
