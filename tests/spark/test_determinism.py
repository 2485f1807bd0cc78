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

from einmal.pipeline import events
from einmal.spark import PipelineError
from tests.spark.pipelines import BATCH, Pipeline, breaks_in_state, counted
from tests.spark.topics import create, fill, pairs, values
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


def by_number(found: list[str]) -> dict[int, list[tuple[str, ...]]]:
    """What was drawn for each number."""
    numbers: dict[int, list[tuple[str, ...]]] = {}
    for value in found:
        number, *rest = value.split("|")
        numbers.setdefault(int(number), []).append(tuple(rest))
    return numbers


def both(pipeline: Pipeline) -> tuple[dict[int, list[tuple[str, ...]]], dict[int, list[tuple[str, ...]]]]:
    """By number: what is committed, and what was written at all."""
    every = values(pipeline.bootstrap, pipeline.topic, committed=False)
    return by_number(values(pipeline.bootstrap, pipeline.topic)), by_number(every)


def test_a_batch_that_runs_again_draws_again_and_has_its_effects_again_at_the_time_that_it_had(
    spark: SparkSession, new_pipeline: New, tmp_path: Path
) -> None:
    pipeline = new_pipeline("copy")
    outbox = tmp_path / "outbox"

    def send(frames: Iterator[Any]) -> Iterator[Any]:
        for frame in frames:
            with outbox.open("a") as box:
                box.writelines(f"{value}\n" for value in frame["value"])
            yield frame

    drawn = "concat_ws('|', cast(value as string), uuid(), cast(unix_micros(current_timestamp()) as string))"
    rows = pipeline.source(spark).selectExpr("cast(key as string) as key", f"{drawn} as value")
    run_dying(pipeline, spark, rows.mapInPandas(send, "key string, value string"), events.BatchWritten, 1)
    committed, written = both(pipeline)
    assert sorted(committed) == list(range(RECORDS))
    assert all(len(draws) == 1 for draws in committed.values()), "readers see one of them"
    again = {number: draws for number, draws in written.items() if len(draws) == 2}
    assert len(again) == BATCH
    assert all(first[0] != second[0] for first, second in again.values())
    assert len({time for draws in again.values() for _, time in draws}) == 1
    assert len(outbox.read_text().splitlines()) == RECORDS + BATCH, "an effect outside is repeated with its batch"


@pytest.mark.long
def test_a_random_state_and_its_output_agree_where_a_query_dies_between_the_two(
    spark: SparkSession, new_pipeline: New
) -> None:
    pipeline = new_pipeline("random state")
    run_dying(pipeline, spark, None, events.OutputWritten, 1)
    outputs = pairs(pipeline.bootstrap, pipeline.topic)
    assert breaks_in_state(outputs) == []
    assert counted(outputs) == RECORDS
