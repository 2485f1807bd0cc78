"""Whether this broker could make its replicas of partitions that were just committed.

The answer to their creation reports it: after a success a client expects that it can write to the topic.
"""

from __future__ import annotations

from dataclasses import replace

from einmal.broker.replicas.partitions import Partitions
from einmal.metadata.topics import TopicResult
from einmal.types import ErrorCode


class MadePartitions:
    """Made before the partitions are."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._offline_before = frozenset(partitions.offline)

    def result(self, committed: TopicResult) -> TopicResult:
        """KAFKA_STORAGE_ERROR for a topic with a new partition that is offline here."""
        if committed.error is not ErrorCode.none:
            return committed
        for partition, error in self._partitions.offline.items():
            if partition.topic == committed.name and partition not in self._offline_before:
                message = (
                    f"The topic has the partitions that were asked for, but {partition} is offline: {error}. "
                    "The broker retries every few seconds."
                )
                return replace(committed, error=ErrorCode.kafka_storage_error, message=message)
        return committed
