"""BeginQuorumEpoch: a node tells that it leads the metadata quorum in this epoch.

API: 53. Versions: 0-1.
Behaviour: whoever did not know follows it now; a leader of an older epoch is told the newer one (KIP-595).
Version notes: v1 directory ids and end points (KIP-853), which are not looked at: voters are static.
"""

from __future__ import annotations

from typing import Any, Final

from einmal.broker.context import RequestContext, Versions
from einmal.broker.quorum_messages import answer_fields, refused
from einmal.quorum.messages import BeginQuorumEpochRequested

API_KEY: Final = 53
VERSIONS: Final = Versions(0, 1, flexible=1)


def handle(context: RequestContext, request: Any) -> dict[str, Any]:
    fields = refused(context, request)
    if fields is not None:
        return fields
    told = request.topics[0].partitions[0]
    event = BeginQuorumEpochRequested(told.leader_id, told.leader_epoch)
    return answer_fields(context, context.node.quorum.ask(event))
