"""Vote: may this candidate lead the metadata quorum?

API: 52. Versions: 0-2.
Behaviour: a vote is written down durably before it is given, one per epoch, and only to a candidate whose log is not
behind (KIP-595). A pre-vote binds nobody and is refused by whoever hears its leader (KIP-996).
Version notes: v1 directory ids (KIP-853), which are not looked at: voters are static; v2 pre-vote.
"""

from __future__ import annotations

from typing import Any, Final

from einmal.broker.context import RequestContext, Versions
from einmal.broker.quorum_messages import answer_fields, refused
from einmal.quorum.messages import OffsetAndEpoch, VoteRequested

API_KEY: Final = 52
VERSIONS: Final = Versions(0, 2, flexible=0)


def handle(context: RequestContext, request: Any) -> dict[str, Any]:
    fields = refused(context, request)
    if fields is not None:
        return fields
    asked = request.topics[0].partitions[0]
    event = VoteRequested(
        asked.replica_id,
        asked.replica_epoch,
        OffsetAndEpoch(asked.last_offset, asked.last_offset_epoch),
        getattr(asked, "pre_vote", False),
    )
    return answer_fields(context, context.node.quorum.ask(event))
