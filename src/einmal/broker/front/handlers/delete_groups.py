"""DeleteGroups: forget groups with all their positions (KIP-229).

API: 42. Versions: 0-2.
Access: DELETE on Group.
Behaviour: asks each group's shard; one with members, or with positions that an open transaction would commit, is kept
(NON_EMPTY_GROUP).
"""

from __future__ import annotations

from typing import ClassVar

from einmal.broker.coordinators.group_service import GroupService
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.security.acl import AclOperation, ResourceType
from einmal.types import ErrorCode
from einmal.wire.api.delete_groups import API, DeletableGroupResult, DeleteGroupsRequest, DeleteGroupsResponse


@handler
class DeleteGroupsHandler:
    api: ClassVar = API
    access: Access
    groups: GroupService

    async def handle(self, context: RequestContext, request: DeleteGroupsRequest) -> DeleteGroupsResponse:
        results = [await self._delete(context, group_id) async for group_id in context.paced(request.groups_names)]
        return DeleteGroupsResponse(results=results)

    async def _delete(self, context: RequestContext, group_id: str) -> DeletableGroupResult:
        if refused := self.access.refusal(context, AclOperation.DELETE, ResourceType.GROUP, group_id):
            return DeletableGroupResult(group_id, refused)
        response = await self.groups.ask(group_id, lambda shard, now: shard.delete_groups([group_id]))
        if isinstance(response, ErrorCode):
            return DeletableGroupResult(group_id, response)
        return response.results[0]
