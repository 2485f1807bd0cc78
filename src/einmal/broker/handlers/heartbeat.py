"""Heartbeat: a member says that it lives, and learns whether its group rebalances.

API: 12. Versions: 0-4.
Behaviour: asks the group's shard.
Version notes: v3 static members (KIP-345).
"""

from __future__ import annotations

from typing import Any, Final

from einmal.broker.context import Body, RequestContext, Versions
from einmal.groups.requests import Heartbeat
from einmal.types import ErrorCode

API_KEY: Final = 12
VERSIONS: Final = Versions(0, 4, flexible=4)


async def handle(context: RequestContext, request: Any) -> Body:
    heartbeat = Heartbeat(
        group_id=request.group_id,
        generation_id=request.generation_id,
        member_id=request.member_id,
        group_instance_id=getattr(request, "group_instance_id", None),
    )
    response = await context.node.groups.ask(
        heartbeat.group_id, lambda shard, now: shard.heartbeat(heartbeat, now), reads_only=True
    )
    return {"error_code": response} if isinstance(response, ErrorCode) else response
