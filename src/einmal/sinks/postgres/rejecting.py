"""Staged rows into a table that rejects some of them: these are found, and all others are put there.

Everything happens in the driver's transaction, under savepoints. A batch without a rejected row costs one savepoint
more than a batch that may not have any, and a copy of the rows where the table's types are narrower than Spark's:

    refused     rows that no COPY could take: a character NUL, a date before year 1
    converted   from the types of the frame to those of the table, where they differ: too long, not a uuid, not JSON
    unusable    rows without a key; in SCD type 2 without a time, and late ones
    put         as without rejections; deferred constraints are checked, too

Where one of the last steps fails, its rows are numbered in the order of their records, and halved (``rejections``),
few rows inside the server (``narrowing``).
A number stands for what is rejected together: a row, in SCD type 2 all rows of a key, whose versions are one history.
Of several rows of a key an upsert has the last one, which is the one that can be rejected.

After the first success in a transaction that has failed before, ``SET CONSTRAINTS`` makes deferred constraints
immediate for the rows that follow: a constraint that is broken between two statements of SCD type 2 can then reject
rows beside the one that is at fault.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import psycopg
from psycopg import sql

from einmal.postgresql import sqlstates
from einmal.postgresql.errors import cause, condition, is_raised, reason, rejects_row
from einmal.sinks.postgres.modes import (
    VERSIONS,
    WRITING,
    KeyColumns,
    changes,
    counted,
    names_of,
    races,
    refuse_ambiguity,
    statements,
    versions,
)
from einmal.sinks.postgres.narrowing import AMONG_CHOSEN, Narrowing
from einmal.sinks.postgres.options import Mode, PostgresOptions
from einmal.sinks.postgres.refusals import failed, is_race
from einmal.sinks.postgres.session import Session
from einmal.sinks.postgres.staging import REFUSAL, Staged, StagedRows, StagingColumn
from einmal.sinks.postgres.table import TableShape
from einmal.sinks.rejections import (
    NO_KEY,
    RECORD,
    RECORD_FIELDS,
    TOO_LATE,
    Rejections,
    Rows,
    find_rejected,
)

KIND: Final = "postgres."
"""How the names of exceptions begin."""
_CONVERTED: Final = sql.Identifier("pg_temp", "einmal_rows")
_NUMBERED: Final = sql.Identifier("pg_temp", "einmal_numbered")
"""Temporary tables, gone with the transaction. A search_path may have other schemas before that of these."""
_BEGIN: Final = sql.SQL("SAVEPOINT einmal_rows")
_END: Final = sql.SQL("SET CONSTRAINTS ALL IMMEDIATE; RELEASE SAVEPOINT einmal_rows")
_UNDO: Final = sql.SQL("ROLLBACK TO SAVEPOINT einmal_rows; RELEASE SAVEPOINT einmal_rows")
_NUMBER: Final = sql.Identifier("number")
_ALL: Final = sql.SQL("true")

RECORD_COLUMNS: Final = tuple(
    StagingColumn(f"record_{name}", sql.SQL(kind), f"{RECORD}_{name}", None)
    for name, kind in zip(RECORD_FIELDS, ("text", "integer", "bigint"), strict=True)
)
"""Their ``source``: see ``copying``."""


def apply_and_reject(
    session: Session, options: PostgresOptions, shape: TableShape, staged: Staged, rejections: Rejections
) -> None:
    """Put the staged rows into the table, in the open transaction, but for the rejected ones.

    Raises SinkFailed, ToleranceExceeded.
    """
    _Rejecting(session, options, shape, rejections).apply(staged)


class _Rejecting:
    def __init__(self, session: Session, options: PostgresOptions, shape: TableShape, rejections: Rejections) -> None:
        self._session = session
        self._options = options
        self._shape = shape
        self._rejections = rejections
        self._races = races(options, shape)

    def apply(self, staged: Staged) -> None:
        refused = sql.SQL("{} IS NOT NULL").format(sql.Identifier(REFUSAL))
        self._take(staged.rows, refused, "", sql.Identifier(REFUSAL))
        rows = self._converted(staged)
        if self._options.mode is not Mode.APPEND:
            columns = KeyColumns(self._options, rows)
            self._take(rows, columns.has_no_key, NO_KEY, sql.Literal("the key is NULL"))
            if self._options.mode is Mode.SCD2:
                self._take(rows, columns.has_no_time, NO_KEY, sql.Literal("valid_from is NULL"))
                for is_late, what in columns.late(self._shape):
                    self._take(rows, is_late, TOO_LATE, sql.Literal(what))
            refuse_ambiguity(self._session, rows, columns)
        self._halved(rows, self._numbered, self._put)

    def _put(self, some: StagedRows) -> list[sql.Composed]:
        if self._options.mode is Mode.SCD2 and some.id == _NUMBERED:
            # A key's versions do not depend on other keys: they are compared once, not in each attempt.
            return changes(self._options, self._shape, some)
        return statements(self._options, self._shape, some)

    def _take(self, rows: StagedRows, is_rejected: sql.Composable, exception: str, message: sql.Composable) -> None:
        """Remove rows that are rejected before they are tried. An empty ``exception`` is in the message, before a
        colon."""
        count = counted(self._session, rows, is_rejected)
        if not count:
            return
        self._rejections.check(count)
        statement = sql.SQL("DELETE FROM {} AS s WHERE {} AND ({}) RETURNING {}, {}").format(
            rows.id, rows.counted, is_rejected, names_of(RECORD_COLUMNS), message
        )
        deleted = self._session.execute(WRITING, statement).fetchall()
        for *record, text in sorted(deleted, key=str):
            name, _, detail = (exception, "", text) if exception else text.partition(": ")
            self._rejections.add(record, KIND + name, detail)

    # --- types --------------------------------------------------------------------------------------------------

    def _converted(self, staged: Staged) -> StagedRows:
        """The rows with the types of the table."""
        if all(column.wide is None for column in staged.columns):
            return staged.rows
        columns = sql.SQL(", ").join(
            sql.SQL("{} {}").format(sql.Identifier(column.name), column.definition) for column in staged.columns
        )
        self._session.execute(
            WRITING, sql.SQL("CREATE TEMPORARY TABLE {} ({}) ON COMMIT DROP").format(_CONVERTED, columns)
        )
        values = sql.SQL(", ").join(
            sql.Identifier(column.name) if column.wide is None else column.wide.conversion for column in staged.columns
        )

        def convert(some: StagedRows) -> list[sql.Composed]:
            statement = sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {} WHERE {}").format(
                _CONVERTED, names_of(staged.columns), values, some.id, some.counted
            )
            return [statement]

        self._halved(staged.rows, self._numbered_one_by_one, convert, staged.titles)
        return StagedRows(_CONVERTED, staged.columns, _ALL)

    # --- halves -------------------------------------------------------------------------------------------------

    def _halved(
        self,
        rows: StagedRows,
        number: Callable[[StagedRows], int],
        work: Callable[[StagedRows], list[sql.Composed]],
        titles: dict[str, str] | None = None,
    ) -> None:
        """Execute the statements of ``work`` for all rows but those with which they fail."""
        error = self._tried(work(rows))
        if error is None:
            return
        total = number(rows)
        numbered = replace(rows, id=_NUMBERED)
        narrowing = Narrowing(self._session, work(replace(numbered, counted=AMONG_CHOSEN.format(_NUMBER))), self._tried)

        def attempt(some: Rows) -> psycopg.Error | None:
            if isinstance(some, range):
                return self._tried(work(replace(numbered, counted=_among(some))))
            return narrowing.attempt(some)

        errors = find_rejected(
            range(1, total + 1),
            error,
            attempt,
            # A row may need another one of its batch, as where a trigger raises an exception.
            depends=lambda failure: failure.sqlstate == sqlstates.FOREIGN_KEY_VIOLATION or is_raised(failure),
            check=self._rejections.check,
            narrow=narrowing.narrow if narrowing.is_allowed else None,
        )
        query = sql.SQL("SELECT {}, {} FROM {} WHERE {} ORDER BY 1, 2, 3, 4").format(
            _NUMBER, names_of(RECORD_COLUMNS), _NUMBERED, _among(list(errors))
        )
        for which, *record in self._session.execute(WRITING, query).fetchall():
            self._rejections.add(record, KIND + condition(errors[which]), reason(errors[which], titles))
        self._session.execute(WRITING, sql.SQL("DROP TABLE {}").format(_NUMBERED))

    def _tried(self, work: Sequence[sql.Composed]) -> psycopg.Error | None:
        """Why a row is rejected, and then nothing has changed. Raises SinkFailed."""
        try:
            # In one message to the server: there can be thousands of them.
            self._session.attempt(sql.SQL("; ").join([_BEGIN, *work, _END]))
        except psycopg.Error as error:
            if is_race(error, self._races) or not rejects_row(error):
                raise failed(error, WRITING, races=self._races) from cause(error)
            self._session.execute(WRITING, _UNDO)
            return error
        return None

    def _numbered(self, rows: StagedRows) -> int:
        """A table of the rows, in which equal numbers are rejected together. How many numbers there are."""
        if self._options.mode is Mode.APPEND:
            return self._numbered_one_by_one(rows)
        columns = KeyColumns(self._options, rows)
        if self._options.mode is Mode.UPSERT:
            return self._numbered_by("row_number()", RECORD_COLUMNS, columns.last(rows))
        total = self._numbered_by("dense_rank()", columns.key, _selected(rows))
        numbered = replace(rows, id=_NUMBERED, counted=_ALL)
        self._session.execute(WRITING, versions(self._options, self._shape, numbered, _NUMBER))
        # Few keys may have a version to end: to look for them takes an index, not the whole table.
        self._index(VERSIONS, sql.Identifier("n"))
        return total

    def _numbered_one_by_one(self, rows: StagedRows) -> int:
        return self._numbered_by("row_number()", RECORD_COLUMNS, _selected(rows))

    def _numbered_by(self, function: str, order: Sequence[StagingColumn], query: sql.Composed) -> int:
        self._session.execute(
            WRITING,
            sql.SQL(
                "CREATE TEMPORARY TABLE {} ON COMMIT DROP AS SELECT *, {} OVER (ORDER BY {}) AS {} FROM ({}) AS rows"
            ).format(_NUMBERED, sql.SQL(function), names_of(order), _NUMBER, query),
        )
        self._index(_NUMBERED)
        ((most,),) = self._session.execute(
            WRITING, sql.SQL("SELECT coalesce(max({}), 0) FROM {}").format(_NUMBER, _NUMBERED)
        ).fetchall()
        return int(most)

    def _index(self, table: sql.Identifier, *others: sql.Identifier) -> None:
        self._session.execute(WRITING, sql.SQL("CREATE INDEX ON {} ({})").format(table, _NUMBER))
        # Without statistics, a hundred numbers seem to be half of the rows, and every attempt would read them all.
        self._session.execute(WRITING, sql.SQL("ANALYZE {} ({})").format(table, sql.SQL(", ").join([_NUMBER, *others])))


def _selected(rows: StagedRows) -> sql.Composed:
    return sql.SQL("SELECT * FROM {} WHERE {}").format(rows.id, rows.counted)


def _among(numbers: Rows) -> sql.Composed:
    """The condition for rows with these numbers."""
    if isinstance(numbers, range):
        return sql.SQL("{0} >= {1} AND {0} < {2}").format(_NUMBER, numbers.start, numbers.stop)
    return sql.SQL("{} = ANY({}::bigint[])").format(_NUMBER, sql.Literal(list(numbers)))
