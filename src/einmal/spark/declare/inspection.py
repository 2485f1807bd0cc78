"""Inspection of a pipeline's topics in a cluster, and of the pipeline's rights there. Nothing is created or changed.

For the preflight, which lists what is missing, and for ``explain``, which lists the reasons of a guarantee. Brokers
report a client's rights since KIP-430; a broker without authorizer allows everything. Knows nothing of Spark.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from einmal.client.aio.admin import Admin
from einmal.client.aio.network.coordinators import GROUP, TRANSACTION
from einmal.client.apis import ApiKey
from einmal.client.blocking.loop_thread import LoopThread
from einmal.client.config import AdminSettings, dotted
from einmal.client.errors import KafkaError
from einmal.types import ErrorCode
from einmal.wire.api.metadata import API as METADATA
from einmal.wire.api.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse, MetadataResponseTopic
from einmal.wire.metadata import NO_AUTHORIZED_OPERATIONS

READ: Final = 3
WRITE: Final = 4
"""Operations as Kafka numbers them in its ACLs."""

_VERIFYING_ADD_PARTITIONS: Final = 4
"""Brokers that speak this version of AddPartitionsToTxn refuse a write that comes after its transaction (KIP-890)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """``error``: why the broker does not show the topic. ``replicas``: of the partition that has fewest. ``settings``:
    those that the client may see."""

    name: str
    error: ErrorCode = ErrorCode.none
    partitions: int = 0
    replicas: int = 0
    operations: int = NO_AUTHORIZED_OPERATIONS
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def exists(self) -> bool:
        return self.error not in (ErrorCode.unknown_topic_or_partition, ErrorCode.invalid_topic_exception)

    def may(self, operation: int) -> bool:
        """True, too, where the broker does not report it."""
        return self.operations == NO_AUTHORIZED_OPERATIONS or bool(self.operations & (1 << operation))

    @property
    def deletes_after_ms(self) -> int | None:
        """Return how old a record may be by its own timestamp before it is deleted; None where that is not known, and
        where none is deleted for that."""
        retention = self.settings.get("retention.ms")
        by_own_time = self.settings.get("message.timestamp.type") != "LogAppendTime"
        if retention is None or not by_own_time or "delete" not in self.settings.get("cleanup.policy", "delete"):
            return None
        return int(retention) if int(retention) >= 0 else None

    @property
    def min_insync_replicas(self) -> int | None:
        configured = self.settings.get("min.insync.replicas")
        return None if configured is None else int(configured)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """``verifies``: late writes are refused. ``refused``: what the client may not be, by kind and name."""

    servers: str
    brokers: int
    transaction_version: int
    verifies: bool
    topics: Mapping[str, TopicFacts]
    refused: tuple[tuple[str, str, str], ...] = ()


def inspect(
    client: Mapping[str, str],
    topics: Iterable[str],
    *,
    transactional_id: str | None = None,
    group_id: str | None = None,
) -> ClusterFacts:
    """Ask a cluster. ``client``: settings under Kafka's names. Raises RetriableError where nobody answers."""
    names = {dotted(setting.name) for setting in dataclasses.fields(AdminSettings)}
    common = {name: value for name, value in client.items() if name in names}
    wanted = list(dict.fromkeys(topics))
    thread = LoopThread(lambda: _Inspector(common), "einmal-inspection")
    try:
        return thread.run(lambda inspector: inspector.inspect(wanted, transactional_id, group_id))
    finally:
        thread.close()


class _Inspector(Admin):
    async def inspect(self, topics: list[str], transactional_id: str | None, group_id: str | None) -> ClusterFacts:
        response = await self._metadata(topics)
        facts = {topic.name: _topic(topic.name, topic) for topic in response.topics if topic.name is not None}
        for name, settings in (
            await self._settings([name for name in topics if facts[name].error is ErrorCode.none])
        ).items():
            facts[name] = dataclasses.replace(facts[name], settings=settings)
        # Only now the brokers' versions are known.
        newest = (await self._cluster.any_connection()).versions.get(ApiKey.ADD_PARTITIONS_TO_TXN, (0, -1))[1]
        refused = []
        for kind, word, key in ((TRANSACTION, "transactional.id", transactional_id), (GROUP, "group", group_id)):
            if key is not None and (problem := await self._refusal(kind, key)):
                refused.append((word, key, problem))
        return ClusterFacts(
            servers=self.settings.bootstrap_servers,
            brokers=len(response.brokers),
            transaction_version=self._cluster.transaction_version,
            verifies=newest >= _VERIFYING_ADD_PARTITIONS,
            topics=facts,
            refused=tuple(refused),
        )

    async def _metadata(self, topics: list[str]) -> MetadataResponse:
        request = MetadataRequest(
            tuple(MetadataRequestTopic(name=name) for name in topics),
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=True,
        )
        return await self._cluster.call_any(METADATA, request, deadline=self._cluster.deadline())

    async def _settings(self, topics: list[str]) -> dict[str, dict[str, str]]:
        """Settings are good to know: a client without the right to see them goes without."""
        settings = {}
        for name in topics:
            try:
                entries = (await self.describe_configs([name]))[name]
            except KafkaError:
                continue
            settings[name] = {entry.name: entry.value for entry in entries.values() if entry.value is not None}
        return settings

    async def _refusal(self, kind: int, key: str) -> str | None:
        try:
            await self._cluster.coordinators.find(kind, key, deadline=self._cluster.deadline())
        except KafkaError as error:
            return str(error)
        return None


def _topic(name: str, metadata: MetadataResponseTopic) -> TopicFacts:
    return TopicFacts(
        name=name,
        error=metadata.error_code,
        partitions=len(metadata.partitions),
        replicas=min((len(partition.replica_nodes) for partition in metadata.partitions), default=0),
        operations=metadata.topic_authorized_operations,
    )
