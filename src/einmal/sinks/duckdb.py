"""DuckDB as a sink: the driver loads the staged Parquet files by SQL, in the transaction that has the record.

One process at a time can open a DuckDB file, so it is open only while a verb needs it: readers come between. Inside of
one process two transactions that change one column of one row conflict, and the second fails at once. That is the
fence: ``acquire`` and ``record`` both change the column ``changes``, after they have compared the epoch in the snapshot
of their transaction. It must be one column, and another value: DuckDB commits both of two transactions that change
different columns of a row, or where one of them sets a column to the value that it has.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from einmal.options.values import Options
from einmal.pipeline.reasons import HopVerdict, Reason
from einmal.sinks.embedded import Column, Database, EmbeddedSink, quoted
from einmal.sinks.rejections import (
    RECORD,
    RECORD_FIELDS,
    REFUSAL,
    Rejections,
    Rows,
    find_rejected,
)
from einmal.sinks.row_schema import DecimalRowType, RowType
from einmal.sinks.staged_files import StagedFile

_BUSY_TIMEOUT_MS: Final = 30_000
_POLL_S: Final = 0.05
_TYPES: Final = {
    "boolean": "BOOLEAN",
    "tinyint": "TINYINT",
    "smallint": "SMALLINT",
    "int": "INTEGER",
    "bigint": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "VARCHAR",
    "date": "DATE",
    "timestamp": "TIMESTAMP WITH TIME ZONE",
    "timestamp_ntz": "TIMESTAMP",
    "binary": "BLOB",
}


class DuckDB(Database):
    own_columns = frozenset({REFUSAL, "file_row_number", "einmal_file", "einmal_kept", "einmal_number"})

    def __init__(self, path: Path, busy_timeout_ms: int) -> None:
        super().__init__(path)
        self._busy_timeout_ms = busy_timeout_ms

    @property
    def errors(self) -> type[Exception]:
        import duckdb

        return duckdb.Error

    def connect(self, *, creating: bool = False) -> Any:
        import duckdb

        if not creating and not self.path.exists():
            raise duckdb.IOException(f"{self.path} does not exist")
        deadline = time.monotonic() + self._busy_timeout_ms / 1000
        while True:
            try:
                return duckdb.connect(str(self.path))
            except duckdb.IOException as error:
                # Another process has it open.
                if "lock" not in str(error).lower() or time.monotonic() > deadline:
                    raise
            time.sleep(_POLL_S)

    def begin(self, connection: Any) -> None:
        connection.execute("BEGIN TRANSACTION")

    def is_open(self, connection: Any, error: Exception) -> bool:
        """A COMMIT that is refused has rolled back; nothing of it remains."""
        import duckdb

        return isinstance(error, duckdb.TransactionException | duckdb.ConstraintException)

    def refuses_rows(self, error: Exception) -> bool:
        import duckdb

        return isinstance(error, duckdb.ConstraintException | duckdb.ConversionException | duckdb.BinderException)

    def column_type(self, kind: RowType) -> str | None:
        if isinstance(kind, DecimalRowType):
            return f"DECIMAL({kind.precision},{kind.scale})"
        return _TYPES.get(str(kind))

    def columns(self, connection: Any, table: str) -> list[Column]:
        rows = connection.execute(
            "SELECT column_name, data_type, NOT is_nullable AND column_default IS NULL FROM duckdb_columns() "
            "WHERE lower(table_name) = lower(?) AND schema_name = current_schema() "
            "AND database_name = current_database() ORDER BY column_index",
            [table],
        ).fetchall()
        return [Column(*row) for row in rows]

    def takes_no_rows(self, connection: Any, table: str) -> str:
        is_view = connection.execute(
            "SELECT 1 FROM duckdb_views() WHERE lower(view_name) = lower(?) AND schema_name = current_schema() "
            "AND database_name = current_database()",
            [table],
        ).fetchone()
        return "is a view" if is_view else ""

    def is_kept(self, declared: str, wanted: str) -> bool:
        """An insert casts, and a cast may round."""
        return declared.upper() == wanted

    def load(self, connection: Any, table: str, files: Sequence[StagedFile]) -> int:
        for file in files:
            file.compare()
        row = connection.execute(
            f"INSERT INTO {quoted(table)} BY NAME SELECT * FROM read_parquet(?, hive_partitioning = false)",
            [[str(file.path) for file in files]],
        ).fetchone()
        return int(row[0])

    def load_others(self, connection: Any, table: str, files: Sequence[StagedFile], rejections: Rejections) -> int:
        """DuckDB has no savepoints, and an error ends the transaction. So the rows are tried in transactions of another
        session, which are all rolled back, before the one that has the record loads the others."""
        for file in files:
            file.compare()
        trial = connection.cursor()
        try:
            rejected = _Trial(trial, table, files).rejected(rejections)
        finally:
            trial.close()
        loaded = 0
        for number, file in enumerate(files):
            row = connection.execute(
                f"INSERT INTO {quoted(table)} BY NAME SELECT * EXCLUDE ({RECORD}, {REFUSAL}, file_row_number) "
                "FROM read_parquet(?, hive_partitioning = false, file_row_number = true) "
                "WHERE file_row_number NOT IN (SELECT unnest(?::BIGINT[]))",
                [str(file.path), rejected.get(number, [])],
            ).fetchone()
            loaded += int(row[0])
        return loaded


class _Trial:
    """Finds rejected rows in the session ``connection``, in which nothing is committed but temporary tables."""

    def __init__(self, connection: Any, table: str, files: Sequence[StagedFile]) -> None:
        self._connection = connection
        self._table = table
        every = " UNION ALL BY NAME ".join(
            f"SELECT *, {number} AS einmal_file FROM read_parquet(?, hive_partitioning = false, file_row_number = true)"
            for number in range(len(files))
        )
        # In the order of the records: of two rows that exclude each other the later one is rejected.
        connection.execute(
            "CREATE TEMPORARY TABLE einmal_rows AS SELECT *, false AS einmal_kept, "
            f"row_number() OVER (ORDER BY {RECORD}, einmal_file, file_row_number) AS einmal_number FROM ({every})",
            [str(file.path) for file in files],
        )

    def rejected(self, rejections: Rejections) -> Mapping[int, Sequence[int]]:
        """The rejected rows: their numbers in the file, by the number of the file."""
        ((count,),) = self._connection.execute("SELECT count(*) FROM einmal_rows").fetchall()
        rows = self._refused(rejections)
        every = range(1, count + 1)
        error = self._attempt(every)
        if error is None:
            return rows
        errors = find_rejected(every, error, self._attempt, depends=_depends, check=rejections.check)
        for number, why in errors.items():
            ((record, file, row),) = self._connection.execute(
                f"SELECT {RECORD}, einmal_file, file_row_number FROM einmal_rows WHERE einmal_number = ?", [number]
            ).fetchall()
            rejections.add([(record or {}).get(name) for name in RECORD_FIELDS], *_described(why))
            rows.setdefault(file, []).append(row)
        return rows

    def _refused(self, rejections: Rejections) -> dict[int, list[int]]:
        """The rows that were staged as refusals, which are tried no more."""
        rows: dict[int, list[int]] = {}
        refused = f"FROM einmal_rows WHERE {REFUSAL} IS NOT NULL"
        query = f"SELECT {RECORD}, einmal_file, file_row_number, {REFUSAL} {refused} ORDER BY einmal_number"
        for record, file, row, why in self._connection.execute(query).fetchall():
            rejections.add([(record or {}).get(name) for name in RECORD_FIELDS], "duckdb.invalid_text", why)
            rows.setdefault(file, []).append(row)
        self._connection.execute(f"DELETE {refused}")
        return rows

    def _attempt(self, some: Rows) -> Exception | None:
        """All rows that are kept so far, and these: they are kept, too, unless one of them is rejected."""
        import duckdb

        condition, parameters = "einmal_number IN (SELECT unnest(?::BIGINT[]))", [list(some)]
        if isinstance(some, range):
            condition = f"einmal_number >= {some.start} AND einmal_number < {some.stop}"
            parameters = []
        self._connection.execute("BEGIN TRANSACTION")
        try:
            self._connection.execute(
                f"INSERT INTO {quoted(self._table)} BY NAME "
                f"SELECT * EXCLUDE ({RECORD}, {REFUSAL}, file_row_number, einmal_file, einmal_kept, einmal_number) "
                f"FROM einmal_rows WHERE einmal_kept OR {condition}",
                parameters,
            )
        except (duckdb.ConstraintException, duckdb.ConversionException, duckdb.OutOfRangeException) as error:
            return error
        finally:
            self._connection.execute("ROLLBACK")
        self._connection.execute(f"UPDATE einmal_rows SET einmal_kept = true WHERE {condition}", parameters)
        return None


def _depends(error: Exception) -> bool:
    """Whether a row may need another one of its batch."""
    return _described(error)[0] == "duckdb.foreign_key"


def _described(error: Exception) -> tuple[str, str]:
    """The exception's name and message. DuckDB quotes the keys of rows in its own messages."""
    text = str(error).partition("\n")[0]
    for word, name in (("NOT NULL constraint failed", "not_null"), ("CHECK constraint failed", "check")):
        if word in text:
            return f"duckdb.{name}", text.partition(": ")[2]
    if "foreign key" in text:
        return "duckdb.foreign_key", "violates a foreign key constraint"
    if "uplicate key" in text:
        return "duckdb.duplicate_key", "violates a primary key or unique constraint"
    return f"duckdb.{type(error).__name__}", "rejected by the table"


class DuckDBSink(EmbeddedSink):
    """``type = "duckdb"``. ``busyTimeout``: how long another process may have the file open, 30 s by default."""

    KIND = "DuckDB"
    EXAMPLE = "/data/words.duckdb"

    def database(self, path: Path, options: Options) -> DuckDB:
        return DuckDB(path, options.duration_ms("busyTimeout", _BUSY_TIMEOUT_MS))

    def promises(self) -> tuple[Reason, ...]:
        return (
            Reason(HopVerdict.HOLDS, "one transaction of DuckDB compares the epoch and has rows and commit record"),
            Reason(
                HopVerdict.IF,
                "nobody holds the file open for longer than busyTimeout: DuckDB lets one process at a time",
                "let readers open the file read-only, and close it",
            ),
        )
