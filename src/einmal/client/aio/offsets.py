"""ListOffsets: the ends of partitions, and the offset of a time. Retried until a deadline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from einmal.client.aio.cluster import Cluster, by_leader
from einmal.client.aio.retry import Retry
from einmal.client.apis import ApiKey
from einmal.client.errors import Disconnected, error_for
from einmal.client.records import OffsetAndTimestamp
from einmal.types import ErrorCode, IsolationLevel, TopicPartition

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
    how long a topic may be unknown; None: until the deadline.
    """
    retry = Retry(cluster, "ListOffsets", deadline, appear_ms=appear_ms)
    found: dict[TopicPartition, OffsetAndTimestamp] = {}
    while missing := {each: wanted[each] for each in wanted if each not in found}:
        for each in missing:
            await cluster.leader(each, deadline=deadline, appear_ms=appear_ms)
        led, _leaderless = by_leader(cluster.metadata, missing)
        code = ErrorCode.none
        for node_id, partitions in led.items():
            try:
                response = await cluster.call(
                    node_id, ApiKey.LIST_OFFSETS, _fields(cluster, partitions, wanted, isolation)
                )
            except Disconnected as error:
                cluster.refresh_soon()
                await retry.after_disconnect(error)
                continue
            known = len(found)
            code = _take(response, missing, found) or code
            if len(found) == known and not code:
                code = ErrorCode.unknown_server_error
        if code:
            cluster.refresh_soon()
            await retry.after_refusal(code)
    return found


def _fields(
    cluster: Cluster,
    partitions: list[TopicPartition],
    wanted: Mapping[TopicPartition, int],
    isolation: IsolationLevel,
) -> dict[str, Any]:
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


def _take(
    response: Any, missing: Mapping[TopicPartition, int], found: dict[TopicPartition, OffsetAndTimestamp]
) -> ErrorCode:
    """Keep the offsets found; returns the last retriable code, or none. Raises other errors."""
    last = ErrorCode.none
    for topic in response.topics:
        for partition in topic.partitions:
            topic_partition = TopicPartition(topic.name, partition.partition_index)
            code = partition.error_code
            if topic_partition not in missing:
                continue
            if code is ErrorCode.none:
                epoch = getattr(partition, "leader_epoch", -1)
                found[topic_partition] = OffsetAndTimestamp(partition.offset, partition.timestamp, epoch)
            elif code.retriable:
                last = code
            else:
                raise error_for(code, f"ListOffsets of {topic_partition}")
    return last
