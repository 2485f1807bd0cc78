"""``write(frame)``: a batch DataFrame to Kafka topics as one transaction, in the words of Spark's DataFrameWriter.

``df.write.format("kafka")`` becomes ``write(df)``. All rows become visible together, or none. A batch that has a name
and a number (``transactional.id``, ``txnVersion``) is written once, however often its scheduler runs it: the number is
in the commit record, inside the same transaction. Protocol, tasks and claims are those of a stream.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, Final, Self
from uuid import uuid4

from pyspark.sql import DataFrame

from einmal.client.errors import KafkaError
from einmal.pipeline.batch_plan import BATCH_WRITES
from einmal.pipeline.effects import Ready
from einmal.pipeline.run_state import Query
from einmal.spark import events
from einmal.spark.declare.preflight import preflight_write
from einmal.spark.environment.plan_redaction import redact_plans
from einmal.spark.errors import PipelineFailed
from einmal.spark.options import OptionError, WriteOptions, write_options
from einmal.spark.output.resources import SinkResources, open_resources
from einmal.spark.protocol.run import CurrentBatch
from einmal.spark.protocol.transaction_run import Destination, NoAdditions, TransactionRun

_RUNS_MAX: Final = 3
"""Attempts at a write with an unknown outcome: each reads the record and, if the write is not committed, begins it
again."""
_MODES: Final = ("append", "error", "errorifexists")
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Written:
    """The result of ``save``. ``already_in``: an earlier run committed the batch, with ``records`` records."""

    records: int
    already_in: bool


def write(frame: DataFrame) -> KafkaBatchWriter:
    """A writer for a batch DataFrame. Columns as for Spark's Kafka sink: value; optional: key, topic, partition,
    headers, timestamp."""
    return KafkaBatchWriter(frame)


class KafkaBatchWriter:
    """Spark's DataFrameWriter, with the methods that apply to topics."""

    def __init__(self, frame: DataFrame) -> None:
        if frame.isStreaming:
            raise OptionError("write takes a batch DataFrame (spark.read); a streaming one goes to write_stream")
        self._frame = frame
        self._options: dict[str, Any] = {}
        self._listeners: list[events.Listener] = []

    def format(self, source: str) -> Self:
        """Accepted for compatibility: there is one format."""
        if source not in ("kafka", "einmal"):
            raise OptionError(f"write writes to Kafka, not to {source!r}")
        return self

    def mode(self, saveMode: str | None) -> Self:
        """Only "append": topics keep their records. Spark's default, "error", means the same for topics."""
        if saveMode is not None and saveMode.lower() not in _MODES:
            raise OptionError(f"topics can be appended to, not written with mode {saveMode!r}")
        return self

    def option(self, key: str, value: Any) -> Self:
        self._options[key] = str(value).lower() if isinstance(value, bool) else value
        return self

    def options(self, **options: Any) -> Self:
        for key, value in options.items():
            self.option(key, value)
        return self

    def listener(self, listener: events.Listener) -> Self:
        """Call ``listener(event)`` with every event (``einmal.spark.events``); the write waits for it."""
        self._listeners.append(listener)
        return self

    def save(self) -> Written:
        """Write all rows in one transaction; returns when it is committed. Raises OptionError, PipelineError."""
        options = write_options(self._options, lambda: f"einmal-write-{uuid4()}")
        if options.without_effect:
            _logger.warning("options without effect here: %s", ", ".join(options.without_effect))
        resources = open_resources(self._frame, options.client, options.topic)
        redact_plans(self._frame.sparkSession)
        try:
            preflight_write(self._frame, options, resources.cluster)
            return self._save(options, resources)
        finally:
            resources.close()

    def _save(self, options: WriteOptions, resources: SinkResources) -> Written:
        destination = Destination(
            transactional_id=options.transactional_id,
            client=options.client,
            resources=resources,
            notify=self._notify,
            is_new=options.version is None,
        )
        for attempt in range(_RUNS_MAX):
            run = _new_run(destination, options.version or 0)
            try:
                ready = self._run(run, options.version or 0)
                if options.version is None:
                    _forget(run, options.transactional_id)
                assert ready.record is not None
                # A batch that an earlier attempt of this call has committed was written by this call.
                return self._written(options, ready.record.records, ready.already_in and attempt == 0)
            except PipelineFailed as error:
                if not run.is_undecided or attempt == _RUNS_MAX - 1:
                    raise
                _logger.warning("reading the outcome of the write from its commit record: %s", error.reason)
            finally:
                run.abandon()
                run.close()
        raise AssertionError("the last run returns or raises")

    def _run(self, run: TransactionRun, version: int) -> Ready:
        """Acquire the transactional.id, and write the batch unless its version is committed. Raises PipelineError."""
        ready = run.start()
        return ready if ready.already_in else run.write(CurrentBatch(version, self._frame))

    def _written(self, options: WriteOptions, records: int, already_in: bool) -> Written:
        if already_in:
            assert options.version is not None
            _logger.warning(
                "txnVersion %d of %s is already committed: nothing is written",
                options.version,
                options.transactional_id,
            )
            self._notify(events.BatchAlreadyIn(options.version))
        return Written(records, already_in)

    def _notify(self, event: events.Event) -> None:
        for listener in self._listeners:
            listener(event)


def _new_run(destination: Destination, version: int) -> TransactionRun:
    """A later run reads the outcome of this one from the commit record."""
    query = Query(
        transactional_id=destination.transactional_id,
        query_id=BATCH_WRITES,
        checkpoint="",
        is_fresh=False,
        stateful=False,
        version=version,
    )
    return TransactionRun(destination, query, NoAdditions())


def _forget(run: TransactionRun, transactional_id: str) -> None:
    """Let compaction delete the record of a write that nobody will ask for again."""
    try:
        run.forget()
    except KafkaError as error:
        _logger.info("the commit record of %s stays: %s", transactional_id, error)
