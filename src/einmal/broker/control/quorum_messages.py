"""Converts the quorum's values from and to its RPCs: Vote, BeginQuorumEpoch, EndQuorumEpoch, FetchSnapshot.

All of them name topics and partitions; there is only ``__cluster_metadata-0``. No node is -1 on the wire and None here.
"""

from __future__ import annotations

from typing import Any, Final

from einmal.broker.listeners import Endpoint
from einmal.metadata.image import METADATA_PARTITION
from einmal.quorum.messages import OffsetAndEpoch, Reply, SendBeginQuorumEpoch, SendEndQuorumEpoch, SendVote
from einmal.types import ErrorCode
from einmal.wire.produce import LeaderIdAndEpoch

VOTE: Final = 52
BEGIN_QUORUM_EPOCH: Final = 53
END_QUORUM_EPOCH: Final = 54
FETCH_SNAPSHOT: Final = 59
VERSION: Final = {VOTE: 2, BEGIN_QUORUM_EPOCH: 1, END_QUORUM_EPOCH: 1, FETCH_SNAPSHOT: 1}
"""The version in which each is sent."""
CONTROLLER: Final = "CONTROLLER"
_NOBODY: Final = -1


def somebody(node_id: int) -> int | None:
    return None if node_id < 0 else int(node_id)


def on_the_wire(node_id: int | None) -> int:
    return _NOBODY if node_id is None else node_id


# --- requests ------------------------------------------------------------------------------------------------------


def _about_partition(cluster_id: str | None, fields: dict[str, Any]) -> dict[str, Any]:
    partitions = [{"partition_index": METADATA_PARTITION.partition, **fields}]
    return {"cluster_id": cluster_id, "topics": [{"topic_name": METADATA_PARTITION.topic, "partitions": partitions}]}


def vote_fields(cluster_id: str | None, candidate_id: int, vote: SendVote) -> dict[str, Any]:
    asked = {
        "replica_epoch": vote.epoch,
        "replica_id": candidate_id,
        "last_offset_epoch": vote.log_end.epoch,
        "last_offset": vote.log_end.offset,
        "pre_vote": vote.pre_vote,
    }
    return {**_about_partition(cluster_id, asked), "voter_id": vote.to}


def begin_fields(
    cluster_id: str | None, leader_id: int, begin: SendBeginQuorumEpoch, endpoint: Endpoint | None
) -> dict[str, Any]:
    told = {"leader_id": leader_id, "leader_epoch": begin.epoch}
    return {
        **_about_partition(cluster_id, told),
        "voter_id": begin.to,
        "leader_endpoints": _leader_endpoints(endpoint),
    }


def end_fields(
    cluster_id: str | None, leader_id: int, end: SendEndQuorumEpoch, endpoint: Endpoint | None
) -> dict[str, Any]:
    told = {
        "leader_id": leader_id,
        "leader_epoch": end.epoch,
        "preferred_successors": end.successors,
        "preferred_candidates": [{"candidate_id": candidate} for candidate in end.successors],
    }
    return {**_about_partition(cluster_id, told), "leader_endpoints": _leader_endpoints(endpoint)}


def _leader_endpoints(endpoint: Endpoint | None) -> list[dict[str, Any]]:
    return [] if endpoint is None else [{"name": CONTROLLER, "host": endpoint.host, "port": endpoint.port}]


def snapshot_fields(
    cluster_id: str | None, replica_id: int, epoch: int, snapshot_id: OffsetAndEpoch, position: int, max_bytes: int
) -> dict[str, Any]:
    asked = {
        "partition": METADATA_PARTITION.partition,
        "current_leader_epoch": epoch,
        "snapshot_id": {"end_offset": snapshot_id.offset, "epoch": snapshot_id.epoch},
        "position": position,
    }
    return {
        "cluster_id": cluster_id,
        "replica_id": replica_id,
        "max_bytes": max_bytes,
        "topics": [{"name": METADATA_PARTITION.topic, "partitions": [asked]}],
    }


# --- answers -------------------------------------------------------------------------------------------------------


def reply_of(response: Any) -> Reply | None:
    """The response to Vote, BeginQuorumEpoch or EndQuorumEpoch; None if it does not contain the partition."""
    if response.error_code is not ErrorCode.none or not response.topics or not response.topics[0].partitions:
        return None
    answer = response.topics[0].partitions[0]
    return Reply(
        answer.error_code, somebody(answer.leader_id), answer.leader_epoch, getattr(answer, "vote_granted", False)
    )


def leader_of(reply: Reply) -> LeaderIdAndEpoch:
    return LeaderIdAndEpoch(on_the_wire(reply.leader_id), reply.leader_epoch)
