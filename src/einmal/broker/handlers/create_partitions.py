"""CreatePartitions: give topics more partitions.

API: 37. Versions: 0-3.
Behaviour: the partitions that exist stay as they are; records of one key may go elsewhere from then on.
Version notes: none that matter here.
"""

from __future__ import annotations

from typing import Any, Final

from einmal.broker.context import RequestContext, Versions
from einmal.metadata.topics import NewPartitions, TopicResult
from einmal.types import ErrorCode

API_KEY: Final = 37
VERSIONS: Final = Versions(0, 3, flexible=2)
FORWARDED: Final = True


async def handle(context: RequestContext, request: Any) -> dict[str, Any]:
    topics = [
        NewPartitions(
            name=topic.name,
            count=topic.count,
            assignments=(
                None if topic.assignments is None else tuple(tuple(item.broker_ids) for item in topic.assignments)
            ),
        )
        for topic in request.topics
    ]
    results = await context.node.metadata.create_partitions(topics, validate_only=request.validate_only)
    if isinstance(results, ErrorCode):
        results = [TopicResult(name=topic.name, error=results) for topic in topics]
    return {
        "results": [
            {"name": result.name, "error_code": result.error, "error_message": result.message} for result in results
        ]
    }
