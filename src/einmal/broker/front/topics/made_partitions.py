"""Whether this broker could make its replicas of partitions that were just committed.

The answer to their creation reports it: after a success a client expects that it can write to the topic.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from einmal.broker.replicas.partitions import Partitions
from einmal.metadata.topics import TopicResult
from einmal.types import ErrorCode


class MadePartitions:
    """Made before the partitions are."""

    def __init__(self, partitions: Partitions) -> None:
        self._partitions = partitions
        self._offline_before = frozenset(partitions.offline)

    def results(self, committed: Iterable[TopicResult]) -> Iterator[TopicResult]:
        """KAFKA_STORAGE_ERROR for a topic with a new partition that is offline here."""
        offline = {
            partition.topic: f"{partition} is offline: {error}"
            for partition, error in self._partitions.offline.items()
            if partition not in self._offline_before
        }
        for result in committed:
            if result.error is ErrorCode.none and result.name in offline:
                message = (
                    f"The topic has the partitions that were asked for, but {offline[result.name]}. "
                    "The broker retries every few seconds."
                )
                yield replace(result, error=ErrorCode.kafka_storage_error, message=message)
            else:
                yield result
