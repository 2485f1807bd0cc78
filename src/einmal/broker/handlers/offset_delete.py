"""OffsetDelete: forget single positions of a group (KIP-496).

API: 47. Versions: 0.
Behaviour: asks the group's shard about the partitions that exist. It keeps what a member subscribes to
(GROUP_SUBSCRIBED_TO_TOPIC) or an open transaction may move (UNSTABLE_OFFSET_COMMIT; Kafka drops the transaction's).
"""

from __future__ import annotations

from typing import Any, Final

from einmal.broker.committed_topics import CommittedTopics
from einmal.broker.context import Body, RequestContext, Versions
from einmal.types import ErrorCode

API_KEY: Final = 47
VERSIONS: Final = Versions(0, 0)


async def handle(context: RequestContext, request: Any) -> Body:
    topics = CommittedTopics(context.node, request.topics)
    response = await context.node.groups.ask(
        request.group_id, lambda shard, now: shard.offset_delete(request.group_id, topics.known)
    )
    if isinstance(response, ErrorCode):
        return {"error_code": response}
    if response["error_code"] is not ErrorCode.none:
        return response
    return {**topics.answer(response), "error_code": ErrorCode.none}
