"""The right leader for a client that asked another broker (KIP-951): CurrentLeader and NodeEndpoints of responses.

Taken from the image, and left out unless the image is newer than what the client must know already.
"""

from __future__ import annotations

from typing import Final

from einmal.metadata.image import ClusterImage
from einmal.types import ErrorCode, TopicPartition
from einmal.wire.produce import LeaderIdAndEpoch, NodeEndpoint

WRONG_BROKER: Final = (ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch)
"""Errors that a hint goes with."""


class LeaderHints:
    """Leader hints of one answer. ``listener``: the name of that which the request came to. ``endpoints``: of all
    leaders named."""

    def __init__(self, image: ClusterImage, listener: str) -> None:
        self._image = image
        self._listener = listener
        self._endpoints: dict[int, NodeEndpoint] = {}

    @property
    def endpoints(self) -> list[NodeEndpoint]:
        return list(self._endpoints.values())

    def of(self, topic_partition: TopicPartition) -> LeaderIdAndEpoch | None:
        """The leader of a partition; None: none, or unknown."""
        topic = self._image.topics.get(topic_partition.topic)
        if topic is None or not 0 <= topic_partition.partition < len(topic.partitions):
            return None
        partition = topic.partitions[topic_partition.partition]
        broker = self._image.brokers.get(partition.leader)
        end_point = None if broker is None else broker.end_point(self._listener)
        if broker is None or end_point is None:
            return None
        self._endpoints[broker.broker_id] = NodeEndpoint(broker.broker_id, end_point.host, end_point.port, broker.rack)
        return LeaderIdAndEpoch(partition.leader, partition.leader_epoch)
