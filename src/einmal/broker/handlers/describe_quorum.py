"""DescribeQuorum: the metadata quorum's leader, voters and observers, and how far each is.

API: 55. Versions: 0-2.
Behaviour: known to the leader only; others answer NOT_LEADER_OR_FOLLOWER (KIP-595, KIP-836).
Version notes: v1 times of the last fetch and of the last moment without lag; v2 messages and the voters' end points.
"""

from __future__ import annotations

from typing import Any, Final

from einmal.broker.cluster_metadata import METADATA_PARTITION
from einmal.broker.context import RequestContext, Versions
from einmal.broker.quorum_messages import CONTROLLER, on_the_wire
from einmal.quorum.roles import Leader, ReplicaState
from einmal.types import ErrorCode, TopicPartition

API_KEY: Final = 55
VERSIONS: Final = Versions(0, 2, flexible=0)
FORWARDED: Final = True
_OBSERVER_FORGOTTEN_MS: Final = 300_000
"""An observer that has not fetched for so long is gone."""


def handle(context: RequestContext, request: Any) -> dict[str, Any]:
    quorum = context.node.quorum
    topics = [
        {
            "topic_name": topic.topic_name,
            "partitions": [
                _described(context)
                if TopicPartition(topic.topic_name, asked.partition_index) == METADATA_PARTITION
                else _refused(asked.partition_index, ErrorCode.unknown_topic_or_partition)
                for asked in topic.partitions
            ],
        }
        for topic in request.topics
    ]
    nodes = [
        {"node_id": voter, "listeners": [{"name": CONTROLLER, "host": endpoint.host, "port": endpoint.port}]}
        for voter in quorum.voters
        if (endpoint := quorum.endpoint_of(voter)) is not None
    ]
    return {"error_code": ErrorCode.none, "topics": topics, "nodes": nodes}


def _refused(partition: int, error: ErrorCode, leader_id: int | None = None, epoch: int = -1) -> dict[str, Any]:
    return {
        "partition_index": partition,
        "error_code": error,
        "error_message": error.name,
        "leader_id": on_the_wire(leader_id),
        "leader_epoch": epoch,
        "high_watermark": -1,
    }


def _described(context: RequestContext) -> dict[str, Any]:
    quorum = context.node.quorum
    leader = quorum.raft.role
    if not isinstance(leader, Leader):
        return _refused(0, ErrorCode.not_leader_or_follower, quorum.leader_id, quorum.leader_epoch)
    now = context.now
    end = quorum.partition.log.log_end_offset
    own = ReplicaState(end, fetched_at=now.monotonic_ms, caught_up_at=now.monotonic_ms)
    # What the leader measures on one clock is told on the other.
    ahead_ms = now.wall_ms - now.monotonic_ms
    voters = {voter: leader.voters.get(voter, own) for voter in quorum.voters}
    return {
        "partition_index": METADATA_PARTITION.partition,
        "error_code": ErrorCode.none,
        "leader_id": quorum.node_id,
        "leader_epoch": quorum.leader_epoch,
        "high_watermark": quorum.partition.high_watermark,
        "current_voters": [_replica(voter, state, ahead_ms) for voter, state in voters.items()],
        "observers": [
            _replica(observer, state, ahead_ms)
            for observer, state in leader.observers.items()
            if now.monotonic_ms - state.fetched_at < _OBSERVER_FORGOTTEN_MS
        ],
    }


def _replica(replica_id: int, state: ReplicaState, ahead_ms: int) -> dict[str, Any]:
    def told(at: int) -> int:
        return at + ahead_ms if at >= 0 else -1

    return {
        "replica_id": replica_id,
        "log_end_offset": state.end_offset,
        "last_fetch_timestamp": told(state.fetched_at),
        "last_caught_up_timestamp": told(state.caught_up_at),
    }
