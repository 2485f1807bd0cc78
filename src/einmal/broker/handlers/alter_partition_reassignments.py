"""AlterPartitionReassignments: move partitions to other brokers, or take that back.

API: 45. Versions: 0-1.
Behaviour: answered when the reassignment is recorded, not when it is done (KIP-455). No replicas: take it back.
Version notes: v1 the replication factor may be held fast.
"""

from __future__ import annotations

from typing import Any, Final

from einmal.broker.context import RequestContext, Versions
from einmal.metadata.reassignment import Reassignment, ReassignmentResult
from einmal.types import BrokerId, ErrorCode, TopicPartition

API_KEY: Final = 45
VERSIONS: Final = Versions(0, 1, flexible=0)
FORWARDED: Final = True


async def handle(context: RequestContext, request: Any) -> dict[str, Any]:
    asked = [
        Reassignment(
            TopicPartition(topic.name, item.partition_index),
            None if item.replicas is None else tuple(map(BrokerId, item.replicas)),
        )
        for topic in request.topics
        for item in topic.partitions
    ]
    may_change_factor = getattr(request, "allow_replication_factor_change", True)
    results = await context.node.controller.submit(
        lambda shard, now: shard.reassign_partitions(asked, allow_replication_factor_change=may_change_factor)
    )
    if isinstance(results, ErrorCode):
        error, results = results, []
    else:
        error = ErrorCode.none
    fields: dict[str, Any] = {"error_code": error, "error_message": None, "responses": _by_topic(results)}
    if context.api_version >= 1:
        fields["allow_replication_factor_change"] = may_change_factor
    return fields


def _by_topic(results: list[ReassignmentResult]) -> list[dict[str, Any]]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        topics.setdefault(result.topic_partition.topic, []).append(
            {
                "partition_index": result.topic_partition.partition,
                "error_code": result.error,
                "error_message": result.message,
            }
        )
    return [{"name": topic, "partitions": partitions} for topic, partitions in topics.items()]
