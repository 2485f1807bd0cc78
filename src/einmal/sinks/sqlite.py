"""SQLite as a sink: rows and record in one transaction of one file, with the modules of Python alone.

The transaction begins with BEGIN IMMEDIATE, which takes the lock that every writer needs: nobody can acquire the name
between the comparison of the epoch and COMMIT. ``synchronous=EXTRA`` makes a commit durable before it is answered, also
where the journal is deleted at the end; a database that is created here has a write-ahead log, so that readers and the
pipeline do not wait for each other.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from einmal.options.values import Options
from einmal.pipeline.reasons import HopVerdict, Reason
from einmal.sinks.commit_point import SinkFailed
from einmal.sinks.embedded import Column, Database, EmbeddedSink, quoted
from einmal.sinks.rejections import (
    RECORD,
    RECORD_FIELDS,
    REFUSAL,
    Rejections,
    Rows,
    find_rejected,
)
from einmal.sinks.row_schema import RowType
from einmal.sinks.staged_files import StagedFile
from einmal.sinks.time_text import time_text

_BUSY_TIMEOUT_MS: Final = 30_000
_ROWS: Final = 10_000
_TYPES: Final = {
    "boolean": "INTEGER",
    "tinyint": "INTEGER",
    "smallint": "INTEGER",
    "int": "INTEGER",
    "bigint": "INTEGER",
    "float": "REAL",
    "double": "REAL",
    "string": "TEXT",
    "decimal": "TEXT",
    "date": "TEXT",
    "timestamp": "TEXT",
    "timestamp_ntz": "TEXT",
    "binary": "BLOB",
}
_KEEPS: Final = {
    "INTEGER": ("INTEGER", "NUMERIC", "BLOB"),
    "REAL": ("REAL", "BLOB"),
    "TEXT": ("TEXT", "BLOB"),
    "BLOB": ("BLOB", "TEXT", "NUMERIC", "INTEGER", "REAL"),
}
"""The affinities that change no value of a type: a number in a text column becomes text, a text that looks like a
number becomes one."""


class NotStorable(SinkFailed):
    """A value that SQLite would store as another one."""


class SQLite(Database):
    def __init__(self, path: Path, busy_timeout_ms: int) -> None:
        super().__init__(path)
        self._busy_timeout_ms = busy_timeout_ms

    @property
    def errors(self) -> type[Exception]:
        return sqlite3.Error

    def connect(self, *, creating: bool = False) -> sqlite3.Connection:
        is_new = creating and not self.path.exists()
        # Spark calls foreachBatch from changing threads, one at a time.
        connection = sqlite3.connect(
            f"{self.path.as_uri()}?mode={'rwc' if creating else 'rw'}",
            uri=True,
            timeout=self._busy_timeout_ms / 1000,
            isolation_level=None,
            check_same_thread=False,
        )
        try:
            if is_new:
                connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = EXTRA")
            connection.execute("PRAGMA foreign_keys = ON")
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def begin(self, connection: Any) -> None:
        connection.execute("BEGIN IMMEDIATE")

    def is_open(self, connection: Any, error: Exception) -> bool:
        # Extended codes have the primary code in their lowest byte. A deferred constraint is checked by COMMIT.
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_CONSTRAINT) and bool(connection.in_transaction)

    def is_violated(self, error: Exception) -> bool:
        return isinstance(error, sqlite3.IntegrityError)

    def refuses_rows(self, error: Exception) -> bool:
        return isinstance(error, sqlite3.IntegrityError | sqlite3.DataError | sqlite3.ProgrammingError)

    def columns(self, connection: Any, table: str) -> list[Column]:
        rows = connection.execute(f"PRAGMA table_info({quoted(table)})").fetchall()
        # A primary key of one integer column is the row's number, which SQLite assigns.
        return [
            Column(name, kind, bool(is_not_null) and default is None and not key)
            for _, name, kind, is_not_null, default, key in rows
        ]

    def takes_no_rows(self, connection: Any, table: str) -> str:
        is_view = connection.execute(
            "SELECT 1 FROM sqlite_master AS v WHERE v.type = 'view' AND v.name = ? COLLATE NOCASE AND NOT EXISTS "
            # A view's triggers are all INSTEAD OF.
            "(SELECT 1 FROM sqlite_master AS t WHERE t.type = 'trigger' AND t.tbl_name = v.name COLLATE NOCASE)",
            [table],
        ).fetchone()
        return "is a view without a trigger" if is_view else ""

    def column_type(self, kind: RowType) -> str | None:
        return _TYPES.get(kind.kind if kind.kind == "decimal" else str(kind))

    def is_kept(self, declared: str, wanted: str) -> bool:
        return _affinity(declared) in _KEEPS[wanted]

    def load(self, connection: Any, table: str, files: Sequence[StagedFile]) -> int:
        loaded = 0
        for file in files:
            file.compare()
            for names, rows in _rows_of(file.path):
                columns, marks = ", ".join(map(quoted, names)), ", ".join("?" * len(names))
                insert = f"INSERT INTO {quoted(table)} ({columns}) VALUES ({marks})"
                # A row that a trigger or a conflict clause of the table leaves out counts: it is the table's rule.
                connection.executemany(insert, rows)
            loaded += _count(file.path)
        return loaded

    def load_others(self, connection: Any, table: str, files: Sequence[StagedFile], rejections: Rejections) -> int:
        """Under savepoints, some thousand rows at a time. (A row that needs another one by a trigger of the table's is
        loaded if that one is among these.)"""
        loaded = 0
        for file in files:
            file.compare()
            for batch in _batches_of(file.path):
                loaded += _Inserting(connection, table, batch, rejections).insert()
        return loaded


class _Inserting:
    """One Arrow batch into a table that may reject some of its rows."""

    def __init__(self, connection: sqlite3.Connection, table: str, batch: Any, rejections: Rejections) -> None:
        self._connection = connection
        self._records = batch.column(RECORD)
        self._refusals = batch.column(REFUSAL).to_pylist()
        self._rows = batch.drop_columns([RECORD, REFUSAL])
        names = self._rows.schema.names
        columns, marks = ", ".join(map(quoted, names)), ", ".join("?" * len(names))
        self._statement = f"INSERT INTO {quoted(table)} ({columns}) VALUES ({marks})"
        self._rejections = rejections
        self._loaded = 0

    def insert(self) -> int:
        """How many rows are loaded."""
        every = [number for number, why in enumerate(self._refusals) if why is None]
        for number, why in enumerate(self._refusals):
            if why is not None:
                self._reject(number, "sqlite.invalid_text", why)
        error = self._attempt(every)
        if error is not None:
            errors = find_rejected(every, error, self._attempt, depends=_depends, check=self._rejections.check)
            for number, rejected in errors.items():
                self._reject(number, *_described(rejected))
        return self._loaded

    def _reject(self, number: int, exception: str, message: str) -> None:
        record = self._records[number].as_py() or {}
        self._rejections.add([record.get(name) for name in RECORD_FIELDS], exception, message)

    def _attempt(self, some: Rows) -> Exception | None:
        import pyarrow

        rows = self._rows.take(pyarrow.array(some, pyarrow.int64()))
        try:
            values = [_values(name, rows.column(name)) for name in rows.schema.names]
        except NotStorable as error:
            return error
        self._connection.execute("SAVEPOINT einmal_rows")
        rejected: Exception | None = None
        loaded = len(some)
        try:
            self._connection.executemany(self._statement, zip(*values, strict=True))
        except (sqlite3.IntegrityError, sqlite3.DataError) as error:
            if not self._connection.in_transaction:
                reason = f"{_described(error)[1]}: a trigger or a conflict clause has rolled back the transaction"
                raise SinkFailed(reason, will_again=True) from None
            self._connection.execute("ROLLBACK TO einmal_rows")
            rejected, loaded = error, 0
        self._connection.execute("RELEASE einmal_rows")
        self._loaded += loaded
        return rejected


def _depends(error: Exception) -> bool:
    """Whether a row may need another one of its batch."""
    return getattr(error, "sqlite_errorcode", 0) in (
        sqlite3.SQLITE_CONSTRAINT_TRIGGER,
        sqlite3.SQLITE_CONSTRAINT_FOREIGNKEY,
    )


def _described(error: Exception) -> tuple[str, str]:
    """The exception's name and message, without values of the row: a trigger's own text may have some."""
    if isinstance(error, NotStorable):
        return "sqlite.not_a_number", str(error)
    name = str(getattr(error, "sqlite_errorname", "error")).removeprefix("SQLITE_").lower()
    return f"sqlite.{name}", "raised by a trigger" if name == "constraint_trigger" else str(error)


def _affinity(declared: str) -> str:
    """https://sqlite.org/datatype3.html, section 3.1."""
    upper = declared.upper()
    if "INT" in upper:
        return "INTEGER"
    if any(word in upper for word in ("CHAR", "CLOB", "TEXT")):
        return "TEXT"
    if "BLOB" in upper or not upper:
        return "BLOB"
    return "REAL" if any(word in upper for word in ("REAL", "FLOA", "DOUB")) else "NUMERIC"


