"""DescribeQuorum: the metadata quorum's leader, voters and observers, and their offsets.

API: 55. Versions: 0-2.
Access: DESCRIBE on Cluster.
Behaviour: known to the leader only; others answer NOT_LEADER_OR_FOLLOWER (KIP-595, KIP-836).
Version notes: v1 times of the last fetch and of the last moment without lag; v2 messages and the voters' endpoints.
"""

from __future__ import annotations

from typing import ClassVar, Final

from einmal.broker.control.quorum_messages import CONTROLLER, on_the_wire
from einmal.broker.control.quorum_runtime import QuorumRuntime
from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.metadata.image import METADATA_PARTITION
from einmal.quorum import roles
from einmal.seams import Clock
from einmal.security.acl import AclOperation, ResourceType
from einmal.types import ErrorCode, TopicPartition
from einmal.wire.api.describe_quorum import (
    API,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    Listener,
    Node,
    ReplicaState,
    RequestPartitionData,
    ResponsePartitionData,
    ResponseTopicData,
)

_OBSERVER_FORGOTTEN_MS: Final = 300_000
"""An observer that has not fetched for so long is forgotten."""


@handler
class DescribeQuorumHandler:
    api: ClassVar = API
    access: Access
    quorum: QuorumRuntime
    clock: Clock

    async def handle(self, context: RequestContext, request: DescribeQuorumRequest) -> DescribeQuorumResponse:
        if refused := self.access.refusal(context, AclOperation.DESCRIBE, ResourceType.CLUSTER):
            return DescribeQuorumResponse(error_code=refused)
        topics = [
            ResponseTopicData(
                topic.topic_name,
                [self._asked(topic.topic_name, partition) async for partition in context.paced(topic.partitions)],
            )
            async for topic in context.paced(request.topics)
        ]
        nodes = [
            Node(voter, [Listener(CONTROLLER, endpoint.host, endpoint.port)])
            for voter in self.quorum.voters
            if (endpoint := self.quorum.endpoint_of(voter)) is not None
        ]
        return DescribeQuorumResponse(topics=topics, nodes=nodes)

    def _asked(self, topic_name: str, asked: RequestPartitionData) -> ResponsePartitionData:
        if TopicPartition(topic_name, asked.partition_index) == METADATA_PARTITION:
            return self._described()
        return _refused(asked.partition_index, ErrorCode.unknown_topic_or_partition)

    def _described(self) -> ResponsePartitionData:
        quorum = self.quorum
        leader = quorum.raft.role
        if not isinstance(leader, roles.Leader):
            return _refused(0, ErrorCode.not_leader_or_follower, quorum.leader_id, quorum.leader_epoch)
        now = self.clock.now()
        end = quorum.partition.log_end_offset
        own = roles.ReplicaState(end, fetched_at=now.monotonic_ms, caught_up_at=now.monotonic_ms)
        # The leader measures on the monotonic clock; the response has wall-clock times.
        ahead_ms = now.wall_ms - now.monotonic_ms
        voters = {voter: leader.voters.get(voter, own) for voter in quorum.voters}
        return ResponsePartitionData(
            partition_index=METADATA_PARTITION.partition,
            leader_id=quorum.node_id,
            leader_epoch=quorum.leader_epoch,
            high_watermark=quorum.partition.high_watermark,
            current_voters=[_replica(voter, state, ahead_ms) for voter, state in voters.items()],
            observers=[
                _replica(observer, state, ahead_ms)
                for observer, state in leader.observers.items()
                if now.monotonic_ms - state.fetched_at < _OBSERVER_FORGOTTEN_MS
            ],
        )


def _refused(partition: int, error: ErrorCode, leader_id: int | None = None, epoch: int = -1) -> ResponsePartitionData:
    return ResponsePartitionData(
        partition_index=partition,
        error_code=error,
        error_message=error.name,
        leader_id=on_the_wire(leader_id),
        leader_epoch=epoch,
        high_watermark=-1,
    )


def _replica(replica_id: int, state: roles.ReplicaState, ahead_ms: int) -> ReplicaState:
    def remote_time(at: int) -> int:
        return at + ahead_ms if at >= 0 else -1

    return ReplicaState(
        replica_id=replica_id,
        log_end_offset=state.end_offset,
        last_fetch_timestamp=remote_time(state.fetched_at),
        last_caught_up_timestamp=remote_time(state.caught_up_at),
    )
