"""ListGroups: the groups that this broker coordinates.

API: 16. Versions: 0-5.
Behaviour: asks every shard; while one is loading, what the others have with COORDINATOR_LOAD_IN_PROGRESS.
Version notes: v4 filter by state (KIP-518); v5 filter by type (KIP-848): all here are "classic".
"""

from __future__ import annotations

from typing import ClassVar

from einmal.broker.coordinators.group_service import GroupService
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.types import ErrorCode
from einmal.wire.api.list_groups import API, ListedGroup, ListGroupsRequest, ListGroupsResponse


@handler
class ListGroupsHandler:
    api: ClassVar = API
    groups: GroupService

    async def handle(self, context: RequestContext, request: ListGroupsRequest) -> ListGroupsResponse:
        error = ErrorCode.none
        groups: list[ListedGroup] = []
        async for runtime in context.paced(self.groups.runtimes()):
            response = await runtime.submit(
                lambda shard, now: shard.list_groups(request.states_filter, request.types_filter), reads_only=True
            )
            if isinstance(response, ErrorCode):
                error = response
            else:
                groups += response.groups
        return ListGroupsResponse(error_code=error, groups=groups)
