"""FetchSnapshot: a part of the metadata log's latest snapshot.

API: 59. Versions: 0-1.
Access: CLUSTER_ACTION on Cluster, and only nodes of the cluster.
Behaviour: the leader gives bytes of the file from a position on; they need not end at a batch (KIP-630). A snapshot
that a later one has replaced is SNAPSHOT_NOT_FOUND: the replica's next Fetch names the later one. All that is asked for
in one request shares its max_bytes.
Version notes: v1 directory ids and end points (KIP-853).
"""

from __future__ import annotations

from typing import ClassVar, Final

from einmal.broker.control.quorum_messages import on_the_wire
from einmal.broker.control.quorum_runtime import QuorumRuntime
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.broker.front.quorum_answers import leader_endpoints
from einmal.log.errors import LogCorruption
from einmal.metadata.image import METADATA_PARTITION
from einmal.quorum.messages import OffsetAndEpoch, SnapshotRequested
from einmal.types import ErrorCode, TopicPartition
from einmal.wire.api.fetch_snapshot import (
    API,
    FetchSnapshotRequest,
    FetchSnapshotResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    RequestPartitionSnapshot,
    ResponsePartitionSnapshot,
    ResponseTopicSnapshot,
)

_BYTES_MAX: Final = 8 * 1024 * 1024


@handler
class FetchSnapshotHandler:
    api: ClassVar = API
    access: Access
    quorum: QuorumRuntime

    def handle(self, context: RequestContext, request: FetchSnapshotRequest) -> FetchSnapshotResponse:
        if refused := self.access.refusal_of_client(context, "FetchSnapshot"):
            return FetchSnapshotResponse(error_code=refused)
        quorum = self.quorum
        if request.cluster_id != quorum.cluster_id:
            return FetchSnapshotResponse(error_code=ErrorCode.inconsistent_cluster_id)
        room = max(0, min(request.max_bytes, _BYTES_MAX))
        topics = []
        for topic in request.topics:
            partitions = []
            for asked in topic.partitions:
                if TopicPartition(topic.name, asked.partition) == METADATA_PARTITION:
                    partitions.append(self._partition(request.replica_id, asked, room))
                    room -= len(partitions[-1].unaligned_records)
                else:
                    error = ErrorCode.unknown_topic_or_partition
                    partitions.append(ResponsePartitionSnapshot(asked.partition, error))
            topics.append(ResponseTopicSnapshot(topic.name, partitions))
        return FetchSnapshotResponse(
            topics=topics,
            node_endpoints=[NodeEndpoint(*endpoint) for endpoint in leader_endpoints(quorum, quorum.leader_id)],
        )

    def _partition(self, replica_id: int, asked: RequestPartitionSnapshot, room: int) -> ResponsePartitionSnapshot:
        reply = self.quorum.ask(SnapshotRequested(replica_id, asked.current_leader_epoch))
        answer = ResponsePartitionSnapshot(
            index=asked.partition,
            error_code=reply.error,
            snapshot_id=asked.snapshot_id,
            current_leader=LeaderIdAndEpoch(on_the_wire(reply.leader_id), reply.leader_epoch),
            position=asked.position,
        )
        if reply.error is not ErrorCode.none:
            return answer
        try:
            outcome = self.quorum.snapshots.read(OffsetAndEpoch(*asked.snapshot_id), asked.position, room)
        except (OSError, LogCorruption) as error:
            outcome = self.quorum.partition.report(error)
        if isinstance(outcome, ErrorCode):
            return answer._replace(error_code=outcome)
        data, size = outcome
        return answer._replace(size=size, unaligned_records=data)
