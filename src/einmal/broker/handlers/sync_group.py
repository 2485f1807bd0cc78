"""SyncGroup: the leader brings the generation's assignment, every member takes its own.

API: 14. Versions: 0-5.
Behaviour: asks the group's shard; the answer comes when the leader's assignment is committed. A client that is gone
stops waiting.
Version notes: v3 static members (KIP-345); v5 protocol type and name, which must be there and right (KIP-559).
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from einmal.broker.context import Body, Parked, RequestContext, Versions
from einmal.groups.requests import SyncGroup
from einmal.types import ErrorCode

API_KEY: Final = 14
VERSIONS: Final = Versions(0, 5, flexible=4)
_FIRST_WITH_PROTOCOL: Final = 5


def handle(context: RequestContext, request: Any) -> Parked:
    return Parked(asyncio.ensure_future(_sync(context, request)))


async def _sync(context: RequestContext, request: Any) -> Body:
    sync = SyncGroup(
        group_id=request.group_id,
        generation_id=request.generation_id,
        member_id=request.member_id,
        group_instance_id=getattr(request, "group_instance_id", None),
        protocol_type=_named(context, getattr(request, "protocol_type", None)),
        protocol_name=_named(context, getattr(request, "protocol_name", None)),
        assignments=tuple((assignment.member_id, assignment.assignment) for assignment in request.assignments),
    )
    response = await context.node.groups.ask_and_wait(
        sync.group_id, lambda shard, ticket, now: shard.sync_group(sync, ticket, now)
    )
    return {"error_code": response} if isinstance(response, ErrorCode) else response


def _named(context: RequestContext, name: str | None) -> str | None:
    """What the machine compares: nothing where the version does not say it, and nobody's name for a null."""
    return (name or "") if context.api_version >= _FIRST_WITH_PROTOCOL else None
