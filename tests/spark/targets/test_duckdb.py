"""DuckDB keeps what every target must keep, and refuses rows that it would round."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import duckdb
import pytest
from pyspark.sql import SparkSession

from einmal.testing.targets.driving import RunUnderTest
from tests.spark.targets.files import schema_of
from tests.spark.targets.hooks import DuckDBHooks

pytestmark = [pytest.mark.spark, pytest.mark.slow]


class TestDuckDB(DuckDBHooks):
    """The battery."""


@pytest.mark.parametrize(
    ("declared", "rows", "problem"),
    [
        ("id INTEGER", "id double", "column 'id' of table words is INTEGER, and double in the rows"),
        ("id BIGINT", "id bigint, name string", "no column 'name'"),
        ("id BIGINT, other VARCHAR NOT NULL", "id bigint", "column 'other' of table words is NOT NULL"),
    ],
)
def test_table_that_would_change_values_is_refused(
    tmp_path: Path, spark: SparkSession, declared: str, rows: str, problem: str
) -> None:
    with closing(duckdb.connect(str(tmp_path / "rows.db"))) as connection:
        connection.execute(f"CREATE TABLE words ({declared})")
    problems = DuckDBHooks().destination(tmp_path).problems("values", schema_of(spark, rows))
    assert len(problems) == 1 and problem in problems[0][0] and problems[0][1]


def test_values_are_stored_exactly(tmp_path: Path, spark: SparkSession) -> None:
    frame = spark.sql(
        "SELECT true AS flag, CAST('NaN' AS DOUBLE) AS nan, "
        "CAST('12345678901234567890.1234' AS DECIMAL(38, 4)) AS exact, "
        "DATE'2026-01-01' AS day, TIMESTAMP'2026-03-29 01:30:00.000001+00:00' AS at, X'00ff' AS bytes"
    )
    assert DuckDBHooks().destination(tmp_path).problems("values", frame.schema) == []
    run = RunUnderTest(DuckDBHooks(), tmp_path, "values", None)
    run.start()
    run.stage_frame(0, frame)
    run.record(0)
    run.commit()
    run.die()
    with closing(duckdb.connect(str(tmp_path / "rows.db"))) as connection:
        rows = connection.execute(
            'SELECT flag, isnan(nan), exact::VARCHAR, day::VARCHAR, epoch_us("at"), bytes FROM words'
        )
        assert rows.fetchall() == [
            (True, True, "12345678901234567890.1234", "2026-01-01", 1774747800000001, b"\x00\xff")
        ]


def test_two_changes_of_one_row_conflict_when_they_set_equal_values(tmp_path: Path) -> None:
    """DuckDB commits both of two transactions that set different columns of a row: hence the column ``changes``."""
    path = str(tmp_path / "rows.db")
    DuckDBHooks().destination(tmp_path).problems("values", None)
    with closing(duckdb.connect(path)) as first, closing(duckdb.connect(path)) as second:
        first.execute("BEGIN")
        first.execute("UPDATE einmal_commits SET changes = changes + 1, record = 'x' WHERE pipeline = ''")
        second.execute("BEGIN")
        with pytest.raises(duckdb.TransactionException, match="[Cc]onflict"):
            second.execute("UPDATE einmal_commits SET changes = changes + 1, epoch = 7 WHERE pipeline = ''")
