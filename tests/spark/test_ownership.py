"""Claims about pipelines that their owner has reset or adopted: Spark then does what the plan announced."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from einmal.commit_protocol.takeover import RecordChange, plan_adopt, plan_reset
from einmal.pipeline import events
from einmal.spark import PipelineFenced, PipelineRefused
from einmal.spark.operate.ownership import KafkaOwnership
from einmal.spark.protocol.local_checkpoint import standing_of
from tests.spark.conftest import on_both_in_the_long_run, on_both_tv1_in_the_long_run
from tests.spark.pipelines import Pipeline, counted
from tests.spark.topics import create, fill, numbers, records
from tests.suite.shared import unique

pytestmark = pytest.mark.spark

New = Callable[..., Pipeline]


@pytest.fixture
def owned(bootstrap: str) -> Iterator[KafkaOwnership]:
    with KafkaOwnership({"bootstrap.servers": bootstrap}) as owned:
        yield owned


@pytest.fixture
def new_pipeline(bootstrap: str, tmp_path: Path) -> New:
    def new(kind: str = "copy") -> Pipeline:
        pipeline = Pipeline(bootstrap, str(tmp_path), unique("owned"), kind=kind)
        create(bootstrap, pipeline.source_topic, pipeline.topic, partitions=1)
        fill(bootstrap, pipeline.source_topic, range(12))
        return pipeline

    return new


def run(pipeline: Pipeline, spark: SparkSession) -> None:
    pipeline.writer(spark).start().awaitTermination()


def reset(owned: KafkaOwnership, pipeline: Pipeline, offset: int | None) -> None:
    record = owned.committed()[pipeline.name].record
    end = None if offset is None else ({pipeline.source_topic: {"0": offset}},)
    owned.change(pipeline.name, record, plan_reset(pipeline.name, record, end).record)


@on_both_in_the_long_run
def test_after_a_reset_the_old_checkpoint_is_refused_and_a_new_one_begins_at_its_starting_offsets(
    spark: SparkSession, new_pipeline: New, owned: KafkaOwnership
) -> None:
    pipeline = new_pipeline()
    run(pipeline, spark)
    reset(owned, pipeline, None)
    fill(pipeline.bootstrap, pipeline.source_topic, range(12, 15))
    with pytest.raises(PipelineRefused, match="no commit record exists"):
        run(pipeline, spark)
    shutil.rmtree(pipeline.checkpoint)
    run(pipeline, spark)
    assert numbers(pipeline.bootstrap, pipeline.topic) == sorted([*range(12), *range(15)])
    begins_at_the_offset_that_it_was_reset_to(pipeline, spark, owned, 15)


@pytest.mark.long
def test_after_a_reset_to_an_offset_a_new_checkpoint_begins_there_with_empty_state(
    spark: SparkSession, new_pipeline: New, owned: KafkaOwnership
) -> None:
    pipeline = new_pipeline("random state")
    run(pipeline, spark)
    begins_at_the_offset_that_it_was_reset_to(pipeline, spark, owned, 12)


def begins_at_the_offset_that_it_was_reset_to(
    pipeline: Pipeline, spark: SparkSession, owned: KafkaOwnership, count: int
) -> None:
    """Three records before the ``count`` that it has read."""
    before = len(records(pipeline.bootstrap, pipeline.topic))
    reset(owned, pipeline, count - 3)
    fill(pipeline.bootstrap, pipeline.source_topic, range(count, count + 3))
    with pytest.raises(PipelineRefused, match="was reset to"):
        run(pipeline, spark)
    shutil.rmtree(pipeline.checkpoint)
    run(pipeline, spark)
    added = [
        (str(record.key), (record.value or b"").decode()) for _, record in records(pipeline.bootstrap, pipeline.topic)
    ]
    if pipeline.kind == "copy":
        assert [int(value) for _, value in added[before:]] == list(range(count - 3, count + 3))
    else:
        assert counted(added[before:]) == 6


@pytest.mark.long
@on_both_tv1_in_the_long_run
def test_a_reset_fences_a_pipeline_that_runs(spark: SparkSession, new_pipeline: New, owned: KafkaOwnership) -> None:
    pipeline = new_pipeline()
    done: list[int] = []

    def reset_in_the_first_batch(event: events.Event) -> None:
        # The batch is written, its transaction open.
        if isinstance(event, events.BatchWritten) and event.batch_id == 1 and not done:
            done.append(1)
            reset(owned, pipeline, None)

    with pytest.raises(PipelineFenced):
        pipeline.writer(spark).listener(reset_in_the_first_batch).start().awaitTermination()
    assert done and numbers(pipeline.bootstrap, pipeline.topic) == []
    assert pipeline.name not in owned.committed()


@pytest.mark.long
def test_an_adopted_copy_of_a_checkpoint_resumes(spark: SparkSession, new_pipeline: New, owned: KafkaOwnership) -> None:
    pipeline = new_pipeline("random state")
    run(pipeline, spark)
    older = pipeline.checkpoint.with_name("older")
    shutil.copytree(pipeline.checkpoint, older)
    fill(pipeline.bootstrap, pipeline.source_topic, range(12, 16))
    run(pipeline, spark)
    shutil.rmtree(pipeline.checkpoint)
    older.rename(pipeline.checkpoint)
    with pytest.raises(PipelineRefused):
        run(pipeline, spark)
    before = len(records(pipeline.bootstrap, pipeline.topic))
    record = owned.committed()[pipeline.name].record
    change = plan_adopt(pipeline.name, record, standing_of(str(pipeline.checkpoint)))
    assert isinstance(change, RecordChange)
    assert f"{pipeline.source_topic}-0: offsets 12 to 15 will be written AGAIN" in change.consequences
    owned.change(pipeline.name, record, change.record)
    run(pipeline, spark)
    added = [("", (record.value or b"").decode()) for _, record in records(pipeline.bootstrap, pipeline.topic)][before:]
    assert counted(added) == 4
