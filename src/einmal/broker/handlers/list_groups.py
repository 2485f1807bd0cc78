"""ListGroups: the groups that this broker coordinates.

API: 16. Versions: 0-5.
Behaviour: asks every shard; while one is loading, what the others have with COORDINATOR_LOAD_IN_PROGRESS.
Version notes: v4 filter by state (KIP-518); v5 filter by type (KIP-848): all here are "classic".
"""

from __future__ import annotations

from typing import Any, Final

from einmal.broker.context import Body, RequestContext, Versions
from einmal.types import ErrorCode

API_KEY: Final = 16
VERSIONS: Final = Versions(0, 5, flexible=3)


async def handle(context: RequestContext, request: Any) -> Body:
    states = getattr(request, "states_filter", ())
    types = getattr(request, "types_filter", ())
    error = ErrorCode.none
    groups: list[Any] = []
    async for runtime in context.paced(context.node.groups.runtimes()):
        response = await runtime.submit(lambda shard, now: shard.list_groups(states, types), reads_only=True)
        if isinstance(response, ErrorCode):
            error = response
        else:
            groups += response["groups"]
    return {"error_code": error, "groups": groups}
