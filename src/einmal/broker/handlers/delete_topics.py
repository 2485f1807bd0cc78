"""DeleteTopics: remove topics with all they hold.

API: 20. Versions: 1-6.
Behaviour: answered when the removal is committed in the metadata log; from then on a topic of the same name is another.
Version notes: v5 error messages; v6 topics by id.
"""

from __future__ import annotations

from typing import Any, Final
from uuid import UUID

from einmal.broker.context import RequestContext, Versions
from einmal.metadata.topics import TopicResult
from einmal.types import ErrorCode

API_KEY: Final = 20
VERSIONS: Final = Versions(1, 6, flexible=4)
FORWARDED: Final = True
_NO_TOPIC_ID: Final = UUID(int=0)


async def handle(context: RequestContext, request: Any) -> dict[str, Any]:
    asked: list[tuple[str | None, UUID]]
    if context.api_version >= 6:
        asked = [(topic.name, topic.topic_id or _NO_TOPIC_ID) for topic in request.topics]
    else:
        asked = [(name, _NO_TOPIC_ID) for name in request.topic_names]
    results: list[TopicResult] | ErrorCode
    if not context.node.config.delete_topic_enable:
        results = ErrorCode.topic_deletion_disabled
    else:
        results = await context.node.metadata.delete_topics(asked)
    if isinstance(results, ErrorCode):
        results = [TopicResult(name=name, topic_id=topic_id, error=results) for name, topic_id in asked]
    return {
        "responses": [
            {
                "name": result.name,
                "topic_id": result.topic_id,
                "error_code": result.error,
                "error_message": result.message,
            }
            for result in results
        ]
    }
