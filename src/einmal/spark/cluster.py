"""The questions that a source or a sink asks its Kafka cluster: topics, offsets, settings. Blocking.

One cluster object per query, on the driver. Knows nothing of Spark.
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from einmal.client.aio.cluster import Cluster
from einmal.client.aio.offsets import EARLIEST, LATEST, list_offsets
from einmal.client.apis import ApiKey
from einmal.client.blocking.loop_thread import LoopThread
from einmal.client.config import ClientSettings, addresses, dotted, parse
from einmal.client.errors import error_for
from einmal.seams import SystemClock, TcpNetwork
from einmal.types import ErrorCode, IsolationLevel, Offset, TopicPartition

_TOPIC_RESOURCE: Final = 2
_VERIFYING_ADD_PARTITIONS: Final = 4
"""Brokers that speak this version verify a transactional write at the coordinator (KIP-890 part 1)."""
_APPEAR_MS: Final = 15_000
"""How long a topic that the broker may create on demand can take."""


class KafkaCluster:
    """``client``: settings under Kafka's names; those that are not common to all clients are not looked at."""

    def __init__(self, client: Mapping[str, str]) -> None:
        common = {dotted(field.name) for field in dataclasses.fields(ClientSettings)}
        self.common = {name: value for name, value in client.items() if name in common}
        self._settings = parse(ClientSettings, self.common, {})
        self._thread = LoopThread(self._make, "einmal-cluster")

    def _make(self) -> Cluster:
        return Cluster(self._settings, network=TcpNetwork(), clock=SystemClock(), source=random.Random())

    # --- topics -------------------------------------------------------------------------------------------------

    def partition_count(self, topic: str) -> int:
        """Asked anew each time: partitions can be added. Raises UnknownTopic, RetriableError."""
        return len(self.partitions([topic], may_create=True))

    def partitions(self, topics: Iterable[str], *, may_create: bool = False) -> list[TopicPartition]:
        """All partitions of these topics, in order. Raises UnknownTopic, RetriableError."""
        wanted = list(topics)

        async def ask(cluster: Cluster) -> list[TopicPartition]:
            await cluster.refresh_metadata(wanted, may_create=may_create)
            deadline = cluster.deadline(_APPEAR_MS)
            found = [await cluster.topic(name, deadline=deadline, may_create=may_create) for name in wanted]
            return [TopicPartition(topic.name, index) for topic in found for index in sorted(topic.partitions)]

        return self._thread.run(ask)

    def topics(self, pattern: str) -> list[str]:
        """The topics whose whole name matches."""

        async def ask(cluster: Cluster) -> list[str]:
            await cluster.refresh_metadata(None)
            return sorted(cluster.metadata.topics)

        return [name for name in self._thread.run(ask) if re.fullmatch(pattern, name)]

    def create_topic(self, name: str, partitions: int, config: Mapping[str, str]) -> None:
        """With the cluster's own replication factor. A topic that exists is left as it is. Raises KafkaError."""
        fields = {
            "topics": [
                {
                    "name": name,
                    "num_partitions": partitions,
                    "replication_factor": -1,
                    "assignments": [],
                    "configs": [{"name": key, "value": value} for key, value in config.items()],
                }
            ],
            "timeout": 30_000,
            "validate_only": False,
        }
        response = self._call(ApiKey.CREATE_TOPICS, fields)
        code = response.topics[0].error_code
        if code not in (ErrorCode.none, ErrorCode.topic_already_exists):
            raise error_for(code, f"topic {name!r}")

    def topic_setting(self, topic: str, name: str) -> str | None:
        """One setting of a topic; None where the broker does not tell. Raises KafkaError."""
        resource = {"resource_type": _TOPIC_RESOURCE, "resource_name": topic, "configuration_keys": [name]}
        response = self._call(ApiKey.DESCRIBE_CONFIGS, {"resources": [resource]})
        told = response.results[0]
        if told.error_code is not ErrorCode.none:
            raise error_for(told.error_code, f"settings of topic {topic!r}")
        return next((each.value for each in told.configs if each.name == name), None)

    # --- offsets ------------------------------------------------------------------------------------------------

    def earliest(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Offset]:
        return self._offsets(dict.fromkeys(partitions, EARLIEST), IsolationLevel.READ_UNCOMMITTED)

    def latest(self, partitions: Iterable[TopicPartition], *, committed: bool) -> dict[TopicPartition, Offset]:
        """``committed``: the last stable offset, else the high watermark."""
        isolation = IsolationLevel.READ_COMMITTED if committed else IsolationLevel.READ_UNCOMMITTED
        return self._offsets(dict.fromkeys(partitions, LATEST), isolation)

    def at_timestamp(
        self, partitions: Iterable[TopicPartition], timestamp_ms: int, *, committed: bool
    ) -> dict[TopicPartition, Offset]:
        """The first record at or after a time; where there is none, the end."""
        wanted = list(partitions)
        found = self._offsets(dict.fromkeys(wanted, timestamp_ms), IsolationLevel.READ_UNCOMMITTED)
        ends = self.latest(wanted, committed=committed)
        return {each: found[each] if found[each] >= 0 else ends[each] for each in wanted}

    def _offsets(self, wanted: Mapping[TopicPartition, int], isolation: IsolationLevel) -> dict[TopicPartition, Offset]:
        async def ask(cluster: Cluster) -> dict[TopicPartition, Offset]:
            found = await list_offsets(cluster, wanted, isolation, deadline=cluster.deadline())
            return {each: Offset(found[each].offset) for each in wanted}

        return self._thread.run(ask) if wanted else {}

    # --- the cluster --------------------------------------------------------------------------------------------

    def cluster_id(self) -> str | None:
        async def ask(cluster: Cluster) -> str | None:
            if cluster.metadata.cluster_id is None:
                await cluster.refresh_metadata([])
            return cluster.metadata.cluster_id

        return self._thread.run(ask)

    def refuses_late_writes(self) -> bool:
        """Whether a write that comes after its transaction's end is refused (brokers since 3.6, KIP-890)."""

        async def ask(cluster: Cluster) -> bool:
            connection = await cluster.any_connection()
            _, highest = connection.versions.get(ApiKey.ADD_PARTITIONS_TO_TXN, (0, -1))
            return highest >= _VERIFYING_ADD_PARTITIONS

        return self._thread.run(ask)

    def is_reached_by(self, bootstrap_servers: str) -> bool:
        """Whether these addresses lead to this cluster too."""
        if set(addresses(bootstrap_servers)) & set(addresses(self._settings.bootstrap_servers)):
            return True
        other = KafkaCluster(self.common | {"bootstrap.servers": bootstrap_servers})
        try:
            return other.cluster_id() == self.cluster_id()
        finally:
            other.close()

    def close(self) -> None:
        self._thread.close()

    def _call(self, api_key: ApiKey, fields: Mapping[str, Any]) -> Any:
        return self._thread.run(lambda cluster: cluster.call_any(api_key, fields, deadline=cluster.deadline()))
