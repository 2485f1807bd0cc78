"""The handle of a running pipeline: Spark's StreamingQuery, with restarts and einmal's errors.

A thread monitors the query that Spark runs. Where the protocol requires a restart (a stateful batch was aborted, a
request was not answered) the thread starts the query again from its checkpoint, a bounded number of times without
progress. Every other error ends the query, and ``awaitTermination`` raises it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final, Protocol

from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from einmal.pipeline import events
from einmal.pipeline.errors import PipelineError, PipelineFailed, PipelineFenced, PipelineRefused
from einmal.spark.environment.plans.ordering import sorted_in_one_partition
from einmal.spark.errors import reason_of
from einmal.spark.protocol.checkpoint import CheckpointTaken
from einmal.spark.protocol.execution import Execution
from einmal.spark.protocol.run import CurrentBatch, Kept, Run, Setting

RESTARTS_MAX: Final = 3
"""Restarts in a row without a batch that was written."""
_STARTED_S: Final = 60.0
_COMMIT_FILE_S: Final = 10.0
_POLL_S: Final = 0.02
_IDLE_CHECK_S: Final = 4
"""How often a query without batches asks whether its name is still its own."""
_UNREACHED: Final = "Timed out while waiting for the Python worker to connect back"
"""The process of a source, which Spark starts with each query and waits for 10 s, whatever its settings: on a busy
machine that may be too short. No batch has begun."""
_OVERTAKEN: Final = "CONCURRENT_STREAM_LOG_UPDATE"
"""Spark's error class for a file of the checkpoint that another process has written. It means fenced: up to EndTxn
Kafka's epoch stops a zombie driver, after EndTxn these files do, which are written once."""

Transform = Callable[[DataFrame, int], DataFrame]


class _Stopping(Exception):
    """Raised in a batch that begins while the query is being stopped; nothing of it is written."""


class StartSpark(Protocol):
    def __call__(self, write: Callable[[DataFrame, int], None]) -> StreamingQuery:
        """Let Spark run the query, with this as its ``foreachBatch``."""


