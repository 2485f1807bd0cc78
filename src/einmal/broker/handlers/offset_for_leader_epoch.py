"""OffsetForLeaderEpoch: where a leader epoch ends.

API: 23. Versions: 2-4.
Behaviour: the largest epoch that is not above the one asked for, and the offset after its last record; -1 and -1 where
there is none. Consumers find out by it that a log lost its end (KIP-320).
Version notes: v3 replica id, of no use here; v4 flexible.
"""

from __future__ import annotations

from typing import Any, Final

from einmal.broker.context import RequestContext, Versions
from einmal.types import NO_LEADER_EPOCH, NO_OFFSET, ErrorCode, LeaderEpoch, TopicPartition

API_KEY: Final = 23
VERSIONS: Final = Versions(2, 4, flexible=4)


async def handle(context: RequestContext, request: Any) -> dict[str, Any]:
    topics = []
    async for topic in context.paced(request.topics):
        partitions = [_partition(context, topic.topic, asked) async for asked in context.paced(topic.partitions)]
        topics.append({"topic": topic.topic, "partitions": partitions})
    return {"topics": topics}


def _partition(context: RequestContext, topic: str, asked: Any) -> dict[str, Any]:
    partitions = context.node.partitions
    topic_partition = TopicPartition(topic, asked.partition)
    partition = partitions.get(topic_partition)
    error, epoch, end_offset = partitions.error_of_missing(topic_partition), NO_LEADER_EPOCH, NO_OFFSET
    if partition is not None:
        error = partition.check_leader_epoch(asked.current_leader_epoch)
        if error is ErrorCode.none:
            epoch, end_offset = partition.log.end_offset_for_epoch(LeaderEpoch(asked.leader_epoch))
    return {"partition": asked.partition, "error_code": error, "leader_epoch": epoch, "end_offset": end_offset}
