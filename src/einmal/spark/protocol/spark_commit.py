"""Spark's own commit file of a stateful batch: into the commit record, and from it into the checkpoint after a crash.

Spark writes ``commits/N`` after ``foreachBatch``. A driver that dies in between would compute the batch, and its state,
a second time; the next start writes the file from the record instead.

A copied checkpoint has its original's query id. So the file is written only where the run that committed the record has
left its token (``einmal/runs``), and where every state file that the record names exists.
"""

from __future__ import annotations

from typing import Final

from einmal.commit_protocol.commit_record import CommitRecord
from einmal.commit_protocol.effects import Failed, Finished
from einmal.commit_protocol.positions import are_same
from einmal.pipeline.errors import PipelineRefused
from einmal.spark.protocol.checkpoint import Checkpoint, CheckpointError, CheckpointTaken
from einmal.spark.protocol.run import SinkBatch

IN_RECORD_MAX: Final = 256 * 1024
"""Characters of Spark's commit file that go into the commit record: some 6,500 state ids. Brokers refuse a record of
1 MiB (max.message.bytes); a longer file is kept beside it in the checkpoint."""


class SparkCommit:
    """See ``transaction_run.Additions``."""

    def __init__(self, checkpoint: Checkpoint, *, stateful: bool) -> None:
        self._checkpoint = checkpoint
        self._stateful = stateful

    def commit_text(self, batch: SinkBatch) -> str | None:
        """For the commit record, of the batch that was just written; None without state. Raises StateInDoubt."""
        assert batch.execution is not None
        if self._stateful:
            text = batch.execution.commit_text(batch.batch_id)
            if len(text) <= IN_RECORD_MAX:
                return text
            return self._checkpoint.keep_commit_text(batch.batch_id, text)
        if batch.execution.keeps_state():
            raise PipelineRefused(
                "the query keeps state, which its plan did not show before it started", "please report this query"
            )
        return None

    def finish_spark_commit(self, record: CommitRecord) -> Finished | Failed:
        """Write the file of the record's batch where it is absent. Raises CheckpointTaken."""
        try:
            return self._finish(record)
        except CheckpointTaken:
            raise
        except CheckpointError as error:
            return Failed(str(error))

    def _finish(self, record: CommitRecord) -> Finished | Failed:
        checkpoint, batch_id = self._checkpoint, record.batch_id
        if checkpoint.has_commit(batch_id):
            return Finished()
        if record.run and not checkpoint.has_run(record.run):
            return Failed(
                f"batch {batch_id} was committed by a driver that never ran on the checkpoint {checkpoint.name}, "
                f"but on a copy of it, or on its original ({record.checkpoint}): the state of the committed output "
                "is there"
            )
        planned = checkpoint.offsets(batch_id)
        if planned is None or not are_same(planned.end, record.end) or checkpoint.latest_batch_id() != batch_id:
            return Failed(f"the checkpoint {checkpoint.name} is not at batch {batch_id}, the last that was committed")
        assert record.commit_text is not None
        text = checkpoint.whole_commit_text(record.commit_text)
        missing = checkpoint.missing_state(batch_id, text)
        if missing is not None:
            return Failed(f"the state of batch {batch_id} is incomplete: {missing} does not exist")
        checkpoint.write(f"commits/{batch_id}", text)
        return Finished()
