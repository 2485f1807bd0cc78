"""The keeper of one batch write, ``df.write.format("einmal")``: one transaction, which ends with the write."""

from __future__ import annotations

from typing import ClassVar

from einmal.commit_protocol.batch_plan import BATCH_WRITES, Batch
from einmal.commit_protocol.run_state import Query
from einmal.event_log import EventLog
from einmal.options.sink import WriteOptions
from einmal.pipeline.errors import PipelineFailed
from einmal.sinks.commit_point import SinkError
from einmal.sinks.sink import Opening
from einmal.spark.option_log import log_without_effect
from einmal.spark.protocol.transaction_run import TransactionRun
from einmal.spark.writer.run_keeper import RunKeeper, Send

_logger = EventLog(__name__)


class WriteKeeper(RunKeeper):
    """See ``RunKeeper``. The number of the batch is its version."""

    IDLE_S: ClassVar = 10.0
    HINT_AGAIN: ClassVar = "run the job again; with transactional.id and txnVersion a write is committed once"

    def __init__(self, options: WriteOptions, port: int = 0) -> None:
        super().__init__(options.client, options.transactional_id, options.topic, None, port)
        log_without_effect(options.without_effect)
        self._version = options.version

    def _next_batch(self) -> Batch:
        return Batch(query_id=BATCH_WRITES, checkpoint="", batch_id=self._version or 0, start=None, end=())

    def _write(self, batch: Batch, send: Send) -> None:
        run = self._started(batch)
        if run is None:
            _logger.warning(
                "version_already_committed",
                "txnVersion %(version)d of %(transactional_id)s is already committed: nothing is written",
                version=batch.batch_id,
                transactional_id=self._id,
            )
            self._send_nothing_to_write(batch.batch_id, send)
            return
        try:
            run.write(self._batch_of_tasks(batch.batch_id, send))
        except PipelineFailed:
            # The commit record has the outcome.
            if not run.is_undecided or self._started(batch) is not None:
                raise
        if self._version is None:
            self._forget()

    def _started(self, batch: Batch) -> TransactionRun | None:
        """A run that has acquired the name; None where the batch is in already. Raises PipelineError."""
        self._end_run()
        query = Query(
            transactional_id=self._id,
            query_id=batch.query_id,
            checkpoint=batch.checkpoint,
            is_fresh=False,
            stateful=False,
            version=batch.batch_id,
            attempts=1,
        )
        run = self._new_run(query, Opening(name=self._id, is_new=self._version is None))
        return None if run.start().already_in else run

    def _forget(self) -> None:
        """Let compaction delete the record of a write that nobody will ask for again."""
        assert self._run is not None
        try:
            self._run.forget()
        except SinkError as error:
            _logger.info(
                "commit_record_kept",
                "the commit record of %(transactional_id)s stays: %(error)s",
                transactional_id=self._id,
                error=error,
            )
