"""ListOffsets: offsets by time.

API: 2. Versions: 1-11.
Access: DESCRIBE on Topic.
Behaviour: -1 the end that this isolation level may read, -2 and -4 the log's start, -3 the record with the largest
timestamp, -5 and -6 nothing (no tiered storage), else the first record of that time or later. A negative one that the
version does not have is UNSUPPORTED_VERSION. What is not visible yet is not found. Only of partitions that this broker
leads; a new leader that does not know yet how much was visible under its predecessor answers OFFSET_NOT_AVAILABLE. A
batch that cannot be read is CORRUPT_MESSAGE, and one that decompresses to very much is searched in the background.
Version notes: v2 isolation level; v4 leader epochs; v5 OFFSET_NOT_AVAILABLE; v7 -3; v8 -4; v9 -5; v10 a timeout, not
needed here; v11 -6.
"""

from __future__ import annotations

from itertools import count
from typing import ClassVar, Final, NamedTuple

from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.broker.replicas.batch_checks import BatchChecks
from einmal.broker.replicas.partition import Partition
from einmal.broker.replicas.partitions import Partitions
from einmal.broker.resources.supervision import Supervisor
from einmal.log.errors import LogCorruption
from einmal.log.time_search import TimeSearch
from einmal.security.acl import AclOperation, ResourceType
from einmal.types import NO_LEADER_EPOCH, NO_OFFSET, ErrorCode, IsolationLevel, LeaderEpoch, TopicPartition
from einmal.wire.api.list_offsets import (
    API,
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from einmal.wire.errors import WireError

_LATEST: Final = -1
_EARLIEST: Final = -2
_MAX_TIMESTAMP: Final = -3
_EARLIEST_LOCAL: Final = -4
_LATEST_TIERED: Final = -5
_EARLIEST_PENDING_UPLOAD: Final = -6
_FIRST_VERSIONS: Final = {
    _LATEST: 1,
    _EARLIEST: 1,
    _MAX_TIMESTAMP: 7,
    _EARLIEST_LOCAL: 8,
    _LATEST_TIERED: 9,
    _EARLIEST_PENDING_UPLOAD: 11,
}
"""The first version with each special timestamp."""
_NEVER: Final = 2**15
_START: Final = (_EARLIEST, _EARLIEST_LOCAL)
_NO_TIMESTAMP: Final = -1
_OFFSET_NOT_AVAILABLE: Final = 5


class _Position(NamedTuple):
    offset: int = NO_OFFSET
    timestamp: int = _NO_TIMESTAMP
    leader_epoch: int = NO_LEADER_EPOCH


@handler
class ListOffsetsHandler:
    api: ClassVar = API
    access: Access
    partitions: Partitions
    batch_checks: BatchChecks
    supervisor: Supervisor

    async def handle(self, context: RequestContext, request: ListOffsetsRequest) -> ListOffsetsResponse:
        isolation = IsolationLevel(1 if request.isolation_level else 0)
        topics = []
        async for topic in context.paced(request.topics):
            refused = self.access.refusal(context, AclOperation.DESCRIBE, ResourceType.TOPIC, topic.name)
            partitions = [
                _response(asked, refused, _Position())
                if refused
                else await self._partition(context, topic.name, asked, isolation)
                async for asked in context.paced(topic.partitions)
            ]
            topics.append(ListOffsetsTopicResponse(topic.name, partitions))
        return ListOffsetsResponse(topics=topics)

    async def _partition(
        self, context: RequestContext, topic: str, asked: ListOffsetsPartition, isolation: IsolationLevel
    ) -> ListOffsetsPartitionResponse:
        if asked.timestamp < 0 and context.api_version < _FIRST_VERSIONS.get(asked.timestamp, _NEVER):
            return _response(asked, ErrorCode.unsupported_version, _Position())
        topic_partition = TopicPartition(topic, asked.partition_index)
        partition = self.partitions.get(topic_partition)
        error, position = self.partitions.error_of_missing(topic_partition), _Position()
        if partition is not None:
            error = partition.check_leader_epoch(LeaderEpoch(asked.current_leader_epoch))
            if error is ErrorCode.none and asked.timestamp not in _START and not partition.knows_high_watermark:
                is_new = context.api_version >= _OFFSET_NOT_AVAILABLE
                error = ErrorCode.offset_not_available if is_new else ErrorCode.leader_not_available
            if error is ErrorCode.none:
                error, position = await self._find_or_fail(context, partition, asked.timestamp, isolation)
        return _response(asked, error, position)

    async def _find_or_fail(
        self, context: RequestContext, partition: Partition, timestamp: int, isolation: IsolationLevel
    ) -> tuple[ErrorCode, _Position]:
        try:
            return ErrorCode.none, await self._find(context, partition, timestamp, isolation)
        except (OSError, WireError, LogCorruption) as failure:
            self.supervisor.report(f"searching {partition.topic_partition} by time", failure)
            return partition.report(failure, is_logged=True), _Position()

    async def _find(
        self, context: RequestContext, partition: Partition, timestamp: int, isolation: IsolationLevel
    ) -> _Position:
        """Raises OSError, or WireError or LogCorruption for a batch that cannot be read."""
        end = partition.visible_end(isolation)
        start = partition.log_start_offset
        if timestamp == _LATEST:
            return _Position(end, _NO_TIMESTAMP, partition.leader_epoch)
        if timestamp in _START:
            return _Position(start, _NO_TIMESTAMP, partition.epoch_of_offset(start))
        if timestamp == _MAX_TIMESTAMP:
            timestamp = partition.max_timestamp
        if timestamp < 0:
            return _Position()
        async for _ in context.paced(count()):
            search = partition.search_by_time(timestamp, start)
            if search is None:
                break
            if not isinstance(search, TimeSearch):
                start = search
                continue
            if not search.is_decided:
                await self.batch_checks.run(search.decide, context.sender)
            if search.position is not None:
                return _Position(*search.position) if search.position.offset < end else _Position()
            start = search.next_offset
        return _Position()


def _response(asked: ListOffsetsPartition, error: ErrorCode, position: _Position) -> ListOffsetsPartitionResponse:
    return ListOffsetsPartitionResponse(
        partition_index=asked.partition_index,
        error_code=error,
        timestamp=position.timestamp,
        offset=position.offset,
        leader_epoch=position.leader_epoch,
    )
