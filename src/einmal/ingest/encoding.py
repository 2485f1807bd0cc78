"""Records of a source as the record batches of one transaction, in bounded memory."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from einmal.client.config import ProducerSettings
from einmal.client.cores.producer_batch import record_size
from einmal.commit_protocol.commit_record import RESERVED_TOPICS
from einmal.ingest.source import IngestBatch, IngestRecord, SourceNotice, SourceRefused
from einmal.sinks.kafka.batches import TransactionBatches
from einmal.types import TopicPartition
from einmal.wire.compression import Compression
from einmal.wire.murmur2 import partition_for_key
from einmal.wire.record_batch import HEADER_SIZE, NewRecord

BATCH_BYTES: Final = 256 * 1024
"""Size of one record batch, unless batch.size is set: the records are there already."""
_BUFFERED_MAX: Final = 16 * 1024 * 1024
"""Bytes in the unfinished batches of all partitions."""


@dataclass(slots=True)
class _Unfinished:
    records: list[NewRecord] = field(default_factory=list)
    size: int = HEADER_SIZE


class RecordEncoder:
    """Encodes the records of one batch of a source after the other; ``partition_count``: of a topic."""

    def __init__(
        self,
        settings: ProducerSettings,
        batch_bytes: int,
        partition_count: Callable[[str], int],
        needs_key: Callable[[str], bool] = lambda topic: False,
        notify: Callable[[SourceNotice], None] = lambda notice: None,
    ) -> None:
        """``needs_key``: whether a topic takes no record without a key, asked for in each batch that has one.
        ``notify``: of those that are left out."""
        self._needs_key = needs_key
        self._notify = notify
        self._compression = Compression[settings.compression_type.upper()]
        self._largest = settings.max_request_size
        self._batch_bytes = min(batch_bytes, settings.max_request_size)
        self._partition_count = partition_count

    def encode(
        self, batch: IngestBatch, batches: TransactionBatches, now_ms: int
    ) -> Iterator[tuple[TopicPartition, bytes]]:
        """``now_ms``: the timestamp of records without one. Raises what iterating the records raises, and SourceRefused
        for a record that cannot be written."""
        unfinished: dict[TopicPartition, _Unfinished] = {}
        buffered = 0
        for partition, record, size in self._placed(batch.records, _seed(batch)):
            buffer = unfinished.get(partition)
            if buffer is not None and buffer.size + size > self._batch_bytes:
                yield batches.encode(partition, buffer.records, self._compression)
                buffered -= buffer.size
                buffer = None
            if buffer is None:
                buffer = unfinished[partition] = _Unfinished()
                buffered += buffer.size
            buffer.records.append(
                NewRecord(
                    record.key, record.value, now_ms if record.timestamp is None else record.timestamp, record.headers
                )
            )
            buffer.size += size
            buffered += size
            if buffered > _BUFFERED_MAX:
                for destination, full in unfinished.items():
                    yield batches.encode(destination, full.records, self._compression)
                unfinished.clear()
                buffered = 0
        for destination, rest in unfinished.items():
            yield batches.encode(destination, rest.records, self._compression)

    def _placed(
        self, records: Iterable[IngestRecord], seed: bytes
    ) -> Iterator[tuple[TopicPartition, IngestRecord, int]]:
        counts: dict[str, int] = {}
        without_key: dict[str, int] = {}
        needs_key = cache(self._needs_key)
        for record in records:
            count = counts.get(record.topic)
            if count is None:
                count = counts[record.topic] = self._count(record.topic)
                # Once: the position of many files has many kilobytes.
                without_key[record.topic] = partition_for_key(seed, count)
            if record.key is None and needs_key(record.topic):
                self._leave_out(record)
                continue
            partition = record.partition
            if partition is None:
                key = record.key
                partition = without_key[record.topic] if key is None else partition_for_key(key, count)
            elif not 0 <= partition < count:
                raise SourceRefused(
                    f"a record is for partition {partition} of {record.topic}, which has {count}",
                    "add partitions to the topic, or leave the choice to the key",
                )
            size = record_size(record.key, record.value, record.headers)
            if size + HEADER_SIZE > self._largest:
                raise SourceRefused(
                    f"a record for {record.topic} of {size} bytes makes a batch of {size + HEADER_SIZE}, "
                    f"kafka.max.request.size is {self._largest}",
                    "raise kafka.max.request.size, and the topic's max.message.bytes with it; or leave such lines of "
                    "files out: a smaller max.line.bytes, and skip.long.lines = true",
                )
            if record.timestamp is not None and record.timestamp < 0:
                raise SourceRefused(
                    f"a record for {record.topic} has the timestamp {record.timestamp}",
                    "a record's timestamp is in ms since 1970, or None for the time of writing",
                )
            yield TopicPartition(record.topic, partition), record, size

    def _leave_out(self, record: IngestRecord) -> None:
        """Leave out a record without a key, or raise SourceRefused."""
        topic = record.topic
        if record.skipped_as:
            text = f"{record.skipped_as} is not written to {topic}: it has no key, and the topic is compacted"
            self._notify(SourceNotice("skipped", topic, text))
            return
        raise SourceRefused(
            f"a record for {topic} has no key, and the topic is compacted (INVALID_RECORD)",
            "set cleanup.policy=delete for the topic, as for files, whose lines have no key of their own; or give each "
            "record of a database a key: a primary key or message.key.columns",
        )

    def _count(self, topic: str) -> int:
        if topic in RESERVED_TOPICS:
            raise SourceRefused(
                f"a record is for {topic!r}, in which brokers and pipelines keep what they know",
                "ingest into a topic of your own",
            )
        return self._partition_count(topic)


def _seed(batch: IngestBatch) -> bytes:
    """Stands for the key of the batch's records that have none: they stay in order, and a retry repeats the choice."""
    return json.dumps(batch.end, sort_keys=True).encode()
