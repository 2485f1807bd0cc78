"""BeginQuorumEpoch: a node announces that it leads the metadata quorum in this epoch.

API: 53. Versions: 0-1.
Access: CLUSTER_ACTION on Cluster, and only nodes of the cluster.
Behaviour: a voter that did not know follows it now; a leader of an older epoch gets the newer one (KIP-595).
Version notes: v1 directory ids and endpoints (KIP-853), which are ignored: voters are static.
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
from einmal.quorum.messages import BeginQuorumEpochRequested
from einmal.wire.api.begin_quorum_epoch import (
    API,
    BeginQuorumEpochRequest,
    BeginQuorumEpochResponse,
    NodeEndpoint,
    ResponsePartitionData,
    ResponseTopicData,
)


@handler
class BeginQuorumEpochHandler:
    api: ClassVar = API
    access: Access
    quorum: QuorumRuntime

    def handle(self, context: RequestContext, request: BeginQuorumEpochRequest) -> BeginQuorumEpochResponse:
        if refused := self.access.refusal_of_client(context, "BeginQuorumEpoch"):
            return BeginQuorumEpochResponse(error_code=refused)
        error = refusal(self.quorum, request.cluster_id, request.topics, request.voter_id)
        if error is not None:
            return BeginQuorumEpochResponse(error_code=error)
        partition = request.topics[0].partitions[0]
        reply = self.quorum.ask(BeginQuorumEpochRequested(partition.leader_id, partition.leader_epoch))
        answer = ResponsePartitionData(
            METADATA_PARTITION.partition, reply.error, on_the_wire(reply.leader_id), reply.leader_epoch
        )
        return BeginQuorumEpochResponse(
            topics=[ResponseTopicData(METADATA_PARTITION.topic, [answer])],
            node_endpoints=[NodeEndpoint(*endpoint) for endpoint in leader_endpoints(self.quorum, reply.leader_id)],
        )
