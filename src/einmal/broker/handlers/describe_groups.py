"""DescribeGroups: state, members and assignment of groups.

API: 15. Versions: 0-6.
Behaviour: asks each group's shard.
Version notes: v3 authorized operations, all of them as there are no ACLs; v4 static members; v6 GROUP_ID_NOT_FOUND
with a message for a group that nobody knows (before: a dead group, without error).
"""

from __future__ import annotations

from typing import Any, Final

from einmal.broker.context import Body, RequestContext, Versions
from einmal.types import ErrorCode

API_KEY: Final = 15
VERSIONS: Final = Versions(0, 6, flexible=5)
_FIRST_WITH_NOT_FOUND: Final = 6
_ALL_OPERATIONS: Final = 1 << 3 | 1 << 6 | 1 << 8 | 1 << 10 | 1 << 11
"""Bits of Kafka's ACL operations on a group: read, delete, describe, describe and alter configs."""


async def handle(context: RequestContext, request: Any) -> Body:
    # A group that is named twice is described once: it may have many members.
    groups = dict.fromkeys(request.groups)
    return {"groups": [await _describe(context, request, group_id) async for group_id in context.paced(groups)]}


async def _describe(context: RequestContext, request: Any, group_id: str) -> dict[str, Any]:
    response = await context.node.groups.ask(
        group_id, lambda shard, now: shard.describe_groups([group_id]), reads_only=True
    )
    if isinstance(response, ErrorCode):
        return {"error_code": response, "group_id": group_id}
    group = dict(response["groups"][0])
    if context.api_version < _FIRST_WITH_NOT_FOUND and group["error_code"] is ErrorCode.group_id_not_found:
        group["error_code"] = ErrorCode.none
    if getattr(request, "include_authorized_operations", False):
        group["authorized_operations"] = _ALL_OPERATIONS
    return group
