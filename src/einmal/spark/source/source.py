"""``format("einmal")``: topics as a Spark source, under the option names of Spark's ``format("kafka")``.

A batch ends at the last stable offset (``read_committed``, our default), so that a replay of the same offsets reads the
same records; offsets of markers and aborted records count, but show no rows. The source joins no group: its position is
the checkpoint's.

Spark asks a source for its first offset again after a crash in batch 0, and "latest" would be another offset then. So
the first batch of a new query is empty: it puts the resolved ``startingOffsets`` into Spark's offset log, before
anything is read. The planner (``KafkaStreamReader``) lives in one process on the driver, ``read`` runs in tasks.

A batch query reads the range that ``load()`` has found, however often it is run: Spark makes the reader anew for each
action, and "latest" would be another offset each time.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from typing import Any, Final

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from einmal.client import OffsetRange as Bounds
from einmal.client.cores.fetched import RawBatch
from einmal.client.errors import KafkaError, OffsetOutOfRange, RetriableError, UnknownTopic
from einmal.clusters.kafka_cluster import KafkaCluster, uuid_of
from einmal.commit_protocol.positions import is_identified
from einmal.commit_protocol.source_offsets import (
    PlannedRange,
    Positions,
    SourcePosition,
    packed,
    ranges,
    shared_max,
    to_json,
)
from einmal.event_log import EventLog
from einmal.options.source import SourceOptions, source_options
from einmal.options.values import OptionError
from einmal.spark.environment.python_worker import answered, range_reader, settle
from einmal.spark.source.arrow import RowBuilder
from einmal.spark.source.data_loss import DataLoss, batch_of_another_source, expired_records, unreadable
from einmal.spark.source.planner import SourcePlanner
from einmal.spark.source.trigger_pace import TriggerPace
from einmal.types import ErrorCode, Offset, TopicPartition

_logger = EventLog(__name__)

_COLUMNS: Final = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
}
_OF_ANY_SESSION: Final = {"timestamp": "timestamp_ltz"}
"""``timestamp`` is one without a zone under ``spark.sql.timestampType=TIMESTAMP_NTZ``."""
_HEADERS: Final = {"headers": "array<struct<key:string,value:binary>>"}
_LOAD_MS: Final = 10_000
"""How long ``load()`` waits for a broker: a stream is loaded while there is none, too."""


class RangeUnknown(Exception):
    """A batch query whose range could not be found out when it was loaded."""


class KafkaDataSource(DataSource):
    """The part of ``format("einmal")`` that reads; ``writer.data_source`` adds the sink. Options: those of Spark's
    Kafka source; ``kafka.isolation.level`` is ``read_committed`` unless set."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        # Spark makes this object in ``load()``, and keeps it for every action on the frame. It also makes one to write
        # with, which has other options: theirs are for ``writer`` to answer.
        try:
            self._range = _range(source_options(self.options, streaming=False))
        except OptionError as error:
            self._range = str(error)

    @classmethod
    def name(cls) -> str:
        return "einmal"

    @answered(OptionError)
    def schema(self) -> str:
        columns = _columns(source_options(self.options, streaming=False))
        return ", ".join(f"{name} {_OF_ANY_SESSION.get(kind, kind)}" for name, kind in columns.items())

    @answered(OptionError)
    def streamReader(self, schema: StructType) -> KafkaStreamReader:
        options = source_options(self.options, streaming=True)
        _refuse_other_schema(schema, options)
        return KafkaStreamReader(options)

    @answered(OptionError, RangeUnknown)
    def reader(self, schema: StructType) -> KafkaReader:
        options = source_options(self.options, streaming=False)
        _refuse_other_schema(schema, options)
        if isinstance(self._range, str):
            raise RangeUnknown(self._range)
        return KafkaReader(options, self._range)


def _columns(options: SourceOptions) -> dict[str, str]:
    """The types of the columns by name, as Spark spells them."""
    return _COLUMNS | (_HEADERS if options.include_headers else {})


def _refuse_other_schema(schema: StructType, options: SourceOptions) -> None:
    """Raises OptionError for a schema of the user's: without this every task fails with the difference of two types."""
    columns = _columns(options)
    if schema.simpleString() != f"struct<{','.join(f'{name}:{kind}' for name, kind in columns.items())}>":
        raise OptionError(
            f"the columns of this source are {', '.join(f'{name} {kind}' for name, kind in columns.items())}, not "
            f"{schema.simpleString():.300}\n"
            "hint: leave out .schema(...), and select and cast what you need: "
            '.selectExpr("CAST(value AS STRING) AS value")'
        )
    if any(f'"{word}":false' in schema.json() for word in ("nullable", "containsNull")):
        raise OptionError(
            "the columns of this source may have nulls: they cannot be NOT NULL\n"
            'hint: leave out .schema(...), and filter: .where("value IS NOT NULL")'
        )