def _rows_of(path: Path) -> Iterator[tuple[list[str], Any]]:
    for batch in _batches_of(path):
        columns = [_values(name, batch.column(name)) for name in batch.schema.names]
        yield batch.schema.names, zip(*columns, strict=True)


def _count(path: Path) -> int:
    from pyarrow import parquet

    return int(parquet.read_metadata(path).num_rows)


def _batches_of(path: Path) -> Iterator[Any]:
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        yield from file.iter_batches(_ROWS)


def _values(name: str, column: Any) -> list[Any]:
    """Exact values for SQLite, which has no type for decimals and times.

    Raises NotStorable for NaN, which would become NULL.
    """
    import pyarrow
    from pyarrow import compute, types

    kind = column.type
    if types.is_floating(kind) and compute.any(compute.is_nan(column)).as_py():
        raise NotStorable(
            f"column {name!r} has NaN, which SQLite would store as NULL: replace it (nanvl)", will_again=True
        )
    if types.is_timestamp(kind):
        column = compute.replace_substring(time_text(column), " ", "T")
        if kind.tz is not None:
            column = compute.binary_join_element_wise(column, "Z", "")
    elif types.is_date(kind):
        column = time_text(column)
    elif types.is_decimal(kind):
        # With all digits: Arrow writes small ones with an exponent.
        return [None if value is None else f"{value:f}" for value in column.to_pylist()]
    elif types.is_boolean(kind):
        column = column.cast(pyarrow.int8())
    return column.to_pylist()  # type: ignore[no-any-return]


class SQLiteSink(EmbeddedSink):
    """``type = "sqlite"``. ``busyTimeout``: how long another writer's transaction is waited for, 30 s by default."""

    KIND = "SQLite"
    EXAMPLE = "/data/words.sqlite"

    def database(self, path: Path, options: Options) -> SQLite:
        return SQLite(path, options.duration_ms("busyTimeout", _BUSY_TIMEOUT_MS))

    def promises(self) -> tuple[Reason, ...]:
        return (
            Reason(HopVerdict.HOLDS, "one transaction of SQLite compares the epoch and has rows and commit record"),
            Reason(
                HopVerdict.IF,
                "the file system's locks work: SQLite's do not over most network file systems",
                "keep the database on a disk of the driver's machine; only the staging directory is shared",
            ),
        )
