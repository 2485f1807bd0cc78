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

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from einmal.client import OffsetRange as Bounds
from einmal.client.errors import KafkaError, OffsetOutOfRange, RetriableError, UnknownTopic
from einmal.spark.arrow import RowBuilder
from einmal.spark.cluster import KafkaCluster
from einmal.spark.offsets import DataLoss, OffsetRange, Positions, from_json, limited, packed, ranges, to_json
from einmal.spark.options import EARLIEST, LATEST, Offsets, OptionError, Position, SourceOptions, Times, source_options
from einmal.spark.python_worker import range_reader, settle
from einmal.types import ErrorCode, Offset, TopicPartition

_SCHEMA: Final = (
    "key binary, value binary, topic string, partition int, offset long, timestamp timestamp, timestampType int"
)
_LOAD_MS: Final = 10_000
"""How long ``load()`` waits for a broker: a stream is loaded while there is none, too."""
_SHARED_MAX: Final = 1_000
"""Partitions with no more new offsets than this, together, are read by one task: a task costs more than they do."""
_HEADERS: Final = ", headers array<struct<key:string,value:binary>>"


class KafkaDataSource(DataSource):
    """Options: those of Spark's Kafka source; ``kafka.isolation.level`` is ``read_committed`` unless set."""

    def __init__(self, options: dict[str, str]) -> None:
        super().__init__(options)
        # Spark makes this object in ``load()``, and keeps it for every action on the frame.
        self._range = _range(source_options(self.options, streaming=False))

    @classmethod
    def name(cls) -> str:
        return "einmal"

    def schema(self) -> str:
        include_headers = str(self.options.get("includeHeaders", "false")).lower() == "true"
        return _SCHEMA + (_HEADERS if include_headers else "")

    def streamReader(self, schema: StructType) -> KafkaStreamReader:
        return KafkaStreamReader(source_options(self.options, streaming=True))

    def reader(self, schema: StructType) -> KafkaReader:
        options = source_options(self.options, streaming=False)
        if isinstance(self._range, str):
            raise RangeUnknown(self._range)
        return KafkaReader(options, self._range)


class Piece(InputPartition):
    """What one task reads, one range after the other."""

    def __init__(self, *pieces: OffsetRange) -> None:
        super().__init__(pieces)
        self.pieces = pieces


class KafkaStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans micro-batches."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._places = Places(options)
        self._is_new = False
        """Spark has asked where to begin, and for nothing since: no batch of this query is planned yet."""
        self._empty_end: dict[str, Any] | None = None
        """Where batch 0 ends, if it is this planner's."""
        self._target: Positions | None = None

    def initialOffset(self) -> dict[str, Any]:
        self._is_new = True
        return to_json(self._places.starting())

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_offsets_per_trigger)

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._places.ends()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        if self._is_new:
            self._is_new = False
            return start
        begin = from_json(start)
        end = self._places.ends(begin) if self._target is None else self._target
        begin = self._places.with_new(begin, end)
        self._places.check_not_gone(begin, end, is_live=self._target is None)
        reached = {each: Offset(max(begin[each], end.get(each, begin[each]))) for each in begin}
        if isinstance(limit, ReadAllAvailable):
            return to_json(reached)
        assert isinstance(limit, ReadMaxRows), limit
        return to_json(limited(begin, reached, limit.max_rows))

    def reportLatestOffset(self) -> dict[str, Any]:
        return to_json(self._places.ends())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if self._is_new:
            # Batch 0, perhaps for a second time, and then with another start: it is empty whatever its end is.
            self._is_new = False
            self._empty_end = end
        if end == self._empty_end:
            return []
        last = from_json(end)
        first = self._places.with_new(from_json(start), last)
        pieces = ranges(first, last, self._options.min_partitions)
        return [Piece(*each) for each in packed(pieces, _SHARED_MAX if self._options.min_partitions is None else 0)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Piece)
        return read_pieces(self._options, partition.pieces)

    def stop(self) -> None:
        self._places.close()

    def __getstate__(self) -> dict[str, Any]:
        # Tasks get a copy to call ``read`` on; what the planner knows stays here.
        return {"_options": self._options}


