"""The battery with Spark's own tasks: on SQLite what depends on them, and all of it on every sink in the long run."""

from __future__ import annotations

import pytest

from einmal.testing.sinks.spark_tasks import SparkTasks
from tests.sinks.hooks import DeltaHooks, DuckDBHooks, IcebergHooks, ParquetHooks, SQLiteHooks
from tests.sinks.local_tasks import OF_EVERY_ENGINE_ALIKE
from tests.sinks.postgres.test_postgres import PostgresHooks
from tests.sinks.test_own_sink import JsonLinesHooks

pytestmark = [pytest.mark.spark, pytest.mark.slow]


class TestSQLite(SparkTasks, SQLiteHooks):
    # What begins with the rows of tasks is in every run; the rest is the same without Spark.
    in_the_long_run = (OF_EVERY_ENGINE_ALIKE - {"test_outputs_count_the_rows_of_every_task"}) | {
        "test_commit_without_a_record_is_no_commit",
        "test_damaged_record_is_reported_and_can_be_replaced",
        "test_deleted_record_is_gone_and_the_name_can_begin_again",
        "test_empty_batch_moves_the_record_alone",
        "test_fenced_driver_reads_no_record_for_certain",
        "test_identity_stays_and_belongs_to_one_location",
        "test_killed_process_leaves_the_batch_whole",
        "test_older_driver_commits_in_no_order_of_the_verbs",
        "test_problems_are_none_for_rows_that_were_written",
        "test_problems_name_what_the_sink_cannot_take",
        "test_run_that_ends_after_a_verb_leaves_the_batch_whole",
        "test_run_with_a_held_identity_aborts_what_the_run_before_it_left",
        "test_staged_rows_of_another_pipeline_are_left_alone",
    }


@pytest.mark.long
class TestDuckDB(SparkTasks, DuckDBHooks):
    pass


@pytest.mark.long
class TestDelta(SparkTasks, DeltaHooks):
    pass


@pytest.mark.long
class TestParquet(SparkTasks, ParquetHooks):
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
