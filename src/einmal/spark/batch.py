"""``write(frame)``: a batch DataFrame to Kafka topics as one transaction, in the words of Spark's DataFrameWriter.

``df.write.format("kafka")`` becomes ``write(df)``. All rows become visible together, or none. A batch that has a name
and a number (``transactional.id``, ``txnVersion``) is written once, however often its scheduler runs it: the number is
in the commit record, inside the same transaction. Protocol, tasks and claims are the stream's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Self
from uuid import uuid4

from pyspark.sql import DataFrame

from einmal.client.errors import KafkaError
from einmal.pipeline.batch_plan import BATCH_WRITES
from einmal.pipeline.committer import Committer, Query, Ready
from einmal.spark import events
from einmal.spark.driver import Driver, on_driver
from einmal.spark.errors import PipelineFailed
from einmal.spark.options import OptionError, WriteOptions, write_options
from einmal.spark.preflight import preflight_write
from einmal.spark.transaction_run import Destination, Listener, TransactionRun

_RUNS_MAX: Final = 3
"""How often a write whose end is not known is looked up and, if it is not in, begun again."""
_MODES: Final = ("append", "error", "errorifexists")
_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Written:
    """What ``save`` did. ``already_in``: an earlier run of this batch committed ``records`` records, this one none."""

    records: int
    already_in: bool


def write(frame: DataFrame) -> KafkaBatchWriter:
    """Begin to describe where a batch DataFrame goes. Columns as for Spark's Kafka sink: value, and perhaps key,
    topic, partition, headers, timestamp."""
    return KafkaBatchWriter(frame)


class KafkaBatchWriter:
    """Spark's DataFrameWriter, as far as it makes sense for topics."""

    def __init__(self, frame: DataFrame) -> None:
        if frame.isStreaming:
            raise OptionError("write takes a batch DataFrame (spark.read); a streaming one goes to write_stream")
        self._frame = frame
        self._options: dict[str, Any] = {}
        self._listeners: list[Listener] = []

    def format(self, source: str) -> Self:
        """There is one format; the call may stay where it was."""
        if source not in ("kafka", "einmal"):
            raise OptionError(f"write writes to Kafka, not to {source!r}")
        return self

    def mode(self, saveMode: str | None) -> Self:
        """Only "append": what is in a topic stays there. Spark's default, "error", means the same for topics."""
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

    def listener(self, listener: Callable[[events.Event], None]) -> Self:
        """Call ``listener(event)`` for what happens (``einmal.spark.events``); the write waits for it."""
        self._listeners.append(listener)
        return self

    def save(self) -> Written:
        """Write all rows in one transaction; returns when it is committed. Raises OptionError, PipelineError."""
        options = write_options(self._options, lambda: f"einmal-write-{uuid4()}")
        if options.without_effect:
            _logger.warning("options without effect here: %s", ", ".join(options.without_effect))
        driver = on_driver(self._frame, options.client, options.topic)
        try:
            preflight_write(self._frame, options, driver.cluster)
            return self._save(options, driver)
        finally:
            driver.close()

    def _save(self, options: WriteOptions, driver: Driver) -> Written:
        destination = Destination(
            transactional_id=options.transactional_id,
            client=options.client,
            cluster=driver.cluster,
            service=driver.service,
            job=driver.job,
            tell=self._tell,
            is_new=options.version is None,
        )
        for attempt in range(_RUNS_MAX):
            run = BatchWrite(destination, options.version or 0, self._frame)
            try:
                ready = run.save()
                if options.version is None:
                    run.forget()
                assert ready.record is not None
                # What a run before this one in the loop has committed, this call has written.
                return self._written(options, ready.record.records, ready.already_in and attempt == 0)
            except PipelineFailed as error:
                if not run.is_undecided or attempt == _RUNS_MAX - 1:
                    raise
                _logger.warning("looking up what became of the write: %s", error.reason)
            finally:
                run.abandon()
                run.close()
        raise AssertionError("the last run returns or raises")

    def _written(self, options: WriteOptions, records: int, already_in: bool) -> Written:
        if already_in:
            assert options.version is not None
            _logger.warning(
                "txnVersion %d of %s is in already: nothing is written", options.version, options.transactional_id
            )
            self._tell(events.BatchAlreadyIn(options.version))
        return Written(records, already_in)

    def _tell(self, event: events.Event) -> None:
        for listener in self._listeners:
            listener(event)


class BatchWrite(TransactionRun):
    """One run: takes the name, looks whether the version is in, writes it. A later run finds out from the record."""

    def __init__(self, destination: Destination, version: int, frame: DataFrame) -> None:
        query = Query(
            transactional_id=destination.transactional_id,
            query_id=BATCH_WRITES,
            checkpoint="",
            is_fresh=False,
            stateful=False,
            version=version,
        )
        super().__init__(destination, Committer(query))
        self._frame, self._batch_id = frame, version

    def save(self) -> Ready:
        """Raises PipelineError."""
        ready = self._run(self._committer.start())
        return ready if ready.already_in else self._run(self._committer.write())

    def forget(self) -> None:
        """Let compaction take the record of a write that nobody will ask for again."""
        try:
            self._log.forget()
        except KafkaError as error:
            _logger.info("the commit record of %s stays: %s", self._id, error)
