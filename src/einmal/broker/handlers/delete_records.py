"""DeleteRecords: forget what is older than an offset.

API: 21. Versions: 0-2.
Behaviour: moves the log's start up to the offset, -1 meaning the high watermark; internal topics are left alone.
Version notes: none.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from einmal.broker.context import RequestContext, Versions
from einmal.metadata.image import INTERNAL_TOPICS
from einmal.types import NO_OFFSET, ErrorCode, Offset, TopicPartition

log = logging.getLogger(__name__)

API_KEY: Final = 21
VERSIONS: Final = Versions(0, 2, flexible=2)
_HIGH_WATERMARK: Final = -1


def handle(context: RequestContext, request: Any) -> dict[str, Any]:
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [_partition(context, topic.name, asked) for asked in topic.partitions],
            }
            for topic in request.topics
        ]
    }


def _partition(context: RequestContext, topic: str, asked: Any) -> dict[str, Any]:
    error, low_watermark = _delete(context, TopicPartition(topic, asked.partition_index), asked.offset)
    return {"partition_index": asked.partition_index, "low_watermark": low_watermark, "error_code": error}


def _delete(context: RequestContext, topic_partition: TopicPartition, offset: int) -> tuple[ErrorCode, int]:
    if topic_partition.topic in INTERNAL_TOPICS:
        return ErrorCode.invalid_topic_exception, NO_OFFSET
    partition = context.node.partitions.get(topic_partition)
    if partition is None:
        return ErrorCode.unknown_topic_or_partition, NO_OFFSET
    if offset == _HIGH_WATERMARK:
        offset = partition.high_watermark
    if not partition.log.log_start_offset <= offset <= partition.high_watermark:
        if 0 <= offset < partition.log.log_start_offset:
            return ErrorCode.none, partition.log.log_start_offset
        return ErrorCode.offset_out_of_range, NO_OFFSET
    try:
        partition.log.delete_records_before(Offset(offset))
    except OSError as error:
        log.error("records of %s stay: %s", topic_partition, error)
        return ErrorCode.kafka_storage_error, NO_OFFSET
    return ErrorCode.none, partition.log.log_start_offset
