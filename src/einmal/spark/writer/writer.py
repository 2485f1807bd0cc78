"""The writers behind ``format("einmal")``: options, columns, and what each of Spark's workers does.

Spark makes one in a planning worker and pickles it for the tasks, before those of each batch: that is when the batch
begins. In the commit worker of a stream another one is made, which knows only the messages of the tasks; that of a
batch write gets the pickled one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from einmal.commit_protocol.claims import Denied, Output
from einmal.options.sink import new_write_name, sink_options, without_claims_port, write_options
from einmal.options.values import OptionError
from einmal.pipeline.errors import PipelineError, PipelineFailed
from einmal.sinks.kafka.routing import check_columns
from einmal.spark.environment.plans.row_schemas import schema_of
from einmal.spark.environment.python_worker import answered
from einmal.spark.writer.handover import Proof, proof_of
from einmal.spark.writer.keeper_client import ask, home_of, plan_batch
from einmal.spark.writer.messages import CommitBatch, GiveUp, Work, WriteGrant

_SPARKS_OWN: Final = ("queryname", "path")
"""Options that Spark adds."""


@dataclass(frozen=True, slots=True)
class TaskMessage(WriterCommitMessage):
    """Answer of a task."""

    proof: Proof


class KafkaStreamWriter(DataSourceStreamArrowWriter):
    """See ``handover``."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        """Raises OptionError."""
        self._given = {name: value for name, value in options.items() if name.lower() not in _SPARKS_OWN}
        check_columns(schema_of(schema), sink_options(without_claims_port(self._given)[0]).topic)
        self._columns = list(schema.names)
        self._work: Work | None = None

    @answered(PipelineError)
    def __getstate__(self) -> dict[str, Any]:
        # Twice for each batch: with the function of the tasks, and alone.
        if self._work is None:
            self._work = plan_batch(home_of(self._given), self._given)
        return {"_work": self._work, "_columns": self._columns}

    def write(self, iterator: Iterator[Any]) -> TaskMessage:
        """In a task."""
        assert self._work is not None, "pickled"
        return _write(self._work, self._columns, iterator)

    @answered(PipelineError)
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _commit(home_of(self._given), messages, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        _abort(home_of(self._given), batchId)


class KafkaBatchWriter(DataSourceArrowWriter):
    """See ``handover``. Every write has a keeper of its own: a second copy of a job fences the first one."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        """In a planning worker, where Spark is about to run the tasks. Raises OptionError, PipelineError."""
        if overwrite:
            raise OptionError('topics can be appended to, not overwritten\nhint: .mode("append")')
        given = {name: value for name, value in options.items() if name.lower() not in _SPARKS_OWN}
        check_columns(schema_of(schema), write_options(without_claims_port(given)[0], new_write_name).topic)
        self._columns = list(schema.names)
        self._home = home_of(given, uuid4().hex)
        self._work = plan_batch(self._home, given)

    def write(self, iterator: Iterator[Any]) -> TaskMessage:
        """In a task."""
        return _write(self._work, self._columns, iterator)

    @answered(PipelineError)
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        _commit(self._home, messages, self._work.batch_id)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        _abort(self._home, self._work.batch_id)


def _write(work: Work, columns: list[str], rows: Iterator[Any]) -> TaskMessage:
    if work.grant is None:
        for _ in rows:
            # A query with state takes the batch in.
            pass
        return TaskMessage(Proof(work.batch_id, ""))
    outputs = _written(work, work.grant, columns, rows)
    return TaskMessage(Proof(work.batch_id, work.grant.token, tuple(outputs)))


def _commit(home: Path, messages: list[WriterCommitMessage | None], batch_id: int) -> None:
    """Raises PipelineError."""
    proof = proof_of(batch_id, [message.proof if isinstance(message, TaskMessage) else None for message in messages])
    if isinstance(proof, Denied):
        raise PipelineFailed(proof.reason, "start the query again")
    if proof.token:
        ask(home, CommitBatch(proof))


def _abort(home: Path, batch_id: int) -> None:
    # Nobody may ask again: until the transaction ends, readers of its partitions wait.
    with suppress(PipelineError):
        ask(home, GiveUp(batch_id))


def _written(work: Work, grant: WriteGrant, columns: list[str], rows: Iterator[Any]) -> list[Output]:
    """Write the rows of the task that runs here. Raises KafkaError, ClaimRefused, RowRefused."""
    # Only tasks encode, and these imports take as long as a small batch.
    from einmal.sinks.kafka.arrow_job import prepared_rows
    from einmal.sinks.kafka.encoding import encoded, encoding_of
    from einmal.sinks.kafka.routing import BatchRoute, chooser
    from einmal.sinks.kafka.writer import WriteTask
    from einmal.spark.output.tasks import TaskTurn, written

    context = TaskContext.get()
    assert context is not None, "only tasks write"
    turn = TaskTurn(grant.address, grant.token)
    choose = chooser(BatchRoute(work.topic, grant.partitions, turn, work.batch_id), columns)
    encoding = encoding_of(work.client, work.topic, choose, grant.now_ms)
    sections = encoded(encoding, context.partitionId(), map(prepared_rows, rows))
    # Nobody shuffles between the rows and their partitions: every task writes to all of them.
    task = WriteTask(grant.write_as, encoding.compression, is_shared=True)
    return written(task, turn, work.client, sections)
