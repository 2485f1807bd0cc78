"""DescribeProducers: the producers that a partition remembers.

API: 61. Versions: 0.
Behaviour: identity, last sequence, last write and the open transaction's first offset, for each (KIP-664). Only of
partitions that this broker leads.
Version notes: none.
"""

from __future__ import annotations

from typing import Any, Final

from einmal.broker.context import RequestContext, Versions
from einmal.types import ErrorCode, TopicPartition

API_KEY: Final = 61
VERSIONS: Final = Versions(0, 0, flexible=0)


async def handle(context: RequestContext, request: Any) -> dict[str, Any]:
    # What is asked for twice is answered once: it may be long.
    asked: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        asked.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    topics = []
    async for name, indexes in context.paced(asked.items()):
        partitions = [_partition(context, name, index) async for index in context.paced(indexes)]
        topics.append({"name": name, "partitions": partitions})
    return {"topics": topics}


def _partition(context: RequestContext, topic: str, index: int) -> dict[str, Any]:
    partitions, topic_partition = context.node.partitions, TopicPartition(topic, index)
    partition = partitions.get(topic_partition)
    if partition is None or not partition.is_leader:
        error = partitions.error_of_missing(topic_partition)
        return {"partition_index": index, "error_code": error, "active_producers": []}
    return {
        "partition_index": index,
        "error_code": ErrorCode.none,
        "active_producers": [
            {
                "producer_id": producer.producer_id,
                "producer_epoch": producer.producer_epoch,
                "last_sequence": producer.last_sequence,
                "last_timestamp": producer.last_timestamp,
                "coordinator_epoch": producer.coordinator_epoch,
                "current_txn_start_offset": producer.current_txn_start_offset,
            }
            for producer in partition.log.producers.describe()
        ],
    }
