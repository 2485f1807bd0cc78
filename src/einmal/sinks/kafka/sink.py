"""Topics of one Kafka cluster, by the options of a query or batch write."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from einmal.client.errors import KafkaError
from einmal.clusters.kafka_cluster import KafkaCluster
from einmal.sinks.commit_point import Committed, TargetFailed
from einmal.sinks.kafka.committed import committed
from einmal.sinks.kafka.transactions import TWO_PHASE_COMMIT
from einmal.sinks.sink import Sink


class KafkaSink(Sink):
    """See ``Sink``. Its options are those of ``options.sink.sink_options``."""

    def __init__(self, client: Mapping[str, str], topic: str | None = None) -> None:
        """``client``: settings under Kafka's names. ``topic``: None where each row has its own."""
        self.two_phase = client.get(TWO_PHASE_COMMIT) == "true"
        """Whether its transactions can be prepared."""
        self.client = {name: value for name, value in client.items() if name != TWO_PHASE_COMMIT}
        self._topic = topic

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
            raise TargetFailed(str(error)) from error

    def committed(self) -> Mapping[str, Committed]:
        try:
            return committed(self.cluster)
        except KafkaError as error:
            raise TargetFailed(str(error)) from error

    def close(self) -> None:
        self.cluster.close()
