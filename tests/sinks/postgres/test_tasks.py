"""What tasks do to the staging table: more than one attempt, an attempt that outlives its batch, a million rows."""

from __future__ import annotations

import threading
import time
from typing import Final

import psutil
import pytest

from einmal.options.values import Options
from einmal.sinks.commit_point import SinkFailed
from einmal.sinks.postgres.copying import copy_rows
from einmal.sinks.postgres.options import postgres_options
from einmal.spark.sinks.frame_rows import FrameRows
from tests.sinks.postgres.rig import NAME, Rig

pytestmark = [pytest.mark.spark, pytest.mark.slow]

_ROWS: Final = 1_000_000
_WORKER_BYTES_MAX: Final = 400 * 1024 * 1024
"""Of a Python worker with pyspark, pyarrow and psycopg imported, which are about half of it."""


def test_rows_of_attempts_that_spark_does_not_count_are_never_inserted(rig: Rig) -> None:
    driver = rig.driver()
    driver.start()
    driver.stage(0, rig.frame(range(10)))
    staged = driver.commit_point._staged
    assert staged is not None
    # The same tasks again, as a stage that is retried, or a speculative copy: other attempts.
    options = postgres_options(Options(rig.options()))
    again = copy_rows(FrameRows(rig.frame(range(10))), staged, options.connecting, NAME, 1)
    assert {each.attempt for each in again}.isdisjoint(staged.counts)
    assert rig.rows(f"SELECT count(*) FROM {staged.name}") == [(20,)]
    driver.record(0)
    driver.commit()
    assert rig.numbers() == list(range(10))


def test_an_attempt_that_outlives_its_batch_finds_no_table(rig: Rig) -> None:
    driver = rig.driver()
    driver.start()
    driver.stage(0, rig.frame(range(10)))
    staged = driver.commit_point._staged
    assert staged is not None
    driver.record(0)
    driver.commit()
    options = postgres_options(Options(rig.options()))
    with pytest.raises(Exception, match="undefined_table"):
        copy_rows(FrameRows(rig.frame(range(10))), staged, options.connecting, NAME, 1)
    assert rig.numbers() == list(range(10))


def test_a_table_that_changes_between_stage_and_record_fails_the_batch(rig: Rig) -> None:
    driver = rig.driver()
    driver.start()
    driver.batch(0, rig.frame(range(3)))
    driver.stage(1, rig.frame(range(3, 6)))
    rig.rows("ALTER TABLE numbers RENAME COLUMN n TO m")
    with pytest.raises(SinkFailed, match="undefined_column"):
        driver.record(1)
    driver.abort()
    rig.rows("ALTER TABLE numbers RENAME COLUMN m TO n")
    driver.batch(1, rig.frame(range(3, 6)))
    assert rig.numbers() == list(range(6))


@pytest.mark.long
def test_a_million_rows_need_little_memory_in_a_worker_also_in_one_arrow_batch(rig: Rig) -> None:
    largest = 0
    done = threading.Event()

    def watch() -> None:
        nonlocal largest
        while not done.is_set():
            for child in psutil.Process().children(recursive=True):
                try:
                    if ".daemon pyspark" in " ".join(child.cmdline()):
                        largest = max(largest, child.memory_info().rss)
                except psutil.Error:
                    continue
            time.sleep(0.05)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        rig.spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "200000")
        frame = rig.spark.range(0, _ROWS, 1, 2).selectExpr("id AS n", "repeat('x', 100) AS filler")
        driver = rig.driver()
        driver.start()
        driver.batch(0, frame)
    finally:
        rig.spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
        done.set()
        watching.join()
    assert rig.rows("SELECT count(*), count(DISTINCT n), min(n), max(n) FROM numbers") == [(_ROWS, _ROWS, 0, _ROWS - 1)]
    assert 0 < largest < _WORKER_BYTES_MAX, largest
