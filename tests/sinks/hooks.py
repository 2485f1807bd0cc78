"""How the battery and the campaign open einmal's own sinks, read their rows, and damage them.

The libraries of the sinks are imported by who uses them: every process of a run imports this module.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from einmal.sinks.kinds import new_sink
from einmal.sinks.sink import RowSink
from einmal.sinks.staged_files import directory_of
from einmal.testing.sinks import SinkTests
from einmal.testing.sinks.driving import tables_of
from tests.sinks import files

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def frame_of(spark: SparkSession, rows: Sequence[tuple[int, str]], tasks: int = 2) -> DataFrame:
    # Of an Arrow table Spark makes a local relation, without a job of Python workers.
    (table,) = tables_of(rows, 1)
    return spark.createDataFrame(table).coalesce(tasks)


class OwnHooks(SinkTests):
    """``kind`` and ``options`` as a program would pass them to ``write_stream``."""

    kind: ClassVar[str]

    def options(self, location: Path) -> dict[str, str]:
        raise NotImplementedError

    def staging(self, location: Path) -> Path:
        raise NotImplementedError

    def sink(self, location: Path) -> RowSink:
        return new_sink(self.kind, self.options(location))

    def staged(self, location: Path) -> list[str]:
        return files.staged_in(self.staging(location))

    def lose_staged(self, location: Path) -> None:
        files.lose_one(self.staging(location))

    def copy_staged(self, location: Path) -> None:
        files.copy_all(self.staging(location))


class FileHooks(OwnHooks):
    """Of a database in one file."""

    def connect(self, path: Path) -> Any:
        """A connection that commits every statement."""
        raise NotImplementedError

    def options(self, location: Path) -> dict[str, str]:
        return {"path": str(location / "rows.db"), "table": "words", "busyTimeout": "2s"}

    def staging(self, location: Path) -> Path:
        return location / "rows.db.staging"

    def rows(self, location: Path) -> list[tuple[int, str]]:
        path = location / "rows.db"
        if not path.exists():
            return []
        with closing(self.connect(path)) as connection:
            # DuckDB has a view of this name.
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'words'").fetchone():
                return []
            return [tuple(row) for row in connection.execute("SELECT id, name FROM words").fetchall()]

    def damage_record(self, location: Path, name: str) -> None:
        with closing(self.connect(location / "rows.db")) as connection:
            connection.execute("UPDATE einmal_commits SET record = '{' WHERE pipeline = ?", [name])


class SQLiteHooks(FileHooks):
    kind = "sqlite"

    def connect(self, path: Path) -> Any:
        return sqlite3.connect(path, isolation_level=None)


class DuckDBHooks(FileHooks):
    kind = "duckdb"

    def connect(self, path: Path) -> Any:
        import duckdb

        return duckdb.connect(str(path))


class DeltaHooks(OwnHooks):
    kind = "delta"

    def options(self, location: Path) -> dict[str, str]:
        return {"path": str(location / "words")}

    def staging(self, location: Path) -> Path:
        return location / "words" / "_einmal" / "staging"

    def rows(self, location: Path) -> list[tuple[int, str]]:
        return files.rows_in(self.data_files(location))

    def staged(self, location: Path) -> list[str]:
        """With what is in the table's directory, and in no commit."""
        return super().staged(location) + files.unnamed(location / "words", self.data_files(location))

    def damage_record(self, location: Path, name: str) -> None:
        for path in (location / "words" / "_einmal" / "records" / directory_of(name)).glob("*.json"):
            path.write_text("{")

    def data_files(self, location: Path) -> list[Path]:
        """Of the newest snapshot."""
        from deltalake import DeltaTable

        table = str(location / "words")
        if not DeltaTable.is_deltatable(table):
            return []
        return [Path(each.removeprefix("file://")) for each in DeltaTable(table).file_uris()]


class ParquetHooks(OwnHooks):
    kind = "parquet"

    def options(self, location: Path) -> dict[str, str]:
        return {"path": str(location / "words")}

    def staging(self, location: Path) -> Path:
        return location / "words" / "_einmal" / "staging"

    def rows(self, location: Path) -> list[tuple[int, str]]:
        """As a reader finds them that knows nothing of einmal."""
        return files.rows_in(sorted((location / "words").glob("[!_]*/[!_]*.parquet")))

    def staged(self, location: Path) -> list[str]:
        """With what was moved, and is in no commit."""
        return super().staged(location) + files.unnamed(location / "words" / "_einmal" / "moved", [])

    def damage_record(self, location: Path, name: str) -> None:
        path = max((location / "words").glob("einmal_version=*/_commit.json"))
        commit = json.loads(path.read_text())
        commit["names"][name]["record"] = "{"
        path.write_text(json.dumps(commit))


class IcebergHooks(OwnHooks):
    kind = "iceberg"

    def options(self, location: Path) -> dict[str, str]:
        location.mkdir(exist_ok=True)
        settings = {f"catalog.{name}": value for name, value in catalog_settings(location).items()}
        return {"table": "lake.words", **settings}

    def staging(self, location: Path) -> Path:
        return location / "lake" / "words" / "_einmal" / "staging"

    def rows(self, location: Path) -> list[tuple[int, str]]:
        return files.rows_in(self.data_files(location))

    def staged(self, location: Path) -> list[str]:
        """With what is in the table's directory, and in no commit."""
        data = location / "lake" / "words" / "data"
        return super().staged(location) + files.unnamed(data, self.data_files(location))

    def damage_record(self, location: Path, name: str) -> None:
        with table_at(location).transaction() as transaction:
            transaction.set_properties({f"einmal.state.{name}": "{"})

    def data_files(self, location: Path) -> list[Path]:
        """Of the current snapshot."""
        from pyiceberg.exceptions import NoSuchTableError

        try:
            scan = table_at(location).scan().plan_files()
        except NoSuchTableError:
            return []
        return [Path(each.file.file_path.removeprefix("file://")) for each in scan]


def catalog_settings(location: Path) -> dict[str, str]:
    return {"type": "sql", "uri": f"sqlite:///{location}/catalog.db", "warehouse": f"file://{location}"}


def table_at(location: Path) -> Any:
    from pyiceberg.catalog import load_catalog

    return load_catalog("default", **catalog_settings(location)).load_table("lake.words")


HOOKS: Final[dict[str, type[OwnHooks]]] = {
    hooks.kind: hooks for hooks in (SQLiteHooks, DuckDBHooks, DeltaHooks, ParquetHooks, IcebergHooks)
}
