"""Reports assigned partitions that do not exist: ``poll`` returns nothing of them, as they may be in creation."""

from __future__ import annotations

from einmal.client.aio.network.cluster import Cluster
from einmal.client.cores.consumer_core import ConsumerCore
from einmal.event_log import EventLog
from einmal.types import ErrorCode, TopicPartition

_log = EventLog("einmal.client")
_NAMED_MAX = 8


class MissingPartitions:
    """One line for each, and another where it has existed meanwhile."""

    def __init__(self, core: ConsumerCore, cluster: Cluster) -> None:
        self._core = core
        self._cluster = cluster
        self._reported: dict[TopicPartition, None] = {}
        self._looked_at_ms = 0

    def report(self) -> None:
        """Log those that the latest metadata does not have and that are not reported yet."""
        refreshed_at_ms = self._cluster.refreshed_at_ms
        if refreshed_at_ms == self._looked_at_ms:
            return
        self._looked_at_ms = refreshed_at_ms
        missing = dict.fromkeys(partition for partition in sorted(self._core.assignment) if self._is_missing(partition))
        fresh = [str(partition) for partition in missing if partition not in self._reported]
        self._reported = missing
        if fresh:
            named = ", ".join(fresh[:_NAMED_MAX]) + (", ..." if len(fresh) > _NAMED_MAX else "")
            sentence = (
                "assigned partitions do not exist (UNKNOWN_TOPIC_OR_PARTITION): %(partitions)s; no records until they "
                "are created"
            )
            _log.warning("assigned_partitions_missing", sentence, partitions=named)

    def _is_missing(self, partition: TopicPartition) -> bool:
        """Not one of which nothing was asked yet, or that this client may not see."""
        topic = self._cluster.metadata.topics.get(partition.topic)
        if topic is None:
            return False
        if topic.error_code is ErrorCode.none:
            return partition.partition not in topic.partitions
        return topic.error_code is ErrorCode.unknown_topic_or_partition
