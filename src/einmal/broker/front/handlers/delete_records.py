"""DeleteRecords: forget what is older than an offset.

API: 21. Versions: 0-2.
Access: DELETE on Topic.
Behaviour: moves the log's start up to the offset, -1 meaning the high watermark. Internal topics are left alone, and
so are those that are only compacted, as they keep each key's last value (POLICY_VIOLATION). Answers when no replica
that may lead has the records any more, or the time is over: after five minutes at the latest, or earlier where too
much waits.
Version notes: none.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar, Final, TypeAlias

from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import Body, Parked, RequestContext
from einmal.broker.front.handler import handler
from einmal.broker.replicas.partition import Partition
from einmal.broker.replicas.partitions import Partitions
from einmal.broker.resources.parked_fetches import ParkedFetches
from einmal.event_log import EventLog
from einmal.metadata.image import INTERNAL_TOPICS
from einmal.security.acl import AclOperation, ResourceType
from einmal.types import NO_OFFSET, ErrorCode, Offset, TopicPartition
from einmal.wire.api.delete_records import (
    API,
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

log = EventLog(__name__)

_HIGH_WATERMARK: Final = -1
WAIT_MS_MAX: Final = 300_000
"""A client chooses how long it waits; after this nobody does."""
_WAITING_BYTES: Final = 250
"""Memory of a partition in a request that waits."""


@handler
class DeleteRecordsHandler:
    api: ClassVar = API
    access: Access
    partitions: Partitions
    parked_fetches: ParkedFetches

    async def handle(self, context: RequestContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse | Parked:
        deletions = []
        async for topic in context.paced(request.topics):
            refused = self.access.refusal(context, AclOperation.DELETE, ResourceType.TOPIC, topic.name)
            partitions = [
                _Deletion(self.partitions, topic.name, asked, refused)
                async for asked in context.paced(topic.partitions)
            ]
            deletions.append((topic.name, partitions))
        waiting = [deletion for _name, partitions in deletions for deletion in partitions if not deletion.is_done]
        if not waiting:
            return await _response(context, deletions)
        # It waits without this request's share of memory, which others need meanwhile.
        count = sum(len(partitions) for _name, partitions in deletions)
        answer = asyncio.ensure_future(self._answer_later(context, deletions, waiting, count, request.timeout))
        return Parked(answer, _WAITING_BYTES * count)

    async def _answer_later(
        self, context: RequestContext, deletions: _Deletions, waiting: list[_Deletion], count: int, timeout_ms: int
    ) -> Body:
        """The encoded answer, when the followers have followed, or the time is over."""
        loop = asyncio.get_running_loop()
        over: asyncio.Future[None] = loop.create_future()

        def expire() -> None:
            if not over.done():
                over.set_result(None)

        timer = loop.call_later(max(0, min(timeout_ms, WAIT_MS_MAX)) / 1000, expire)
        ticket = self.parked_fetches.add(count, expire)
        try:
            async for deletion in context.paced(waiting):
                await deletion.until_done(over)
        finally:
            timer.cancel()
            self.parked_fetches.remove(ticket)
        slices = API.response_slices(context.api_version, await _response(context, deletions))
        return b"".join([chunk async for chunk in context.paced(slices)])


async def _response(context: RequestContext, deletions: _Deletions) -> DeleteRecordsResponse:
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(name, [deletion.result() async for deletion in context.paced(partitions)])
            async for name, partitions in context.paced(deletions)
        ]
    )


class _Deletion:
    """In one partition. ``refused``: it is not attempted."""

    __slots__ = ("_offset", "_partition", "error", "partition_index")

    def __init__(
        self, partitions: Partitions, topic: str, asked: DeleteRecordsPartition, refused: ErrorCode | None
    ) -> None:
        topic_partition = TopicPartition(topic, asked.partition_index)
        self.partition_index = topic_partition.partition
        self.error = ErrorCode.none
        self._offset = Offset(asked.offset)
        self._partition = partitions.get(topic_partition)
        if refused:
            self.error = refused
        elif topic in INTERNAL_TOPICS:
            self.error = ErrorCode.invalid_topic_exception
        elif self._partition is None or not self._partition.is_leader:
            self.error = partitions.error_of_missing(topic_partition)
        else:
            self._delete(self._partition)

    def _delete(self, partition: Partition) -> None:
        if partition.config.is_compacted and not partition.config.deletes:
            self.error = ErrorCode.policy_violation
            return
        if self._offset == _HIGH_WATERMARK:
            self._offset = partition.high_watermark
        if not 0 <= self._offset <= partition.high_watermark:
            self.error = ErrorCode.offset_out_of_range
            return
        try:
            partition.delete_records_before(self._offset)
        except OSError as error:
            log.error(
                "record_deletion_failed",
                "records of %(partition)s stay: %(error)s",
                partition=partition.topic_partition,
                error=error,
            )
            self.error = ErrorCode.kafka_storage_error

    def result(self) -> DeleteRecordsPartitionResult:
        return DeleteRecordsPartitionResult(self.partition_index, self.low_watermark, self.error)

    @property
    def low_watermark(self) -> Offset:
        if self.error is not ErrorCode.none or self._partition is None:
            return NO_OFFSET
        return self._partition.low_watermark

    @property
    def is_done(self) -> bool:
        return self.error is not ErrorCode.none or self.low_watermark >= self._offset

    async def until_done(self, over: asyncio.Future[None]) -> None:
        """Wait until the followers have followed, or it is ``over``."""
        partition = self._partition
        assert partition is not None
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def look(_over: asyncio.Future[None] | None = None) -> None:
            if not ended.done() and (over.done() or self.is_done or not partition.is_leader):
                ended.set_result(None)

        partition.watch(self, look)
        over.add_done_callback(look)
        try:
            look()
            await ended
        finally:
            over.remove_done_callback(look)
            partition.unwatch(self)
        if not partition.is_leader:
            self.error = ErrorCode.not_leader_or_follower
        elif not self.is_done:
            self.error = ErrorCode.request_timed_out


_Deletions: TypeAlias = list[tuple[str, list[_Deletion]]]
"""By topic, as the request names them."""