class PipelineQuery:
    """Query that ``write_stream(...).start()`` returns."""

    def __init__(
        self,
        setting: Setting,
        new_run: Callable[[Kept], Run],
        start: StartSpark,
        transform: Transform | None,
    ) -> None:
        self._setting = setting
        self._new_run = new_run
        self._start = start
        self._transform = transform
        self._running = threading.Lock()
        """Held while a batch is written."""
        self._asking = threading.Lock()
        """Held by whoever uses the run: a batch, or the question whether the name is still its own."""
        self._stopping = False
        self._started = threading.Event()
        self._ended = threading.Event()
        self._error: PipelineError | None = None
        self._failure: BaseException | None = None
        self._restarts = 0
        self._last_batch_id: int | None = None
        self._run: Run | None = None
        self._query: StreamingQuery | None = None
        self._execution: Execution | None = None
        """Execution of the query that runs. To make one takes as long as a dozen questions to the JVM."""
        try:
            self._begin()
        except BaseException:
            self._close()
            raise
        self._watcher = threading.Thread(target=self._watch, name="einmal-query", daemon=True)
        self._watcher.start()

    # --- for the user -------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        return str(self._spark_query.id)

    @property
    def runId(self) -> str:
        """Id of the current run; a restart has another."""
        return str(self._spark_query.runId)

    @property
    def name(self) -> str | None:
        return self._spark_query.name

    @property
    def isActive(self) -> bool:
        return not self._ended.is_set()

    @property
    def status(self) -> dict[str, Any]:
        return dict(self._spark_query.status)

    @property
    def lastProgress(self) -> Any:
        return self._spark_query.lastProgress

    @property
    def recentProgress(self) -> Any:
        return self._spark_query.recentProgress

    def exception(self) -> PipelineError | None:
        """Why the query failed; None while it runs, and if it was stopped or reached its end."""
        return self._error

    def awaitTermination(self, timeout: float | None = None) -> bool | None:
        """Wait for the query's end; with ``timeout`` (s) return whether it has ended. Raises PipelineError."""
        self._ended.wait(timeout)
        if self._error is not None:
            raise self._error
        return None if timeout is None else self._ended.is_set()

    def processAllAvailable(self) -> None:
        """Wait until all data that existed at the call is committed. For tests; see Spark's."""
        while True:
            query = self._spark_query
            try:
                query.processAllAvailable()
            except StreamingQueryException:
                while self._query is query and not self._ended.wait(_POLL_S):
                    pass  # It ends, or is restarted.
                if not self._ended.is_set():
                    continue
                self.awaitTermination()
            return

    def explain(self, extended: bool = False) -> None:
        self._spark_query.explain(extended)

    def stop(self) -> None:
        """Stop the query between two batches: a running batch is committed first."""
        self._stopping = True
        with self._running:
            query, batch_id = self._spark_query, self._last_batch_id
            deadline = time.monotonic() + _COMMIT_FILE_S
            # Spark writes its own commit file after ours returns; without it the next start would have to.
            while batch_id is not None and query.isActive and time.monotonic() < deadline:
                if self._setting.checkpoint.has_commit(batch_id):
                    break
                time.sleep(_POLL_S)
            query.stop()
        self._ended.wait()

    # --- a run --------------------------------------------------------------------------------------------------

    @property
    def _spark_query(self) -> StreamingQuery:
        assert self._query is not None
        return self._query

    def _begin(self) -> None:
        self._started.clear()
        self._failure = None
        self._execution = None
        # A restart keeps the identities: the sink refuses it if a newer instance has started since.
        self._run = self._new_run(() if self._run is None else self._run.held)
        try:
            self._run.start()
            self._query = self._start(self._write)
        except BaseException:
            self._run.close()
            raise
        self._started.set()

    def _write(self, frame: DataFrame, batch_id: int) -> None:
        """Spark's ``foreachBatch``."""
        # Batch 0 can come before ``start`` has returned.
        if not self._started.wait(_STARTED_S):
            raise PipelineFailed("Spark ran a batch of a query that it had not started")
        # Not waited for: whoever holds it is ``stop``, which waits for Spark, which waits for this call.
        if not self._running.acquire(blocking=False):
            raise _Stopping
        try:
            if self._stopping:
                raise _Stopping
            self._write_batch(frame, batch_id)
        finally:
            self._running.release()

    def _write_batch(self, frame: DataFrame, batch_id: int) -> None:
        began = time.monotonic()
        assert self._run is not None
        try:
            transformed = self._transformed(frame, batch_id)
            if self._execution is None:
                self._execution = Execution(self._setting.spark, self._spark_query)
            with self._asking:
                self._run.batch(CurrentBatch(batch_id, transformed, self._execution))
        except BaseException as error:
            self._failure = error
            raise
        self._last_batch_id = batch_id
        self._restarts = 0
        self._setting.notify(events.BatchFinished(batch_id, round((time.monotonic() - began) * 1000)))

    def _transformed(self, frame: DataFrame, batch_id: int) -> DataFrame:
        if self._transform is None:
            return frame
        transformed = self._transform(frame, batch_id)
        return sorted_in_one_partition(transformed) if self._setting.stateful else transformed

    def _watch(self) -> None:
        try:
            while True:
                error = self._wait_for_spark()
                assert self._run is not None
                self._run.close()
                if self._stopping or error is None:
                    return
                if not self._may_restart(error):
                    self._error = _as_pipeline_error(self._failure or error)
                    return
                self._restarts += 1
                self._setting.notify(events.QueryRestarted(reason_of(self._failure or error)))
                self._begin()
                if self._stopping:
                    # ``stop`` may have met the query that had ended already.
                    self._spark_query.stop()
        except Exception as error:  # noqa: BLE001 - a restart that fails is the query's end, whatever it was
            self._error = _as_pipeline_error(error)
        finally:
            self._close()

    def _wait_for_spark(self) -> StreamingQueryException | PipelineError | None:
        """Why Spark's query has ended. Ends it where another instance has started while it was idle, or its sink has
        lost batches."""
        try:
            seen = self._last_batch_id
            while not self._spark_query.awaitTermination(_IDLE_CHECK_S):
                # A batch has asked by itself.
                if self._last_batch_id == seen:
                    self._check_name()
                seen = self._last_batch_id
        except StreamingQueryException as error:
            return error
        except (PipelineFenced, PipelineRefused) as error:
            self._spark_query.stop()
            return error
        return None

    def _check_name(self) -> None:
        if not self._asking.acquire(blocking=False):
            return
        try:
            assert self._run is not None
            self._run.check()
        finally:
            self._asking.release()

    def _may_restart(self, error: StreamingQueryException | PipelineError) -> bool:
        if self._restarts >= RESTARTS_MAX:
            return False
        if self._failure is None:
            return _UNREACHED in reason_of(error)
        if not isinstance(self._failure, PipelineFailed):
            return False
        assert self._run is not None
        # A stateless batch was tried several times in place already.
        return self._setting.stateful or self._run.is_undecided

    def _close(self) -> None:
        self._setting.close()
        self._ended.set()


def _as_pipeline_error(error: BaseException) -> PipelineError:
    if isinstance(error, PipelineError):
        return error
    result: PipelineError = PipelineFailed(reason_of(error))
    if _OVERTAKEN in str(error) or isinstance(error, CheckpointTaken):
        # After EndTxn no epoch stands in the way: it is Spark that finds its file already written by the successor.
        result = PipelineFenced(
            "another driver has continued from the same checkpoint",
            "let only one of them run",
        )
    result.__cause__ = error
    return result
