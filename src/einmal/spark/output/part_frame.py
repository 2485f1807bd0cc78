"""Pieces of work that return records, as a frame that a sink's job can write: the tasks read them.

The pieces travel in the tasks' function: einmal, and whatever the pieces are of, is installed where executors run.
Section by section the job keeps their order: of two records in one partition, that of the earlier piece comes first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from einmal.clusters.kafka_cluster import KafkaCluster
from einmal.sinks.batch_rows import RowRefused
from einmal.spark.environment.spark_session import cores_of, is_alive
from einmal.spark.output.resources import SinkResources, open_resources
from einmal.types import Header

_SCHEMA: Final = (
    "topic string, partition int, key binary, value binary, headers array<struct<key:string,value:binary>>, "
    "timestamp timestamp_ltz"
)
_ROWS: Final = 1_000
"""Rows of one Arrow batch."""


class PartRow(NamedTuple):
    """``timestamp`` in ms; None for the time of writing."""

    topic: str
    value: bytes | None
    key: bytes | None
    headers: tuple[Header, ...]
    partition: int | None
    timestamp: int | None


class PartJob:
    """Job of parts in one Spark session."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    @property
    def width(self) -> int:
        """Tasks that can run at the same time. Raises PipelineRefused if Spark has ended."""
        return cores_of(self._spark)

    def resources(self, cluster: KafkaCluster, client: Mapping[str, str]) -> SinkResources:
        """Return the resources that write the frames. Raises PipelineRefused."""
        return open_resources(self._spark, cluster, client, None)

    def frame(self, parts: Sequence[Callable[[], Iterable[PartRow]]]) -> DataFrame:
        """One task for each part."""

        def read(batches: Iterator[Any]) -> Iterator[Any]:
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from _arrow(parts[number]())

        return self._spark.range(0, len(parts), 1, len(parts)).mapInArrow(read, _SCHEMA)

    def is_alive(self) -> bool:
        return is_alive(self._spark)


def _arrow(rows: Iterable[PartRow]) -> Iterator[Any]:
    gathered: list[PartRow] = []
    for row in rows:
        if row.key is None and row.partition is None:
            raise RowRefused(f"a record for {row.topic} has neither key nor partition: tasks would not keep its order")
        gathered.append(row)
        if len(gathered) == _ROWS:
            yield _batch(gathered)
            gathered = []
    if gathered:
        yield _batch(gathered)


def _batch(rows: list[PartRow]) -> Any:
    import pyarrow as pa

    header = pa.struct([("key", pa.string()), ("value", pa.binary())])
    times = [None if row.timestamp is None else row.timestamp * 1_000 for row in rows]
    headers = [
        [{"key": record_header.key, "value": record_header.value} for record_header in row.headers] for row in rows
    ]
    return pa.RecordBatch.from_arrays(
        [
            pa.array([row.topic for row in rows], pa.string()),
            pa.array([row.partition for row in rows], pa.int32()),
            pa.array([row.key for row in rows], pa.binary()),
            pa.array([row.value for row in rows], pa.binary()),
            pa.array(headers, pa.list_(header)),
            pa.array(times, pa.timestamp("us", tz="UTC")),
        ],
        names=["topic", "partition", "key", "value", "headers", "timestamp"],
    )
