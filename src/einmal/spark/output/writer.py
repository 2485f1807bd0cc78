"""A writing task: claims its partitions, makes record batches of sections, sends them, reports what was acknowledged.

Runs on an executor, in Spark's Python worker. Sequences of a partition begin at 0 in every transaction, because every
transaction has an epoch of its own. A task that may not write fails: its batch is written again as a whole. A worker
outlives its killed executor and may continue to write and to report; its batch is aborted all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from google_crc32c import extend as crc32c_extend
from pyspark.sql.types import StructType

from einmal.client import PartitionWriter
from einmal.pipeline.claims import Output
from einmal.spark.environment.python_worker import settle
from einmal.spark.output.claim_service import ClaimClient
from einmal.spark.output.routing import Turn
from einmal.types import ProducerIdAndEpoch, TopicPartition, TransactionVersion
from einmal.wire.compression import Compression
from einmal.wire.record_batch import HEADER_SIZE, seal_batch

OUTPUT_SCHEMA: Final = (
    StructType()
    .add("topic", "string")
    .add("partition", "integer")
    .add("first_offset", "long")
    .add("last_offset", "long")
    .add("count", "long")
    .add("crc", "long")
)
_SECTION: Final = ("number", "section", "count", "first_timestamp", "max_timestamp")


@dataclass(frozen=True, slots=True)
class WriteAs:
    """Under which identity tasks write. ``identity`` None: plain records, at least once, or (``sends_once``) at most
    once."""

    transactional_id: str | None = None
    identity: ProducerIdAndEpoch | None = None
    transaction_version: TransactionVersion = TransactionVersion.TV_1
    sends_once: bool = False


@dataclass(frozen=True, slots=True)
class WriteTask:
    """The input of every task of one transaction."""

    turn: Turn
    client: Mapping[str, str]
    write_as: WriteAs
    compression: Compression


@dataclass(slots=True)
class _Target:
    topic_partition: TopicPartition
    count: int = 0
    crc: int = 0


def writes(task: WriteTask) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function for ``mapInArrow``: rows of SECTION_SCHEMA in, one of OUTPUT_SCHEMA per written partition out."""

    def write(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow

        outputs = _write(task, batches)
        names = OUTPUT_SCHEMA.names
        kinds = (pyarrow.string(), pyarrow.int32(), *(pyarrow.int64(),) * 4)
        yield pyarrow.RecordBatch.from_arrays(
            [
                pyarrow.array([getattr(output, name) for output in outputs], kind)
                for name, kind in zip(names, kinds, strict=True)
            ],
            names=names,
        )

    return write


def _write(task: WriteTask, batches: Iterator[Any]) -> list[Output]:
    targets: dict[int, _Target] = {}
    write_as = task.write_as
    identity = (write_as.identity, write_as.transactional_id, write_as.transaction_version)
    with (
        task.turn.claims() as claims,
        PartitionWriter(task.client, *identity, sends_once=write_as.sends_once) as writer,
    ):
        settle()
        for batch in batches:
            for number, section, *described in zip(*(_values(batch, name) for name in _SECTION), strict=True):
                target = targets.get(number)
                if target is None:
                    target = targets[number] = _Target(claims.claim(number))
                _send(task, writer, target, section, *described)
        return _reported(claims, writer, targets.values())


def _values(batch: Any, name: str) -> Any:
    column = batch.column(name)
    # Large values are looked at, not copied.
    return (memoryview(each.as_buffer()) for each in column) if name == "section" else column.to_pylist()


def _send(
    task: WriteTask,
    writer: PartitionWriter,
    target: _Target,
    section: memoryview,
    count: int,
    first_timestamp: int,
    max_timestamp: int,
) -> None:
    identity = task.write_as.identity
    batch = seal_batch(
        section,
        count,
        first_timestamp,
        max_timestamp,
        producer_id=-1 if identity is None else identity.producer_id,
        producer_epoch=-1 if identity is None else identity.producer_epoch,
        base_sequence=-1 if identity is None else target.count,
        transactional=identity is not None,
        compression=task.compression,
    )
    writer.append(target.topic_partition, batch)
    target.crc = crc32c_extend(target.crc, batch[HEADER_SIZE:])
    target.count += count


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
