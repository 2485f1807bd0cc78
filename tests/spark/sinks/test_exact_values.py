"""Values of every type come through Spark's tasks as they are, into each database of one file and into Iceberg."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import duckdb
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from einmal.sinks.batch_rows import Selected
from einmal.sinks.commit_point import SinkFailed
from einmal.spark.environment.plans.row_schemas import schema_of
from einmal.spark.sinks.frame_rows import FrameRows
from einmal.spark.sinks.part import Part, in_one_column
from einmal.testing.sinks.driving import RunUnderTest
from tests.sinks.hooks import DeltaHooks, DuckDBHooks, IcebergHooks, OwnHooks, SQLiteHooks, table_at

pytestmark = [pytest.mark.spark, pytest.mark.slow]

NAME = "values"
ODD_NAMES = ["a.b", "a`b", "`a`", "*", "a", "%s"]


def staged(hooks: OwnHooks, location: Path, frame: DataFrame) -> RunUnderTest:
    """A run whose batch 0 is this frame."""
    assert hooks.sink(location).problems(NAME, schema_of(frame.schema)) == []
    run = RunUnderTest(hooks, location, NAME, prepares=False)
    run.start()
    run.stage_rows(0, FrameRows(frame))
    return run


def write(hooks: OwnHooks, location: Path, frame: DataFrame) -> None:
    run = staged(hooks, location, frame)
    run.record(0)
    run.commit()
    run.die()


def test_values_are_stored_exactly_by_sqlite(tmp_path: Path, spark: SparkSession) -> None:
    frame = spark.sql(
        "SELECT true AS flag, CAST(-128 AS TINYINT) AS tiny, 9223372036854775807L AS large, "
        "CAST(0.1 AS DOUBLE) AS real, "
        "CAST('12345678901234567890.1234567890' AS DECIMAL(38, 10)) AS exact, DATE'0001-01-01' AS day, "
        "TIMESTAMP'2026-03-29 01:30:00.000001+00:00' AS at, TIMESTAMP_NTZ'2026-03-29 02:30:00' AS local, "
        "X'00ff' AS bytes, 'zażółć \\'\"' AS text, CAST(NULL AS INT) AS nothing, CAST('-Infinity' AS DOUBLE) AS least"
    )
    write(SQLiteHooks(), tmp_path, frame)
    with closing(sqlite3.connect(tmp_path / "rows.db")) as connection:
        assert connection.execute("SELECT * FROM words").fetchall() == [
            (
                1,
                -128,
                9223372036854775807,
                0.1,
                "12345678901234567890.1234567890",
                "0001-01-01",
                "2026-03-29T01:30:00.000001Z",
                "2026-03-29T02:30:00.000000",
                b"\x00\xff",
                "zażółć '\"",
                None,
                float("-inf"),
            )
        ]


def test_nan_fails_the_batch_instead_of_becoming_null(tmp_path: Path, spark: SparkSession) -> None:
    frame = spark.sql("SELECT CAST('NaN' AS DOUBLE) AS value")
    run = staged(SQLiteHooks(), tmp_path, frame)
    with pytest.raises(SinkFailed, match="NaN") as failed:
        run.record(0)
    assert failed.value.will_again
    run.abort()
    run.die()


@pytest.mark.long
def test_values_are_stored_exactly_by_duckdb(tmp_path: Path, spark: SparkSession) -> None:
    frame = spark.sql(
        "SELECT true AS flag, CAST('NaN' AS DOUBLE) AS nan, "
        "CAST('12345678901234567890.1234' AS DECIMAL(38, 4)) AS exact, "
        "DATE'2026-01-01' AS day, TIMESTAMP'2026-03-29 01:30:00.000001+00:00' AS at, X'00ff' AS bytes"
    )
    write(DuckDBHooks(), tmp_path, frame)
    with closing(duckdb.connect(str(tmp_path / "rows.db"))) as connection:
        rows = connection.execute(
            'SELECT flag, isnan(nan), exact::VARCHAR, day::VARCHAR, epoch_us("at"), bytes FROM words'
        )
        assert rows.fetchall() == [
            (True, True, "12345678901234567890.1234", "2026-01-01", 1774747800000001, b"\x00\xff")
        ]


@pytest.mark.long
def test_timestamps_of_any_session_time_zone_are_in_utc_in_iceberg(tmp_path: Path, spark: SparkSession) -> None:
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        frame = spark.sql(
            "SELECT 1L AS id, TIMESTAMP'2026-03-29 01:30:00+00:00' AS at, CAST(1.5 AS DECIMAL(9, 2)) AS d"
        )
        write(IcebergHooks(), tmp_path, frame)
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))
    [row] = table_at(tmp_path).scan().to_arrow().to_pylist()
    assert row["at"].isoformat() == "2026-03-29T01:30:00+00:00"


def test_json_has_times_and_keys_of_maps_as_text_in_any_time_zone(spark: SparkSession) -> None:
    at = "TIMESTAMP'1800-01-01 00:00:00Z'"
    frame = spark.sql(
        f"SELECT named_struct('a.b', map(X'00ff', {at}), 'days', array(map(DATE'2026-01-02', map('k', {at}))), "
        f"'at', map({at}, 1), 'local', map(TIMESTAMP_NTZ'2026-01-02 03:04:05.000006', 1), 'none', CAST(NULL AS "
        "MAP<DATE, INT>), 'parts', map(struct(1 AS a, X'01' AS b), 1), 'number', map(2, true)) AS v"
    )
    zone = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", "Europe/Amsterdam")
    try:
        [(text,)] = FrameRows(frame).select([Selected("json", "v", as_json=True)]).frame.collect()
    finally:
        spark.conf.set("spark.sql.session.timeZone", str(zone))
    assert json.loads(text) == {
        "a.b": {"AP8=": "1800-01-01T00:00:00.000000Z"},
        "days": [{"2026-01-02": {"k": "1800-01-01T00:00:00.000000Z"}}],
        "at": {"1800-01-01T00:00:00.000000Z": 1},
        "local": {"2026-01-02T03:04:05.000006": 1},
        "none": None,
        "parts": {'{"a":1,"b":"AQ=="}': 1},
        "number": {"2": True},
    }


def test_columns_of_any_name_go_beside_the_rows_of_other_sinks(spark: SparkSession, tmp_path: Path) -> None:
    frame = spark.range(1).selectExpr(*(f"id AS `{name.replace('`', '``')}`" for name in ODD_NAMES))
    part = Part(SQLiteHooks().sink(tmp_path), "rows")
    together = in_one_column(frame, "rows")
    assert part.rows(together).columns == part.schema(together.schema).names == ODD_NAMES


@pytest.mark.representatives(1)
@pytest.mark.parametrize("hooks", [SQLiteHooks(), DeltaHooks()], ids=["sqlite", "delta"])
def test_columns_whose_names_spark_reads_as_sql_come_through_its_tasks(
    tmp_path: Path, spark: SparkSession, hooks: OwnHooks
) -> None:
    names = ODD_NAMES
    schema = StructType([StructField(name, LongType()) for name in names])
    write(hooks, tmp_path, spark.createDataFrame([tuple(range(len(names)))], schema))
    if hooks.kind == "sqlite":
        with closing(sqlite3.connect(tmp_path / "rows.db")) as connection:
            cursor = connection.execute("SELECT * FROM words")
            assert [column for column, *_ in cursor.description] == names
            assert cursor.fetchall() == [tuple(range(len(names)))]
    else:
        rows = DeltaTable(str(tmp_path / "words")).to_pyarrow_table().to_pylist()
        assert rows == [{name: number for number, name in enumerate(names)}]
