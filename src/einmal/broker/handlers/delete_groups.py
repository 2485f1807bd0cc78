"""DeleteGroups: forget groups with all their positions (KIP-229).

API: 42. Versions: 0-2.
Behaviour: asks each group's shard; one with members, or with positions that an open transaction would commit, is kept
(NON_EMPTY_GROUP).
"""

from __future__ import annotations

from typing import Any, Final

from einmal.broker.context import Body, RequestContext, Versions
from einmal.types import ErrorCode

API_KEY: Final = 42
VERSIONS: Final = Versions(0, 2, flexible=2)


async def handle(context: RequestContext, request: Any) -> Body:
    return {"results": [await _delete(context, group_id) async for group_id in context.paced(request.groups_names)]}


async def _delete(context: RequestContext, group_id: str) -> Any:
    response = await context.node.groups.ask(group_id, lambda shard, now: shard.delete_groups([group_id]))
    if isinstance(response, ErrorCode):
        return {"group_id": group_id, "error_code": response}
    return response["results"][0]
