"""ElectLeaders: let preferred replicas lead, or any replica where nobody leads.

API: 43. Versions: 0-2.
Behaviour: answered when the elections are committed. An unclean one may lose records, and is told of in the log.
Version notes: v0 knows preferred leaders only and has no error of the whole request; v1 the kind of election.
"""

from __future__ import annotations

from typing import Any, Final

from einmal.broker.context import RequestContext, Versions
from einmal.metadata.partitions import PREFERRED, ElectionResult
from einmal.types import ErrorCode, TopicPartition

API_KEY: Final = 43
VERSIONS: Final = Versions(0, 2, flexible=2)
FORWARDED: Final = True


async def handle(context: RequestContext, request: Any) -> dict[str, Any]:
    asked = None
    if request.topic_partitions is not None:
        asked = [
            TopicPartition(topic.topic, partition)
            for topic in request.topic_partitions
            for partition in topic.partitions
        ]
    kind = getattr(request, "election_type", PREFERRED)
    results = await context.node.controller.submit(lambda shard, now: shard.elect_leaders(kind, asked))
    error = ErrorCode.none
    if isinstance(results, ErrorCode):
        error, results = results, [ElectionResult(item, results) for item in asked or ()]
    fields: dict[str, Any] = {"replica_election_results": _by_topic(results)}
    if context.api_version >= 1:
        fields["error_code"] = error
    return fields


def _by_topic(results: list[ElectionResult]) -> list[dict[str, Any]]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for result in results:
        topics.setdefault(result.topic_partition.topic, []).append(
            {
                "partition_id": result.topic_partition.partition,
                "error_code": result.error,
                "error_message": result.message,
            }
        )
    return [{"topic": topic, "partition_result": partitions} for topic, partitions in topics.items()]
