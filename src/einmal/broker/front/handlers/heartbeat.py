"""Heartbeat: keeps a member's session alive, and answers whether its group rebalances.

API: 12. Versions: 0-4.
Access: READ on Group.
Behaviour: asks the group's shard.
Version notes: v3 static members (KIP-345).
"""

from __future__ import annotations

from typing import ClassVar

from einmal.broker.coordinators.group_service import GroupService
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.groups.classic.requests import Heartbeat
from einmal.security.acl import AclOperation, ResourceType
from einmal.types import ErrorCode
from einmal.wire.api.heartbeat import API, HeartbeatRequest, HeartbeatResponse


@handler
class HeartbeatHandler:
    api: ClassVar = API
    access: Access
    groups: GroupService

    async def handle(self, context: RequestContext, request: HeartbeatRequest) -> HeartbeatResponse:
        if refused := self.access.refusal(context, AclOperation.READ, ResourceType.GROUP, request.group_id):
            return HeartbeatResponse(error_code=refused)
        heartbeat = Heartbeat(
            group_id=request.group_id,
            generation_id=request.generation_id,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
        )
        response = await self.groups.ask(
            heartbeat.group_id,
            lambda shard, now: shard.heartbeat(heartbeat, now),
            reads_only=True,
            reads_offsets=False,
        )
        return HeartbeatResponse(error_code=response) if isinstance(response, ErrorCode) else response