class Piece(InputPartition):
    """Input of one task, one range after the other. ``topic_ids``: those of its topics that are known."""

    def __init__(self, ranges: Sequence[PlannedRange], topic_ids: Mapping[str, str]) -> None:
        self.ranges = tuple(ranges)
        topics = {bounds.topic_partition.topic for bounds in ranges}
        self.topic_ids = {topic: topic_id for topic, topic_id in topic_ids.items() if topic in topics}
        super().__init__((self.ranges, self.topic_ids))


class KafkaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._planner = SourcePlanner(options)
        self._is_new = False
        """Spark has asked where to begin, and for nothing since: no batch of this query is planned yet."""
        self._empty_end: dict[str, Any] | None = None
        """Where batch 0 ends, if it is this planner's."""
        self._planned: dict[str, Any] | None = None
        """Where the newest batch of this planner ends."""
        self._target: Positions | None = None
        self._pace = TriggerPace(options.min_offsets_per_trigger, options.max_trigger_delay_ms, time.monotonic)

    def initialOffset(self) -> dict[str, Any]:
        self._is_new = True
        return self._planner.starting().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_offsets_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._planner.ends()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        if self._is_new:
            self._is_new = False
            if isinstance(limit, ReadAllAvailable):
                _logger.warning(
                    "first_batch_empty",
                    "the first batch of a query of einmal's source is empty, and trigger(once=True) ends after it: "
                    "nothing is read; use trigger(availableNow=True)",
                )
            return start
        assert isinstance(limit, ReadAllAvailable | ReadMaxRows), limit
        most = limit.max_rows if isinstance(limit, ReadMaxRows) else None
        begin = SourcePosition.from_json(start)
        end = self._planner.next(begin, self._target, most)
        # Spark compares positions as text.
        self._planned = start if end is begin or self._is_held_back(begin, end, most) else end.to_json()
        return self._planned

    def _is_held_back(self, begin: SourcePosition, end: SourcePosition, most: int | None) -> bool:
        """Whether a batch waits for more (``minOffsetsPerTrigger``). availableNow has only what exists now."""
        if self._target is not None:
            return False
        new = sum(max(0, last - begin.offsets.get(partition, last)) for partition, last in end.offsets.items())
        if most is not None and new > most - len(end.offsets):
            # It is full: what each partition gives is rounded down.
            new = most
        return not self._pace.begins(new)

    def reportLatestOffset(self) -> dict[str, Any]:
        return to_json(self._planner.ends())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if self._is_new:
            # Batch 0, perhaps for a second time, and then with another start: it is empty whatever its end is.
            if not is_identified(end):
                raise batch_of_another_source(end)
            self._is_new = False
            self._empty_end = end
        if end in (self._empty_end, start):
            return []
        begin, last = SourcePosition.from_json(start), SourcePosition.from_json(end)
        if end != self._planned:
            self._planner.check_replay(begin, last)
        first = self._planner.first_offsets(begin, last)
        options = self._options
        pieces = ranges(first, last.offsets, options.min_partitions, options.max_records_per_partition)
        tasks = packed(pieces, 0 if options.divides_partitions else shared_max(pieces))
        return [Piece(task, last.topic_ids) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Piece)
        return read_piece(self._options, partition)

    def stop(self) -> None:
        self._planner.close()

    def __getstate__(self) -> dict[str, Any]:
        # Tasks get a copy to call ``read`` on; what the planner knows stays here.
        return {"_options": self._options}


class KafkaReader(DataSourceReader):
    """A batch query: from the starting to the ending offsets, the same ones in every action."""

    def __init__(self, options: SourceOptions, tasks: Sequence[Piece]) -> None:
        self._options = options
        self._tasks = tasks

    def partitions(self) -> Sequence[InputPartition]:
        return self._tasks

    def read(self, partition: InputPartition) -> Iterator[Any]:
        # Spark reads a partition None where there are none.
        return read_piece(self._options, partition) if isinstance(partition, Piece) else iter(())


class RangeGone(DataLoss):
    """Under failOnDataLoss=false: the log has no offsets where the reader has arrived, perhaps others of the range."""


class StillOpen(Exception):
    """An offset was asked for that lies behind the last stable offset."""


def _range(options: SourceOptions) -> list[Piece] | str:
    """Return what a batch query reads, or why that cannot be said: a stream, which is loaded the same way, need not
    know."""
    client = dict(options.client)
    limit_ms = min(_LOAD_MS, int(client.get("default.api.timeout.ms", _LOAD_MS)))
    planner = SourcePlanner(replace(options, client=client | {"default.api.timeout.ms": str(limit_ms)}))
    try:
        first, last = planner.starting(), planner.ending()
    except (KafkaError, DataLoss, OptionError) as error:
        return str(error)
    finally:
        planner.close()
    # Partitions, and topics of a pattern, may have come between the two questions.
    last = {partition: end for partition, end in last.items() if partition in first.offsets}
    for partition, end in last.items():
        if first.offsets[partition] > end:
            return f"{partition} would be read from offset {first.offsets[partition]} to {end}, which lies before it"
    pieces = ranges(first.offsets, last, options.min_partitions, options.max_records_per_partition)
    return [Piece([piece], first.topic_ids) for piece in pieces]


