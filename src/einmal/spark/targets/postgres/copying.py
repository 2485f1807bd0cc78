"""The Spark job that stages a batch: every task sends its rows by COPY, in a transaction of its own.

Rows go as PostgreSQL's text format, a column at a time: what Arrow casts and joins without a Python object per value.
Not as CSV: before PostgreSQL 18 a line of a value that is only ``\\.`` ends the data there, even in quotes. Not as
binary: there a value has to have exactly the column's type, and a decimal no cheap form.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import psycopg
import pyarrow
import pyarrow.compute as pc
from google_crc32c import extend as crc32c_extend
from psycopg import sql
from pyspark import TaskContext
from pyspark.sql import DataFrame, functions
from pyspark.sql.types import StructType

from einmal.pipeline.claims import Output
from einmal.spark.environment.python_worker import settle
from einmal.spark.output.routing import RowRefused
from einmal.spark.targets.postgres.mapping import is_json
from einmal.spark.targets.postgres.names import application_name
from einmal.spark.targets.postgres.options import Connecting
from einmal.spark.targets.postgres.refusals import is_of_rows, reason
from einmal.spark.targets.postgres.session import begin, open_connection
from einmal.spark.targets.postgres.staging import ATTEMPT_SETTING, Staged

_PIECE_BYTES: Final = 4 * 1024 * 1024
"""Rows are sent in pieces of about so many bytes: what a task holds at a time."""
_CONNECT_S: Final = 20.0
_JSON: Final = {
    "ignoreNullFields": "false",
    # Spark's default has milliseconds.
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
_COPIED: Final = StructType().add("partition", "integer").add("attempt", "long").add("count", "long").add("crc", "long")
_NULL: Final = "\\N"


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
    """The input of every task: ``statement`` is COPY, ``titles`` the frame's columns by those of the staging table."""

    connecting: Connecting
    session_name: str
    statement: str
    titles: dict[str, str]


def copy_rows(frame: DataFrame, staged: Staged, connecting: Connecting, pipeline: str, epoch: int) -> list[Copied]:
    """What the attempts that Spark counts have staged. Raises what Spark raises when a task fails."""
    columns = sql.SQL(", ").join(sql.Identifier(each.name) for each in staged.columns)
    task = _CopyTask(
        connecting=connecting,
        session_name=application_name(staged.schema, pipeline, epoch),
        statement=sql.SQL("COPY {} ({}) FROM STDIN").format(staged.id, columns).as_string(),
        titles=staged.titles,
    )
    rows = frame.select(*(_prepared(frame, each.source) for each in staged.columns))
    return [Copied(**row.asDict()) for row in rows.mapInArrow(_copies(task), _COPIED).collect()]


def _prepared(frame: DataFrame, name: str) -> Any:
    column = frame["`" + name.replace("`", "``") + "`"]
    return functions.to_json(column, _JSON) if is_json(frame.schema[name].dataType) else column


def _copies(task: _CopyTask) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """The function for ``mapInArrow``: rows in; one row of _COPIED out, none where there were no rows."""

    def copy(batches: Iterator[Any]) -> Iterator[Any]:
        context = TaskContext.get()
        assert context is not None
        settle()
        copied = _copy(task, context.partitionId(), context.taskAttemptId(), batches)
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
                    data = copy_text(rows)
                    if b"\x00" in data:
                        raise RowRefused(_nul(rows))
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


def _nul(rows: Any) -> str:
    columns = zip(rows.schema.names, rows.columns, strict=True)
    found = next((name for name, column in columns if b"\x00" in _data(_text(column).fill_null(""))), "?")
    return f'column "{found}" has the character NUL (0x00), which text in PostgreSQL cannot have'


def _pieces(batches: Iterator[Any]) -> Iterator[Any]:
    """Of bounded size: a session may be set to send all rows of a task at once."""
    for batch in batches:
        if not batch.num_rows:
            continue
        rows = max(1, batch.num_rows * _PIECE_BYTES // max(batch.nbytes, 1))
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)


# --- COPY's text format -----------------------------------------------------------------------------------------


