"""SyncGroup: the leader sends the generation's assignment, every member gets its own.

API: 14. Versions: 0-5.
Access: READ on Group.
Behaviour: asks the group's shard; the answer comes when the leader's assignment is committed. A client that is gone
stops waiting.
Version notes: v3 static members (KIP-345); v5 protocol type and name, which must be present and right (KIP-559).
"""

from __future__ import annotations

import asyncio
from typing import ClassVar, Final

from einmal.broker.coordinators.group_service import GroupService
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import Body, Parked, RequestContext
from einmal.broker.front.handler import handler
from einmal.groups.classic.requests import SyncGroup
from einmal.security.acl import AclOperation, ResourceType
from einmal.types import ErrorCode
from einmal.wire.api.sync_group import API, SyncGroupRequest, SyncGroupResponse

_FIRST_WITH_PROTOCOL: Final = 5


@handler
class SyncGroupHandler:
    api: ClassVar = API
    access: Access
    groups: GroupService

    def handle(self, context: RequestContext, request: SyncGroupRequest) -> SyncGroupResponse | Parked:
        if refused := self.access.refusal(context, AclOperation.READ, ResourceType.GROUP, request.group_id):
            return SyncGroupResponse(error_code=refused)
        return Parked(asyncio.ensure_future(self._sync(context, request)))

    async def _sync(self, context: RequestContext, request: SyncGroupRequest) -> Body:
        sync = SyncGroup(
            group_id=request.group_id,
            generation_id=request.generation_id,
            member_id=request.member_id,
            group_instance_id=request.group_instance_id,
            protocol_type=_named(context, request.protocol_type),
            protocol_name=_named(context, request.protocol_name),
            assignments=tuple((assignment.member_id, assignment.assignment) for assignment in request.assignments),
        )
        response = await self.groups.ask_and_wait(
            sync.group_id, lambda shard, ticket, now: shard.sync_group(sync, ticket, now)
        )
        return SyncGroupResponse(error_code=response) if isinstance(response, ErrorCode) else response


def _named(context: RequestContext, name: str | None) -> str | None:
    """The name that the machine compares; None where the version does not have it, and "" for a null."""
    return (name or "") if context.api_version >= _FIRST_WITH_PROTOCOL else None
