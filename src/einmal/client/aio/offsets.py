"""ListOffsets: the ends of partitions, and the offset of a time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from einmal.client.aio.cluster import Cluster
from einmal.client.aio.leaders import LeaderRequest, ask_each_leader, ask_leaders
from einmal.client.apis import ApiKey
from einmal.client.errors import KafkaError
from einmal.client.records import OffsetAndTimestamp
from einmal.types import IsolationLevel, TopicPartition

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
    return {each: offset_of(told) for each, told in answers.all_or_raise().items()}


async def list_offsets_each(
    cluster: Cluster, wanted: Mapping[TopicPartition, int], isolation: IsolationLevel, *, deadline: int
) -> dict[TopicPartition, OffsetAndTimestamp | KafkaError]:
    """As ``list_offsets``; a partition without an offset has its error instead. Such a partition delays the answer by
    at most 5 s."""
    answers = await ask_each_leader(cluster, offsets_request(cluster, wanted, isolation), wanted, deadline=deadline)
    return {each: offset_of(answers.found[each]) if each in answers.found else answers.errors[each] for each in wanted}


def offsets_request(cluster: Cluster, wanted: Mapping[TopicPartition, int], isolation: IsolationLevel) -> LeaderRequest:
    """ListOffsets for any of the ``wanted``; ``offset_of`` reads its results."""

    def fields_of(partitions: Sequence[TopicPartition]) -> dict[str, Any]:
        topics: dict[str, list[dict[str, int]]] = {}
        for each in partitions:
            leader = cluster.metadata.leader(each)
            epoch = -1 if leader is None else leader.leader_epoch
            topics.setdefault(each.topic, []).append(
                {"partition_index": each.partition, "current_leader_epoch": epoch, "timestamp": wanted[each]}
            )
        return {
            "replica_id": -1,
            "isolation_level": int(isolation),
            "topics": [{"name": topic, "partitions": asked} for topic, asked in topics.items()],
        }

    def results(response: Any) -> Iterable[tuple[TopicPartition, Any]]:
        return [
            (TopicPartition(topic.name, each.partition_index), each)
            for topic in response.topics
            for each in topic.partitions
        ]

    return LeaderRequest(ApiKey.LIST_OFFSETS, fields_of, results)


def offset_of(told: Any) -> OffsetAndTimestamp:
    """A partition's result of ListOffsets."""
    return OffsetAndTimestamp(told.offset, told.timestamp, getattr(told, "leader_epoch", -1))
