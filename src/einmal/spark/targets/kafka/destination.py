"""Topics of one Kafka cluster, for one query or batch write: connection, claim service and job are shared by its
runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from einmal.sinks.kafka.commit_point import KafkaOpening
from einmal.sinks.kafka.sink import KafkaSink
from einmal.sinks.kafka.source_positions import SourcePositions
from einmal.spark.targets.kafka.target import KafkaTarget
from einmal.spark.targets.target import Destination, Opening

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from einmal.spark.output.resources import SinkResources


class KafkaDestination(KafkaSink, Destination):
    """See ``Destination``."""

    def __init__(self, client: Mapping[str, str], topic: str | None = None, group_id: str | None = None) -> None:
        """``group_id``: of the source positions for lag tools."""
        super().__init__(client, topic)
        self._group_id = group_id
        self._resources: SinkResources | None = None

    def resources(self, spark: SparkSession) -> SinkResources:
        """Opened by the first call. Raises PipelineRefused."""
        from einmal.spark.output.resources import open_resources

        if self._resources is None:
            self._resources = open_resources(spark, self.cluster, self.client, self._topic)
        return self._resources

    def target(self, opening: Opening) -> KafkaTarget:
        positions = None
        if opening.sources:
            positions = SourcePositions(opening.sources, self.cluster, self._group_id or opening.name)
        kafka = KafkaOpening(
            transactional_id=opening.name,
            client=self.client,
            cluster=self.cluster,
            positions=positions,
            is_new=opening.is_new,
            two_phase=self.two_phase,
        )
        return KafkaTarget(kafka, None if opening.spark is None else self.resources(opening.spark), opening.notify)

    def close(self) -> None:
        if self._resources is not None:
            self._resources.service.close()
        super().close()
