"""A checkpoint that lost something: what each query does then, and in which words (docs/exactly-once.md).

One query of each kind loses one thing after the other: what a loss must not have changed is the next one's beginning.
A deleted checkpoint without state is in ``test_sink``, on both brokers.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from einmal.pipeline import events
from einmal.spark import PipelineRefused
from tests.spark.pipelines import BATCH, Pipeline, breaks_in_state, counted
from tests.spark.topics import create, fill, numbers, records
from tests.suite.shared import unique

pytestmark = pytest.mark.spark

STATELESS, STATEFUL = "copy", "random state"

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


class Kept:
    """A copy of a checkpoint, to be put back after each loss that a refused start must not have made worse."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._checkpoint = pipeline.checkpoint
        self._copy = pipeline.checkpoint.with_name(f"{pipeline.name}-kept")
        shutil.copytree(self._checkpoint, self._copy)

    def put_back(self) -> None:
        shutil.rmtree(self._checkpoint)
        shutil.copytree(self._copy, self._checkpoint)


def restore_a_copy_from_after_batch(pipeline: Pipeline, batch_id: int) -> None:
    """What a backup of that moment would have had: nothing of a later batch."""
    for directory in ("offsets", "commits"):
        every = [path for path in (pipeline.checkpoint / directory).iterdir() if path.name.isdecimal()]
        delete([path for path in every if int(path.name) > batch_id])


# --- a query without state ------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_stateless_query_that_lost_a_part_of_its_checkpoint_finds_its_batch_already_in_or_is_refused(
    spark: SparkSession, new_pipeline: New
) -> None:
    pipeline = new_pipeline(STATELESS)
    run(pipeline, spark)
    kept = Kept(pipeline)
    # A copy one batch older is refused where its next batch would end elsewhere.
    restore_a_copy_from_after_batch(pipeline, 1)
    with pytest.raises(PipelineRefused, match=r"batch 2 was committed up to .*20.*, but the checkpoint now has .*15"):
        run_with_smaller_batches(pipeline, spark)
    assert_whole(pipeline, 2 * BATCH)
    # It finds the next batch committed if that ends at the same offsets.
    kept.put_back()
    restore_a_copy_from_after_batch(pipeline, 1)
    assert events.BatchAlreadyIn(2) in run(pipeline, spark)
    assert_whole(pipeline, 2 * BATCH)
    # So it is without the newest commit file alone.
    delete(newest_commits(pipeline, 1))
    fill(pipeline.bootstrap, pipeline.source_topic, range(2 * BATCH, 3 * BATCH))
    heard = run(pipeline, spark)
    assert events.BatchAlreadyIn(2) in heard
    assert_whole(pipeline, 3 * BATCH)
    assert len(numbers(pipeline.bootstrap, pipeline.topic, committed=False)) == 3 * BATCH, "it was not written again"
    # An older copy is refused, and without it the query resumes.
    newest = int(newest_commits(pipeline, 1)[0].name)
    restore_a_copy_from_after_batch(pipeline, newest - 2)
    fill(pipeline.bootstrap, pipeline.source_topic, range(3 * BATCH, 4 * BATCH))
    at = f"the checkpoint is at batch {newest - 1}, behind the commit record's {newest}"
    with pytest.raises(
        PipelineRefused, match=f"{at}: it was restored from an older copy, or its.*(?s:.*)delete the checkpoint"
    ):
        run(pipeline, spark)
    assert_whole(pipeline, 3 * BATCH)
    shutil.rmtree(pipeline.checkpoint)
    run(pipeline, spark)
    assert_whole(pipeline, 4 * BATCH)


def run_with_smaller_batches(pipeline: Pipeline, spark: SparkSession) -> None:
    """Spark plans the batch anew, from what there is then, and by the options of then."""
    frame = pipeline.source(spark, maxOffsetsPerTrigger=str(BATCH // 2)).select("key", "value")
    pipeline.writer(spark, frame).start().awaitTermination()


# --- a query with state ---------------------------------------------------------------------------------------------


def test_a_stateful_query_that_lost_a_part_of_its_checkpoint_gets_it_back_or_is_refused_and_state_agrees(
    spark: SparkSession, new_pipeline: New
) -> None:
    pipeline = new_pipeline(STATEFUL)
    run(pipeline, spark)
    # An older copy is refused, and nothing runs.
    kept = Kept(pipeline)
    for batch_id in (0, 1):
        restore_a_copy_from_after_batch(pipeline, batch_id)
        reason = f"file:{re.escape(str(pipeline.checkpoint))} is not at batch 2, the last that was committed"
        heard: list[events.Event] = []
        with pytest.raises(PipelineRefused, match=f"the checkpoint {reason}(?s:.*)restore the newest checkpoint"):
            pipeline.writer(spark).listener(heard.append).start()
        assert started(heard) == []
        assert_whole(pipeline, 2 * BATCH)
        kept.put_back()
    # Without its newest commit files it gets the last one back, and runs nothing again.
    count = 2 * BATCH
    for missing in (1, 2):
        newest = newest_commits(pipeline, 1)[0]
        text = newest.read_text()
        delete(newest_commits(pipeline, missing))
        count = another_batch(pipeline, count)
        heard = run(pipeline, spark)
        assert newest.read_text() == text, "to the letter"
        assert min(started(heard)) == int(newest.name) + 1
        assert_whole(pipeline, count)
    # An emptied directory of state is found by Spark, and nothing is written.
    state = pipeline.checkpoint / "state" / "0"
    state.rename(pipeline.checkpoint / "elsewhere")
    count = another_batch(pipeline, count)
    with pytest.raises(Exception, match="STATE|state|batch"):
        run(pipeline, spark)
    assert_whole(pipeline, count - BATCH)
    shutil.rmtree(state, ignore_errors=True)
    (pipeline.checkpoint / "elsewhere").rename(state)
    run(pipeline, spark)
    assert_whole(pipeline, count)
    # Without any checkpoint it is refused, unless empty state is allowed.
    last, before = newest_commits(pipeline, 1)[0].name, outputs_of(pipeline)
    shutil.rmtree(pipeline.checkpoint)
    another_batch(pipeline, count)
    gone = f"was deleted or replaced after batch {last} was committed"
    lost = "the state that belongs to the committed output is gone"
    with pytest.raises(PipelineRefused, match=f"{gone}: {lost}(?s:.*)einmal.adopt=true"):
        pipeline.writer(spark).start()
    run(pipeline, spark, **{"einmal.adopt": "true"})
    added = outputs_of(pipeline)[len(before) :]
    assert breaks_in_state(added) == [], "the state began empty"
    assert counted(added) == BATCH, "with the first record that was not in the output"


def another_batch(pipeline: Pipeline, count: int) -> int:
    """How many records there are then."""
    fill(pipeline.bootstrap, pipeline.source_topic, range(count, count + BATCH))
    return count + BATCH
