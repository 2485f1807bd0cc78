"""Common parts of Vote, BeginQuorumEpoch, EndQuorumEpoch and FetchSnapshot on the side that answers.

All of them name topics and partitions; there is only ``__cluster_metadata-0``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from einmal.broker.control.quorum_runtime import QuorumRuntime
from einmal.metadata.image import METADATA_PARTITION
from einmal.types import ErrorCode

ANY_VOTER: Final = -1


class _Partition(Protocol):
    @property
    def partition_index(self) -> int: ...


class _Topic(Protocol):
    @property
    def topic_name(self) -> str: ...
    @property
    def partitions(self) -> Sequence[_Partition]: ...


def refusal(
    quorum: QuorumRuntime, cluster_id: str | None, topics: Sequence[_Topic], voter_id: int = ANY_VOTER
) -> ErrorCode | None:
    """Why a request is not for this node: of another cluster, for another voter, or not about the one partition."""
    if cluster_id != quorum.cluster_id:
        return ErrorCode.inconsistent_cluster_id
    if voter_id not in (ANY_VOTER, quorum.node_id):
        return ErrorCode.invalid_voter_key
    named = [(topic.topic_name, partition.partition_index) for topic in topics for partition in topic.partitions]
    return None if named == [METADATA_PARTITION] else ErrorCode.invalid_request


def leader_endpoints(quorum: QuorumRuntime, leader_id: int | None) -> list[tuple[int, str, int]]:
    """Where the leader is to be found, for those who do not know: id, host and port."""
    endpoint = quorum.endpoint_of(leader_id)
    return [] if leader_id is None or endpoint is None else [(leader_id, endpoint.host, endpoint.port)]
