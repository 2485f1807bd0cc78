"""ListPartitionReassignments: which partitions are being moved to other brokers.

API: 46. Versions: 0.
Behaviour: what is committed, as the active controller sees it (KIP-455).
"""

from __future__ import annotations

from typing import Any, Final

from einmal.broker.context import RequestContext, Versions
from einmal.shard.decision import Decision
from einmal.types import ErrorCode, TopicPartition

API_KEY: Final = 46
VERSIONS: Final = Versions(0, 0, flexible=0)
FORWARDED: Final = True


async def handle(context: RequestContext, request: Any) -> dict[str, Any]:
    ongoing = await context.node.controller.submit(lambda shard, now: Decision(response=shard.reassignments()))
    if isinstance(ongoing, ErrorCode):
        return {"error_code": ongoing, "error_message": None, "topics": []}
    asked = None
    if request.topics is not None:
        asked = {
            TopicPartition(topic.name, partition): None
            for topic in request.topics
            for partition in topic.partition_indexes
        }
    topics: dict[str, list[dict[str, Any]]] = {}
    for topic, partition_id, partition in ongoing:
        if asked is None or TopicPartition(topic.name, partition_id) in asked:
            topics.setdefault(topic.name, []).append(
                {
                    "partition_index": partition_id,
                    "replicas": partition.replicas,
                    "adding_replicas": partition.adding,
                    "removing_replicas": partition.removing,
                }
            )
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "topics": [{"name": name, "partitions": partitions} for name, partitions in topics.items()],
    }
