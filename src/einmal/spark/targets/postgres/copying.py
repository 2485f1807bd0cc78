"""The Spark job that stages a batch: every task sends its rows by COPY, in a transaction of its own.

Rows go as PostgreSQL's text format, a column at a time: what Arrow casts and joins without a Python object per value.
Not as CSV: before PostgreSQL 18 a line of a value that is only ``\\.`` ends the data there, even in quotes. Not as
binary: there a value has to have exactly the column's type, and a decimal no cheap form.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import psycopg
import pyarrow
from google_crc32c import extend as crc32c_extend
from psycopg import sql
from pyspark import TaskContext
from pyspark.sql import DataFrame, functions
from pyspark.sql.types import StructType

from einmal.pipeline.claims import Output
from einmal.sinks.postgres.names import application_name
from einmal.sinks.postgres.options import Connecting
from einmal.sinks.postgres.refusals import is_of_rows, reason
from einmal.sinks.postgres.session import begin, open_connection
from einmal.spark.environment.python_worker import settle
from einmal.spark.output.routing import RowRefused
from einmal.spark.targets.numbered import named, numbered
from einmal.spark.targets.postgres.copy_text import copy_text, data_of, text_of
from einmal.spark.targets.postgres.mapping import is_json
from einmal.spark.targets.postgres.staging import ATTEMPT_SETTING, Staged, StagingColumn
from einmal.spark.targets.postgres.uncopied import tolerant_text
from einmal.spark.targets.rejections import RECORD, RECORD_FIELDS
from einmal.spark.text import NotText, check_text

_PIECE_BYTES: Final = 4 * 1024 * 1024
"""Rows are sent in pieces of about so many bytes: what a task holds at a time."""
_RECORD: Final = {f"record_{name}": name for name in RECORD_FIELDS}
"""Fields of the record, by their columns in the staging table."""
_CONNECT_S: Final = 20.0
_JSON: Final = {
    "ignoreNullFields": "false",
    # Spark's default has milliseconds.
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
_COPIED: Final = StructType().add("partition", "integer").add("attempt", "long").add("count", "long").add("crc", "long")


class StagingFailed(Exception):
    """A task could not write its rows; the server's fault, not theirs."""


@dataclass(frozen=True, slots=True)
class Copied:
    """What one task attempt has committed to the staging table. ``crc``: CRC-32C of the rows in COPY's format."""

    partition: int
    attempt: int
    count: int
    crc: int

    def output(self, table: str) -> Output:
        return Output(table, self.partition, 0, self.count - 1, self.count, self.crc)


@dataclass(frozen=True, slots=True)
class _CopyTask:
    """The input of every task: ``statement`` is COPY, ``titles`` the frame's columns by those of the staging table,
    ``sources`` the same in order. ``tolerates``: a row that COPY cannot take is staged as a refusal."""

    connecting: Connecting
    session_name: str
    statement: str
    titles: dict[str, str]
    sources: tuple[str, ...]
    tolerates: bool


def copy_rows(frame: DataFrame, staged: Staged, connecting: Connecting, pipeline: str, epoch: int) -> list[Copied]:
    """What the attempts that Spark counts have staged. Raises what Spark raises when a task fails."""
    columns = sql.SQL(", ").join(map(sql.Identifier, staged.copied))
    task = _CopyTask(
        connecting=connecting,
        session_name=application_name(staged.schema, pipeline, epoch),
        statement=sql.SQL("COPY {} ({}) FROM STDIN").format(staged.id, columns).as_string(),
        titles=staged.titles,
        sources=tuple(each.source for each in staged.columns),
        tolerates=staged.tolerates,
    )
    places = {name: number for number, name in enumerate(frame.schema.names)}
    plain = numbered(frame)

    def column(each: StagingColumn) -> Any:
        if each.name in _RECORD:
            # A field of the record is a column of the staging table.
            return plain[f"c{places[RECORD]}"][_RECORD[each.name]]
        found = plain[f"c{places[each.source]}"]
        return functions.to_json(found, _JSON) if is_json(frame.schema[each.source].dataType) else found

    rows = plain.select(*(column(each).alias(f"c{number}") for number, each in enumerate(staged.columns)))
    return [Copied(**row.asDict()) for row in rows.mapInArrow(_copies(task), _COPIED).collect()]


def _copies(task: _CopyTask) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function for ``mapInArrow``: rows in; one row of _COPIED out, none where there were no rows."""

    def copy(batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        settle()
        copied = _copy(task, context.partitionId(), context.taskAttemptId(), named(batches, task.sources))
        if copied.count:
            values = (copied.partition, copied.attempt, copied.count, copied.crc)
            kinds = (pyarrow.int32(), pyarrow.int64(), pyarrow.int64(), pyarrow.int64())
            yield pyarrow.RecordBatch.from_arrays(
                [pyarrow.array([value], kind) for value, kind in zip(values, kinds, strict=True)], names=_COPIED.names
            )

    return copy


def _copy(task: _CopyTask, partition: int, attempt: int, batches: Iterator[Any]) -> Copied:
    count, crc = 0, 0
    pieces = _pieces(batches)
    first = next(pieces, None)
    if first is None:
        return Copied(partition, attempt, 0, 0)
    # The error of a row is raised without its cause, whose text has values.
    failure: Exception | None = None
    with contextlib.ExitStack() as stack:
        rows = first
        try:
            connection = stack.enter_context(
                contextlib.closing(open_connection(task.connecting, patience_s=_CONNECT_S))
            )
            begin(connection, task.connecting, task.session_name, **{ATTEMPT_SETTING: str(attempt), "TimeZone": "UTC"})
            cursor = stack.enter_context(connection.cursor())
            with cursor.copy(task.statement) as copy:
                while rows is not None:
                    data = tolerant_text(rows) if task.tolerates else _strict_text(rows)
                    copy.write(data)
                    crc = crc32c_extend(crc, data)
                    count += rows.num_rows
                    rows = next(pieces, None)
            if cursor.rowcount != count:
                raise StagingFailed(f"sent {count:,} rows, the server took {cursor.rowcount:,}")
            answer = connection.execute("COMMIT").statusmessage
            if answer != "COMMIT":
                raise StagingFailed(f"the server answered COMMIT with {answer}")
        except psycopg.Error as error:
            failure = _failure(error, task)
    if failure is not None:
        raise failure
    return Copied(partition, attempt, count, crc)


def _failure(error: psycopg.Error, task: _CopyTask) -> Exception:
    return (RowRefused if is_of_rows(error) else StagingFailed)(reason(error, task.titles))


def _strict_text(rows: Any) -> bytes:
    data = copy_text(rows)
    if b"\x00" in data:
        raise RowRefused(_nul(rows))
    try:
        check_text(rows)
    except NotText as error:
        # The server would show the bytes.
        raise RowRefused(str(error)) from None
    return data


def _nul(rows: Any) -> str:
    columns = zip(rows.schema.names, rows.columns, strict=True)
    found = next((name for name, column in columns if b"\x00" in data_of(text_of(column).fill_null(""))), "?")
    return f'column "{found}" has the character NUL (0x00), which text in PostgreSQL cannot have'


def _pieces(batches: Iterator[Any]) -> Iterator[Any]:
    """Of bounded size: a session may be set to send all rows of a task at once."""
    for batch in batches:
        if not batch.num_rows:
            continue
        rows = max(1, batch.num_rows * _PIECE_BYTES // max(batch.nbytes, 1))
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)
