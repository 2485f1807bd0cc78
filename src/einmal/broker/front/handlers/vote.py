"""Vote: may this candidate lead the metadata quorum?

API: 52. Versions: 0-2.
Access: CLUSTER_ACTION on Cluster, and only nodes of the cluster.
Behaviour: a vote is durable before it is granted, one per epoch, and only to a candidate whose log is not behind
(KIP-595). A pre-vote binds nobody, and is refused by a voter that hears from its leader (KIP-996).
Version notes: v1 directory ids (KIP-853), which are ignored: voters are static; v2 pre-vote.
"""

from __future__ import annotations

from typing import ClassVar

from einmal.broker.control.quorum_messages import on_the_wire
from einmal.broker.control.quorum_runtime import QuorumRuntime
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.broker.front.quorum_answers import leader_endpoints, refusal
from einmal.metadata.image import METADATA_PARTITION
from einmal.quorum.messages import OffsetAndEpoch, VoteRequested
from einmal.wire.api.vote import (
    API,
    NodeEndpoint,
    ResponsePartitionData,
    ResponseTopicData,
    VoteRequest,
    VoteResponse,
)


@handler
class VoteHandler:
    api: ClassVar = API
    access: Access
    quorum: QuorumRuntime

    def handle(self, context: RequestContext, request: VoteRequest) -> VoteResponse:
        if refused := self.access.refusal_of_client(context, "Vote"):
            return VoteResponse(error_code=refused)
        error = refusal(self.quorum, request.cluster_id, request.topics, request.voter_id)
        if error is not None:
            return VoteResponse(error_code=error)
        asked = request.topics[0].partitions[0]
        reply = self.quorum.ask(
            VoteRequested(
                asked.replica_id,
                asked.replica_epoch,
                OffsetAndEpoch(asked.last_offset, asked.last_offset_epoch),
                asked.pre_vote,
            )
        )
        answer = ResponsePartitionData(
            METADATA_PARTITION.partition,
            reply.error,
            on_the_wire(reply.leader_id),
            reply.leader_epoch,
            reply.vote_granted,
        )
        return VoteResponse(
            topics=[ResponseTopicData(METADATA_PARTITION.topic, [answer])],
            node_endpoints=[NodeEndpoint(*endpoint) for endpoint in leader_endpoints(self.quorum, reply.leader_id)],
        )
