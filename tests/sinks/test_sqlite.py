"""SQLite keeps what every sink must keep, and every value of its rows."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pyarrow
import pytest
from pyspark.sql import SparkSession

from einmal.options.values import OptionError, Options
from einmal.sinks.commit_point import SinkFailed
from einmal.sinks.sqlite import SQLiteSink, _values
from einmal.testing.sinks.driving import RunUnderTest
from tests.sinks.files import schema_of
from tests.sinks.hooks import SQLiteHooks
from tests.sinks.local_tasks import LocalTasks, local_session

pytestmark = pytest.mark.slow


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    return local_session(monkeypatch)


class TestSQLite(LocalTasks, SQLiteHooks):
    """The battery."""

    in_the_long_run = frozenset()
    races, steps = 40, 80


def test_row_that_a_constraint_refuses_fails_every_attempt(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "rows.db")) as connection:
        connection.execute("CREATE TABLE words (id INTEGER PRIMARY KEY, name TEXT)")
    run = RunUnderTest(SQLiteHooks(), tmp_path, "values")
    run.start()
    run.stage(0, [(1, "one"), (1, "again")])
    with pytest.raises(SinkFailed, match="UNIQUE") as failed:
        run.record(0)
    assert failed.value.will_again
    run.abort()
    run.die()
    assert SQLiteHooks().rows(tmp_path) == []


def test_rows_that_a_trigger_ignores_are_left_out_by_the_table_s_own_rule(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "rows.db")) as connection:
        connection.execute("CREATE TABLE words (id INTEGER, name TEXT)")
        connection.execute(
            "CREATE TRIGGER quiet BEFORE INSERT ON words WHEN new.id = 2 BEGIN SELECT RAISE(IGNORE); END"
        )
    run = RunUnderTest(SQLiteHooks(), tmp_path, "values")
    run.start()
    run.stage(0, [(1, "one"), (2, "two")])
    run.record(0)
    run.commit()
    run.die()
    assert SQLiteHooks().rows(tmp_path) == [(1, "one")]


@pytest.mark.parametrize(
    ("declared", "rows", "problem"),
    [
        ("id INTEGER, name INTEGER", "id bigint, name string", "column 'name' of table words is INTEGER"),
        ("id INTEGER", "id bigint, name string", "no column 'name'"),
        ("id INTEGER, other TEXT NOT NULL", "id bigint", "column 'other' of table words is NOT NULL"),
        ("id INTEGER", "id array<int>", "type array<int>, which no column of the database can have"),
        ("id INTEGER", "id bigint, ID bigint", "two columns 'id'"),
        (
            "id INTEGER); ALTER TABLE words RENAME TO t; CREATE VIEW words AS SELECT id FROM t --",
            "id bigint",
            "is a view",
        ),
    ],
)
def test_table_that_cannot_take_the_rows_is_refused(
    tmp_path: Path, spark: SparkSession, declared: str, rows: str, problem: str
) -> None:
    with closing(sqlite3.connect(tmp_path / "rows.db")) as connection:
        connection.executescript(f"CREATE TABLE words ({declared})")
    schema = schema_of(spark, rows)
    problems = SQLiteHooks().sink(tmp_path).problems("values", schema)
    assert len(problems) == 1 and problem in problems[0][0] and problems[0][1]


def test_table_of_the_user_keeps_its_journal_mode(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "rows.db")) as connection:
        connection.execute("CREATE TABLE words (id INTEGER, name TEXT)")
        before = connection.execute("PRAGMA journal_mode").fetchone()
    SQLiteHooks().sink(tmp_path).problems("values", None)
    with closing(sqlite3.connect(tmp_path / "rows.db")) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == before == ("delete",)


def test_locked_database_fails_the_step_after_the_busy_timeout(tmp_path: Path) -> None:
    run = RunUnderTest(SQLiteHooks(), tmp_path, "values")
    run.start()
    run.stage(0, [(1, "one")])
    with closing(sqlite3.connect(tmp_path / "rows.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(SinkFailed, match="locked") as failed:
            run.record(0)
    assert not failed.value.will_again
    run.abort()
    run.die()


def test_reader_that_blocks_a_commit_fails_it_and_nothing_is_committed(tmp_path: Path) -> None:
    """With a rollback journal a commit waits for readers; with a write-ahead log it does not."""
    with closing(sqlite3.connect(tmp_path / "rows.db")) as connection:
        connection.execute("CREATE TABLE words (id INTEGER, name TEXT)")
        connection.execute("INSERT INTO words VALUES (0, 'zero')")
        connection.commit()
    run = RunUnderTest(SQLiteHooks(), tmp_path, "values")
    run.start()
    run.stage(0, [(1, "one")])
    run.record(0)
    with closing(sqlite3.connect(tmp_path / "rows.db", isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM words").fetchall()
        with pytest.raises(SinkFailed, match="locked"):
            run.commit()
    run.abort()
    run.write(0, [(2, "two")])
    run.die()
    assert SQLiteHooks().rows(tmp_path) == [(0, "zero"), (2, "two")]


@pytest.mark.parametrize("path", [":memory:", "file:rows.db?mode=memory", "sqlite://rows.db"])
def test_path_that_is_no_file_is_refused(path: str) -> None:
    with pytest.raises(OptionError, match="path"):
        SQLiteSink(Options({"path": path, "table": "words"}))


@pytest.mark.parametrize("table", ["einmal_commits", "EINMAL_COMMITS", "sqlite_master"])
def test_internal_table_is_no_output(table: str) -> None:
    with pytest.raises(OptionError, match="internal"):
        SQLiteSink(Options({"path": "/tmp/rows.db", "table": table}))


@pytest.mark.parametrize("table", ["analytics.orders", "main.orders", ".", "a."])
def test_a_schema_is_refused_and_a_dot_in_quotes_is_of_the_name(table: str, tmp_path: Path) -> None:
    path = str(tmp_path / "rows.db")
    with pytest.raises(OptionError, match="names a schema"):
        SQLiteSink(Options({"path": path, "table": table}))
    assert SQLiteSink(Options({"path": path, "table": f'"{table}"'})).table == f"{table} in {path}"


@pytest.mark.parametrize("is_deferred", [False, True])
def test_a_row_without_its_parent_is_not_committed(tmp_path: Path, is_deferred: bool) -> None:
    deferred = " DEFERRABLE INITIALLY DEFERRED" if is_deferred else ""
    with closing(sqlite3.connect(tmp_path / "rows.db")) as connection:
        connection.execute("CREATE TABLE parents (id INTEGER PRIMARY KEY)")
        connection.execute(f"CREATE TABLE words (id INTEGER REFERENCES parents (id){deferred}, name TEXT)")
    run = RunUnderTest(SQLiteHooks(), tmp_path, "values")
    run.start()
    run.stage(0, [(1, "one")])
    with pytest.raises(SinkFailed, match="FOREIGN KEY") as failed:
        run.record(0)
        run.commit()
    assert failed.value.will_again
    run.abort()
    run.die()
    assert SQLiteHooks().rows(tmp_path) == []


def test_decimals_have_all_their_digits_and_times_their_year(tmp_path: Path) -> None:
    decimals = pyarrow.array([Decimal("0.00000001"), None, Decimal("12.5"), Decimal(0)], pyarrow.decimal128(20, 8))
    assert _values("d", decimals) == ["0.00000001", None, "12.50000000", "0.00000000"]
    time = 11_248_738 * 86_400_000_000
    assert _values("t", pyarrow.array([time], pyarrow.timestamp("us", "UTC"))) == ["32768-01-01T00:00:00.000000Z"]
    assert _values("t", pyarrow.array([time], pyarrow.timestamp("us"))) == ["32768-01-01T00:00:00.000000"]
    assert _values("d", pyarrow.array([11_248_738], pyarrow.date32())) == ["32768-01-01"]
