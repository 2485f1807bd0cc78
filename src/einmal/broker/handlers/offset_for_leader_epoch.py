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


def handle(context: RequestContext, request: Any) -> dict[str, Any]:
    return {
        "topics": [
            {
                "topic": topic.topic,
                "partitions": [_partition(context, topic.topic, asked) for asked in topic.partitions],
            }
            for topic in request.topics
        ]
    }


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
