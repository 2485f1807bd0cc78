"""EndQuorumEpoch: the leader of the metadata quorum gives up its office and names who should be next.

API: 54. Versions: 0-1.
Behaviour: the most caught up voter seeks election at once, the others a little later (KIP-595).
Version notes: v1 successors with directory ids, and end points (KIP-853).
"""

from __future__ import annotations

from typing import Any, Final

from einmal.broker.context import RequestContext, Versions
from einmal.broker.quorum_messages import answer_fields, refused
from einmal.quorum.messages import EndQuorumEpochRequested

API_KEY: Final = 54
VERSIONS: Final = Versions(0, 1, flexible=1)
_FIRST_WITH_CANDIDATES: Final = 1


def handle(context: RequestContext, request: Any) -> dict[str, Any]:
    fields = refused(context, request)
    if fields is not None:
        return fields
    told = request.topics[0].partitions[0]
    if context.api_version >= _FIRST_WITH_CANDIDATES:
        successors = tuple(int(candidate.candidate_id) for candidate in told.preferred_candidates)
    else:
        successors = tuple(told.preferred_successors)
    event = EndQuorumEpochRequested(told.leader_id, told.leader_epoch, successors)
    return answer_fields(context, context.node.quorum.ask(event))
