"""DuckDB keeps what every sink must keep, and refuses rows that it would round."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import duckdb
import pytest
from pyspark.sql import SparkSession

from tests.sinks.files import schema_of
from tests.sinks.hooks import DuckDBHooks
from tests.sinks.local_tasks import WITHOUT_KILLS, LocalTasks, local_session

pytestmark = pytest.mark.slow


@pytest.fixture
def spark(monkeypatch: pytest.MonkeyPatch) -> SparkSession:
    return local_session(monkeypatch)


class TestDuckDB(LocalTasks, DuckDBHooks):
    """The battery."""

    in_the_long_run = WITHOUT_KILLS


@pytest.mark.parametrize(
    ("declared", "rows", "problem"),
    [
        ("id INTEGER", "id double", "column 'id' of table words is INTEGER, and double in the rows"),
        ("id BIGINT", "id bigint, name string", "no column 'name'"),
        ("id BIGINT, other VARCHAR NOT NULL", "id bigint", "column 'other' of table words is NOT NULL"),
        (
            "id BIGINT); ALTER TABLE words RENAME TO t; CREATE VIEW words AS SELECT id FROM t --",
            "id bigint",
            "is a view",
        ),
    ],
)
def test_table_that_would_change_values_is_refused(
    tmp_path: Path, spark: SparkSession, declared: str, rows: str, problem: str
) -> None:
    with closing(duckdb.connect(str(tmp_path / "rows.db"))) as connection:
        connection.execute(f"CREATE TABLE words ({declared})")
    problems = DuckDBHooks().sink(tmp_path).problems("values", schema_of(spark, rows))
    assert len(problems) == 1 and problem in problems[0][0] and problems[0][1]


def test_two_changes_of_one_row_conflict_when_they_set_equal_values(tmp_path: Path) -> None:
    """DuckDB commits both of two transactions that set different columns of a row: hence the column ``changes``."""
    path = str(tmp_path / "rows.db")
    DuckDBHooks().sink(tmp_path).problems("values", None)
    with closing(duckdb.connect(path)) as first, closing(duckdb.connect(path)) as second:
        first.execute("BEGIN")
        first.execute("UPDATE einmal_commits SET changes = changes + 1, record = 'x' WHERE pipeline = ''")
        second.execute("BEGIN")
        with pytest.raises(duckdb.TransactionException, match="[Cc]onflict"):
            second.execute("UPDATE einmal_commits SET changes = changes + 1, epoch = 7 WHERE pipeline = ''")
