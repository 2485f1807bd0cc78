"""LeaveGroup: members leave, or are removed by an operator.

API: 13. Versions: 0-5.
Access: READ on Group.
Behaviour: asks the group's shard; each member is answered by itself.
Version notes: before v3 one member, whose error is the answer's; v3 many, static ones also by their instance id alone
(KIP-345); v5 reason, not kept.
"""

from __future__ import annotations

from typing import ClassVar, Final

from einmal.broker.coordinators.group_service import GroupService
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.groups.classic.requests import LeaveGroup, MemberIdentity
from einmal.security.acl import AclOperation, ResourceType
from einmal.types import ErrorCode
from einmal.wire.api.leave_group import API, LeaveGroupRequest, LeaveGroupResponse

_FIRST_WITH_MANY: Final = 3


@handler
class LeaveGroupHandler:
    api: ClassVar = API
    access: Access
    groups: GroupService

    async def handle(self, context: RequestContext, request: LeaveGroupRequest) -> LeaveGroupResponse:
        if refused := self.access.refusal(context, AclOperation.READ, ResourceType.GROUP, request.group_id):
            return LeaveGroupResponse(error_code=refused)
        is_batch = context.api_version >= _FIRST_WITH_MANY
        if is_batch:
            members = tuple(MemberIdentity(member.member_id, member.group_instance_id) for member in request.members)
        else:
            members = (MemberIdentity(request.member_id, None),)
        leave = LeaveGroup(request.group_id, members)
        response = await self.groups.ask(leave.group_id, lambda shard, now: shard.leave_group(leave, now))
        if isinstance(response, ErrorCode):
            return LeaveGroupResponse(error_code=response)
        if is_batch or not response.members:
            return response
        return LeaveGroupResponse(error_code=response.members[0].error_code)
