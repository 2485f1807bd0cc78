"""New pipelines of one test, each with topics of its own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.spark.pipelines import BATCH, Pipeline
from tests.spark.topics import create, fill
from tests.suite.shared import unique

NewPipeline = Callable[..., Pipeline]


def pipelines_in(directory: Path, bootstrap: str, prefix: str, *, records: int = BATCH, width: int = 2) -> NewPipeline:
    """Makes a pipeline whose source topic holds the numbers below ``count``. ``records`` and ``width``: the defaults of
    its arguments."""

    def make(count: int = records, *, partitions: int = width, **fields: Any) -> Pipeline:
        pipeline = Pipeline(bootstrap, str(directory), unique(prefix), **fields)
        create(bootstrap, pipeline.source_topic, pipeline.topic, partitions=partitions)
        fill(bootstrap, pipeline.source_topic, range(count))
        return pipeline

    return make
