"""The bad rows of a running query: its dead letters in every batch, their limit, and what is reported of them.

A micro-batch reaches the sink after the query's own steps, which no bad row takes part in. So its dead letters are made
from the offsets that the batch covers, which Spark's offset log has: tasks of the same job read these records again and
keep the bad ones. Their verdict is that of the query's own tasks, because both decode with the same function and the
same schemas. The batch's transaction has all rows, or none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, Protocol
from uuid import uuid4

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from einmal.commit_protocol.source_offsets import SourcePosition, first_offsets, packed, ranges
from einmal.event_log import EventLog
from einmal.options.source import source_options
from einmal.pipeline import events
from einmal.pipeline.dead_letters import ToleranceExceeded
from einmal.spark.decoding.decode import DecodedSource
from einmal.spark.decoding.reports import BatchSummary, summarized
from einmal.spark.decoding.rows import LETTER_SCHEMA, TURN, LetterTasks, letters
from einmal.spark.source.source import Piece

_SHARED_MAX: Final = 1_000
"""See ``source``: records of several partitions that one task reads."""
_COLUMNS: Final = {"key": "binary", "value": "binary", "topic": "string"}
_logger = EventLog(__name__)

Transform = Callable[[DataFrame, int], DataFrame]


class SchemaRegistered(Exception):
    """A schema id was unknown to some tasks and known to others: the batch has to be decoded again."""


class SchemaChanged(Exception):
    """A schema id had two schemas in two tasks: a row could be neither good nor a dead letter, or both."""


class Planned(Protocol):
    """Where a batch ends, in Spark's offset log."""

    @property
    def end(self) -> tuple[Any, ...]: ...


class OffsetLog(Protocol):
    def offsets(self, batch_id: int) -> Planned | None: ...


class Numbered(NamedTuple):
    number: int
    source: DecodedSource


