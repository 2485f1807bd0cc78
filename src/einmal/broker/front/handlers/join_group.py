"""JoinGroup: become, or stay, a member of a group.

API: 11. Versions: 0-9.
Access: READ on Group.
Behaviour: asks the group's shard; the answer comes when the group's next generation begins. A client that is gone stops
waiting; its member is expelled as a silent one is.
Version notes: v1 rebalance timeout (before: the session's); v4 MEMBER_ID_REQUIRED (KIP-394); v5 static members
(KIP-345); v7 protocol type, and nulls for what an error leaves open; v8 reason, not kept; v9 skip_assignment (KIP-814).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ClassVar
from uuid import UUID

from einmal.broker.coordinators.group_service import GroupService
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import Body, Parked, RequestContext
from einmal.broker.front.handler import handler
from einmal.groups.classic.requests import JoinGroup
from einmal.security.acl import AclOperation, ResourceType
from einmal.types import ErrorCode
from einmal.wire.api.join_group import API, JoinGroupRequest, JoinGroupResponse


@handler
class JoinGroupHandler:
    api: ClassVar = API
    access: Access
    groups: GroupService
    new_uuid: Callable[[], UUID]

    def handle(self, context: RequestContext, request: JoinGroupRequest) -> JoinGroupResponse | Parked:
        if refused := self.access.refusal(context, AclOperation.READ, ResourceType.GROUP, request.group_id):
            return JoinGroupResponse(error_code=refused, member_id="")
        return Parked(asyncio.ensure_future(self._join(context, request)))

    async def _join(self, context: RequestContext, request: JoinGroupRequest) -> Body:
        version = context.api_version
        join = JoinGroup(
            group_id=request.group_id,
            session_timeout_ms=request.session_timeout,
            rebalance_timeout_ms=request.rebalance_timeout if version >= 1 else request.session_timeout,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            protocol_type=request.protocol_type,
            protocols=tuple((protocol.name, protocol.metadata) for protocol in request.protocols),
            client_id=context.client_id,
            client_host=f"/{context.client_address}",
            fresh_id=str(self.new_uuid()),
            requires_known_member_id=version >= 4,
            supports_skipping_assignment=version >= 9,
        )
        response = await self.groups.ask_and_wait(
            join.group_id, lambda shard, ticket, now: shard.join_group(join, ticket, now)
        )
        if isinstance(response, ErrorCode):
            return JoinGroupResponse(error_code=response, member_id=request.member_id)
        return response
