"""A writing task: claims its partitions, turns Arrow into record batches, sends them, reports what was acknowledged.

Runs on an executor, in Spark's Python worker. Sequences of a partition begin at 0 in every transaction, because every
transaction has an epoch of its own. A task that may not write fails: its batch is written again as a whole.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from google_crc32c import extend as crc32c_extend
from pyspark import TaskContext

from einmal.client import PartitionWriter
from einmal.client.errors import error_for
from einmal.client.producer_core import record_size
from einmal.pipeline.claims import Output
from einmal.spark.claim_service import ClaimClient
from einmal.spark.routing import NUMBER, RowRefused, Turn
from einmal.types import ErrorCode, Header, ProducerIdAndEpoch, TopicPartition, TransactionVersion
from einmal.wire.compression import Compression
from einmal.wire.record_batch import HEADER_SIZE, NewRecord, encode_batch

if TYPE_CHECKING:
    import pyarrow

OUTPUT_SCHEMA: Final = "topic string, partition int, first_offset long, last_offset long, count long, crc long"
_MAX_REQUEST_SIZE: Final = 1_048_576
"""Kafka's default for ``max.request.size``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteTask:
    """What every task of one transaction is given. ``identity`` None: plain records, at least once, or (``sends_once``)
    at most once."""

    turn: Turn
    client: Mapping[str, str]
    transactional_id: str | None
    identity: ProducerIdAndEpoch | None
    transaction_version: TransactionVersion
    compression: Compression
    batch_bytes: int
    sends_once: bool = False


@dataclass(slots=True)
class _Target:
    topic_partition: TopicPartition
    records: list[NewRecord] = field(default_factory=list)
    size: int = 0
    count: int = 0
    crc: int = 0


def writes(task: WriteTask) -> Callable[[Iterator[pyarrow.RecordBatch]], Iterator[pyarrow.RecordBatch]]:
    """The function for ``mapInArrow``: routed rows in, one row of OUTPUT_SCHEMA per written partition out."""

    def write(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[pyarrow.RecordBatch]:
        import pyarrow

        outputs = _write(task, batches)
        columns = ("topic", "partition", "first_offset", "last_offset", "count", "crc")
        kinds = (pyarrow.string(), pyarrow.int32(), *(pyarrow.int64(),) * 4)
        yield pyarrow.RecordBatch.from_arrays(
            [
                pyarrow.array([getattr(output, name) for output in outputs], kind)
                for name, kind in zip(columns, kinds, strict=True)
            ],
            names=columns,
        )

    return write


def _write(task: WriteTask, batches: Iterator[pyarrow.RecordBatch]) -> list[Output]:
    targets: dict[int, _Target] = {}
    identity = (task.identity, task.transactional_id, task.transaction_version)
    largest = int(task.client.get("max.request.size", _MAX_REQUEST_SIZE))
    with task.turn.claims() as claims, PartitionWriter(task.client, *identity, sends_once=task.sends_once) as writer:
        for batch in batches:
            for number, record in _records(batch):
                target = targets.get(number)
                if target is None:
                    target = targets[number] = _Target(claims.claim(number))
                size = record_size(record.key, record.value, record.headers)
                if HEADER_SIZE + size > largest:
                    raise error_for(
                        ErrorCode.message_too_large,
                        f"{target.topic_partition}: a row of {size} bytes, max.request.size is {largest}",
                    )
                if target.records and target.size + size > task.batch_bytes:
                    _send(task, writer, target)
                target.records.append(record)
                target.size += size
        for target in targets.values():
            if target.records:
                _send(task, writer, target)
        return _reported(claims, writer, targets.values())


def _records(batch: pyarrow.RecordBatch) -> Iterator[tuple[int, NewRecord]]:
    """(number of the partition, record) of every row."""
    now = time.time_ns() // 1_000_000
    if NUMBER in batch.schema.names:
        numbers = batch.column(NUMBER).to_pylist()
    else:
        context = TaskContext.get()
        assert context is not None
        numbers = [context.partitionId()] * batch.num_rows
    headers = batch.column("headers")
    all_headers = [()] * batch.num_rows if headers.null_count == batch.num_rows else map(_headers, headers.to_pylist())
    for number, key, value, record_headers, timestamp in zip(
        numbers,
        batch.column("key").to_pylist(),
        batch.column("value").to_pylist(),
        all_headers,
        batch.column("timestamp").to_pylist(),
        strict=True,
    ):
        if timestamp is not None and timestamp < 0:
            raise RowRefused(f"a row has a timestamp {-timestamp} ms before 1970, which no record can have")
        yield number, NewRecord(key, value, now if timestamp is None else timestamp, record_headers)


def _headers(given: list[dict[str, Any]] | None) -> tuple[Header, ...]:
    if any(each is None or each["key"] is None for each in given or ()):
        raise RowRefused("a row has a header without a key")
    return tuple(Header(each["key"], each["value"]) for each in given or ())


def _send(task: WriteTask, writer: PartitionWriter, target: _Target) -> None:
    identity = task.identity
    batch = encode_batch(
        target.records,
        producer_id=-1 if identity is None else identity.producer_id,
        producer_epoch=-1 if identity is None else identity.producer_epoch,
        base_sequence=-1 if identity is None else target.count,
        transactional=identity is not None,
        compression=task.compression,
    )
    writer.append(target.topic_partition, batch)
    target.crc = crc32c_extend(target.crc, batch[HEADER_SIZE:])
    target.count += len(target.records)
    target.records = []
    target.size = 0


def _reported(claims: ClaimClient, writer: PartitionWriter, targets: Any) -> list[Output]:
    written = writer.flush()
    outputs = []
    for target in targets:
        topic, partition = target.topic_partition
        taken = written[target.topic_partition]
        output = Output(topic, partition, taken.first_offset, taken.last_offset, target.count, target.crc)
        claims.report(output)
        outputs.append(output)
    return outputs
