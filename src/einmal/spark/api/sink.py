"""``write_stream(frame)``: a DataFrame to topics, a database or a lake table, exactly once, in the words of Spark's own
writer.

``df.writeStream.format("kafka")`` becomes ``write_stream(df)``, with one option more: ``transactional.id``. Output, and
the source positions, of each micro-batch are one transaction of the sink.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Self

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import StructType

from einmal.event_log import EventLog
from einmal.options.intervals import trigger_interval_us
from einmal.options.sink import (
    AT_LEAST_ONCE,
    AT_MOST_ONCE,
    EXACTLY_ONCE,
    QueryOptions,
    query_options,
    query_without_effect,
    sink_options,
)
from einmal.options.source import source_options
from einmal.options.values import OptionError, Options
from einmal.pipeline import events
from einmal.pipeline.errors import PipelineRefused
from einmal.sinks.kinds import KAFKA, new_sink, sink_class
from einmal.spark.api.letter_part import TOPICS_COLUMN, LetterPart, letter_topics, rejected_letters, with_letters
from einmal.spark.declare.plan import plan_facts
from einmal.spark.declare.preflight import PlannedQuery, preflight
from einmal.spark.decoding.bad_rows import BadRows
from einmal.spark.decoding.decode import decoded_sources
from einmal.spark.environment.checkpoint_files import local_checkpoint_files
from einmal.spark.environment.hadoop_files import HadoopFiles
from einmal.spark.environment.plans.ordering import sorted_in_one_partition
from einmal.spark.environment.plans.plan_redaction import redact_plans
from einmal.spark.environment.plans.row_order import mark_unordered
from einmal.spark.environment.plans.source_environment import share_environments
from einmal.spark.environment.spark_session import require_classic_session
from einmal.spark.errors import reason_of
from einmal.spark.operate import metrics
from einmal.spark.option_log import log_without_effect
from einmal.spark.protocol.at_least_once import AtLeastOnce
from einmal.spark.protocol.at_most_once import AtMostOnce
from einmal.spark.protocol.checkpoint import Checkpoint
from einmal.spark.protocol.exactly_once import ExactlyOnce
from einmal.spark.protocol.execution import divides_partitions, is_stateful, sources
from einmal.spark.protocol.queries import queries_of
from einmal.spark.protocol.query import PipelineQuery, Transform
from einmal.spark.protocol.run import Kept, Run, Setting
from einmal.spark.sinks.kafka.sink import KafkaFrameSink
from einmal.spark.sinks.part import Part
from einmal.spark.sinks.rejected_letters import RejectedLetters
from einmal.spark.sinks.two_phase import FrameTwoPhaseSink
from einmal.spark.source.source import KafkaDataSource

_RUNS: Final[dict[str, Callable[[Setting, Kept], Run]]] = {
    EXACTLY_ONCE: ExactlyOnce,
    AT_LEAST_ONCE: AtLeastOnce,
    AT_MOST_ONCE: AtMostOnce,
}
_TRIGGERS: Final = 'processingTime="1 second" for a continuing query, availableNow=True for one that ends'
_logger = EventLog(__name__)


def write_stream(frame: DataFrame) -> StreamWriter:
    """A writer for a streaming DataFrame. To topics, its default, columns are those of Spark's Kafka sink: value;
    optional: key, topic, partition, headers, timestamp. To other sinks they are those of the table."""
    return StreamWriter(frame)


class StreamWriter:
    """Spark's DataStreamWriter, with the methods that apply here."""

    def __init__(self, frame: DataFrame) -> None:
        require_classic_session(frame, "the sink leads its transactions from the driver")
        if not frame.isStreaming:
            raise OptionError("write_stream takes a streaming DataFrame (spark.readStream)")
        self._frame = frame
        self._kind = KAFKA[0]
        self._options: dict[str, Any] = {}
        self._output_mode: str | None = None
        self._query_name: str | None = None
        self._trigger: dict[str, Any] = {}
        self._transform: Transform | None = None
        self._transformed: StructType | None = None
        self._listeners: list[events.Listener] = []
        self._observing: list[events.Listener] = []
        self._topics: tuple[str, ...] = ()
        self._bad_rows: BadRows | None = None
        self._others: Mapping[str, tuple[str, Mapping[str, str]]] = {}
        self._takes_topics = False

    def format(self, source: str) -> Self:
        """The type of the sink: "kafka" by default, another of ``sinks.kinds``, or the import path of your own."""
        if source not in KAFKA:
            sink_class(source)
        self._kind = source
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

    def outputMode(self, outputMode: str) -> Self:
        self._output_mode = outputMode
        return self

    def queryName(self, queryName: str) -> Self:
        self._query_name = queryName
        return self

    def trigger(
        self,
        *,
        processingTime: str | None = None,
        once: bool | None = None,
        continuous: str | None = None,
        availableNow: bool | None = None,
        realTime: str | None = None,
    ) -> Self:
        """As Spark's. ``once`` runs as ``availableNow``, which has replaced it; only micro-batches can be committed."""
        given = {
            "processingTime": processingTime,
            "once": once,
            "continuous": continuous,
            "availableNow": availableNow,
            "realTime": realTime,
        }
        chosen = {name: value for name, value in given.items() if value is not None}
        if len(chosen) != 1:
            raise OptionError(f"trigger takes one argument; given: {', '.join(chosen) or 'none'}\nhint: {_TRIGGERS}")
        [(name, value)] = chosen.items()
        if name in ("continuous", "realTime"):
            raise OptionError(f"trigger({name}=...) has no micro-batches to commit\nhint: {_TRIGGERS}")
        if name == "processingTime":
            if not isinstance(value, str) or not value.strip():
                raise OptionError(f"trigger(processingTime=...) is an interval, not {value!r}\nhint: {_TRIGGERS}")
            # Spark checks it when the query starts: whoever ran under its transactional.id is fenced by then.
            trigger_interval_us("trigger(processingTime=...)", value)
        elif value is not True:
            raise OptionError(f"trigger({name}=...) can only be True\nhint: {_TRIGGERS}")
        if name == "once":
            sentence = "trigger(once=True) runs as availableNow=True, in batches of maxOffsetsPerTrigger"
            _logger.info("trigger_replaced", sentence)
            name = "availableNow"
        self._trigger = {name: value}
        return self

    def each_batch(self, transform: Transform, schema: StructType | None = None) -> Self:
        """Apply ``transform(frame, batch_id)`` to every micro-batch before it is written: a count per batch, a join
        with a table. It returns the frame to be written; several outputs are one frame with a topic column. ``schema``:
        of that frame, for the preflight."""
        self._transform, self._transformed = transform, schema
        return self

    def topics(self, *names: str) -> Self:
        """Topics that rows are going to name, so that the preflight can check them."""
        self._topics = names
        return self

    def sinks(self, others: Mapping[str, tuple[str, Mapping[str, str]]], *, topics: bool) -> Self:
        """Several sinks: type and options by the name of a struct column, which holds the rows for it and is null in
        the rows of others. ``topics``: whether there are rows for topics, too, in ``TOPICS_COLUMN``."""
        self._others, self._takes_topics = others, topics
        return self

    def listener(self, listener: events.Listener) -> Self:
        """Call ``listener(event)`` with every event (``einmal.pipeline.events``); the pipeline waits for it."""
        self._listeners.append(listener)
        return self

    def start(self) -> PipelineQuery:
        """Run the preflight, acquire the transactional.id, start the query. Raises OptionError, PipelineError."""
        redact_plans(self._frame.sparkSession)
        options, parts = self._parsed()
        name = options.transactional_id or parts[0].sink.table
        stateful = is_stateful(self._frame)
        decoded = decoded_sources(self._frame)
        dead_letters = letter_topics(decoded)
        has_letters = bool(dead_letters) or any(part.sink.errors.tolerates for part in parts)
        _log_without_effect(options, self._frame, has_letters=has_letters)
        letters: LetterPart | None = None
        if dead_letters:
            letters = with_letters(options, parts, decoded)
            parts = letters.parts
        rejected = rejected_letters(options, parts, sources(self._frame))
        if stateful:
            self._frame = sorted_in_one_partition(self._frame)
        setting = self._setting(options, parts, stateful, rejected)
        if decoded:
            shape, column = (None, None) if letters is None else (letters.shape, letters.column)
            self._bad_rows = BadRows(decoded, setting.checkpoint, self._transform, shape, column)
        transform = self._transform if self._bad_rows is None else self._bad_rows.transform
        try:
            planned = PlannedQuery(
                frame=self._frame,
                options=options,
                stateful=stateful,
                schema=self._written(letters),
                topics=(*self._topics, *dead_letters.values()),
                letters_of=dead_letters,
                query_name=self._query_name,
                output_mode=self._output_mode,
            )
            preflight(planned, parts, setting.checkpoint, rejected)
            metrics.served(setting.spark)
        except BaseException:
            setting.close()
            raise
        self._log_if_sparks_writer_suffices(name, setting)
        run = _RUNS[options.guarantee]
        queries = queries_of(setting.spark)
        self._observing = queries.starting(name, self._frame)
        start = partial(self._spark_start, options, setting.checkpoint.name)
        query = PipelineQuery(setting, lambda held: run(setting, held), start, transform)
        queries.started(name, query)
        return query

    def _log_if_sparks_writer_suffices(self, name: str, setting: Setting) -> None:
        """Once, for a query of which ``writeStream.format("einmal")`` promises as much."""
        to_topics = self._kind in KAFKA and not self._others
        by_spark = self._transform is None and self._bad_rows is None and self._output_mode != "update"
        if not (to_topics and by_spark and setting.checkpoint.name.startswith("file:")):
            return
        if setting.stateful:
            plan = plan_facts(self._frame)
            if plan.non_deterministic or plan.python or plan.static:
                return
        _logger.info(
            "sparks_writer_suffices",
            '%(pipeline)s: df.writeStream.format("einmal") would promise as much for this query; what it cannot '
            "promise, as write_stream does, is that state and output of a random query agree after a failure",
            pipeline=name,
        )

    def _written(self, letters: LetterPart | None) -> StructType | None:
        """The schema of the rows that the sinks get, if it is known."""
        frame = self._frame
        if self._transform is not None:
            if self._transformed is None:
                return None
            frame = frame.sparkSession.createDataFrame([], self._transformed)
        return frame.schema if letters is None else letters.shape(frame).schema

    def _parsed(self) -> tuple[QueryOptions, tuple[Part, ...]]:
        """Raises OptionError."""
        others = [
            Part(new_sink(kind, own), name, self._record_name(name)) for name, (kind, own) in self._others.items()
        ]
        if self._kind not in KAFKA:
            own = sink_class(self._kind).OPTIONS
            return query_options(self._options, own), (Part(new_sink(self._kind, self._options)),)
        if others and not self._takes_topics:
            return query_options(self._options, ()), tuple(others)
        options = sink_options(self._options, others=len(others))
        topics = KafkaFrameSink(options.client, options.topic, options.group_id)
        parts = (Part(topics, TOPICS_COLUMN if others else None), *others)
        return options, (Part(FrameTwoPhaseSink(*parts)),) if topics.two_phase else parts

    def _record_name(self, sink: str) -> str | None:
        """Return the name of a sink's own commit record, where several databases have one each: they may be tables of
        one."""
        name = Options(self._options).text("transactional.id")
        return f"{name}/{sink}" if len(self._others) > 1 else None

    def _setting(
        self, options: QueryOptions, parts: tuple[Part, ...], stateful: bool, letters: RejectedLetters | None
    ) -> Setting:
        return Setting(
            spark=self._frame.sparkSession,
            options=options,
            frame=self._frame,
            stateful=stateful,
            parts=parts,
            checkpoint=Checkpoint(HadoopFiles(self._frame.sparkSession, options.checkpoint)),
            notify=self._notify,
            letters=letters,
        )

    def _notify(self, event: events.Event) -> None:
        before = [] if self._bad_rows is None else self._bad_rows.hear(event)
        for next_event in (*before, event):
            for listener in (*self._listeners, *self._observing):
                listener(next_event)

    def _spark_start(
        self, options: QueryOptions, location: str, write: Callable[[DataFrame, int], None]
    ) -> StreamingQuery:
        share_environments(self._frame)
        try:
            with local_checkpoint_files(self._frame.sparkSession, location):
                return self._spark_writer(options, write).start()
        except PySparkException as error:
            # Spark's own checks, which the preflight and ``trigger`` make before.
            raise PipelineRefused(f"Spark does not start the query: {reason_of(error)}") from error

    def _spark_writer(self, options: QueryOptions, write: Callable[[DataFrame, int], None]) -> DataStreamWriter:
        write = write if divides_partitions(self._frame) else _unordered(write)
        writer = self._frame.writeStream.foreachBatch(write).option("checkpointLocation", options.checkpoint)
        if self._output_mode is not None:
            writer = writer.outputMode(self._output_mode)
        if self._query_name is not None:
            writer = writer.queryName(self._query_name)
        if self._trigger:
            writer = writer.trigger(**self._trigger)
        return writer


def _unordered(write: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
    """The same for batches whose rows have an order within each task only."""

    def write_unordered(frame: DataFrame, batch_id: int) -> None:
        mark_unordered(frame)
        write(frame, batch_id)

    return write_unordered


def _log_without_effect(options: QueryOptions, frame: DataFrame, *, has_letters: bool) -> None:
    """One line for all options that are accepted without effect. Raises OptionError for the options of a source."""
    ours = [source_options(given, streaming=True) for kind, given in sources(frame) if kind == KafkaDataSource.name()]
    log_without_effect(query_without_effect(options, ours, has_letters=has_letters))
