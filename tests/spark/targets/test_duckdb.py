"""DuckDB keeps what every target must keep, and refuses rows that it would round."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import duckdb
import pytest

from einmal.spark.options import Options
from einmal.spark.targets.duckdb import DuckDBDestination
from einmal.testing.targets import TargetTests
from tests.spark.targets import files

pytestmark = [pytest.mark.spark, pytest.mark.slow]


class DuckDBHooks(TargetTests):
    def destination(self, location: Path) -> DuckDBDestination:
        return DuckDBDestination(Options({"path": location / "rows.db", "table": "words", "busyTimeout": "2s"}))

    def rows(self, location: Path) -> list[tuple[int, str]]:
        path = location / "rows.db"
        if not path.exists():
            return []
        with closing(duckdb.connect(str(path))) as connection:
            if not connection.execute("SELECT 1 FROM duckdb_tables() WHERE table_name = 'words'").fetchone():
                return []
            return connection.execute("SELECT id, name FROM words").fetchall()

    def staged(self, location: Path) -> list[str]:
        return files.staged_in(location / "rows.db.staging")

    def lose_staged(self, location: Path) -> None:
        files.lose_one(location / "rows.db.staging")

    def copy_staged(self, location: Path) -> None:
        files.copy_all(location / "rows.db.staging")

    def damage_record(self, location: Path, name: str) -> None:
        with closing(duckdb.connect(str(location / "rows.db"))) as connection:
            connection.execute("UPDATE einmal_commits SET record = '{' WHERE pipeline = ?", [name])


class TestDuckDB(DuckDBHooks):
    """The battery."""
