"""The tasks: Arrow batches of records to batches with typed columns, or to dead letters.

Both decode with the same function, so that a row is either good or a dead letter. The only input that could differ
between them is the schema registry, where an id can be registered meanwhile, or get another schema against all rules:
tasks report the ids that they found, and digests of the schemas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow
from pyspark import TaskContext
from pyspark.accumulators import Accumulator

from einmal.options.source import SourceOptions
from einmal.pipeline.dead_letters import (
    KEY_CONVERTER,
    VALUE_CONVERTER,
    RowFailure,
    dead_letter,
    failed_record,
    rows_of,
)
from einmal.schemas.errors import BadRow, OutOfRange, SchemaDrift
from einmal.schemas.record_decoder import ROOT, DecodedRow, RecordDecoder, SeenSchemas
from einmal.schemas.registry import SchemaRegistry
from einmal.schemas.settings import LoadedField
from einmal.sinks.kafka.vectors import present
from einmal.spark.decoding.reports import TaskReport
from einmal.spark.environment.python_worker import settle
from einmal.spark.source.arrow import MILLISECONDS_MAX
from einmal.spark.source.source import Piece, read_piece

TURN: Final = "einmal.decoding.turn"
"""A local property of Spark's jobs: which batch of which run they belong to. Set by the pipeline that writes the dead
letters; without it a row that is dropped would be dropped for good."""
RESCUED: Final = "_rescued_data"
"""The column of unknown fields, named as Databricks' Auto Loader names it."""
LETTER_SCHEMA: Final = (
    "topic string, key binary, value binary, headers array<struct<key:string,value:binary>>, timestamp timestamp_ltz"
)
LETTER: Final = pyarrow.schema(
    [
        ("topic", pyarrow.string()),
        ("key", pyarrow.binary()),
        ("value", pyarrow.binary()),
        ("headers", pyarrow.list_(pyarrow.struct([("key", pyarrow.string()), ("value", pyarrow.binary())]))),
        ("timestamp", pyarrow.timestamp("us", tz="UTC")),
    ]
)
_KEPT_MAX: Final = 32
_STAGES: Final = {"key": KEY_CONVERTER, "value": VALUE_CONVERTER}


class BadRecord(Exception):
    """``errors.tolerance=none``: a record cannot be decoded. Another attempt would fail, too."""


class NoDeadLetters(Exception):
    """Rows would be dropped, because nothing writes their dead letters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoding:
    """Settings with which a task decodes. ``columns``: Arrow types of the decoded fields; ``topic``: of the dead
    letters."""

    source: str
    fields: Mapping[str, LoadedField]
    columns: Mapping[str, Any]
    contract: str
    registry: SchemaRegistry | None
    rescues: bool
    tolerates: bool
    topic: str | None
    context_headers: bool


class Bad(NamedTuple):
    row: int
    field: str
    error: BadRow


class DecodedRows(NamedTuple):
    """``good``: indexes of rows; ``columns``: of these, by name."""

    good: list[int]
    columns: dict[str, Any]
    bad: list[Bad]


@lru_cache(maxsize=_KEPT_MAX)
def _decoders(
    fields: tuple[tuple[str, LoadedField], ...], contract: str, registry: tuple[tuple[str, str], ...] | None
) -> Mapping[str, RecordDecoder]:
    """Kept by a worker from task to task, with the schemas that they have fetched."""
    client = None if registry is None else SchemaRegistry(dict(registry))
    return {
        field: RecordDecoder(loaded, contract, client, root=ROOT if field == "value" or len(fields) == 1 else field)
        for field, loaded in fields
    }


class RowCodec:
    """A ``Decoding`` at work in one task."""

    def __init__(self, decoding: Decoding) -> None:
        self._decoding = decoding
        self.seen = SeenSchemas()
        registry = None if decoding.registry is None else tuple(sorted(decoding.registry.settings.items()))
        self._decoders = _decoders(tuple(sorted(decoding.fields.items())), decoding.contract, registry)

    def executing(self, field: str) -> str:
        """The class that decodes a field of the record."""
        return self._decoders[field].class_name

    def decode(self, rows: Any) -> DecodedRows:
        """Raises SchemaDrift, with the first record that has it, and RegistryUnavailable."""
        raw = {field: rows.column(field).to_pylist() for field in self._decoders}
        undated = self._undated(rows)
        good: list[int] = []
        bad: list[Bad] = []
        decoded: dict[str, list[DecodedRow]] = {field: [] for field in self._decoders}
        for index in range(rows.num_rows):
            field = next(iter(self._decoders))
            try:
                if index in undated:
                    raise OutOfRange(f"the record's timestamp is beyond {MILLISECONDS_MAX} ms, the last one of Spark")
                row = {}
                for field, decoder in self._decoders.items():
                    row[field] = decoder.decode(raw[field][index], self.seen)
            except BadRow as error:
                bad.append(Bad(index, field, error))
                continue
            except SchemaDrift as error:
                raise SchemaDrift(f"{_position(rows, index)}: {error}") from error
            good.append(index)
            for field, value in row.items():
                decoded[field].append(value)
        return self._columns(good, decoded, bad)

    def _undated(self, rows: Any) -> frozenset[int]:
        """Rows whose timestamp is none of Spark's."""
        if not self._decoding.tolerates or not rows.column("timestamp").null_count:
            return frozenset()
        return frozenset(np.flatnonzero(~present(rows.column("timestamp"))).tolist())

    def _columns(self, good: list[int], decoded: dict[str, list[DecodedRow]], bad: list[Bad]) -> DecodedRows:
        try:
            return DecodedRows(good, self._arrays(decoded), bad)
        except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, OverflowError, ValueError):
            # A value that Arrow refuses: which one is found out row by row.
            refused = {at: field for field, rows in decoded.items() for at in self._refused(field, rows)}
        bad = [
            *bad,
            *(Bad(good[at], field, OutOfRange("a value that its column cannot hold")) for at, field in refused.items()),
        ]
        kept = [at for at in range(len(good)) if at not in refused]
        rest = {field: [rows[at] for at in kept] for field, rows in decoded.items()}
        return DecodedRows([good[at] for at in kept], self._arrays(rest), sorted(bad))

    def _refused(self, field: str, rows: Sequence[DecodedRow]) -> Iterator[int]:
        for at, row in enumerate(rows):
            try:
                pyarrow.array([row.value], self._decoding.columns[field])
            except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, OverflowError, ValueError):
                yield at

    def _arrays(self, decoded: Mapping[str, list[DecodedRow]]) -> dict[str, Any]:
        arrays = {
            field: pyarrow.array([row.value for row in rows], self._decoding.columns[field])
            for field, rows in decoded.items()
        }
        if self._decoding.rescues:
            texts = zip(*([row.rescued for row in rows] for rows in decoded.values()), strict=True)
            arrays[RESCUED] = pyarrow.array(map(_joined, texts), pyarrow.string())
        return arrays


