"""``df.writeStream.format("einmal")`` on real Spark: what it writes, refuses and fences. Drivers die elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.spark.conftest import on_both_brokers
from tests.spark.pipelines import BATCH, Pipeline, format_writer
from tests.spark.topics import commit_record, create, fill, numbers
from tests.suite.shared import unique

pytestmark = [pytest.mark.spark, pytest.mark.slow]

NewPipeline = Callable[..., Pipeline]


@pytest.fixture
def new_pipeline(bootstrap: str, tmp_path: Path) -> NewPipeline:
    """A pipeline whose source topic holds the numbers below ``count``."""

    def make(count: int = BATCH, *, partitions: int = 2, **fields: Any) -> Pipeline:
        pipeline = Pipeline(bootstrap, str(tmp_path), unique("format"), **fields)
        create(bootstrap, pipeline.source_topic, pipeline.topic, partitions=partitions)
        fill(bootstrap, pipeline.source_topic, range(count))
        return pipeline

    return make


def run(pipeline: Pipeline, spark: SparkSession, **options: str) -> StreamingQuery:
    query = format_writer(pipeline, spark).options(**options).start()
    query.awaitTermination()
    return query


@on_both_brokers
def test_every_batch_is_one_transaction_with_its_commit_record(spark: SparkSession, new_pipeline: NewPipeline) -> None:
    pipeline = new_pipeline(3 * BATCH)
    run(pipeline, spark)
    assert numbers(pipeline.bootstrap, pipeline.topic) == list(range(3 * BATCH))
    record = commit_record(pipeline.bootstrap, pipeline.name)
    assert record is not None
    assert record.checkpoint == f"file:{pipeline.checkpoint}"
    assert record.batch_id == 3
    assert record.records == BATCH
    fill(pipeline.bootstrap, pipeline.source_topic, range(3 * BATCH, 4 * BATCH))
    run(pipeline, spark)
    assert numbers(pipeline.bootstrap, pipeline.topic, committed=False) == list(range(4 * BATCH))
