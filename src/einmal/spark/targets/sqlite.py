"""SQLite as a target: rows and record in one transaction of one file, with the modules of Python alone.

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

from einmal.spark.options import Options
from einmal.spark.reasons import HopVerdict, Reason
from einmal.spark.targets.embedded import Column, Database, EmbeddedDestination, quoted
from einmal.spark.targets.staged_files import StagedFile
from einmal.spark.targets.target import TargetFailed

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
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    def begin(self, connection: Any) -> None:
        connection.execute("BEGIN IMMEDIATE")

    def is_open(self, connection: Any, error: Exception) -> bool:
        # Extended codes have the primary code in their lowest byte.
        is_busy = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_BUSY
        return is_busy and bool(connection.in_transaction)

    def refuses_rows(self, error: Exception) -> bool:
        return isinstance(error, sqlite3.IntegrityError | sqlite3.DataError | sqlite3.ProgrammingError)

    def columns(self, connection: Any, table: str) -> list[Column]:
        rows = connection.execute(f"PRAGMA table_info({quoted(table)})").fetchall()
        # A primary key of one integer column is the row's number, which SQLite assigns.
        return [
            Column(name, kind, bool(is_not_null) and default is None and not key)
            for _, name, kind, is_not_null, default, key in rows
        ]

    def column_type(self, kind: Any) -> str | None:
        return _TYPES.get(kind.typeName() if kind.typeName() == "decimal" else kind.simpleString())

    def is_kept(self, declared: str, wanted: str) -> bool:
        return _affinity(declared) in _KEEPS[wanted]

    def load(self, connection: Any, table: str, files: Sequence[StagedFile]) -> int:
        loaded = 0
        for file in files:
            file.compare()
            for names, rows in _rows_of(file.path):
                columns, marks = ", ".join(map(quoted, names)), ", ".join("?" * len(names))
                insert = f"INSERT INTO {quoted(table)} ({columns}) VALUES ({marks})"
                loaded += connection.executemany(insert, rows).rowcount
        return loaded


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
    from pyarrow import parquet

    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(_ROWS):
            columns = [_values(name, batch.column(name)) for name in batch.schema.names]
            yield batch.schema.names, zip(*columns, strict=True)


def _values(name: str, column: Any) -> list[Any]:
    """Exact values for SQLite, which has no type for decimals and times.

    Raises TargetFailed for NaN, which would become NULL.
    """
    import pyarrow
    from pyarrow import compute, types

    kind = column.type
    if types.is_floating(kind) and compute.any(compute.is_nan(column)).as_py():
        raise TargetFailed(
            f"column {name!r} has NaN, which SQLite would store as NULL: replace it (nanvl)", will_again=True
        )
    if types.is_timestamp(kind):
        unit = pyarrow.timestamp("us", None if kind.tz is None else "UTC")
        column = compute.replace_substring(column.cast(unit).cast(pyarrow.string()), " ", "T")
    elif types.is_decimal(kind) or types.is_date(kind):
        column = column.cast(pyarrow.string())
    elif types.is_boolean(kind):
        column = column.cast(pyarrow.int8())
    return column.to_pylist()  # type: ignore[no-any-return]


class SQLiteDestination(EmbeddedDestination):
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
