"""CreateTopics: make topics, with settings.

API: 19. Versions: 2-7.
Behaviour: answered when the topics are committed in the metadata log and can be written to.
Version notes: v4 -1 for the cluster's default counts; v5 the answer has counts and settings; v7 topic ids.
"""

from __future__ import annotations

from typing import Any, Final

from einmal.broker.context import RequestContext, Versions
from einmal.broker.handlers.describe_configs import topic_settings
from einmal.metadata.topics import NewTopic, TopicResult
from einmal.types import ErrorCode

API_KEY: Final = 19
VERSIONS: Final = Versions(2, 7, flexible=5)
FORWARDED: Final = True


async def handle(context: RequestContext, request: Any) -> dict[str, Any]:
    topics = [
        NewTopic(
            name=topic.name,
            topic_id=context.node.new_uuid(),
            partitions=topic.num_partitions,
            replication_factor=topic.replication_factor,
            assignments={item.partition_index: tuple(item.broker_ids) for item in topic.assignments},
            configs={item.name: item.value for item in topic.configs},
        )
        async for topic in context.paced(request.topics)
    ]
    results = await context.node.metadata.create_topics(topics, validate_only=request.validate_only)
    if isinstance(results, ErrorCode):
        results = [TopicResult(name=topic.name, error=results) for topic in topics]
    return {"topics": [_fields(context, result) async for result in context.paced(results)]}


def _fields(context: RequestContext, result: TopicResult) -> dict[str, Any]:
    is_made = result.error is ErrorCode.none
    return {
        "name": result.name,
        "topic_id": result.topic_id,
        "error_code": result.error,
        "error_message": result.message,
        "num_partitions": result.partitions,
        "replication_factor": result.replication_factor,
        "configs": [
            {key: entry[key] for key in ("name", "value", "read_only", "config_source", "is_sensitive")}
            for entry in topic_settings(context.node, result.name or "", None)
        ]
        if is_made
        else [],
    }
