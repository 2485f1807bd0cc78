"""The writer behind ``df.writeStream.format("einmal")``: options, columns, and what each of Spark's workers does.

Spark makes it in a planning worker and pickles it for the tasks, before those of each batch: that is when the batch
begins. In the commit worker another one is made, which knows only the messages of the tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from einmal.commit_protocol.claims import Denied, Output
from einmal.options.sink import EXACTLY_ONCE, sink_options
from einmal.options.values import OptionError
from einmal.pipeline.errors import PipelineError, PipelineFailed
from einmal.sinks.kafka.routing import check_columns
from einmal.spark.environment.python_worker import answered
from einmal.spark.environment.row_schemas import schema_of
from einmal.spark.writer.handover import Proof, proof_of
from einmal.spark.writer.keeper_client import ask, plan_batch
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
        parsed = sink_options(self._given)
        if parsed.guarantee != EXACTLY_ONCE:
            raise OptionError(
                f'option "processing.guarantee" is {EXACTLY_ONCE} with format("einmal"), not {parsed.guarantee}'
                "\nhint: write_stream(df) of einmal.spark has every guarantee"
            )
        check_columns(schema_of(schema), parsed.topic)
        self._columns = list(schema.names)
        self._work: Work | None = None

    @answered(PipelineError)
    def __getstate__(self) -> dict[str, Any]:
        # Twice for each batch: with the function of the tasks, and alone.
        if self._work is None:
            self._work = plan_batch(self._given)
        return {"_work": self._work, "_columns": self._columns}

    def write(self, iterator: Iterator[Any]) -> TaskMessage:
        """In a task."""
        work = self._work
        assert work is not None, "pickled"
        if work.grant is None:
            for _ in iterator:
                # A query with state takes the batch in.
                pass
            return TaskMessage(Proof(work.batch_id, ""))
        outputs = _written(work, work.grant, self._columns, iterator)
        return TaskMessage(Proof(work.batch_id, work.grant.token, tuple(outputs)))

    @answered(PipelineError)
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        proof = proof_of(batchId, [each.proof if isinstance(each, TaskMessage) else None for each in messages])
        if isinstance(proof, Denied):
            raise PipelineFailed(proof.reason, "start the query again")
        if proof.token:
            ask(self._given, CommitBatch(proof))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        # Nobody may ask again: until the transaction ends, readers of its partitions wait.
        with suppress(PipelineError):
            ask(self._given, GiveUp(batchId))


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
