"""ListOffsets: the ends of partitions, and the offset of a time. OffsetForLeaderEpoch: the ends of leader epochs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeAlias

from einmal.client.aio.network.cluster import Cluster
from einmal.client.aio.network.leaders import Answers, LeaderRequest, ask_each_leader, ask_leaders
from einmal.client.errors import KafkaError
from einmal.client.records import OffsetAndTimestamp
from einmal.types import EpochEnd, IsolationLevel, TopicPartition
from einmal.wire.api.list_offsets import API as LIST_OFFSETS
from einmal.wire.api.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from einmal.wire.api.offset_for_leader_epoch import API as OFFSET_FOR_LEADER_EPOCH
from einmal.wire.api.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

OffsetsRequest: TypeAlias = LeaderRequest[ListOffsetsRequest, ListOffsetsResponse, ListOffsetsPartitionResponse]

LATEST: Final = -1
EARLIEST: Final = -2


async def list_offsets(
    cluster: Cluster,
    wanted: Mapping[TopicPartition, int],
    isolation: IsolationLevel,
    *,
    deadline: int,
    appear_ms: int | None = None,
) -> dict[TopicPartition, OffsetAndTimestamp]:
    """For each partition the offset at LATEST, EARLIEST or the first record at or after a time in ms.

    Under READ_COMMITTED the latest is the last stable offset. Without such a record the offset is -1. ``appear_ms``:
    how long a topic may be unknown; None: until the deadline. Raises an error that names the partitions that have it.
    """
    request = offsets_request(cluster, wanted, isolation)
    answers = await ask_leaders(cluster, request, wanted, deadline=deadline, appear_ms=appear_ms)
    return {partition: offset_of(result) for partition, result in answers.all_or_raise().items()}


async def list_offsets_each(
    cluster: Cluster, wanted: Mapping[TopicPartition, int], isolation: IsolationLevel, *, deadline: int
) -> dict[TopicPartition, OffsetAndTimestamp | KafkaError]:
    """As ``list_offsets``; a partition without an offset has its error instead. Such a partition delays the answer by
    at most 5 s."""
    answers = await ask_each_leader(cluster, offsets_request(cluster, wanted, isolation), wanted, deadline=deadline)
    return {
        partition: offset_of(answers.results[partition]) if partition in answers.results else answers.errors[partition]
        for partition in wanted
    }


def offsets_request(
    cluster: Cluster, wanted: Mapping[TopicPartition, int], isolation: IsolationLevel
) -> OffsetsRequest:
    """ListOffsets for any of the ``wanted``; ``offset_of`` reads its results."""

    def request_of(partitions: Sequence[TopicPartition]) -> ListOffsetsRequest:
        topics: dict[str, list[ListOffsetsPartition]] = {}
        for partition in partitions:
            leader = cluster.metadata.leader(partition)
            epoch = -1 if leader is None else leader.leader_epoch
            topics.setdefault(partition.topic, []).append(
                ListOffsetsPartition(partition.partition, epoch, wanted[partition])
            )
        asked = tuple(ListOffsetsTopic(topic, tuple(partitions)) for topic, partitions in topics.items())
        return ListOffsetsRequest(-1, int(isolation), asked)

    def results(response: ListOffsetsResponse) -> Iterable[tuple[TopicPartition, ListOffsetsPartitionResponse]]:
        return [
            (TopicPartition(topic.name, partition.partition_index), partition)
            for topic in response.topics
            for partition in topic.partitions
        ]

    return LeaderRequest(LIST_OFFSETS, request_of, results)


def offset_of(result: ListOffsetsPartitionResponse) -> OffsetAndTimestamp:
    """A partition's result of ListOffsets."""
    return OffsetAndTimestamp(result.offset, result.timestamp, result.leader_epoch)


async def log_end_offsets_each(
    cluster: Cluster, partitions: Iterable[TopicPartition], *, deadline: int
) -> dict[TopicPartition, int | KafkaError]:
    """The offset after the last record in the leader's log, replicated or not, or why there is none: where the leader's
    own epoch ends. A leader that does not know its epoch has no entry."""

    def own_epoch(partition: TopicPartition) -> int:
        leader = cluster.metadata.leader(partition)
        return -1 if leader is None else leader.leader_epoch

    answers = await _ask_for_epochs(cluster, partitions, own_epoch, deadline)
    ends = {partition: result.end_offset for partition, result in answers.results.items() if result.end_offset >= 0}
    return {**ends, **answers.errors}


async def epoch_ends_each(
    cluster: Cluster, epochs: Mapping[TopicPartition, int], *, deadline: int
) -> dict[TopicPartition, EpochEnd | KafkaError]:
    """For each partition the end of a leader epoch in its leader's log, or why it is not known."""
    answers = await _ask_for_epochs(cluster, epochs, epochs.__getitem__, deadline)
    ends = {partition: EpochEnd(end.leader_epoch, end.end_offset) for partition, end in answers.results.items()}
    return {**ends, **answers.errors}


async def _ask_for_epochs(
    cluster: Cluster,
    partitions: Iterable[TopicPartition],
    epoch_of: Callable[[TopicPartition], int],
    deadline: int,
) -> Answers[EpochEndOffset]:
    def request_of(some: Sequence[TopicPartition]) -> OffsetForLeaderEpochRequest:
        topics: dict[str, list[OffsetForLeaderPartition]] = {}
        for partition in some:
            leader = cluster.metadata.leader(partition)
            current_epoch = -1 if leader is None else leader.leader_epoch
            topics.setdefault(partition.topic, []).append(
                OffsetForLeaderPartition(partition.partition, current_epoch, epoch_of(partition))
            )
        return OffsetForLeaderEpochRequest(
            topics=tuple(OffsetForLeaderTopic(topic, tuple(partitions)) for topic, partitions in topics.items())
        )

    def results(response: OffsetForLeaderEpochResponse) -> Iterable[tuple[TopicPartition, EpochEndOffset]]:
        return [
            (TopicPartition(topic.topic, partition.partition), partition)
            for topic in response.topics
            for partition in topic.partitions
        ]

    request = LeaderRequest(OFFSET_FOR_LEADER_EPOCH, request_of, results)
    return await ask_each_leader(cluster, request, partitions, deadline=deadline)
