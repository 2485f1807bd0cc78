"""Topics of one Kafka cluster, for one query or batch write: connection, claim service and job are shared by its
runs."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from einmal.sinks.kafka.sink import KafkaRowSink
from einmal.sinks.row_schema import RowSchema
from einmal.sinks.sink import Opening
from einmal.spark.sinks.kafka.commit_point import KafkaFrameCommitPoint

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from einmal.spark.output.resources import SinkResources


class KafkaFrameSink(KafkaRowSink):
    """See ``Sink``."""

    _resources: SinkResources | None = None

    def resources(self, spark: SparkSession) -> SinkResources:
        """Opened by the first call. Raises PipelineRefused."""
        from einmal.spark.output.resources import open_resources

        if self._resources is None:
            self._resources = open_resources(spark, self.cluster, self.client, self._topic)
        return self._resources

    def problems(self, name: str, schema: RowSchema | None) -> list[tuple[str, str]]:
        """None: the preflight looks at a query's topics together."""
        return []

    def commit_point(self, opening: Opening) -> KafkaFrameCommitPoint:
        resources = None if opening.runtime is None else self.resources(cast("SparkSession", opening.runtime))
        return KafkaFrameCommitPoint(self.opened(opening), self._topic, opening.notify, resources)

    def close(self) -> None:
        if self._resources is not None:
            self._resources.service.close()
        super().close()
