"""OffsetCommit: a group's positions, outside transactions.

API: 8. Versions: 2-10.
Behaviour: asks the group's shard about the partitions that exist; others are answered UNKNOWN_TOPIC_OR_PARTITION.
Version notes: v2-4 a retention of the request's own; v6 leader epochs (KIP-320); v7 static members (KIP-345); v9 the
generation may be a member epoch (KIP-848), which no group here has, and an unknown group is GROUP_ID_NOT_FOUND; v10
topic ids.
"""

from __future__ import annotations

from typing import Any, Final

from einmal.broker.committed_topics import CommittedTopics
from einmal.broker.context import Body, RequestContext, Versions
from einmal.groups.requests import OffsetCommit
from einmal.types import ErrorCode
from einmal.wire.messages import milliseconds

API_KEY: Final = 8
VERSIONS: Final = Versions(2, 10, flexible=8)
_FIRST_WITH_NOT_FOUND: Final = 9


async def handle(context: RequestContext, request: Any) -> Body:
    topics = CommittedTopics(context.node, request.topics)
    if not topics.known:
        return topics.answer(ErrorCode.none)
    commit = OffsetCommit(
        group_id=request.group_id,
        generation_id=request.generation_id_or_member_epoch,
        member_id=request.member_id,
        group_instance_id=getattr(request, "group_instance_id", None),
        offsets=topics.offsets,
        retention_ms=_retention_ms(request),
        unknown_group=_unknown_group(context.api_version),
    )
    response = await context.node.groups.ask(commit.group_id, lambda shard, now: shard.offset_commit(commit, now))
    return topics.answer(response)


def _unknown_group(version: int) -> ErrorCode:
    return ErrorCode.group_id_not_found if version >= _FIRST_WITH_NOT_FOUND else ErrorCode.illegal_generation


def _retention_ms(request: Any) -> int | None:
    """The request's own retention; negative: the broker's."""
    retention = getattr(request, "retention_time", None)
    if retention is None or milliseconds(retention) < 0:
        return None
    return milliseconds(retention)