def _joined(texts: Iterable[str | None]) -> str | None:
    """One JSON object of those of the key and the value, whose paths differ."""
    members = [text[1:-1] for text in texts if text is not None]
    return "{" + ",".join(members) + "}" if members else None


# --- good rows --------------------------------------------------------------------------------------------------


def good_rows(decoding: Decoding, reports: Accumulator[Any]) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function for ``mapInArrow``: records in, the rows that can be decoded out."""

    def decode(batches: Iterator[Any]) -> Iterator[Any]:
        codec = RowCodec(decoding)
        turn = _turn()
        settle()
        for batch in batches:
            decoded = codec.decode(batch)
            if decoded.bad:
                _require_letters(decoding, batch, decoded.bad[0], turn)
            rows = batch.take(pyarrow.array(decoded.good, pyarrow.int64())) if decoded.bad else batch
            columns = {name: rows.column(name) for name in rows.schema.names} | decoded.columns
            yield pyarrow.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
        if turn is not None:
            reports.add({_report(turn, decoding, codec.seen, None): None})

    return decode


def _require_letters(decoding: Decoding, batch: Any, bad: Bad, turn: str | None) -> None:
    """Raises BadRecord, NoDeadLetters."""
    where = f"{_position(batch, bad.row)}: {_STAGES[bad.field]}: {type(bad.error).__name__}: {bad.error}"
    if not decoding.tolerates:
        raise BadRecord(
            f"{where}\nhint: correct the declared schema, or set errors.tolerance=all and "
            "errors.deadletterqueue.topic.name"
        )
    if turn is None:
        raise NoDeadLetters(
            f"{where}, and nothing writes its dead letter\nhint: write the query with einmal.spark.write_stream"
        )


def _position(batch: Any, index: int) -> str:
    topic, partition, offset = (batch.column(name)[index].as_py() for name in ("topic", "partition", "offset"))
    return f"{topic}-{partition} offset {offset}"


# --- dead letters -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LetterTasks:
    """Input of the tasks of one batch, a piece each."""

    options: SourceOptions
    pieces: tuple[Piece, ...]
    batch: int
    turn: str


def letters(
    decoding: Decoding, tasks: LetterTasks, reports: Accumulator[Any]
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function for ``mapInArrow``: numbers of pieces in, the dead letters of their records out."""
    options = replace(tasks.options, include_headers=True, undated=True)

    def read(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from _letters(decoding, options, tasks, number, reports)

    return read


def _letters(
    decoding: Decoding, options: SourceOptions, tasks: LetterTasks, number: int, reports: Accumulator[Any]
) -> Iterator[Any]:
    codec = RowCodec(decoding)
    counts: Counter[tuple[str, str]] = Counter()
    records = 0
    for batch in read_piece(options, tasks.pieces[number]):
        records += batch.num_rows
        bad = codec.decode(batch).bad
        if bad:
            rows = rows_of(batch.take(pyarrow.array([bad_row.row for bad_row in bad], pyarrow.int64())))
            made = [_letter(decoding, codec, row, bad_row, tasks.batch) for row, bad_row in zip(rows, bad, strict=True)]
            counts.update((_STAGES[bad_row.field], type(bad_row.error).__name__) for bad_row in bad)
            yield pyarrow.RecordBatch.from_pylist(made, schema=LETTER)
    report = _report(tasks.turn, decoding, codec.seen, number)
    reports.add({replace(report, records=records, counts=tuple(sorted(counts.items()))): None})


def _letter(decoding: Decoding, codec: RowCodec, row: Mapping[str, Any], bad: Bad, batch: int) -> dict[str, Any]:
    context = TaskContext.get()
    failure = RowFailure(
        source=decoding.source,
        batch=batch,
        stage=_STAGES[bad.field],
        exception=bad.error.class_name,
        message=str(bad.error),
        executing=codec.executing(bad.field),
        task=context.partitionId() if context is not None else 0,
    )
    assert decoding.topic is not None
    return dead_letter(failed_record(row), failure, decoding.topic, context_headers=decoding.context_headers)


def _turn() -> str | None:
    context = TaskContext.get()
    return None if context is None else context.getLocalProperty(TURN)


def _report(turn: str, decoding: Decoding, seen: SeenSchemas, piece: int | None) -> TaskReport:
    return TaskReport(
        turn,
        decoding.source,
        piece,
        known=frozenset(seen.known),
        unknown=frozenset(seen.unknown),
        digests=frozenset(seen.digests),
        drift=frozenset(seen.drift),
    )
