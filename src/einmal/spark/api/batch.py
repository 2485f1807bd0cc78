"""``write(frame)``: a batch DataFrame to a sink as one transaction, in the words of Spark's DataFrameWriter.

``df.write.format("kafka")`` becomes ``write(df)``. All rows become visible together, or none. A batch that has a name
and a number (``transactional.id``, ``txnVersion``) is written once, however often its scheduler runs it: the number is
in the commit record, inside the same transaction. Protocol, tasks and claims are those of a stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Self

from pyspark.sql import DataFrame

from einmal.commit_protocol.batch_plan import BATCH_WRITES
from einmal.commit_protocol.effects import Ready
from einmal.commit_protocol.run_state import Query
from einmal.event_log import EventLog
from einmal.options.sink import VersionOptions, new_write_name, version_options, write_options
from einmal.options.values import OptionError
from einmal.pipeline import events
from einmal.pipeline.errors import PipelineFailed
from einmal.schemas.settings import TOLERANCE
from einmal.sinks.commit_point import SinkError
from einmal.sinks.kinds import KAFKA, new_sink, sink_class
from einmal.sinks.sink import Opening, RowSink
from einmal.spark.declare.preflight import preflight_write
from einmal.spark.environment.plans.plan_redaction import redact_plans
from einmal.spark.environment.spark_session import require_classic_session
from einmal.spark.option_log import log_without_effect
from einmal.spark.protocol.run import SinkBatch
from einmal.spark.protocol.transaction_run import NoAdditions, TransactionRun
from einmal.spark.sinks.frame_rows import FrameRows
from einmal.spark.sinks.kafka.sink import KafkaFrameSink

_RUNS_MAX: Final = 3
"""Attempts at a write with an unknown outcome: each reads the record and, if the write is not committed, begins it
again."""
_MODES: Final = ("append", "error", "errorifexists")
_logger = EventLog(__name__)


@dataclass(frozen=True, slots=True)
class Written:
    """The result of ``save``. ``already_in``: an earlier run committed the batch, with ``records`` records."""

    records: int
    already_in: bool


def write(frame: DataFrame) -> BatchWriter:
    """A writer for a batch DataFrame. To topics, its default, columns are those of Spark's Kafka sink: value; optional:
    key, topic, partition, headers, timestamp. To other sinks they are those of the table."""
    return BatchWriter(frame)


class BatchWriter:
    """Spark's DataFrameWriter, with the methods that apply here."""

    def __init__(self, frame: DataFrame) -> None:
        require_classic_session(frame, "the sink leads its transactions from the driver")
        if frame.isStreaming:
            raise OptionError("write takes a batch DataFrame (spark.read); a streaming one goes to write_stream")
        self._frame = frame
        self._kind = KAFKA[0]
        self._options: dict[str, Any] = {}
        self._listeners: list[events.Listener] = []

    def format(self, source: str) -> Self:
        """The type of the sink, as for ``write_stream``."""
        if source not in KAFKA:
            sink_class(source)
        self._kind = source
        return self

    def mode(self, saveMode: str | None) -> Self:
        """Only "append": existing rows stay. Spark's default, "error", means the same here."""
        if saveMode is not None and saveMode.lower() not in _MODES:
            raise OptionError(f"a sink can be appended to, not written with mode {saveMode!r}")
        return self

    def option(self, key: str, value: Any) -> Self:
        # Names are matched without case, as Spark does: of one that is set again the last value is taken.
        self._options = {name: earlier for name, earlier in self._options.items() if name.lower() != key.lower()}
        self._options[key] = str(value).lower() if isinstance(value, bool) else value
        return self

    def options(self, **options: Any) -> Self:
        for key, value in options.items():
            self.option(key, value)
        return self

    def listener(self, listener: events.Listener) -> Self:
        """Call ``listener(event)`` with every event (``einmal.pipeline.events``); the write waits for it."""
        self._listeners.append(listener)
        return self

    def save(self) -> Written:
        """Write all rows in one transaction; returns when it is committed. Raises OptionError, PipelineError."""
        options, sink = self._parsed()
        redact_plans(self._frame.sparkSession)
        try:
            preflight_write(self._frame, options, sink)
            return self._save(options, sink)
        finally:
            sink.close()

    def _parsed(self) -> tuple[VersionOptions, RowSink]:
        """Raises OptionError."""
        if self._kind not in KAFKA:
            own = sink_class(self._kind).OPTIONS
            options, sink = version_options(self._options, own, new_write_name), new_sink(self._kind, self._options)
            if sink.errors.tolerates:
                raise OptionError(
                    f"{TOLERANCE}=all is of a stream: a batch write has no dead letters\nhint: leave it out"
                )
            return options, sink
        to_topics = write_options(self._options, new_write_name)
        log_without_effect(to_topics.without_effect)
        return to_topics, KafkaFrameSink(to_topics.client, to_topics.topic)

    def _save(self, options: VersionOptions, sink: RowSink) -> Written:
        for attempt in range(_RUNS_MAX):
            run = self._new_run(options, sink)
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
                undecided = "reading the outcome of the write from its commit record: %(reason)s"
                _logger.warning("write_undecided", undecided, reason=error.reason)
            finally:
                run.abandon()
                run.close()
        raise AssertionError("the last run returns or raises")

    def _new_run(self, options: VersionOptions, sink: RowSink) -> TransactionRun:
        """A later run reads the outcome of this one from the commit record."""
        name = options.transactional_id
        query = Query(
            transactional_id=name,
            query_id=BATCH_WRITES,
            checkpoint="",
            is_fresh=False,
            stateful=False,
            version=options.version or 0,
        )
        opening = Opening(
            name=name, runtime=self._frame.sparkSession, notify=self._notify, is_new=options.version is None
        )
        return TransactionRun(sink.commit_point(opening), query, NoAdditions(), self._notify)

    def _run(self, run: TransactionRun, version: int) -> Ready:
        """Acquire the transactional.id, and write the batch unless its version is committed. Raises PipelineError."""
        ready = run.start()
        return ready if ready.already_in else run.write(SinkBatch(version, FrameRows(self._frame)))

    def _written(self, options: VersionOptions, records: int, already_in: bool) -> Written:
        if already_in:
            assert options.version is not None
            _logger.warning(
                "version_already_committed",
                "txnVersion %(version)d of %(transactional_id)s is already committed: nothing is written",
                version=options.version,
                transactional_id=options.transactional_id,
            )
            self._notify(events.BatchAlreadyIn(options.version))
        return Written(records, already_in)

    def _notify(self, event: events.Event) -> None:
        for listener in self._listeners:
            listener(event)


def _forget(run: TransactionRun, transactional_id: str) -> None:
    """Let compaction delete the record of a write that nobody will ask for again."""
    try:
        run.forget()
    except SinkError as error:
        stays = "the commit record of %(transactional_id)s stays: %(error)s"
        _logger.info("commit_record_kept", stays, transactional_id=transactional_id, error=error)
