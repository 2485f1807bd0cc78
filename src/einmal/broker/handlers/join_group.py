"""JoinGroup: become, or stay, a member of a group.

API: 11. Versions: 0-9.
Behaviour: asks the group's shard; the answer comes when the group's next generation begins. A client that is gone stops
waiting; its member is expelled as a silent one is.
Version notes: v1 rebalance timeout (before: the session's); v4 MEMBER_ID_REQUIRED (KIP-394); v5 static members
(KIP-345); v7 protocol type, and nulls for what an error leaves open; v8 reason, not kept; v9 skip_assignment (KIP-814).
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from einmal.broker.context import Body, Parked, RequestContext, Versions
from einmal.groups.requests import JoinGroup, Response
from einmal.types import ErrorCode
from einmal.wire.messages import milliseconds

API_KEY: Final = 11
VERSIONS: Final = Versions(0, 9, flexible=6)


def handle(context: RequestContext, request: Any) -> Parked:
    return Parked(asyncio.ensure_future(_join(context, request)))


async def _join(context: RequestContext, request: Any) -> Body:
    version = context.api_version
    session_timeout_ms = milliseconds(request.session_timeout)
    join = JoinGroup(
        group_id=request.group_id,
        session_timeout_ms=session_timeout_ms,
        rebalance_timeout_ms=milliseconds(request.rebalance_timeout) if version >= 1 else session_timeout_ms,
        member_id=request.member_id,
        group_instance_id=getattr(request, "group_instance_id", None),
        protocol_type=request.protocol_type,
        protocols=tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
        client_id=context.client_id,
        client_host=f"/{context.client_address}",
        fresh_id=str(context.node.new_uuid()),
        requires_known_member_id=version >= 4,
        supports_skipping_assignment=version >= 9,
    )
    response = await context.node.groups.ask_and_wait(
        join.group_id, lambda shard, ticket, now: shard.join_group(join, ticket, now)
    )
    if isinstance(response, ErrorCode):
        response = _refused(request.member_id, response)
    if version < 7 and response["protocol_name"] is None:
        response = {**response, "protocol_name": ""}
    return response


def _refused(member_id: str, error: ErrorCode) -> Response:
    return {"error_code": error, "generation_id": -1, "protocol_name": None, "leader": "", "member_id": member_id}
