"""ListOffsets: offsets by time.

API: 2. Versions: 1-11.
Behaviour: -1 the end that this isolation level may read, -2 and -4 the log's start, -3 the record with the largest
timestamp, -5 and -6 nothing (no tiered storage), else the first record of that time or later. What is not visible yet
is not found. Only of partitions that this broker leads; a new leader that does not know yet how much was visible under
its predecessor says OFFSET_NOT_AVAILABLE. A batch that cannot be read is CORRUPT_MESSAGE, and one that decompresses to
very much is looked through in the background.
Version notes: v2 isolation level; v4 leader epochs; v5 OFFSET_NOT_AVAILABLE; v7 -3; v8 -4; v9 -5; v10 a timeout, not
needed here; v11 -6.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from einmal.broker.context import RequestContext, Versions
from einmal.broker.partition import Partition
from einmal.log.errors import LogCorruption
from einmal.types import NO_LEADER_EPOCH, NO_OFFSET, ErrorCode, IsolationLevel, TopicPartition
from einmal.wire.errors import WireError

if TYPE_CHECKING:
    from einmal.broker.node import Node

API_KEY: Final = 2
VERSIONS: Final = Versions(1, 11, flexible=6)
_LATEST: Final = -1
_EARLIEST: Final = -2
_MAX_TIMESTAMP: Final = -3
_EARLIEST_LOCAL: Final = -4
_START: Final = (_EARLIEST, _EARLIEST_LOCAL)
_NO_TIMESTAMP: Final = -1
_OFFSET_NOT_AVAILABLE: Final = 5


class _Found(NamedTuple):
    offset: int = NO_OFFSET
    timestamp: int = _NO_TIMESTAMP
    leader_epoch: int = NO_LEADER_EPOCH


async def handle(context: RequestContext, request: Any) -> dict[str, Any]:
    isolation = IsolationLevel(1 if getattr(request, "isolation_level", 0) else 0)
    topics = []
    async for topic in context.paced(request.topics):
        partitions = [
            await _partition(context, topic.name, asked, isolation) async for asked in context.paced(topic.partitions)
        ]
        topics.append({"name": topic.name, "partitions": partitions})
    return {"topics": topics}


async def _partition(context: RequestContext, topic: str, asked: Any, isolation: IsolationLevel) -> dict[str, Any]:
    topic_partition = TopicPartition(topic, asked.partition_index)
    partition = context.node.partitions.get(topic_partition)
    error, found = context.node.partitions.error_of_missing(topic_partition), _Found()
    if partition is not None:
        error = partition.check_leader_epoch(getattr(asked, "current_leader_epoch", NO_LEADER_EPOCH))
        if error is ErrorCode.none and asked.timestamp not in _START and not partition.knows_high_watermark:
            is_new = context.api_version >= _OFFSET_NOT_AVAILABLE
            error = ErrorCode.offset_not_available if is_new else ErrorCode.leader_not_available
        if error is ErrorCode.none:
            error, found = await _find_or_fail(context.node, partition, asked.timestamp, isolation)
    return {
        "partition_index": asked.partition_index,
        "error_code": error,
        "timestamp": found.timestamp,
        "offset": found.offset,
        "leader_epoch": found.leader_epoch,
    }


async def _find_or_fail(
    node: Node, partition: Partition, timestamp: int, isolation: IsolationLevel
) -> tuple[ErrorCode, _Found]:
    try:
        return ErrorCode.none, await _find(node, partition, timestamp, isolation)
    except (OSError, WireError, LogCorruption) as failure:
        node.supervisor.report(f"searching {partition.topic_partition} by time", failure)
        is_disk = isinstance(failure, OSError)
        return ErrorCode.kafka_storage_error if is_disk else ErrorCode.corrupt_message, _Found()


async def _find(node: Node, partition: Partition, timestamp: int, isolation: IsolationLevel) -> _Found:
    """Raises OSError, or WireError or LogCorruption for a batch that cannot be read."""
    end = partition.visible_end(isolation)
    start = partition.log.log_start_offset
    if timestamp == _LATEST:
        return _Found(end, _NO_TIMESTAMP, partition.leader_epoch)
    if timestamp in _START:
        return _Found(start, _NO_TIMESTAMP, partition.log.epoch_of_offset(start))
    if timestamp == _MAX_TIMESTAMP:
        timestamp = partition.log.max_timestamp
    if timestamp < 0:
        return _Found()
    while (search := partition.log.search_by_time(timestamp, start)) is not None:
        if not search.is_decided:
            await node.batch_checks.run(search.decide)
        if search.found is not None:
            return _Found(*search.found) if search.found.offset < end else _Found()
        start = search.next_offset
    return _Found()
