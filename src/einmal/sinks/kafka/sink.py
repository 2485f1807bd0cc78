"""Topics of one Kafka cluster, by the options of a query or batch write."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from functools import cached_property

from einmal.client.errors import KafkaError
from einmal.clusters.kafka_cluster import KafkaCluster
from einmal.sinks.commit_point import Committed, SinkFailed
from einmal.sinks.kafka.commit_point import KafkaCommitPoint, KafkaOpening, KafkaRowCommitPoint
from einmal.sinks.kafka.committed import committed
from einmal.sinks.kafka.source_positions import SourcePositions
from einmal.sinks.kafka.transactions import TWO_PHASE_COMMIT
from einmal.sinks.sink import Opening, RowSink, Sink


class KafkaSink(Sink):
    """See ``Sink``. Its options are those of ``options.sink.sink_options``."""

    def __init__(self, client: Mapping[str, str], topic: str | None = None, group_id: str | None = None) -> None:
        """``client``: settings under Kafka's names. ``topic``: None where each row has its own. ``group_id``: of the
        source positions for lag tools."""
        self.two_phase = client.get(TWO_PHASE_COMMIT) == "true"
        """Whether its transactions can be prepared."""
        self.client = {name: value for name, value in client.items() if name != TWO_PHASE_COMMIT}
        self._topic = topic
        self._group_id = group_id

    @cached_property
    def cluster(self) -> KafkaCluster:
        return KafkaCluster(self.client)

    @property
    def table(self) -> str:
        return self._topic or ""

    def identity(self) -> str | None:
        try:
            return self.cluster.cluster_id()
        except KafkaError as error:
            raise SinkFailed(str(error)) from error

    def commit_point(self, opening: Opening) -> KafkaCommitPoint:
        return KafkaCommitPoint(self.opened(opening))

    def opened(self, opening: Opening) -> KafkaOpening:
        positions = None
        if opening.sources:
            positions = SourcePositions(opening.sources, self.cluster, self._group_id or opening.name)
        return KafkaOpening(
            transactional_id=opening.name,
            client=self.client,
            cluster=self.cluster,
            positions=positions,
            is_new=opening.is_new,
            two_phase=self.two_phase,
        )

    def committed(self) -> Mapping[str, Committed]:
        try:
            return committed(self.cluster)
        except KafkaError as error:
            raise SinkFailed(str(error)) from error

    def close(self) -> None:
        self.cluster.close()


class KafkaRowSink(KafkaSink, RowSink):
    """Topics that take rows."""

    @abstractmethod
    def commit_point(self, opening: Opening) -> KafkaRowCommitPoint:
        """For one run under a name."""