def copy_text(rows: Any) -> bytes:
    """The rows of an Arrow batch as COPY reads them: a tab between values, a line feed after each row."""
    columns = [_text(column) for column in rows.columns]
    # The line feed is part of the last value: so the joined values are the whole text.
    columns[-1] = pc.binary_join_element_wise(columns[-1].fill_null(_NULL), "", "\n")
    joined = columns[0]
    if len(columns) > 1:
        joined = pc.binary_join_element_wise(*columns, "\t", null_handling="replace", null_replacement=_NULL)
    return _data(joined)


def _data(array: Any) -> bytes:
    _, offsets, data = array.buffers()
    if data is None:
        return b""
    bounds = memoryview(offsets).cast("i")
    return bytes(memoryview(data)[bounds[array.offset] : bounds[array.offset + len(array)]])


def _text(column: Any) -> Any:
    """A column as strings, escaped; null stays null."""
    kind = column.type
    if pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind):
        return _escaped(_arrays(column))
    values = _values(column)
    return _escaped(values) if _has_any_text(kind) else values


def _has_any_text(kind: Any) -> bool:
    """Whether values may contain what has to be escaped; numbers and times do not."""
    types = pyarrow.types
    return bool(
        types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind) or types.is_large_binary(kind)
    )


def _values(column: Any) -> Any:
    kind = column.type
    if pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind):
        return _hex(column.cast(pyarrow.binary()))
    if pyarrow.types.is_timestamp(kind) and kind.tz is not None:
        # Arrow formats a time with a zone thirty times slower; the task's session has UTC.
        column = column.cast(pyarrow.int64()).cast(pyarrow.timestamp(kind.unit))
    return column.cast(pyarrow.string())


def _hex(column: Any) -> Any:
    """``\\x`` and hexadecimal digits: the digits of all values at once. Of a slice only its own, whose bounds have 32
    bits."""
    if not len(column):
        return pyarrow.array([], pyarrow.string())
    _, offsets, data = column.buffers()
    bounds = pyarrow.Array.from_buffers(pyarrow.int32(), len(column) + 1, [None, offsets], offset=column.offset)
    first, last = bounds[0].as_py(), bounds[-1].as_py()
    digits = bytes(memoryview(data or b"")[first:last]).hex().encode()
    doubled = pc.multiply_checked(pc.subtract(bounds, bounds[0]), pyarrow.scalar(2, pyarrow.int32()))
    plain = pyarrow.Array.from_buffers(
        pyarrow.string(), len(column), [None, doubled.buffers()[1], pyarrow.py_buffer(digits)]
    )
    joined = pc.binary_join_element_wise("\\x", plain, "")
    return pc.if_else(column.is_valid(), joined, pyarrow.scalar(None, pyarrow.string()))


def _arrays(column: Any) -> Any:
    """PostgreSQL's literal of an array: ``{"a",NULL,"b"}``."""
    column = column.cast(pyarrow.list_(column.type.value_type))
    flat = _values(column.flatten())
    for special in ("\\", '"'):
        flat = pc.replace_substring(flat, special, "\\" + special)
    flat = pc.binary_join_element_wise('"', flat, '"', "").fill_null("NULL")
    # ``flatten`` has dropped what null arrays may contain.
    lengths = pc.list_value_length(column).fill_null(0)
    bounds = pyarrow.concat_arrays([pyarrow.array([0], pyarrow.int32()), pc.cumulative_sum(lengths)])
    joined = pc.binary_join(pyarrow.ListArray.from_arrays(bounds, flat), ",")
    literal = pc.binary_join_element_wise("{", joined, "}", "")
    return pc.if_else(column.is_valid(), literal, pyarrow.scalar(None, pyarrow.string()))


_ESCAPES: Final[Sequence[tuple[str, str]]] = (("\\", "\\\\"), ("\t", "\\t"), ("\n", "\\n"), ("\r", "\\r"))


def _escaped(column: Any) -> Any:
    data = _data(column)
    for character, escape in _ESCAPES:
        # Most columns have none of these characters. A backslash comes first: the others' escapes have one.
        if character.encode() in data:
            column = pc.replace_substring(column, character, escape)
    return column
