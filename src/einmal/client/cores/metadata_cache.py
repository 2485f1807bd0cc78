"""Knowledge that a client has of a cluster: brokers, topics, who leads which partition. Values; no I/O.

An update keeps the newer leader epoch of each partition, so that an answer from a broker that lags behind cannot
bring back a leader that has been replaced (KIP-320).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple
from uuid import UUID

from einmal.client.errors import KafkaError, error_for
from einmal.types import ErrorCode, TopicPartition

NO_TOPIC_ID = UUID(int=0)


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    node_id: int
    host: str
    port: int
    rack: str | None = None


class PartitionMetadata(NamedTuple):
    """``leader`` is -1 while there is none."""

    partition: int
    leader: int
    leader_epoch: int = -1
    replicas: tuple[int, ...] = ()
    isr: tuple[int, ...] = ()
    error_code: ErrorCode = ErrorCode.none


@dataclass(frozen=True, slots=True)
class TopicMetadata:
    name: str
    topic_id: UUID
    partitions: dict[int, PartitionMetadata]
    is_internal: bool = False
    error_code: ErrorCode = ErrorCode.none

    @property
    def is_usable(self) -> bool:
        return self.error_code is ErrorCode.none and bool(self.partitions)


@dataclass(slots=True)
class MetadataCache:
    cluster_id: str | None = None
    controller_id: int = -1
    brokers: dict[int, BrokerAddress] = field(default_factory=dict)
    topics: dict[str, TopicMetadata] = field(default_factory=dict)

    def leader(self, topic_partition: TopicPartition) -> PartitionMetadata | None:
        """The partition, when it is known to have a leader that is known too."""
        topic = self.topics.get(topic_partition.topic)
        partition = None if topic is None else topic.partitions.get(topic_partition.partition)
        if partition is None or partition.leader not in self.brokers:
            return None
        return partition

    def topic_id(self, name: str) -> UUID:
        """``NO_TOPIC_ID``: not known, as with brokers before Kafka 2.8."""
        topic = self.topics.get(name)
        return NO_TOPIC_ID if topic is None else topic.topic_id

    def is_topic(self, name: str, topic_id: UUID | None) -> bool:
        """Whether the topic of this name exists and, if both ids are known, has this one."""
        topic = self.topics.get(name)
        return topic is not None and topic.is_usable and (topic_id is None or topic.topic_id in (topic_id, NO_TOPIC_ID))

    def refusal(self, name: str) -> KafkaError | None:
        """Why nothing is known of a topic, where that does not pass by itself: no permission, an invalid name."""
        topic = self.topics.get(name)
        if topic is None or topic.error_code is ErrorCode.none or topic.error_code.retriable:
            return None
        return error_for(topic.error_code, f"topic {name!r}")

    def update(
        self,
        cluster_id: str | None,
        controller_id: int,
        brokers: dict[int, BrokerAddress],
        topics: dict[str, TopicMetadata],
    ) -> list[TopicPartition]:
        """Take over an answer to Metadata. A topic with an error replaces what was known of it.

        Gives the known partitions that have another leader, or the same one under a new epoch.
        """
        if brokers:
            self.cluster_id, self.controller_id, self.brokers = cluster_id, controller_id, brokers
        changed = []
        for name, topic in topics.items():
            before, after = self.topics.get(name), _newer(self.topics.get(name), topic)
            self.topics[name] = after
            for index, partition in after.partitions.items():
                known = None if before is None else before.partitions.get(index)
                if known is not None and known[1:3] != partition[1:3]:
                    changed.append(TopicPartition(name, index))
        return changed

    def update_leader(self, topic_partition: TopicPartition, leader: int, leader_epoch: int) -> bool:
        """A broker that does not lead has said who does (KIP-951); its address must be known. True: that is news."""
        topic = self.topics.get(topic_partition.topic)
        known = None if topic is None else topic.partitions.get(topic_partition.partition)
        if topic is None or known is None or leader not in self.brokers or leader_epoch <= known.leader_epoch:
            return False
        fresh = known._replace(leader=leader, leader_epoch=leader_epoch, error_code=ErrorCode.none)
        self.topics[topic_partition.topic] = replace(
            topic, partitions={**topic.partitions, topic_partition.partition: fresh}
        )
        return True


def _newer(known: TopicMetadata | None, fresh: TopicMetadata) -> TopicMetadata:
    # A topic that was deleted and made again starts with new epochs: only the same topic id can be compared.
    if known is None or known.topic_id != fresh.topic_id or not fresh.is_usable:
        return fresh
    partitions = dict(fresh.partitions)
    for index, partition in fresh.partitions.items():
        before = known.partitions.get(index)
        if before is not None and before.leader_epoch > partition.leader_epoch >= 0:
            partitions[index] = before
    return replace(fresh, partitions=partitions)
