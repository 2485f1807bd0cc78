"""What the cluster knows of itself: brokers, topics, partitions, settings, features, producer ids.

Built by ``replay`` alone, from the records of ``__cluster_metadata`` in their order. Values inside are immutable:
whoever holds a ``TopicImage`` holds one moment of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final
from uuid import UUID

from einmal.metadata.records import (
    BrokerEndpoint,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveTopicRecord,
    TopicRecord,
)
from einmal.types import BrokerId, LeaderEpoch, ProducerId

TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4

CONSUMER_OFFSETS: Final = "__consumer_offsets"
TRANSACTION_STATE: Final = "__transaction_state"
CLUSTER_METADATA: Final = "__cluster_metadata"
INTERNAL_TOPICS: Final = (CONSUMER_OFFSETS, TRANSACTION_STATE)


@dataclass(frozen=True, slots=True)
class PartitionImage:
    leader: BrokerId
    leader_epoch: LeaderEpoch
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    partition_epoch: int


@dataclass(frozen=True, slots=True)
class TopicImage:
    name: str
    topic_id: UUID
    partitions: tuple[PartitionImage, ...] = ()
    """By partition id."""

    @property
    def is_internal(self) -> bool:
        return self.name in INTERNAL_TOPICS


@dataclass(frozen=True, slots=True)
class BrokerImage:
    broker_id: BrokerId
    incarnation_id: UUID
    broker_epoch: int
    end_points: tuple[BrokerEndpoint, ...]
    rack: str | None


@dataclass(slots=True)
class ClusterImage:
    brokers: dict[BrokerId, BrokerImage] = field(default_factory=dict)
    topics: dict[str, TopicImage] = field(default_factory=dict)
    topic_names: dict[UUID, str] = field(default_factory=dict)
    configs: dict[tuple[int, str], Mapping[str, str]] = field(default_factory=dict)
    """By resource type and name: the settings that were given."""
    features: dict[str, int] = field(default_factory=dict)
    next_producer_id: ProducerId = ProducerId(0)
    version: int = 0
    """Grows with every record: whoever caches something made of the image compares it."""

    def copy(self) -> ClusterImage:
        """An image of its own, of this moment."""
        return ClusterImage(
            dict(self.brokers),
            dict(self.topics),
            dict(self.topic_names),
            dict(self.configs),
            dict(self.features),
            self.next_producer_id,
            self.version,
        )

    def topic_configs(self, topic: str) -> Mapping[str, str]:
        return self.configs.get((TOPIC_RESOURCE, topic), {})

    def replay(self, record: MetadataRecord) -> None:
        self.version += 1
        match record:
            case RegisterBrokerRecord():
                self.brokers[record.broker_id] = BrokerImage(
                    record.broker_id, record.incarnation_id, record.broker_epoch, record.end_points, record.rack
                )
            case TopicRecord():
                self.topics[record.name] = TopicImage(record.name, record.topic_id)
                self.topic_names[record.topic_id] = record.name
            case PartitionRecord():
                self._add_partition(record)
            case PartitionChangeRecord():
                self._change_partition(record)
            case ConfigRecord():
                self._set_config(record)
            case RemoveTopicRecord():
                name = self.topic_names.pop(record.topic_id)
                del self.topics[name]
                self.configs.pop((TOPIC_RESOURCE, name), None)
            case FeatureLevelRecord():
                self.features[record.name] = record.feature_level
            case ProducerIdsRecord():
                self.next_producer_id = record.next_producer_id

    def _add_partition(self, record: PartitionRecord) -> None:
        topic = self.topics[self.topic_names[record.topic_id]]
        assert record.partition_id == len(topic.partitions), "partitions are recorded in their order"
        added = PartitionImage(record.leader, record.leader_epoch, record.replicas, record.isr, record.partition_epoch)
        self.topics[topic.name] = replace(topic, partitions=(*topic.partitions, added))

    def _change_partition(self, record: PartitionChangeRecord) -> None:
        topic = self.topics[self.topic_names[record.topic_id]]
        partitions = list(topic.partitions)
        changed = replace(
            partitions[record.partition_id], partition_epoch=partitions[record.partition_id].partition_epoch + 1
        )
        if record.isr is not None:
            changed = replace(changed, isr=record.isr)
        if record.leader is not None:
            changed = replace(changed, leader=record.leader, leader_epoch=LeaderEpoch(changed.leader_epoch + 1))
        partitions[record.partition_id] = changed
        self.topics[topic.name] = replace(topic, partitions=tuple(partitions))

    def _set_config(self, record: ConfigRecord) -> None:
        resource = (record.resource_type, record.resource_name)
        settings = dict(self.configs.get(resource, {}))
        if record.value is None:
            settings.pop(record.name, None)
        else:
            settings[record.name] = record.value
        if settings:
            self.configs[resource] = settings
        else:
            self.configs.pop(resource, None)
