"""A checkpoint that lost something: what each query does then, and in which words (docs/exactly-once.md).

A deleted checkpoint without state is in ``test_sink``, on both brokers.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from einmal.spark import PipelineRefused, events
from tests.spark.pipelines import BATCH, Pipeline, breaks_in_state, counted
from tests.spark.topics import create, fill, numbers, records
from tests.suite.shared import unique

pytestmark = pytest.mark.spark

KINDS = ("copy", "random state")
STATELESS, STATEFUL = KINDS

New = Callable[[str], Pipeline]


@pytest.fixture
def new_pipeline(bootstrap: str, tmp_path: Path) -> New:
    """One that has committed two batches of records, after the empty one that it begins with."""

    def new(kind: str) -> Pipeline:
        pipeline = Pipeline(bootstrap, str(tmp_path), unique("lost"), kind=kind)
        create(bootstrap, pipeline.source_topic, pipeline.topic, partitions=1)
        fill(bootstrap, pipeline.source_topic, range(2 * BATCH))
        return pipeline

    return new


def run(pipeline: Pipeline, spark: SparkSession, **options: str) -> list[events.Event]:
    heard: list[events.Event] = []
    writer = pipeline.writer(spark).options(**options).listener(heard.append)
    writer.start().awaitTermination()
    return heard


def started(heard: list[events.Event]) -> list[int]:
    return [event.batch_id for event in heard if isinstance(event, events.BatchStarted)]


def assert_whole(pipeline: Pipeline, count: int) -> None:
    """Every record below ``count`` once; and, where there is state, no break in it."""
    if pipeline.kind == STATELESS:
        assert numbers(pipeline.bootstrap, pipeline.topic) == list(range(count))
        return
    outputs = outputs_of(pipeline)
    assert breaks_in_state(outputs) == []
    assert counted(outputs) == count


def outputs_of(pipeline: Pipeline) -> list[tuple[str, str]]:
    return [
        ((record.key or b"").decode(), (record.value or b"").decode())
        for _, record in records(pipeline.bootstrap, pipeline.topic)
    ]


def newest_commits(pipeline: Pipeline, number: int) -> list[Path]:
    found = [path for path in (pipeline.checkpoint / "commits").iterdir() if path.name.isdecimal()]
    return sorted(found, key=lambda path: int(path.name))[-number:]


def delete(paths: list[Path]) -> None:
    for path in paths:
        path.unlink()
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def restore_a_copy_from_after_batch(pipeline: Pipeline, batch_id: int) -> None:
    """What a backup of that moment would have had: nothing of a later batch."""
    for directory in ("offsets", "commits"):
        every = [path for path in (pipeline.checkpoint / directory).iterdir() if path.name.isdecimal()]
        delete([path for path in every if int(path.name) > batch_id])


# --- the newest files of commits/ ---------------------------------------------------------------------------------


def test_without_its_newest_commit_file_a_stateless_query_finds_its_last_batch_already_in(
    spark: SparkSession, new_pipeline: New
) -> None:
    pipeline = new_pipeline(STATELESS)
    run(pipeline, spark)
    delete(newest_commits(pipeline, 1))
    fill(pipeline.bootstrap, pipeline.source_topic, range(2 * BATCH, 3 * BATCH))
    heard = run(pipeline, spark)
    assert events.BatchAlreadyIn(2) in heard
    assert_whole(pipeline, 3 * BATCH)
    assert len(numbers(pipeline.bootstrap, pipeline.topic, committed=False)) == 3 * BATCH, "it was not written again"


@pytest.mark.parametrize("missing", [1, 2])
def test_without_its_newest_commit_files_a_stateful_query_gets_the_last_one_back_and_runs_nothing_again(
    spark: SparkSession, new_pipeline: New, missing: int
) -> None:
    pipeline = new_pipeline(STATEFUL)
    run(pipeline, spark)
    newest = newest_commits(pipeline, 1)[0]
    text = newest.read_text()
    delete(newest_commits(pipeline, missing))
    fill(pipeline.bootstrap, pipeline.source_topic, range(2 * BATCH, 3 * BATCH))
    heard = run(pipeline, spark)
    assert newest.read_text() == text, "to the letter"
    assert min(started(heard)) == int(newest.name) + 1
    assert_whole(pipeline, 3 * BATCH)


# --- an older copy --------------------------------------------------------------------------------------------------


def test_an_older_copy_of_a_stateless_query_is_refused_and_without_it_the_query_resumes(
    spark: SparkSession, new_pipeline: New
) -> None:
    pipeline = new_pipeline(STATELESS)
    run(pipeline, spark)
    restore_a_copy_from_after_batch(pipeline, 0)
    fill(pipeline.bootstrap, pipeline.source_topic, range(2 * BATCH, 3 * BATCH))
    behind = "the checkpoint is at batch 1, behind the commit record's 2: it was restored from an older copy, or its"
    with pytest.raises(PipelineRefused, match=f"{behind}.*(?s:.*)delete the checkpoint"):
        run(pipeline, spark)
    assert_whole(pipeline, 2 * BATCH)
    shutil.rmtree(pipeline.checkpoint)
    run(pipeline, spark)
    assert_whole(pipeline, 3 * BATCH)


def test_a_copy_one_batch_older_is_refused_where_its_next_batch_would_end_elsewhere(
    spark: SparkSession, new_pipeline: New
) -> None:
    pipeline = new_pipeline(STATELESS)
    run(pipeline, spark)
    restore_a_copy_from_after_batch(pipeline, 1)
    with pytest.raises(PipelineRefused, match=r"batch 2 was committed up to .*20.*, but the checkpoint now has .*15"):
        run_with_smaller_batches(pipeline, spark)
    assert_whole(pipeline, 2 * BATCH)


def run_with_smaller_batches(pipeline: Pipeline, spark: SparkSession) -> None:
    """Spark plans the batch anew, from what there is then, and by the options of then."""
    frame = pipeline.source(spark, maxOffsetsPerTrigger=str(BATCH // 2)).select("key", "value")
    pipeline.writer(spark, frame).start().awaitTermination()


def test_a_copy_one_batch_older_finds_the_next_batch_committed_if_it_ends_at_the_same_offsets(
    spark: SparkSession, new_pipeline: New
) -> None:
    pipeline = new_pipeline(STATELESS)
    run(pipeline, spark)
    restore_a_copy_from_after_batch(pipeline, 1)
    assert events.BatchAlreadyIn(2) in run(pipeline, spark)
    assert_whole(pipeline, 2 * BATCH)


@pytest.mark.parametrize("batch_id", [0, 1])
def test_an_older_copy_of_a_stateful_query_is_refused_and_nothing_runs(
    spark: SparkSession, new_pipeline: New, batch_id: int
) -> None:
    pipeline = new_pipeline(STATEFUL)
    run(pipeline, spark)
    restore_a_copy_from_after_batch(pipeline, batch_id)
    reason = f"the checkpoint file:{re.escape(str(pipeline.checkpoint))} is not at batch 2, the last that was committed"
    heard: list[events.Event] = []
    with pytest.raises(PipelineRefused, match=f"{reason}(?s:.*)restore the newest checkpoint"):
        pipeline.writer(spark).listener(heard.append).start()
    assert started(heard) == []
    assert_whole(pipeline, 2 * BATCH)


# --- no checkpoint at all -------------------------------------------------------------------------------------------


def test_a_stateful_query_without_its_checkpoint_is_refused_unless_empty_state_is_allowed(
    spark: SparkSession, new_pipeline: New
) -> None:
    pipeline = new_pipeline(STATEFUL)
    run(pipeline, spark)
    before = len(outputs_of(pipeline))
    shutil.rmtree(pipeline.checkpoint)
    fill(pipeline.bootstrap, pipeline.source_topic, range(2 * BATCH, 3 * BATCH))
    gone = "was deleted or replaced after batch 2 was committed: the state that belongs to the committed output is gone"
    with pytest.raises(PipelineRefused, match=f"{gone}(?s:.*)einmal.adopt=true"):
        pipeline.writer(spark).start()
    run(pipeline, spark, **{"einmal.adopt": "true"})
    added = outputs_of(pipeline)[before:]
    assert breaks_in_state(added) == [], "the state began empty"
    assert counted(added) == BATCH, "with the first record that was not in the output"


def test_an_emptied_directory_of_state_is_found_by_spark_and_nothing_is_written(
    spark: SparkSession, new_pipeline: New
) -> None:
    pipeline = new_pipeline(STATEFUL)
    run(pipeline, spark)
    state = pipeline.checkpoint / "state" / "0"
    state.rename(pipeline.checkpoint / "elsewhere")
    fill(pipeline.bootstrap, pipeline.source_topic, range(2 * BATCH, 3 * BATCH))
    with pytest.raises(Exception, match="STATE|state|batch"):
        run(pipeline, spark)
    assert_whole(pipeline, 2 * BATCH)
    shutil.rmtree(state, ignore_errors=True)
    (pipeline.checkpoint / "elsewhere").rename(state)
    run(pipeline, spark)
    assert_whole(pipeline, 3 * BATCH)
