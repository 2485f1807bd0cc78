"""The dead letters of rows that sinks have rejected: tasks read their records again.

A sink knows a rejected row by the position of the record that it was made of. A position is only believed where one
of the query's sources has it: of any other record nothing is read. Where the record is gone, by retention or
compaction, the dead letter has its context headers, and neither key nor value.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from einmal.commit_protocol.source_offsets import PlannedRange, SourcePosition, packed
from einmal.event_log import EventLog
from einmal.options.source import SourceOptions
from einmal.pipeline import events
from einmal.pipeline.dead_letters import (
    TASK_PUT,
    FailedRecord,
    RejectedRow,
    RowFailure,
    dead_letter,
    failed_record,
    rows_of,
)
from einmal.schemas.settings import ErrorSettings
from einmal.spark.sinks.kafka.sink import KafkaFrameSink
from einmal.types import Offset, TopicPartition

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from einmal.spark.source.source import Piece

_NEAR: Final = 1_000
"""Records of a partition that are no further apart than this are read together."""
_SHARED_MAX: Final = 1_000
"""See ``source``: offsets that one task reads, and rows without a record that one task makes letters of."""
_logger = EventLog(__name__)

Position = tuple[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class RejectingSink:
    """A sink whose rejected rows are tolerated. ``name``: of its commit record; ``executing``: the class of its
    sink."""

    name: str
    errors: ErrorSettings
    executing: str


@dataclass(frozen=True, slots=True)
class _Letter:
    """A dead letter but for its record."""

    sink: RejectingSink
    row: RejectedRow

    @property
    def position(self) -> Position:
        return TopicPartition(self.row.topic, self.row.partition), self.row.offset


@dataclass(frozen=True, slots=True)
class _Task:
    """``piece`` None: there is nothing to read. ``letters``: of the records in its ranges."""

    piece: Piece | None
    options: SourceOptions | None
    letters: tuple[_Letter, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedLetters:
    """Dead letters of one query. ``sink``: the source's cluster; ``name``: of the commit record there;
    ``sources``: those of the query that are ours, by their number among its positions; ``sinks``: by their number among
    its parts."""

    sink: KafkaFrameSink
    name: str
    sources: Mapping[int, SourceOptions]
    sinks: Mapping[int, RejectingSink]

    @property
    def topics(self) -> list[str]:
        return list(dict.fromkeys(str(sink.errors.topic) for sink in self.sinks.values()))

    def frame(
        self, spark: SparkSession, batch_id: int, end: tuple[Any, ...], rejected: Mapping[int, Sequence[RejectedRow]]
    ) -> DataFrame:
        """The dead letters of a batch that ends there. ``rejected``: by the number of the sink."""
        from einmal.spark.decoding.rows import LETTER_SCHEMA

        tasks = self._tasks(end, self._rejected(rejected))
        if not tasks:
            return spark.createDataFrame([], LETTER_SCHEMA)
        return spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(_makes(tasks, batch_id), LETTER_SCHEMA)

    def written(self, batch_id: int, rejected: Mapping[int, Sequence[RejectedRow]]) -> Iterator[events.Event]:
        """Yield what is reported once they are committed."""
        for number, rows in rejected.items():
            if not rows:
                continue
            sink, topic = self.sinks[number], str(self.sinks[number].errors.topic)
            counts = Counter((TASK_PUT, row.exception.rpartition(".")[2]) for row in rows)
            in_words = ", ".join(f"{count:,} {reason}" for (_, reason), count in sorted(counts.items()))
            _logger.warning(
                "rows_rejected", "%(sink)s: %(counts)s to %(topic)s", sink=sink.name, counts=in_words, topic=topic
            )
            yield events.DeadLettersWritten(batch_id, sink.name, topic, dict(counts))

    def _rejected(self, rejected: Mapping[int, Sequence[RejectedRow]]) -> list[_Letter]:
        return [_Letter(self.sinks[number], row) for number, rows in rejected.items() for row in rows]

    def _tasks(self, end: tuple[Any, ...], letters: Sequence[_Letter]) -> list[_Task]:
        from einmal.spark.source.source import Piece

        ends = {number: SourcePosition.from_json(end[number]) for number in self.sources}
        by_source: dict[int, list[_Letter]] = {}
        unknown: list[_Letter] = []
        for letter in letters:
            topic_partition, offset = letter.position
            known = (
                number
                for number, position in ends.items()
                if 0 <= offset < position.offsets.get(topic_partition, Offset(0))
            )
            number = next(known, None)
            (unknown if number is None else by_source.setdefault(number, [])).append(letter)
        tasks = [
            _Task(None, None, tuple(unknown[first : first + _SHARED_MAX]))
            for first in range(0, len(unknown), _SHARED_MAX)
        ]
        for number, some in by_source.items():
            # A record that is gone is no error: its letter has headers alone.
            options = replace(self.sources[number], include_headers=True, fail_on_data_loss=False)
            some.sort(key=lambda letter: letter.position)
            first = 0
            for ranges in packed(_near([letter.position for letter in some]), _SHARED_MAX):
                # Ranges and letters are in one order, and no letter is outside of all ranges.
                behind = (ranges[-1].topic_partition, int(ranges[-1].end))
                last = bisect_left(some, behind, lo=first, key=lambda letter: letter.position)
                tasks.append(_Task(Piece(ranges, ends[number].topic_ids), options, tuple(some[first:last])))
                first = last
        return tasks


def _near(positions: Sequence[Position]) -> list[PlannedRange]:
    """Ranges with all of the sorted positions."""
    ranges: list[PlannedRange] = []
    for topic_partition, offset in positions:
        last = ranges[-1] if ranges else None
        if last is not None and last.topic_partition == topic_partition and offset - last.end < _NEAR:
            ranges[-1] = PlannedRange(topic_partition, last.start, Offset(max(last.end, offset + 1)))
        else:
            ranges.append(PlannedRange(topic_partition, Offset(offset), Offset(offset + 1)))
    return ranges


# --- in a task ----------------------------------------------------------------------------------------------------


def _makes(tasks: Sequence[_Task], batch_id: int) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function for ``mapInArrow``: numbers of tasks in, their dead letters out."""

    def make(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from _made(tasks[number], number, batch_id)

    return make


def _made(task: _Task, number: int, batch_id: int) -> Iterator[Any]:
    import pyarrow

    from einmal.spark.decoding.rows import LETTER

    wanted: dict[Position, list[_Letter]] = {}
    for letter in task.letters:
        wanted.setdefault(letter.position, []).append(letter)
    for rows in _read(task):
        offsets = rows.column("offset").to_pylist()
        topic, partition = (rows.column(name)[0].as_py() for name in ("topic", "partition"))
        topic_partition = TopicPartition(topic, partition)
        here = [index for index, offset in enumerate(offsets) if (topic_partition, offset) in wanted]
        if not here:
            continue
        made = []
        for row in rows_of(rows.take(pyarrow.array(here, pyarrow.int64()))):
            record = failed_record(row)
            made += [
                _letter(letter, record, number, batch_id) for letter in wanted.pop((topic_partition, row["offset"]))
            ]
        yield pyarrow.RecordBatch.from_pylist(made, schema=LETTER)
    if wanted:
        yield pyarrow.RecordBatch.from_pylist(list(_without_record(wanted, number, batch_id)), schema=LETTER)


def _read(task: _Task) -> Iterator[Any]:
    from einmal.spark.environment.python_worker import settle
    from einmal.spark.source.source import read_piece

    settle()
    if task.piece is not None and task.options is not None:
        yield from (rows for rows in read_piece(task.options, task.piece) if rows.num_rows)


def _without_record(
    wanted: Mapping[Position, Sequence[_Letter]], number: int, batch_id: int
) -> Iterator[dict[str, Any]]:
    for (topic_partition, offset), letters in wanted.items():
        gone = "%(partition)s offset %(offset)d is gone: its dead letter has neither key nor value"
        _logger.warning("rejected_record_gone", gone, partition=topic_partition, offset=offset)
        record = FailedRecord(
            topic=topic_partition.topic, partition=topic_partition.partition, offset=offset, key=None, value=None
        )
        yield from (_letter(letter, record, number, batch_id) for letter in letters)


def _letter(letter: _Letter, record: FailedRecord, number: int, batch_id: int) -> dict[str, Any]:
    failure = RowFailure(
        source=letter.sink.name,
        batch=batch_id,
        stage=TASK_PUT,
        exception=letter.row.exception,
        message=letter.row.message,
        executing=letter.sink.executing,
        task=number,
    )
    errors = letter.sink.errors
    return dead_letter(record, failure, str(errors.topic), context_headers=errors.context_headers)
