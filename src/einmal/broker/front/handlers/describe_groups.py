"""DescribeGroups: state, members and assignment of groups.

API: 15. Versions: 0-6.
Access: DESCRIBE on Group.
Behaviour: asks each group's shard.
Version notes: v3 authorized operations (KIP-430); v4 static members; v6 GROUP_ID_NOT_FOUND
with a message for a group that nobody knows (before: a dead group, without error).
"""

from __future__ import annotations

from typing import ClassVar, Final

from einmal.broker.coordinators.group_service import GroupService
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.security.acl import AclOperation, ResourceType
from einmal.types import ErrorCode
from einmal.wire.api.describe_groups import API, DescribedGroup, DescribeGroupsRequest, DescribeGroupsResponse

_FIRST_WITH_NOT_FOUND: Final = 6


@handler
class DescribeGroupsHandler:
    api: ClassVar = API
    access: Access
    groups: GroupService

    async def handle(self, context: RequestContext, request: DescribeGroupsRequest) -> DescribeGroupsResponse:
        # A group that is named twice is described once: it may have many members.
        groups = dict.fromkeys(request.groups)
        described = [await self._describe(context, request, group_id) async for group_id in context.paced(groups)]
        return DescribeGroupsResponse(groups=described)

    async def _describe(self, context: RequestContext, request: DescribeGroupsRequest, group_id: str) -> DescribedGroup:
        if refused := self.access.refusal(context, AclOperation.DESCRIBE, ResourceType.GROUP, group_id):
            return DescribedGroup(error_code=refused, group_id=group_id)
        response = await self.groups.ask(
            group_id, lambda shard, now: shard.describe_groups([group_id]), reads_only=True, reads_offsets=False
        )
        if isinstance(response, ErrorCode):
            return DescribedGroup(error_code=response, group_id=group_id)
        group = response.groups[0]
        if context.api_version < _FIRST_WITH_NOT_FOUND and group.error_code is ErrorCode.group_id_not_found:
            group = group._replace(error_code=ErrorCode.none)
        if request.include_authorized_operations and group.error_code is ErrorCode.none:
            operations = self.access.authorized_operations(context, ResourceType.GROUP, group_id)
            group = group._replace(authorized_operations=operations)
        return group
