"""ListGroups: the groups that this broker coordinates.

API: 16. Versions: 0-5.
Access: DESCRIBE on Cluster, or DESCRIBE on Group: other groups are left out.
Behaviour: asks every shard; while one is loading, what the others have with COORDINATOR_LOAD_IN_PROGRESS.
Version notes: v4 filter by state (KIP-518); v5 filter by type (KIP-848): all here are "classic".
"""

from __future__ import annotations

from typing import ClassVar

from einmal.broker.coordinators.group_service import GroupService
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.security.acl import AclOperation, ResourceType
from einmal.types import ErrorCode
from einmal.wire.api.list_groups import API, ListedGroup, ListGroupsRequest, ListGroupsResponse


@handler
class ListGroupsHandler:
    api: ClassVar = API
    access: Access
    groups: GroupService

    async def handle(self, context: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
        sees_all = self.access.allows(context, AclOperation.DESCRIBE, ResourceType.CLUSTER, is_filter=True)
        error = ErrorCode.none
        groups: list[ListedGroup] = []
        async for runtime in context.paced(self.groups.runtimes()):
            response = await runtime.submit(
                lambda shard, now: shard.list_groups(request.states_filter, request.types_filter),
                reads_only=True,
                awaits_first=False,
            )
            if isinstance(response, ErrorCode):
                error = response
            else:
                groups += [
                    group
                    async for group in context.paced(response.groups)
                    if sees_all
                    or self.access.allows(
                        context, AclOperation.DESCRIBE, ResourceType.GROUP, group.group_id, is_filter=True
                    )
                ]
        return ListGroupsResponse(error_code=error, groups=groups)
