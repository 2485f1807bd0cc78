"""OffsetForLeaderEpoch: where a leader epoch ends.

API: 23. Versions: 2-4.
Access: CLUSTER_ACTION on Cluster, or DESCRIBE on Topic.
Behaviour: the largest epoch that is not above the one asked for, and the offset after its last record; -1 and -1 where
there is none. Consumers find out by it that a log lost its end (KIP-320).
Version notes: v3 replica id, of no use here; v4 flexible.
"""

from __future__ import annotations

from typing import ClassVar

from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.broker.replicas.partitions import Partitions
from einmal.security.acl import AclOperation, ResourceType
from einmal.types import NO_LEADER_EPOCH, NO_OFFSET, ErrorCode, LeaderEpoch, TopicPartition
from einmal.wire.api.offset_for_leader_epoch import (
    API,
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)


@handler
class OffsetForLeaderEpochHandler:
    api: ClassVar = API
    access: Access
    partitions: Partitions

    async def handle(
        self, context: RequestContext, request: OffsetForLeaderEpochRequest
    ) -> OffsetForLeaderEpochResponse:
        sees_all = self.access.allows(context, AclOperation.CLUSTER_ACTION, ResourceType.CLUSTER, is_filter=True)
        topics = []
        async for topic in context.paced(request.topics):
            refused = None
            if not sees_all:
                refused = self.access.refusal(context, AclOperation.DESCRIBE, ResourceType.TOPIC, topic.topic)
            partitions = [
                _refused(asked, refused) if refused else self._partition(topic.topic, asked)
                async for asked in context.paced(topic.partitions)
            ]
            topics.append(OffsetForLeaderTopicResult(topic.topic, partitions))
        return OffsetForLeaderEpochResponse(topics=topics)

    def _partition(self, topic: str, asked: OffsetForLeaderPartition) -> EpochEndOffset:
        topic_partition = TopicPartition(topic, asked.partition)
        partition = self.partitions.get(topic_partition)
        error, epoch, end_offset = self.partitions.error_of_missing(topic_partition), NO_LEADER_EPOCH, NO_OFFSET
        if partition is not None:
            error = partition.check_leader_epoch(LeaderEpoch(asked.current_leader_epoch))
            if error is ErrorCode.none:
                epoch, end_offset = partition.end_offset_for_epoch(LeaderEpoch(asked.leader_epoch))
        return EpochEndOffset(error_code=error, partition=asked.partition, leader_epoch=epoch, end_offset=end_offset)


def _refused(asked: OffsetForLeaderPartition, error: ErrorCode) -> EpochEndOffset:
    return EpochEndOffset(
        error_code=error, partition=asked.partition, leader_epoch=NO_LEADER_EPOCH, end_offset=NO_OFFSET
    )