class BadRows:
    """For one query. ``numbered``: its decoded sources by their number among the offsets. ``inner``: its own transform;
    ``shape``: applied after it; ``column``: the struct column of dead letters, where the query has other sinks, too.
    """

    def __init__(
        self,
        numbered: Sequence[tuple[int, DecodedSource]],
        offsets: OffsetLog,
        inner: Transform | None = None,
        shape: Callable[[DataFrame], DataFrame] | None = None,
        column: str | None = None,
    ) -> None:
        self._sources = [Numbered(*pair) for pair in numbered]
        self._offsets = offsets
        self._inner = inner
        self._shape = shape
        self._column = column
        self._decodes_again = inner is None and column is None
        """Whether another attempt at a batch decodes all of it, and asks the registry again. Rows for several sinks,
        or of a transform, may have been kept from the attempt before: then its reports count, too."""
        self._turn = ""
        self._summaries: dict[int, BatchSummary] = {}
        """By the number of the source: two may have one name."""
        self._already_in = False

    def transform(self, frame: DataFrame, batch_id: int) -> DataFrame:
        """The batch, with its dead letters. For ``foreachBatch``."""
        spark = frame.sparkSession
        self._turn = f"{batch_id}.{uuid4().hex}"
        self._already_in = False
        self._summaries = {}
        self._forget()
        spark.sparkContext.setLocalProperty(TURN, self._turn)
        result = frame if self._inner is None else self._inner(frame, batch_id)
        if self._shape is not None:
            result = self._shape(result)
        parts = [
            dead_letters
            for source in self._sources
            if (dead_letters := self._letters(spark, source, batch_id)) is not None
        ]
        if not parts:
            return result
        result = _as_bytes(result) if self._column is None else _struct_as_bytes(result, self._column)
        for dead_letters in parts:
            rows = dead_letters if self._column is None else dead_letters.select(F.struct("*").alias(self._column))
            result = result.unionByName(rows, allowMissingColumns=True)
        return result

    def letters(self, spark: SparkSession, batch_id: int) -> Iterator[DataFrame]:
        """The dead letters of a batch, a frame per source: the columns topic, key, value, headers and timestamp."""
        for source in self._sources:
            dead_letters = self._letters(spark, source, batch_id)
            if dead_letters is not None:
                yield dead_letters

    def _letters(self, spark: SparkSession, numbered: Numbered, batch_id: int) -> DataFrame | None:
        source = numbered.source
        if not source.settings.tolerates:
            return None
        assert source.options is not None
        options = source_options(source.options, streaming=True)
        pieces = self._pieces(numbered.number, batch_id)
        if not pieces:
            return None
        read = letters(source.decoding, LetterTasks(options, pieces, batch_id, self._turn), source.reports)
        return spark.range(0, len(pieces), 1, len(pieces)).mapInArrow(read, LETTER_SCHEMA)

    def _pieces(self, number: int, batch_id: int) -> tuple[Piece, ...]:
        before = self._offsets.offsets(batch_id - 1) if batch_id > 0 else None
        planned = self._offsets.offsets(batch_id)
        if before is None or planned is None:
            # Batch 0 of our source is empty: it notes where the query begins.
            return ()
        begin, end = (SourcePosition.from_json(entry.end[number]) for entry in (before, planned))
        first = first_offsets(begin, end)
        whole = ranges(first, {partition: end.offsets[partition] for partition in first}, None)
        return tuple(Piece(task_ranges, end.topic_ids) for task_ranges in packed(whole, _SHARED_MAX))

    # --- events -------------------------------------------------------------------------------------------------

    def hear(self, event: events.Event) -> list[events.Event]:
        """The events that come before this one. Raises ToleranceExceeded, SchemaRegistered, SchemaChanged: the batch is
        aborted."""
        match event:
            case events.OutputWritten(batch_id):
                return self._check(batch_id)
            case events.BatchWritten(batch_id) if not self._summaries:
                return self._check(batch_id)
            case events.TransactionEnded(_, False) if self._decodes_again:
                self._forget()
                self._summaries = {}
            case events.BatchAlreadyIn() | events.BatchSkipped():
                self._already_in = True
            case events.BatchFinished(batch_id) if not self._already_in:
                return self._dead_letters(batch_id)
        return []

    def _check(self, batch_id: int) -> list[events.Event]:
        # Each of several sinks has written its part.
        is_first = not self._summaries
        self._summaries = dict(self._reported())
        happened: list[events.Event] = []
        for number, source in self._sources:
            name = source.decoding.source
            summary = self._summaries.get(number, BatchSummary())
            if summary.undecided:
                raise SchemaRegistered(f"{name}: schema ids {sorted(summary.undecided)} were registered meanwhile")
            if summary.changed:
                raise SchemaChanged(
                    f"{name}: the registry has changed the schemas of ids {sorted(summary.changed)}: tasks have read "
                    "the batch by different ones\nhint: restore these schemas, or start the pipeline again, which then "
                    "reads by the new ones; a registry gives each schema an id of its own"
                )
            bad = sum(summary.dead_letters.values())
            if source.settings.limit.is_exceeded(bad, summary.records):
                raise ToleranceExceeded(
                    f"{name}: {bad:,} of {summary.records:,} rows of batch {batch_id} are bad "
                    f"({_in_words(summary)}), which is more than errors.deadletterqueue.limit\n"
                    "hint: correct the schema or the producer, or raise the limit"
                )
            if summary.drift and is_first:
                fields = tuple(sorted(summary.drift))
                sentence = "%(source)s: fields that the schema does not have: %(fields)s"
                _logger.warning("schema_drift", sentence, source=name, fields=", ".join(fields))
                happened.append(events.SchemaDrifted(batch_id, name, source.settings.contract, fields))
        return happened

    def _dead_letters(self, batch_id: int) -> list[events.Event]:
        happened: list[events.Event] = []
        for number, source in self._sources:
            summary = self._summaries.get(number)
            if summary is not None and summary.dead_letters:
                name, topic = source.decoding.source, str(source.settings.topic)
                counts = _in_words(summary)
                _logger.warning(
                    "rows_bad", "%(source)s: %(counts)s to %(topic)s", source=name, counts=counts, topic=topic
                )
                happened.append(events.DeadLettersWritten(batch_id, name, topic, dict(summary.dead_letters)))
        return happened

    def _reported(self) -> Iterator[tuple[int, BatchSummary]]:
        """Yield the sources that tasks have reported on in this turn; each has an accumulator of its own."""
        for number, source in self._sources:
            summary = summarized(source.reports.value, self._turn).get(source.decoding.source)
            if summary is not None:
                yield number, summary

    def _forget(self) -> None:
        for source in self._sources:
            source.source.reports.value = {}


def _as_bytes(frame: DataFrame) -> DataFrame:
    """With the types of dead letters, which a union needs."""
    return frame.withColumns({name: F.col(name).cast(kind) for name, kind in _COLUMNS.items() if name in frame.columns})


def _struct_as_bytes(frame: DataFrame, column: str) -> DataFrame:
    kind = frame.schema[column].dataType
    assert isinstance(kind, StructType), kind
    fields = [
        F.col(column)[field.name].cast(_COLUMNS.get(field.name, field.dataType)).alias(field.name) for field in kind
    ]
    return frame.withColumn(column, F.when(F.col(column).isNotNull(), F.struct(*fields)))


def _in_words(summary: BatchSummary) -> str:
    return ", ".join(f"{count:,} {reason}" for (_, reason), count in sorted(summary.dead_letters.items()))
