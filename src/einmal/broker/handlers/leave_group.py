"""LeaveGroup: members leave, or are removed by an operator.

API: 13. Versions: 0-5.
Behaviour: asks the group's shard; each member is answered by itself.
Version notes: before v3 one member, whose error is the answer's; v3 many, static ones also by their instance id alone
(KIP-345); v5 reason, not kept.
"""

from __future__ import annotations

from typing import Any, Final

from einmal.broker.context import Body, RequestContext, Versions
from einmal.groups.requests import LeaveGroup, MemberIdentity
from einmal.types import ErrorCode

API_KEY: Final = 13
VERSIONS: Final = Versions(0, 5, flexible=4)
_FIRST_WITH_MANY: Final = 3


async def handle(context: RequestContext, request: Any) -> Body:
    is_batch = context.api_version >= _FIRST_WITH_MANY
    if is_batch:
        members = tuple(MemberIdentity(member.member_id, member.group_instance_id) for member in request.members)
    else:
        members = (MemberIdentity(request.member_id, None),)
    leave = LeaveGroup(request.group_id, members)
    response = await context.node.groups.ask(leave.group_id, lambda shard, now: shard.leave_group(leave, now))
    if isinstance(response, ErrorCode):
        return {"error_code": response}
    if is_batch or not response["members"]:
        return response
    return {"error_code": response["members"][0]["error_code"]}
