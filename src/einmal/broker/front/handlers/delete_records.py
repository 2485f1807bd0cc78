"""DeleteRecords: forget what is older than an offset.

API: 21. Versions: 0-2.
Access: DELETE on Topic.
Behaviour: moves the log's start up to the offset, -1 meaning the high watermark; internal topics are left alone.
Answers when no replica that may lead has the records any more, or the time is over.
Version notes: none.
"""

from __future__ import annotations

import asyncio
from typing import ClassVar, Final

from einmal.broker.front.authorization.access import Access
from einmal.broker.front.context import RequestContext
from einmal.broker.front.handler import handler
from einmal.broker.replicas.partition import Partition
from einmal.broker.replicas.partitions import Partitions
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


@handler
class DeleteRecordsHandler:
    api: ClassVar = API
    access: Access
    partitions: Partitions

    async def handle(self, context: RequestContext, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
        deletions = []
        async for topic in context.paced(request.topics):
            refused = self.access.refusal(context, AclOperation.DELETE, ResourceType.TOPIC, topic.name)
            partitions = [
                _Deletion(self.partitions, topic.name, asked, refused)
                async for asked in context.paced(topic.partitions)
            ]
            deletions.append((topic.name, partitions))
        waiting = [deletion for _name, partitions in deletions for deletion in partitions if not deletion.is_done]
        if waiting:
            loop = asyncio.get_running_loop()
            end = loop.time() + request.timeout / 1000
            for deletion in waiting:
                await deletion.until_done(end - loop.time())
        return DeleteRecordsResponse(
            topics=[
                DeleteRecordsTopicResult(name, [deletion.result() for deletion in partitions])
                for name, partitions in deletions
            ]
        )


class _Deletion:
    """In one partition. ``refused``: it is not attempted."""

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

    async def until_done(self, seconds: float) -> None:
        """Wait until the followers have followed, but not longer."""
        partition = self._partition
        assert partition is not None
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def look() -> None:
            if not ended.done() and (self.is_done or not partition.is_leader):
                ended.set_result(None)

        def expire() -> None:
            if not ended.done():
                ended.set_result(None)

        timer = loop.call_later(max(0.0, seconds), expire)
        partition.watch(self, look)
        try:
            look()
            await ended
        finally:
            timer.cancel()
            partition.unwatch(self)
        if not partition.is_leader:
            self.error = ErrorCode.not_leader_or_follower
        elif not self.is_done:
            self.error = ErrorCode.request_timed_out