class KafkaReader(DataSourceReader):
    """A batch query: from the starting to the ending offsets, the same ones in every action."""

    def __init__(self, options: SourceOptions, bounds: list[OffsetRange]) -> None:
        self._options = options
        self._bounds = bounds

    def partitions(self) -> Sequence[InputPartition]:
        return [Piece(each) for each in self._bounds]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        assert isinstance(partition, Piece)
        return read_pieces(self._options, partition.pieces)


class StillOpen(Exception):
    """An offset was asked for that lies behind the last stable offset."""


class RangeUnknown(Exception):
    """What a batch query should read could not be found out when it was loaded."""


def _range(options: SourceOptions) -> list[OffsetRange] | str:
    """What a batch query reads, or why that cannot be said: a stream, which is loaded the same way, need not know."""
    client = dict(options.client)
    limit_ms = min(_LOAD_MS, int(client.get("default.api.timeout.ms", _LOAD_MS)))
    try:
        places = Places(replace(options, client=client | {"default.api.timeout.ms": str(limit_ms)}))
        try:
            first, last = places.starting(), places.ending()
        finally:
            places.close()
    except (KafkaError, DataLoss, OptionError) as error:
        return str(error)
    for each, end in last.items():
        if first[each] > end:
            return f"{each} would be read from offset {first[each]} to {end}, which lies before it"
    return ranges(first, last, options.min_partitions)


