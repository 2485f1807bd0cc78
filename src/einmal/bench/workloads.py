"""Workloads of a measured pipeline: records of a size and shape, from topic to topic, copied or counted."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from einmal.bench.confluent import hand_over
from einmal.bench.records import texts

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_KEYS: Final = 10_000
_SEED: Final = 1
_VALUES: Final = 64
"""Different values, in turn."""


@dataclass(frozen=True, slots=True)
class PipelineWorkload:
    """``records``: of a micro-batch. ``partitions``: of each topic. ``settings``: of the sinks' producers.
    ``is_counted``: a stateful query counts keys in windows; else records are copied."""

    name: str
    size: int
    records: int
    partitions: int = 4
    topics: int = 1
    has_keys: bool = True
    is_text: bool = False
    is_counted: bool = False
    settings: Mapping[str, str] = field(default_factory=dict)

    def names(self, topic: str) -> list[str]:
        """The topics behind one name."""
        return [topic] if self.topics == 1 else [f"{topic}-{number}" for number in range(self.topics)]

    def query(self, source: DataFrame, sink: str) -> DataFrame:
        """The rows to write, from those of a Kafka source."""
        # Only here: the names of workloads are checked without Spark.
        from pyspark.sql import functions as F

        if self.is_counted:
            counts = source.withWatermark("timestamp", "1 minute").groupBy(F.window("timestamp", "1 second"), "key")
            return counts.count().selectExpr("key", "cast(count as string) as value")
        columns = ["key", "value"] if self.has_keys else ["value"]
        if self.topics > 1:
            columns.append(f"concat('{sink}', substring_index(topic, '-', -1)) as topic")
        return source.selectExpr(*columns)

    @property
    def output_mode(self) -> str:
        return "update" if self.is_counted else "append"

    def values(self) -> list[bytes]:
        """Return values of the workload's size: random bytes, or text that can be compressed."""
        if self.is_text:
            return texts([self.size] * _VALUES)
        chance = random.Random(_SEED)
        return [chance.randbytes(self.size) for _ in range(_VALUES)]


_ALL: Final = (
    PipelineWorkload("100 B", 100, 200_000),
    PipelineWorkload("1 KB", 1_000, 60_000),
    PipelineWorkload("10 KB", 10_000, 8_000),
    PipelineWorkload("100 B, 1 partition", 100, 200_000, partitions=1),
    PipelineWorkload("100 B, 16 partitions", 100, 200_000, partitions=16),
    PipelineWorkload("100 B, no keys", 100, 200_000, has_keys=False),
    PipelineWorkload("1 KB text, zstd", 1_000, 60_000, is_text=True, settings={"compression.type": "zstd"}),
    PipelineWorkload("100 B, windowed count", 100, 200_000, is_counted=True),
    PipelineWorkload("100 B, 100 topics", 100, 100_000, partitions=1, topics=100),
)
WORKLOADS: Final = {workload.name: workload for workload in _ALL}
SMALL: Final = WORKLOADS["100 B"]
USUAL: Final = ("100 B", "1 KB")


def key(number: int) -> bytes:
    """Return the key of the record with this number."""
    return b"key-%04d" % (number * 7919 % _KEYS)


def fill(bootstrap: str, topic: str, workload: PipelineWorkload, count: int) -> None:
    """A backlog, spread over the topics and by the keys."""
    from confluent_kafka import Producer

    settings: dict[str, Any] = {"linger.ms": 20, "batch.size": 200_000}
    producer = Producer({"bootstrap.servers": bootstrap, **settings, **workload.settings})
    names, values = workload.names(topic), workload.values()
    for number in range(count):
        record_key = key(number) if workload.has_keys else None
        hand_over(producer, names[number % len(names)], values[number % _VALUES], key=record_key)
    producer.flush(60)