def read_piece(options: SourceOptions, piece: Piece) -> Iterator[Any]:
    """Arrow batches of the visible records in the ranges. Raises DataLoss."""
    for bounds in piece.ranges:
        yield from _read(options, bounds, piece.topic_ids.get(bounds.topic_partition.topic))


def _read(options: SourceOptions, bounds: PlannedRange, topic_id: str | None) -> Iterator[Any]:
    """Under failOnDataLoss=false: what still exists, also where retention overtakes the reader. Raises DataLoss,
    StillOpen."""
    partition, wanted = bounds.topic_partition, Bounds(bounds.start, bounds.end)
    if not options.fail_on_data_loss:
        wanted = _existing(options, bounds)
    while True:
        lost, start = yield from _rows(options, partition, wanted, topic_id)
        if lost is None:
            return
        tried = wanted
        if isinstance(lost, RangeGone):
            wanted = _existing(options, PlannedRange(partition, start, bounds.end))
        if wanted == tried:
            # Nothing has changed since, and nothing was read.
            _log_lost(str(lost).partition("\n")[0])
            return


def _rows(
    options: SourceOptions, partition: TopicPartition, wanted: Bounds, topic_id: str | None
) -> Generator[Any, None, tuple[DataLoss | None, Offset]]:
    """Return what ended the range early under failOnDataLoss=false, and where. Raises DataLoss, StillOpen."""
    builder = RowBuilder(partition, wanted, include_headers=options.include_headers, undated=options.undated)
    lost, reached = None, Offset(wanted.start)
    try:
        for batch in _batches(options, partition, wanted, topic_id):
            builder.add(batch)
            reached = Offset(batch.header.next_offset)
            if builder.is_full:
                yield builder.take()
    except DataLoss as error:
        if options.fail_on_data_loss:
            raise
        lost = error
    if not builder.is_empty:
        yield builder.take()
    return lost, reached


def _log_lost(lost: str) -> None:
    _logger.warning("records_lost", "failOnDataLoss=false: %(lost)s", lost=lost)


def _batches(
    options: SourceOptions, topic_partition: TopicPartition, wanted: Bounds, topic_id: str | None
) -> Iterator[RawBatch]:
    """Raises DataLoss, RangeGone where there may be more to read, and StillOpen."""
    topic_ids = {} if topic_id is None else {topic_partition.topic: uuid_of(topic_id)}
    with range_reader(options.client) as reader:
        settle()
        try:
            yield from reader.read({topic_partition: wanted}, topic_ids=topic_ids)
        except UnknownTopic as error:
            why = "the topic was deleted, or deleted and created again, after the batch was planned"
            raise DataLoss(unreadable(topic_partition, *wanted, f"{why} ({error.name})")) from error
        except OffsetOutOfRange as error:
            gone = DataLoss if options.fail_on_data_loss else RangeGone
            raise gone(_out_of_range(options, topic_partition, wanted)) from error
        except RetriableError as error:
            if error.code is not ErrorCode.offset_not_available:
                raise
            raise _cannot_reach(options, topic_partition, wanted) from error


def _out_of_range(options: SourceOptions, topic_partition: TopicPartition, wanted: Bounds) -> str:
    with closing(KafkaCluster(options.client)) as cluster:
        first = cluster.earliest([topic_partition])
        last = cluster.latest([topic_partition], committed=False)
    if first[topic_partition] > wanted.start:
        return expired_records({topic_partition: Offset(wanted.start)}, first)
    what = f"the log has offsets {first[topic_partition]} to {last[topic_partition] - 1}; it was truncated"
    return unreadable(topic_partition, *wanted, what)


def _cannot_reach(options: SourceOptions, topic_partition: TopicPartition, wanted: Bounds) -> Exception:
    """Why offsets that existed when they were planned are not returned."""
    end = Offset(wanted.end)
    with closing(KafkaCluster(options.client)) as cluster:
        last = cluster.latest([topic_partition], committed=False, reached={topic_partition: end})[topic_partition]
    if last >= end:
        return StillOpen(
            f"a transaction that began before offset {end} of {topic_partition} is still open: its records are "
            "neither there nor not there\nhint: read up to endingOffsets=latest, which is before it, or raise "
            "kafka.default.api.timeout.ms to wait for its end"
        )
    return DataLoss(unreadable(topic_partition, *wanted, f"the log ends at offset {last}; it was truncated"))


def _existing(options: SourceOptions, bounds: PlannedRange) -> Bounds:
    """The part of a range that still exists. What does not is logged."""
    partition, start, end = bounds
    try:
        with closing(KafkaCluster(options.client)) as cluster:
            first = cluster.earliest([partition])[partition]
            # Not the last stable offset: what lies behind an open transaction exists, and is waited for.
            last = cluster.latest([partition], committed=False, reached={partition: end})[partition]
    except UnknownTopic:
        # The read reports it.
        return Bounds(start, end)
    if first > start:
        _log_lost(expired_records({partition: start}, {partition: min(first, end)}))
    if last < end:
        _log_lost(unreadable(partition, max(start, last), end, f"the log ends at offset {last}; it was truncated"))
    start = max(start, first)
    return Bounds(start, max(start, min(end, last)))