class Places:
    """Which partitions a source reads, and where they begin and end now."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._cluster = KafkaCluster(options.client)
        self._committed = options.isolation == "read_committed"

    def close(self) -> None:
        self._cluster.close()

    def partitions(self) -> list[TopicPartition]:
        options = self._options
        if options.assigned:
            return list(options.assigned)
        if options.pattern is not None:
            return self._cluster.partitions(self._cluster.topics(options.pattern))
        return self._cluster.partitions(options.topics)

    def starting(self) -> Positions:
        """``startingOffsets`` as offsets."""
        return self._resolved("starting", self.partitions(), self._options.starting)

    def ending(self) -> Positions:
        """``endingOffsets`` as offsets. Raises DataLoss for one that does not exist."""
        partitions = self.partitions()
        chosen = self._resolved("ending", partitions, self._options.ending)
        if self._options.fail_on_data_loss and isinstance(self._options.ending, dict):
            for each, end in self._cluster.latest(partitions, committed=False).items():
                if chosen[each] > end:
                    raise DataLoss(f"{each} ends at {end}, before the offset {chosen[each]} that was asked for")
        return chosen

    def ends(self, reached: Positions | None = None) -> Positions:
        """``reached``: see ``KafkaCluster.latest``."""
        try:
            return self._cluster.latest(self.partitions(), committed=self._committed, reached=reached)
        except UnknownTopic as error:
            if self._options.fail_on_data_loss:
                raise DataLoss(f"a topic of {', '.join(self._options.topics)} is gone ({error.name})") from error
            return {}

    def with_new(self, begin: Positions, end: Positions) -> Positions:
        """``begin``, with partitions that were added since: those are read from their first record."""
        new = [each for each in end if each not in begin]
        return begin | self._cluster.earliest(new) if new else begin

    def check_not_gone(self, begin: Positions, end: Positions, *, is_live: bool) -> None:
        """Raises DataLoss for a partition that has vanished, or that ends before what was read of it.

        Only a live end can show the latter: one that was fixed earlier may lie before the checkpoint.
        """
        if not self._options.fail_on_data_loss:
            return
        for each, offset in begin.items():
            if each not in end:
                raise DataLoss(f"{each} is gone, which was read up to offset {offset}")
            if is_live and end[each] < offset:
                raise DataLoss(f"{each} ends at {end[each]}, before the offset {offset} that was read")

    def _resolved(self, side: str, partitions: list[TopicPartition], wanted: Position) -> Positions:
        if wanted == "earliest":
            return self._cluster.earliest(partitions)
        if wanted == "latest":
            return self._cluster.latest(partitions, committed=self._committed)
        if isinstance(wanted, Times):
            if isinstance(wanted.ms, int):
                times = dict.fromkeys(partitions, wanted.ms)
            else:
                times = _for_each(partitions, wanted.ms, f"{side}OffsetsByTimestamp", "a time")
            return self._cluster.at_times(times, committed=self._committed)
        assert not isinstance(wanted, str)
        chosen = _for_each(
            partitions, wanted, f"{side}Offsets", "an offset", "\nhint: -2 stands for earliest, -1 for latest"
        )
        earliest = self._cluster.earliest([each for each in partitions if chosen[each] == EARLIEST])
        latest = self._cluster.latest(
            [each for each in partitions if chosen[each] == LATEST], committed=self._committed
        )
        return {each: earliest.get(each, latest.get(each, Offset(chosen[each]))) for each in partitions}


def _for_each(
    partitions: list[TopicPartition], given: Offsets, name: str, what: str, hint: str = ""
) -> dict[TopicPartition, int]:
    chosen = {TopicPartition(topic, index): number for topic in given for index, number in given[topic].items()}
    if set(chosen) != set(partitions):
        raise OptionError(
            f'option "{name}" must have {what} for each of {to_json(dict.fromkeys(partitions, 0))}'
            f", given are {to_json(chosen)}{hint}"
        )
    return chosen


def read_pieces(options: SourceOptions, pieces: Sequence[OffsetRange]) -> Iterator[Any]:
    """Arrow batches of the visible records in the ranges. Raises DataLoss."""
    for piece in pieces:
        yield from _read(options, piece)


def _read(options: SourceOptions, bounds: OffsetRange) -> Iterator[Any]:
    topic_partition, start, end = bounds
    if not options.fail_on_data_loss:
        start, end = _what_is_left(options, bounds)
    wanted = Bounds(start, end)
    builder = RowBuilder(topic_partition, wanted, include_headers=options.include_headers)
    with range_reader(options.client) as reader:
        settle()
        try:
            for batch in reader.read({topic_partition: wanted}):
                builder.add(batch)
                if builder.is_full:
                    yield builder.take()
        except (OffsetOutOfRange, UnknownTopic) as error:
            raise DataLoss(f"offset {start} of {topic_partition} cannot be read ({error.name})") from error
        except RetriableError as error:
            if error.code is not ErrorCode.offset_not_available:
                raise
            raise _cannot_reach(options, topic_partition, end) from error
    if not builder.is_empty:
        yield builder.take()


def _cannot_reach(options: SourceOptions, topic_partition: TopicPartition, end: Offset) -> Exception:
    """Why offsets that existed when they were planned are not given out."""
    cluster = KafkaCluster(options.client)
    try:
        last = cluster.latest([topic_partition], committed=False, reached={topic_partition: end})[topic_partition]
    finally:
        cluster.close()
    if last >= end:
        return StillOpen(
            f"a transaction that began before offset {end} of {topic_partition} is still open: its records are "
            "neither there nor not there\nhint: read up to endingOffsets=latest, which is before it, or raise "
            "kafka.default.api.timeout.ms to wait for its end"
        )
    # They can only have gone with the whole log.
    return DataLoss(f"{topic_partition} ends before the offset {end} that was planned")


def _what_is_left(options: SourceOptions, bounds: OffsetRange) -> tuple[Offset, Offset]:
    cluster = KafkaCluster(options.client)
    try:
        first = cluster.earliest([bounds.topic_partition])[bounds.topic_partition]
        last = cluster.latest(
            [bounds.topic_partition],
            committed=options.isolation == "read_committed",
            reached={bounds.topic_partition: bounds.end},
        )
    finally:
        cluster.close()
    start = max(bounds.start, first)
    return start, Offset(max(start, min(bounds.end, last[bounds.topic_partition])))
