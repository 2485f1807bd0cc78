"""The tasks that stage a batch: each sends its rows by COPY, in a transaction of its own.

Rows go as PostgreSQL's text format, a column at a time: what Arrow casts and joins without a Python object per value.
Not as CSV: before PostgreSQL 18 a line of a value that is only ``\\.`` ends the data there, even in quotes. Not as
binary: there a value has to have exactly the column's type, and a decimal no cheap form.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import psycopg
from google_crc32c import extend as crc32c_extend
from psycopg import sql

from einmal.postgresql.errors import is_of_rows, reason
from einmal.postgresql.options import Connecting
from einmal.postgresql.session import open_connection
from einmal.sinks.batch_rows import BatchRows, PartReport, RowRefused, Selected, TaskAttempt
from einmal.sinks.postgres.copy_text import copy_text, data_of, text_of
from einmal.sinks.postgres.mapping import is_json
from einmal.sinks.postgres.names import application_name
from einmal.sinks.postgres.session import begin
from einmal.sinks.postgres.staging import ATTEMPT_SETTING, Staged, StagingColumn
from einmal.sinks.postgres.uncopied import tolerant_text
from einmal.sinks.rejections import RECORD, RECORD_FIELDS
from einmal.sinks.text import NotText, check_text

_PIECE_BYTES: Final = 4 * 1024 * 1024
"""Rows are sent in pieces of about so many bytes: what a task holds at a time."""
_RECORD: Final = {f"record_{name}": name for name in RECORD_FIELDS}
"""Fields of the record, by their columns in the staging table."""
_CONNECT_S: Final = 20.0


class StagingFailed(Exception):
    """A task could not write its rows; the server's fault, not theirs."""


@dataclass(frozen=True, slots=True)
class _CopyTask:
    """The input of every task: ``statement`` is COPY, ``titles`` the rows' columns by those of the staging table.
    ``tolerates``: a row that COPY cannot take is staged as a refusal."""

    connecting: Connecting
    session_name: str
    statement: str
    titles: dict[str, str]
    tolerates: bool


def copy_rows(rows: BatchRows, staged: Staged, connecting: Connecting, pipeline: str, epoch: int) -> list[PartReport]:
    """Copy the rows, and return the reports of the attempts that count. Raises what the tasks raise."""
    columns = sql.SQL(", ").join(map(sql.Identifier, staged.copied))
    task = _CopyTask(
        connecting=connecting,
        session_name=application_name(staged.schema, pipeline, epoch),
        statement=sql.SQL("COPY {} ({}) FROM STDIN").format(staged.id, columns).as_string(),
        titles=staged.titles,
        tolerates=staged.tolerates,
    )
    types = {field.name: field.type for field in rows.schema}

    def selected(column: StagingColumn) -> Selected:
        if column.name in _RECORD:
            # A field of the record is a column of the staging table.
            return Selected(column.source, RECORD, _RECORD[column.name])
        return Selected(column.source, column.source, as_json=is_json(types[column.source]))

    return rows.select([selected(column) for column in staged.columns]).write(partial(_copy, task))


def _copy(task: _CopyTask, attempt: TaskAttempt, batches: Iterator[Any]) -> PartReport | None:
    count, crc = 0, 0
    pieces = _pieces(batches)
    first = next(pieces, None)
    if first is None:
        return None
    # The error of a row is raised without its cause, whose text has values.
    failure: Exception | None = None
    with contextlib.ExitStack() as stack:
        rows = first
        try:
            connection = stack.enter_context(
                contextlib.closing(open_connection(task.connecting.conninfo, patience_s=_CONNECT_S))
            )
            begin(
                connection,
                task.connecting,
                task.session_name,
                **{ATTEMPT_SETTING: str(attempt.attempt), "TimeZone": "UTC"},
            )
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
    return PartReport(*attempt, count, 0, crc)


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
    name = next((name for name, column in columns if b"\x00" in data_of(text_of(column).fill_null(""))), "?")
    return f'column "{name}" has the character NUL (0x00), which text in PostgreSQL cannot have'


def _pieces(batches: Iterator[Any]) -> Iterator[Any]:
    """Yield pieces of bounded size: a session may be set to send all rows of a task at once."""
    for batch in batches:
        if not batch.num_rows:
            continue
        rows = max(1, batch.num_rows * _PIECE_BYTES // max(batch.nbytes, 1))
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)
