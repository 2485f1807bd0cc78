"""What is promised to functions that do not return the same twice: each test is a sentence of docs/exactly-once.md.

A driver's death is an exception out of a listener here: the transaction stays open, and a new query resumes. Real
deaths are in ``test_driver_killed`` and in the campaign.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from einmal.spark import PipelineError, events
from tests.spark.pipelines import BATCH, Pipeline, breaks_in_state, counted
from tests.spark.topics import create, fill, records, values
from tests.suite.shared import unique

pytestmark = pytest.mark.spark

RECORDS = 2 * BATCH

New = Callable[[str], Pipeline]


class Died(Exception):
    pass


@pytest.fixture
def new_pipeline(bootstrap: str, tmp_path: Path) -> New:
    def new(kind: str) -> Pipeline:
        pipeline = Pipeline(bootstrap, str(tmp_path), unique("draws"), kind=kind)
        create(bootstrap, pipeline.source_topic, pipeline.topic, partitions=1)
        fill(bootstrap, pipeline.source_topic, range(RECORDS))
        return pipeline

    return new


def run_dying(pipeline: Pipeline, spark: SparkSession, frame: DataFrame | None, event: type, batch_id: int) -> None:
    """Run until the query dies at an event of a batch; then let another one finish."""

    def die(heard: events.Event) -> None:
        if isinstance(heard, event) and getattr(heard, "batch_id", None) == batch_id:
            raise Died

    with pytest.raises(PipelineError, match="Died"):
        pipeline.writer(spark, frame).listener(die).start().awaitTermination()
    pipeline.writer(spark, frame).start().awaitTermination()


def copy_with(pipeline: Pipeline, spark: SparkSession, expression: str) -> DataFrame:
    """Each value with that of an expression, as ``value|expression``."""
    return pipeline.source(spark).selectExpr("key", f"concat(cast(value as string), '|', {expression}) as value")


def by_number(found: list[str]) -> dict[int, list[str]]:
    numbers: dict[int, list[str]] = {}
    for value in found:
        number, _, rest = value.partition("|")
        numbers.setdefault(int(number), []).append(rest)
    return numbers


def both(pipeline: Pipeline) -> tuple[dict[int, list[str]], dict[int, list[str]]]:
    """By number: what is committed, and what was written at all."""
    every = values(pipeline.bootstrap, pipeline.topic, committed=False)
    return by_number(values(pipeline.bootstrap, pipeline.topic)), by_number(every)


def test_a_draw_is_made_again_for_a_batch_that_is_written_again_and_readers_see_one_of_them(
    spark: SparkSession, new_pipeline: New
) -> None:
    pipeline = new_pipeline("copy")
    run_dying(pipeline, spark, copy_with(pipeline, spark, "uuid()"), events.BatchWritten, 1)
    committed, written = both(pipeline)
    assert sorted(committed) == list(range(RECORDS))
    assert all(len(draws) == 1 for draws in committed.values())
    again = [number for number in written if len(written[number]) == 2]
    assert len(again) == BATCH
    assert all(len(set(written[number])) == 2 for number in again)


def test_a_batch_that_runs_again_has_the_records_and_the_time_that_it_had(
    spark: SparkSession, new_pipeline: New
) -> None:
    pipeline = new_pipeline("copy")
    frame = copy_with(pipeline, spark, "cast(unix_micros(current_timestamp()) as string)")
    run_dying(pipeline, spark, frame, events.BatchWritten, 1)
    fill(pipeline.bootstrap, pipeline.source_topic, range(RECORDS, RECORDS + 3))
    _, written = both(pipeline)
    again = {number: times for number, times in written.items() if len(times) == 2}
    assert len(again) == BATCH
    assert len({time for times in again.values() for time in times}) == 1


@pytest.mark.long
def test_a_random_state_and_its_output_agree_where_a_query_dies_between_the_two(
    spark: SparkSession, new_pipeline: New
) -> None:
    pipeline = new_pipeline("random state")
    run_dying(pipeline, spark, None, events.OutputWritten, 1)
    outputs = [
        ((record.key or b"").decode(), (record.value or b"").decode())
        for _, record in records(pipeline.bootstrap, pipeline.topic)
    ]
    assert breaks_in_state(outputs) == []
    assert counted(outputs) == RECORDS


def test_an_effect_outside_is_repeated_with_its_batch(spark: SparkSession, new_pipeline: New, tmp_path: Path) -> None:
    pipeline = new_pipeline("copy")
    outbox = tmp_path / "outbox"

    def send(frames: Iterator[Any]) -> Iterator[Any]:
        for frame in frames:
            with outbox.open("a") as box:
                box.writelines(f"{value}\n" for value in frame["value"])
            yield frame

    source = pipeline.source(spark).select(F.col("key").cast("string"), F.col("value").cast("string"))
    sent = source.mapInPandas(send, "key string, value string")
    run_dying(pipeline, spark, sent, events.BatchWritten, 1)
    assert sorted(map(int, values(pipeline.bootstrap, pipeline.topic))) == list(range(RECORDS))
    assert len(outbox.read_text().splitlines()) == RECORDS + BATCH
