"""The pipelines that the Spark tests run, kill and restart. Shared by the tests and by the programs that are killed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from einmal.spark import StreamWriter, write_stream

BATCH = 10
"""Offsets per trigger."""


@dataclass(frozen=True)
class Pipeline:
    """One pipeline: from a topic of its own, to a topic of its own. ``kind``: "copy" or "random state"."""

    bootstrap: str
    directory: str
    name: str
    kind: str = "copy"
    starting: str = "earliest"
    guarantee: str = "exactly_once_v2"
    client: Mapping[str, str] = field(default_factory=dict)
    """More settings of the client."""

    @property
    def client_options(self) -> dict[str, str]:
        settings = {"bootstrap.servers": self.bootstrap, **self.client}
        return {f"kafka.{name}": value for name, value in settings.items()}

    @property
    def source_topic(self) -> str:
        return f"{self.name}-in"

    @property
    def topic(self) -> str:
        return f"{self.name}-out"

    @property
    def checkpoint(self) -> Path:
        return Path(self.directory, self.name)

    def source(self, spark: SparkSession, **options: str) -> DataFrame:
        reader = spark.readStream.format("einmal").options(**self.client_options)
        reader = reader.option("subscribe", self.source_topic).option("startingOffsets", self.starting)
        return reader.option("maxOffsetsPerTrigger", BATCH).options(**options).load()

    def frame(self, spark: SparkSession) -> DataFrame:
        source = self.source(spark)
        return source.select("key", "value") if self.kind == "copy" else random_state(source)

    def writer(self, spark: SparkSession, frame: DataFrame | None = None) -> StreamWriter:
        writer = write_stream(self.frame(spark) if frame is None else frame).format("kafka")
        writer = writer.options(**self.client_options).option("topic", self.topic)
        writer = writer.option("checkpointLocation", str(self.checkpoint)).option("transactional.id", self.name)
        writer = writer.option("processing.guarantee", self.guarantee)
        return writer.outputMode("append" if self.kind == "copy" else "update").trigger(availableNow=True)


def format_writer(pipeline: Pipeline, spark: SparkSession, frame: DataFrame | None = None) -> DataStreamWriter:
    """Spark's own writer with our format, for the same pipeline."""
    writer = (pipeline.frame(spark) if frame is None else frame).writeStream.format("einmal")
    writer = writer.options(**pipeline.client_options).option("topic", pipeline.topic)
    writer = writer.option("checkpointLocation", str(pipeline.checkpoint)).option("transactional.id", pipeline.name)
    return writer.trigger(availableNow=True)


def random_state(source: DataFrame) -> DataFrame:
    """A running sum per key of numbers drawn at random: a second computation of a batch gives another state."""
    return (
        source.selectExpr("cast(key as string) as key")
        .groupBy("key")
        .applyInPandasWithState(_draw, "key string, value string", "sum long", "update", GroupStateTimeout.NoTimeout)
    )


def _draw(key: tuple[str, ...], frames: Iterable[Any], state: GroupState) -> Iterator[Any]:
    import pandas

    count = sum(len(frame) for frame in frames)
    before = state.get[0] if state.exists else 0
    after = before + random.SystemRandom().randint(1, 10**9)
    state.update((after,))
    yield pandas.DataFrame({"key": [key[0]], "value": [json.dumps({"before": before, "after": after, "count": count})]})


def breaks_in_state(outputs: Iterable[tuple[str, str]]) -> list[str]:
    """Where the output of ``random_state`` does not continue what was output before, in (key, value) order."""
    last: dict[str, int] = {}
    breaks = []
    for key, value in outputs:
        row = json.loads(value)
        if row["before"] != last.get(key, 0):
            breaks.append(f"{key}: state had {row['before']}, output had said {last.get(key, 0)}")
        last[key] = row["after"]
    return breaks


def counted(outputs: Iterable[tuple[str, str]]) -> int:
    """How many input records the output of ``random_state`` accounts for."""
    return sum(json.loads(value)["count"] for _, value in outputs)
