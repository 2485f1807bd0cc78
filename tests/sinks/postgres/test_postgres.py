"""PostgreSQL keeps what every sink must keep: the battery, on a real server, with a database for each location."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from einmal.options.values import Options
from einmal.sinks.commit_point import SinkFailed
from einmal.sinks.postgres.sink import PostgresSink
from einmal.testing.sinks import SinkTests
from einmal.testing.sinks.driving import RunUnderTest, rows_of
from tests.sinks.local_tasks import LocalTasks
from tests.sinks.postgres.server import PASSWORD, PostgresServer
from tests.suite.shared import shared

pytestmark = pytest.mark.slow


class PostgresHooks(SinkTests):
    def sink(self, location: Path) -> PostgresSink:
        return PostgresSink(
            Options({"url": self._url(location), "password": PASSWORD, "table": "words", "lock_timeout": "900ms"})
        )

    def rows(self, location: Path) -> list[tuple[int, str]]:
        with self._connected(location) as connection:
            if connection.execute("SELECT to_regclass('words')").fetchone() == (None,):
                return []
            return connection.execute("SELECT id, name FROM words").fetchall()

    def staged(self, location: Path) -> list[str]:
        with self._connected(location) as connection:
            found = connection.execute("SELECT relname FROM pg_class WHERE relname LIKE 'einmal_staging%'")
            return [name for (name,) in found]

    def lose_staged(self, location: Path) -> None:
        with self._connected(location) as connection:
            for name in self.staged(location):
                table = sql.Identifier(name)
                one = sql.SQL("DELETE FROM {0} WHERE ctid = (SELECT min(ctid) FROM {0})").format(table)
                connection.execute(one)

    def copy_staged(self, location: Path) -> None:
        with self._connected(location) as connection:
            for name in self.staged(location):
                again = sql.SQL("INSERT INTO {0} SELECT c0, c1, attempt + 1000000 FROM {0}").format(
                    sql.Identifier(name)
                )
                connection.execute(again)

    def damage_record(self, location: Path, name: str) -> None:
        with self._connected(location) as connection:
            connection.execute("UPDATE einmal_commits SET record = '{}' WHERE pipeline = %s", (name,))

    def _url(self, location: Path) -> str:
        name = f"battery_{hashlib.sha256(str(location).encode()).hexdigest()[:16]}"
        # Also in processes of the battery.
        server: PostgresServer = shared("postgres")
        with server.connect() as connection:
            if connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchone() is None:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return server.url_of(name)

    def _connected(self, location: Path) -> psycopg.Connection[Any]:
        return psycopg.connect(self._url(location), password=PASSWORD, autocommit=True)


class TestPostgres(LocalTasks, PostgresHooks):
    """The battery."""


def test_table_that_is_altered_between_staging_and_insert_gets_no_row(tmp_path: Path) -> None:
    """The INSERT would cast, and round."""
    hooks = PostgresHooks()
    run = RunUnderTest(hooks, tmp_path, "words")
    run.start()
    run.stage(0, rows_of(0))
    with hooks._connected(tmp_path) as connection:
        connection.execute("ALTER TABLE words ALTER COLUMN id TYPE numeric(21, 2)")
    with pytest.raises(SinkFailed, match="was altered"):
        run.record(0)
    run.abort()
    assert hooks.rows(tmp_path) == []
    run.write(0, rows_of(0))
    run.die()
    assert sorted(hooks.rows(tmp_path)) == rows_of(0)
