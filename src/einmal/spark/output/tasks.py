"""Tasks of the job that writes a batch: a task's claims, and the functions for ``mapInArrow``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark import TaskContext
from pyspark.sql.types import StructType

from einmal.commit_protocol.claims import Output, Task
from einmal.sinks.kafka.claim_client import Address, ClaimClient
from einmal.sinks.kafka.encoding import Encoding, encoded
from einmal.sinks.kafka.writer import WriteTask, write_sections
from einmal.spark.environment.python_worker import partition_writer, settle

SECTION_SCHEMA: Final = (
    StructType()
    .add("number", "integer")
    .add("task", "integer")
    .add("position", "long")
    .add("section", "binary")
    .add("count", "integer")
    .add("first_timestamp", "long")
    .add("max_timestamp", "long")
)
"""The columns of ``encoding.SECTION_NAMES``."""
OUTPUT_SCHEMA: Final = (
    StructType()
    .add("topic", "string")
    .add("partition", "integer")
    .add("first_offset", "long")
    .add("last_offset", "long")
    .add("count", "long")
    .add("crc", "long")
)


@dataclass(frozen=True, slots=True)
class TaskTurn:
    """``Turn`` of the task that runs here: a line to the driver."""

    address: Address
    token: str

    def claims(self) -> ClaimClient:
        context = _context()
        task = Task(context.stageId(), context.partitionId())
        return ClaimClient(self.address, self.token, task, context.taskAttemptId())


def encodes(encoding: Encoding) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function for ``mapInArrow``: rows in, rows of SECTION_SCHEMA out."""

    def encode(batches: Iterator[Any]) -> Iterator[Any]:
        settle()
        yield from encoded(encoding, _context().partitionId(), batches)

    return encode


def writes(task: WriteTask, turn: TaskTurn, client: Mapping[str, str]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function for ``mapInArrow``: rows of SECTION_SCHEMA in, one of OUTPUT_SCHEMA per written partition out."""

    def write(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow

        outputs = written(task, turn, client, batches)
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


def written(task: WriteTask, turn: TaskTurn, client: Mapping[str, str], batches: Iterator[Any]) -> list[Output]:
    """Write the sections of the task that runs here; one output for each claim. Raises KafkaError, ClaimRefused."""
    write_as = task.write_as
    with turn.claims() as claims, partition_writer(client) as writer:
        writer.begin(
            write_as.identity,
            write_as.transactional_id,
            write_as.transaction_version,
            sends_once=write_as.sends_once,
        )
        settle()
        return write_sections(task, _context().partitionId(), claims, writer, batches)


def _context() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "only tasks claim and write"
    return context
