"""SQLite keeps what every target must keep, and every value of its rows."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from einmal.spark.options import Options
from einmal.spark.targets.sqlite import SQLiteDestination
from einmal.testing.targets import TargetTests
from tests.spark.targets import files

pytestmark = [pytest.mark.spark, pytest.mark.slow]


class SQLiteHooks(TargetTests):
    def destination(self, location: Path) -> SQLiteDestination:
        return SQLiteDestination(Options({"path": location / "rows.db", "table": "words", "busyTimeout": "2s"}))

    def rows(self, location: Path) -> list[tuple[int, str]]:
        path = location / "rows.db"
        if not path.exists():
            return []
        with closing(sqlite3.connect(path)) as connection:
            if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'words'").fetchone():
                return []
            return connection.execute("SELECT id, name FROM words").fetchall()

    def staged(self, location: Path) -> list[str]:
        return files.staged_in(location / "rows.db.staging")

    def lose_staged(self, location: Path) -> None:
        files.lose_one(location / "rows.db.staging")

    def copy_staged(self, location: Path) -> None:
        files.copy_all(location / "rows.db.staging")

    def damage_record(self, location: Path, name: str) -> None:
        with closing(sqlite3.connect(location / "rows.db")) as connection, connection:
            connection.execute("UPDATE einmal_commits SET record = '{' WHERE pipeline = ?", [name])


class TestSQLite(SQLiteHooks):
    """The battery."""
