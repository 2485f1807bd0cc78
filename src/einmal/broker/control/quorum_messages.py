"""Converts the quorum's values from and to its RPCs: Vote, BeginQuorumEpoch, EndQuorumEpoch, FetchSnapshot.

All of them name topics and partitions; there is only ``__cluster_metadata-0``. No node is -1 on the wire and None here.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from einmal.broker.listeners import Endpoint
from einmal.metadata.image import METADATA_PARTITION
from einmal.quorum.messages import OffsetAndEpoch, Reply, SendBeginQuorumEpoch, SendEndQuorumEpoch, SendVote
from einmal.types import ErrorCode
from einmal.wire.api import begin_quorum_epoch, end_quorum_epoch, fetch_snapshot, vote
from einmal.wire.produce import LeaderIdAndEpoch

QuorumResponse: TypeAlias = (
    vote.VoteResponse | begin_quorum_epoch.BeginQuorumEpochResponse | end_quorum_epoch.EndQuorumEpochResponse
)
VERSION: Final = {
    vote.API.key: 2,
    begin_quorum_epoch.API.key: 1,
    end_quorum_epoch.API.key: 1,
    fetch_snapshot.API.key: 1,
}
"""The version in which each is sent."""
CONTROLLER: Final = "CONTROLLER"
_NOBODY: Final = -1


def somebody(node_id: int) -> int | None:
    return None if node_id < 0 else int(node_id)


def on_the_wire(node_id: int | None) -> int:
    return _NOBODY if node_id is None else node_id


# --- requests ------------------------------------------------------------------------------------------------------


def vote_request(cluster_id: str | None, candidate_id: int, asked: SendVote) -> vote.VoteRequest:
    partition = vote.RequestPartitionData(
        METADATA_PARTITION.partition,
        asked.epoch,
        candidate_id,
        last_offset_epoch=asked.log_end.epoch,
        last_offset=asked.log_end.offset,
        pre_vote=asked.pre_vote,
    )
    topic = vote.RequestTopicData(METADATA_PARTITION.topic, (partition,))
    return vote.VoteRequest(cluster_id, asked.to, (topic,))


def begin_request(
    cluster_id: str | None, leader_id: int, begin: SendBeginQuorumEpoch, endpoint: Endpoint | None
) -> begin_quorum_epoch.BeginQuorumEpochRequest:
    partition = begin_quorum_epoch.RequestPartitionData(
        METADATA_PARTITION.partition, leader_id=leader_id, leader_epoch=begin.epoch
    )
    topic = begin_quorum_epoch.RequestTopicData(METADATA_PARTITION.topic, (partition,))
    endpoints = tuple(begin_quorum_epoch.LeaderEndpoint(*address) for address in _leader_endpoints(endpoint))
    return begin_quorum_epoch.BeginQuorumEpochRequest(cluster_id, begin.to, (topic,), endpoints)


def end_request(
    cluster_id: str | None, leader_id: int, end: SendEndQuorumEpoch, endpoint: Endpoint | None
) -> end_quorum_epoch.EndQuorumEpochRequest:
    partition = end_quorum_epoch.RequestPartitionData(
        METADATA_PARTITION.partition,
        leader_id,
        end.epoch,
        preferred_candidates=tuple(end_quorum_epoch.ReplicaInfo(candidate) for candidate in end.successors),
    )
    topic = end_quorum_epoch.RequestTopicData(METADATA_PARTITION.topic, (partition,))
    endpoints = tuple(end_quorum_epoch.LeaderEndpoint(*address) for address in _leader_endpoints(endpoint))
    return end_quorum_epoch.EndQuorumEpochRequest(cluster_id, (topic,), endpoints)


def _leader_endpoints(endpoint: Endpoint | None) -> list[tuple[str, str, int]]:
    return [] if endpoint is None else [(CONTROLLER, endpoint.host, endpoint.port)]


def snapshot_request(
    cluster_id: str | None, replica_id: int, epoch: int, snapshot_id: OffsetAndEpoch, position: int, max_bytes: int
) -> fetch_snapshot.FetchSnapshotRequest:
    asked_id = fetch_snapshot.SnapshotId(snapshot_id.offset, snapshot_id.epoch)
    partition = fetch_snapshot.RequestPartitionSnapshot(METADATA_PARTITION.partition, epoch, asked_id, position)
    topic = fetch_snapshot.RequestTopicSnapshot(METADATA_PARTITION.topic, (partition,))
    return fetch_snapshot.FetchSnapshotRequest(cluster_id, replica_id, max_bytes, (topic,))


# --- answers -------------------------------------------------------------------------------------------------------


def reply_of(response: QuorumResponse) -> Reply | None:
    """The response to Vote, BeginQuorumEpoch or EndQuorumEpoch; None if it does not contain the partition."""
    if response.error_code is not ErrorCode.none or not response.topics or not response.topics[0].partitions:
        return None
    answer = response.topics[0].partitions[0]
    is_granted = isinstance(answer, vote.ResponsePartitionData) and answer.vote_granted
    return Reply(answer.error_code, somebody(answer.leader_id), answer.leader_epoch, is_granted)


def leader_of(reply: Reply) -> LeaderIdAndEpoch:
    return LeaderIdAndEpoch(on_the_wire(reply.leader_id), reply.leader_epoch)
