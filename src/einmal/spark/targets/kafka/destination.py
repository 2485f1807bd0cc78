"""Topics of one Kafka cluster, for one query or batch write: connection, claim service and job are shared by its
runs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING

from einmal.client.errors import KafkaError
from einmal.spark.cluster import KafkaCluster
from einmal.spark.targets.kafka.committed import committed
from einmal.spark.targets.kafka.source_positions import SourcePositions
from einmal.spark.targets.kafka.target import KafkaOpening, KafkaTarget
from einmal.spark.targets.kafka.transactions import TWO_PHASE_COMMIT
from einmal.spark.targets.target import Committed, Destination, Opening, TargetFailed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from einmal.spark.output.resources import SinkResources


class KafkaDestination(Destination):
    """See ``Destination``. Its options are those of ``options.sink_options``."""

    def __init__(self, client: Mapping[str, str], topic: str | None = None, group_id: str | None = None) -> None:
        """``client``: settings under Kafka's names. ``topic``: None where each row has its own. ``group_id``: of the
        source positions for lag tools."""
        self.two_phase = client.get(TWO_PHASE_COMMIT) == "true"
        """Whether its transactions can be prepared: see ``targets.together``."""
        self.client = {name: value for name, value in client.items() if name != TWO_PHASE_COMMIT}
        self._topic = topic
        self._group_id = group_id
        self._resources: SinkResources | None = None

    @cached_property
    def cluster(self) -> KafkaCluster:
        return KafkaCluster(self.client)

    @property
    def table(self) -> str:
        return self._topic or ""

    def resources(self, spark: SparkSession) -> SinkResources:
        """Opened by the first call. Raises PipelineRefused."""
        from einmal.spark.output.resources import open_resources

        if self._resources is None:
            self._resources = open_resources(spark, self.cluster, self.client, self._topic)
        return self._resources

    def identity(self) -> str | None:
        try:
            return self.cluster.cluster_id()
        except KafkaError as error:
            raise TargetFailed(str(error)) from error

    def target(self, opening: Opening) -> KafkaTarget:
        positions = None
        if opening.sources:
            positions = SourcePositions(opening.sources, self.cluster, self._group_id or opening.name)
        return KafkaTarget(
            KafkaOpening(
                transactional_id=opening.name,
                client=self.client,
                cluster=self.cluster,
                resources=None if opening.spark is None else self.resources(opening.spark),
                notify=opening.notify,
                positions=positions,
                is_new=opening.is_new,
                two_phase=self.two_phase,
            )
        )

    def committed(self) -> Mapping[str, Committed]:
        try:
            return committed(self.cluster)
        except KafkaError as error:
            raise TargetFailed(str(error)) from error

    def close(self) -> None:
        if self._resources is not None:
            self._resources.service.close()
        self.cluster.close()
