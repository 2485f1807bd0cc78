"""Batches of source partitions: headers up to an end, and those with committed records. Reads only.

Works in the mirror's process as in a task of Spark.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Final

from einmal.client import OffsetRange, RangeReader
from einmal.client.cores.fetched import RawBatch
from einmal.client.errors import KafkaError, OffsetOutOfRange
from einmal.clusters.kafka_cluster import uuid_of
from einmal.groups import records as group_records
from einmal.mirror_protocol.effects import HeadersScanned, ScanHeaders
from einmal.mirror_protocol.progress import OFFSETS_TOPIC
from einmal.mirror_protocol.scan import DataHeader, GroupCommit, Header, MarkerHeader
from einmal.types import ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition
from einmal.wire.control_batch import ABORT, COMMIT, control_type

HEADERS_MAX: Final = 100_000
"""Maximum number of headers of one answer."""


class SourceUnreadable(Exception):
    """Records of the source cannot be read now. Kept apart from errors of the target, which may mean something else."""


Take = Callable[[RawBatch, Header | None], None]


def scanned(
    reader: RangeReader,
    effect: ScanHeaders,
    headers_max: int = HEADERS_MAX,
    take: Take = lambda batch, header: None,
) -> HeadersScanned:
    """Headers of whole batches, up to a limit. ``reader``: of uncommitted records. ``take``: called with each batch.
    Raises KafkaError, or WireError for records that no broker writes."""
    ranges = effect.ranges
    headers: dict[TopicPartition, list[Header]] = {partition: [] for partition in ranges}
    reached = {partition: start for partition, (start, _) in ranges.items()}
    with contextlib.closing(read(reader, ranges, effect.topic_ids)) as batches:
        for count, batch in enumerate(batches, start=1):
            partition = batch.topic_partition
            reached[partition] = max(reached[partition], batch.header.next_offset)
            header = _header(batch)
            take(batch, header)
            if header is not None:
                headers[partition].append(header)
            if count == headers_max:
                break
        else:
            reached = {partition: end for partition, (_, end) in ranges.items()}
    return HeadersScanned(
        {partition: tuple(partition_headers) for partition, partition_headers in headers.items()}, reached
    )


@contextlib.contextmanager
def unreadable() -> Iterator[None]:
    """Raises SourceUnreadable for what the source's client raises while records are copied."""
    try:
        yield
    except OffsetOutOfRange as error:
        raise SourceUnreadable(f"offsets were deleted while they were copied: {error}") from error
    except KafkaError as error:
        raise SourceUnreadable(str(error)) from error


def read(
    reader: RangeReader,
    ranges: Mapping[TopicPartition, tuple[int, int]],
    topic_ids: Mapping[str, str],
    *,
    with_markers: bool = True,
) -> Generator[RawBatch, None, None]:
    """The batches of these offsets; one may reach over the ends of its range. Raises KafkaError, and WireError for
    records that no broker writes."""
    bounds = {partition: OffsetRange(start, end) for partition, (start, end) in ranges.items()}
    ids = {topic: uuid_of(topic_id) for topic, topic_id in topic_ids.items()}
    yield from reader.read(bounds, with_markers=with_markers, topic_ids=ids)


def _header(batch: RawBatch) -> Header | None:
    """None: a control batch that ends no transaction, or one that lost its record to compaction."""
    header = batch.header
    producer = ProducerIdAndEpoch(ProducerId(header.producer_id), ProducerEpoch(header.producer_epoch))
    if header.is_control:
        kinds = [control_type(record) for record in batch.records()]
        if not kinds or kinds[0] not in (ABORT, COMMIT):
            return None
        return MarkerHeader(header.base_offset, producer, kinds[0] == COMMIT, header.partition_leader_epoch)
    commits = tuple(_commits(batch)) if batch.topic_partition.topic == OFFSETS_TOPIC else ()
    owner = producer if header.is_transactional else None
    return DataHeader(header.base_offset, header.last_offset, owner, commits, header.partition_leader_epoch)


def _commits(batch: RawBatch) -> Iterator[GroupCommit]:
    for record in batch.records():
        decoded = group_records.decode(record.key, record.value)
        if isinstance(decoded, group_records.OffsetRecord):
            partition = TopicPartition(decoded.topic, decoded.partition)
            value = decoded.value
            offset, metadata = (None, "") if value is None else (value.offset, value.metadata)
            yield GroupCommit(decoded.group_id, partition, offset, metadata)
