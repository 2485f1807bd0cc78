"""The battery with Spark's own tasks: on SQLite what depends on them, and all of it on every sink in the long run."""

from __future__ import annotations

import pytest

from einmal.testing.sinks.spark_tasks import SparkTasks
from tests.sinks.hooks import DeltaHooks, DuckDBHooks, IcebergHooks, SQLiteHooks
from tests.sinks.postgres.test_postgres import PostgresHooks
from tests.sinks.test_own_sink import JsonLinesHooks

pytestmark = [pytest.mark.spark, pytest.mark.slow]


class TestSQLite(SparkTasks, SQLiteHooks):
    # Of names, and of orders of drivers whose batches are like any other; they run on SQLite with tasks without Spark.
    in_the_long_run = frozenset(
        {
            "test_older_driver_commits_in_no_order_of_the_verbs",
            "test_random_runs_leave_each_batch_once",
            "test_every_name_has_a_record_of_its_own",
        }
    )


@pytest.mark.long
class TestDuckDB(SparkTasks, DuckDBHooks):
    pass


@pytest.mark.long
class TestDelta(SparkTasks, DeltaHooks):
    pass


@pytest.mark.long
class TestIceberg(SparkTasks, IcebergHooks):
    pass


@pytest.mark.long
class TestPostgres(SparkTasks, PostgresHooks):
    pass


@pytest.mark.long
class TestJsonLines(SparkTasks, JsonLinesHooks):
    pass
