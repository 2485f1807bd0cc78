"""OffsetDelete: forget single positions of a group (KIP-496).

API: 47. Versions: 0.
Behaviour: asks the group's shard, which keeps what a member subscribes to (GROUP_SUBSCRIBED_TO_TOPIC) or an open
transaction may move (UNSTABLE_OFFSET_COMMIT). Partitions of deleted topics may be named: so their positions go.
"""

from __future__ import annotations

from typing import Any, Final

from einmal.broker.context import Body, RequestContext, Versions
from einmal.types import ErrorCode, TopicPartition

API_KEY: Final = 47
VERSIONS: Final = Versions(0, 0)


async def handle(context: RequestContext, request: Any) -> Body:
    partitions = tuple(
        TopicPartition(topic.name, partition.partition_index)
        for topic in request.topics
        for partition in topic.partitions
    )
    response = await context.node.groups.ask(
        request.group_id, lambda shard, now: shard.offset_delete(request.group_id, partitions)
    )
    return {"error_code": response} if isinstance(response, ErrorCode) else response
