"""EndQuorumEpoch: the leader of the metadata quorum gives up its office and names who should be next.

API: 54. Versions: 0-1.
Access: CLUSTER_ACTION on Cluster, and only nodes of the cluster.
Behaviour: the most caught up voter seeks election at once, the others a little later (KIP-595).
Version notes: v1 successors with directory ids, and end points (KIP-853).
"""

from __future__ import annotations

from typing import ClassVar, Final

from einmal.broker.control.quorum_messages import on_the_wire
from einmal.broker.control.quorum_runtime import QuorumRuntime
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.broker.front.quorum_answers import leader_endpoints, refusal
from einmal.metadata.image import METADATA_PARTITION
from einmal.quorum.messages import EndQuorumEpochRequested
from einmal.wire.api.end_quorum_epoch import (
    API,
    EndQuorumEpochRequest,
    EndQuorumEpochResponse,
    NodeEndpoint,
    ResponsePartitionData,
    ResponseTopicData,
)

_FIRST_WITH_CANDIDATES: Final = 1


@handler
class EndQuorumEpochHandler:
    api: ClassVar = API
    access: Access
    quorum: QuorumRuntime

    def handle(self, context: RequestContext, request: EndQuorumEpochRequest) -> EndQuorumEpochResponse:
        if refused := self.access.refusal_of_client(context, "EndQuorumEpoch"):
            return EndQuorumEpochResponse(error_code=refused)
        error = refusal(self.quorum, request.cluster_id, request.topics)
        if error is not None:
            return EndQuorumEpochResponse(error_code=error)
        partition = request.topics[0].partitions[0]
        if context.api_version >= _FIRST_WITH_CANDIDATES:
            successors = tuple(candidate.candidate_id for candidate in partition.preferred_candidates)
        else:
            successors = partition.preferred_successors
        reply = self.quorum.ask(EndQuorumEpochRequested(partition.leader_id, partition.leader_epoch, successors))
        answer = ResponsePartitionData(
            METADATA_PARTITION.partition, reply.error, on_the_wire(reply.leader_id), reply.leader_epoch
        )
        return EndQuorumEpochResponse(
            topics=[ResponseTopicData(METADATA_PARTITION.topic, [answer])],
            node_endpoints=[NodeEndpoint(*endpoint) for endpoint in leader_endpoints(self.quorum, reply.leader_id)],
        )
