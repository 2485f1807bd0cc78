"""The cluster's metadata: brokers, topics, partitions, settings, quotas, features, producer ids, users, ACLs.

Built by ``replay`` and ``apply`` alone, from the records of ``__cluster_metadata`` in their order. Values inside are
immutable: a ``TopicImage`` is a snapshot. A partition's epoch grows with each change of it, its leader epoch when a
leader is elected. ``snapshot_records`` of an image build an equal one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import UUID

from einmal.metadata.partition_list import PartitionList
from einmal.metadata.quota_table import ClientQuotas
from einmal.metadata.records import (
    RECOVERED,
    UNFENCE,
    AccessControlEntryRecord,
    BrokerEndpoint,
    BrokerRegistrationChangeRecord,
    ClientQuotaRecord,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataRecord,
    NoOpRecord,
    PartitionChangeRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    RemoveAccessControlEntryRecord,
    RemoveTopicRecord,
    RemoveUserScramCredentialRecord,
    SupportedFeature,
    TopicRecord,
    UnregisterBrokerRecord,
    UserScramCredentialRecord,
)
from einmal.metadata.topic_configs import TOPIC_SETTINGS
from einmal.security.acl import Acl
from einmal.security.sasl.scram_server import ScramCredential
from einmal.types import BrokerId, LeaderEpoch, ProducerId, TopicPartition

TOPIC_RESOURCE: Final = 2
BROKER_RESOURCE: Final = 4
CLUSTER_DEFAULT: Final = ""
"""Name of the broker resource whose settings apply to all brokers."""

CONSUMER_OFFSETS: Final = "__consumer_offsets"
TRANSACTION_STATE: Final = "__transaction_state"
CLUSTER_METADATA: Final = "__cluster_metadata"
METADATA_PARTITION: Final = TopicPartition(CLUSTER_METADATA, 0)
METADATA_TOPIC_ID: Final = UUID(int=1)
"""Kafka's fixed id of the metadata topic."""
INTERNAL_TOPICS: Final = (CONSUMER_OFFSETS, TRANSACTION_STATE)

_INHERITED: Final = {
    setting.broker_key: name for name, setting in TOPIC_SETTINGS.items() if setting.broker_key is not None
}
"""Settings of topics by the brokers' setting that applies where a topic has none."""


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """``leader`` -1: no leader. ``elr``: replicas outside the ISR that have all committed records (KIP-966).

    ``last_known_elr``: the last leader, if there is no leader and no replica is known to have everything.
    """

    leader: BrokerId
    leader_epoch: LeaderEpoch
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    partition_epoch: int
    removing: tuple[BrokerId, ...] = ()
    adding: tuple[BrokerId, ...] = ()
    leader_recovery_state: int = RECOVERED
    elr: tuple[BrokerId, ...] = ()
    last_known_elr: tuple[BrokerId, ...] = ()

    @property
    def is_reassigning(self) -> bool:
        return bool(self.removing or self.adding)

    def record(self, topic_id: UUID, partition_id: int) -> PartitionRecord:
        """The record that builds this image."""
        return PartitionRecord(
            partition_id,
            topic_id,
            self.replicas,
            self.isr,
            self.leader,
            self.leader_epoch,
            self.partition_epoch,
            self.removing,
            self.adding,
            self.leader_recovery_state,
            self.elr,
            self.last_known_elr,
        )

    def changed(self, record: PartitionChangeRecord) -> PartitionImage:
        """The partition after the record."""
        changes: dict[str, Any] = {name: value for name in _CHANGEABLE if (value := getattr(record, name)) is not None}
        if record.leader is not None:
            changes["leader_epoch"] = LeaderEpoch(self.leader_epoch + 1)
        return replace(self, partition_epoch=self.partition_epoch + 1, **changes)


_CHANGEABLE: Final = (
    "isr",
    "leader",
    "replicas",
    "removing",
    "adding",
    "leader_recovery_state",
    "elr",
    "last_known_elr",
)


@dataclass(frozen=True, slots=True)
class TopicImage:
    name: str
    topic_id: UUID
    partitions: PartitionList[PartitionImage] = PartitionList()
    """By partition id. Any sequence may be passed."""

    def __post_init__(self) -> None:
        if not isinstance(self.partitions, PartitionList):
            object.__setattr__(self, "partitions", PartitionList(self.partitions))

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
    features: tuple[SupportedFeature, ...] = ()
    is_fenced: bool = False
    in_controlled_shutdown: bool = False
    log_dirs: tuple[UUID, ...] = ()

    @property
    def is_active(self) -> bool:
        """Whether it may lead and be in sync: neither fenced nor shutting down."""
        return not self.is_fenced and not self.in_controlled_shutdown

    def end_point(self, listener: str) -> BrokerEndpoint | None:
        """Its address on the listener of this name; None: it has no such listener."""
        return next((point for point in self.end_points if point.name == listener), None)

    def record(self) -> RegisterBrokerRecord:
        """The record that builds this image."""
        return RegisterBrokerRecord(
            self.broker_id,
            self.incarnation_id,
            self.broker_epoch,
            self.end_points,
            self.rack,
            self.features,
            self.is_fenced,
            self.in_controlled_shutdown,
            self.log_dirs,
        )


@dataclass(frozen=True, slots=True)
class ImageDelta:
    """The parts that some records have changed. The image has the new values.

    ``topics``: new ones and those with a changed partition. ``deleted``: name and id; a new topic may have the name by
    now. ``configs``: topics whose settings have changed, and ``cluster_configs``: whether those of all brokers have.
    ``acls``: in their order, and whether each holds from now on, or no more.
    """

    topics: Mapping[str, None] = field(default_factory=dict)
    deleted: tuple[tuple[str, UUID], ...] = ()
    configs: Mapping[str, None] = field(default_factory=dict)
    cluster_configs: bool = False
    brokers: bool = False
    features: bool = False
    acls: tuple[tuple[Acl, bool], ...] = ()


def plain_name(topic: str) -> str:
    """The name as in Kafka's metrics, which have '_' for '.': topics must differ in more than that."""
    return topic.replace(".", "_")


@dataclass(slots=True)
class ClusterImage:
    brokers: dict[BrokerId, BrokerImage] = field(default_factory=dict)
    topics: dict[str, TopicImage] = field(default_factory=dict)
    topic_names: dict[UUID, str] = field(default_factory=dict)
    alike_names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The topics whose names have '.' or '_', by their ``plain_name``: one request may look for thousands."""
    configs: dict[tuple[int, str], Mapping[str, str]] = field(default_factory=dict)
    """The explicit settings, by resource type and name."""
    scram_credentials: dict[int, dict[str, ScramCredential]] = field(default_factory=dict)
    """By Kafka's number of the mechanism, and user."""
    features: dict[str, int] = field(default_factory=dict)
    next_producer_id: ProducerId = ProducerId(0)
    client_quotas: ClientQuotas = field(default_factory=ClientQuotas)
    acls: dict[UUID, Acl] = field(default_factory=dict)
    acl_ids: dict[Acl, UUID] = field(default_factory=dict)
    """The same the other way round: an ACL is there once."""
    version: int = field(default=0, compare=False)
    """Grows with every record: caches of values derived from the image compare it."""

    def copy(self) -> ClusterImage:
        """A copy of the present image."""
        return ClusterImage(
            dict(self.brokers),
            dict(self.topics),
            dict(self.topic_names),
            dict(self.alike_names),
            dict(self.configs),
            {mechanism: dict(users) for mechanism, users in self.scram_credentials.items()},
            dict(self.features),
            self.next_producer_id,
            self.client_quotas.copy(),
            dict(self.acls),
            dict(self.acl_ids),
            self.version,
        )

    def name_of(self, topic_id: UUID | None) -> str | None:
        """The topic's name; None: its id is unknown."""
        return None if topic_id is None else self.topic_names.get(topic_id)

    def name_of_topic(self, topic: str | UUID) -> str | None:
        """The name of a topic that a request names, or has the id of; None: the id is unknown."""
        return topic if isinstance(topic, str) else self.topic_names.get(topic)

    def topic_configs(self, topic: str) -> Mapping[str, str]:
        return self.configs.get((TOPIC_RESOURCE, topic), {})

    def effective_configs(self, topic: str) -> Mapping[str, str]:
        """The topic's own settings, else those of all brokers; where one is missing, a broker's file applies."""
        inherited = {_INHERITED[key]: value for key, value in self.cluster_configs.items() if key in _INHERITED}
        own = self.topic_configs(topic)
        return inherited | {name: value for name, value in own.items() if name in TOPIC_SETTINGS}

    def cluster_setting(self, name: str) -> str | None:
        """The value for all brokers, by the broker-level name of the setting."""
        return self.cluster_configs.get(name)

    @property
    def cluster_configs(self) -> Mapping[str, str]:
        """The explicit settings of all brokers."""
        return self.configs.get((BROKER_RESOURCE, CLUSTER_DEFAULT), {})

    # --- records in ----------------------------------------------------------------------------------------------

    def apply(self, records: Iterable[MetadataRecord]) -> ImageDelta:
        """Replay the records; returns the changes."""
        topics: dict[str, None] = {}
        deleted: dict[UUID, str] = {}
        configs: dict[str, None] = {}
        acls: list[tuple[Acl, bool]] = []
        cluster_configs = brokers = features = False
        for record in records:
            match record:
                case PartitionChangeRecord(topic_id=topic_id) | PartitionRecord(topic_id=topic_id):
                    topics[self.topic_names[topic_id]] = None
                case TopicRecord(name=name):
                    topics[name] = None
                case RemoveTopicRecord(topic_id=topic_id):
                    name = deleted[topic_id] = self.topic_names[topic_id]
                    topics.pop(name, None)
                    configs.pop(name, None)
                case ConfigRecord(resource_type=kind, resource_name=name):
                    if kind == TOPIC_RESOURCE:
                        configs[name] = None
                    else:
                        cluster_configs = True
                case RegisterBrokerRecord() | BrokerRegistrationChangeRecord() | UnregisterBrokerRecord():
                    brokers = True
                case FeatureLevelRecord():
                    features = True
                case AccessControlEntryRecord():
                    acls.append((record.acl, True))
                case RemoveAccessControlEntryRecord(acl_id=acl_id):
                    acls.append((self.acls[acl_id], False))
            self.replay(record)
        gone = tuple((name, topic_id) for topic_id, name in deleted.items())
        return ImageDelta(topics, gone, configs, cluster_configs, brokers, features, tuple(acls))

    def replay(self, record: MetadataRecord) -> None:
        self.version += 1
        match record:
            case PartitionChangeRecord():
                self._change_partition(record)
            case PartitionRecord():
                self._add_partition(record)
            case TopicRecord():
                self._add_topic(record)
            case RemoveTopicRecord():
                self._remove_topic(record)
            case ConfigRecord():
                self._set_config(record)
            case RegisterBrokerRecord():
                self._register(record)
            case BrokerRegistrationChangeRecord():
                self._change_registration(record)
            case UnregisterBrokerRecord():
                del self.brokers[record.broker_id]
            case FeatureLevelRecord():
                self.features[record.name] = record.feature_level
            case ProducerIdsRecord():
                self.next_producer_id = record.next_producer_id
            case _:
                self._replay_security(record)

    def _replay_security(self, record: MetadataRecord) -> None:
        match record:
            case AccessControlEntryRecord():
                acl = record.acl
                assert acl not in self.acl_ids, "an ACL is recorded once"
                self.acls[record.acl_id] = acl
                self.acl_ids[acl] = record.acl_id
            case RemoveAccessControlEntryRecord():
                del self.acl_ids[self.acls.pop(record.acl_id)]
            case ClientQuotaRecord():
                self.client_quotas.replay(record)
            case UserScramCredentialRecord():
                credential = ScramCredential(record.salt, record.stored_key, record.server_key, record.iterations)
                self.scram_credentials.setdefault(record.mechanism, {})[record.name] = credential
            case RemoveUserScramCredentialRecord():
                del self.scram_credentials[record.mechanism][record.name]
                if not self.scram_credentials[record.mechanism]:
                    del self.scram_credentials[record.mechanism]
            case NoOpRecord():
                pass

    def _register(self, record: RegisterBrokerRecord) -> None:
        self.brokers[record.broker_id] = BrokerImage(
            record.broker_id,
            record.incarnation_id,
            record.broker_epoch,
            record.end_points,
            record.rack,
            record.features,
            record.is_fenced,
            record.in_controlled_shutdown,
            record.log_dirs,
        )

    def _change_registration(self, record: BrokerRegistrationChangeRecord) -> None:
        broker = self.brokers[record.broker_id]
        assert broker.broker_epoch == record.broker_epoch, "a change of a missing registration"
        if record.fenced:
            broker = replace(broker, is_fenced=record.fenced != UNFENCE)
        if record.in_controlled_shutdown:
            broker = replace(broker, in_controlled_shutdown=True)
        self.brokers[record.broker_id] = broker

    def _add_topic(self, record: TopicRecord) -> None:
        self.topics[record.name] = TopicImage(record.name, record.topic_id)
        self.topic_names[record.topic_id] = record.name
        plain = plain_name(record.name)
        if "_" in plain:
            self.alike_names[plain] = (*self.alike_names.get(plain, ()), record.name)

    def _remove_topic(self, record: RemoveTopicRecord) -> None:
        name = self.topic_names.pop(record.topic_id)
        del self.topics[name]
        self.configs.pop((TOPIC_RESOURCE, name), None)
        plain = plain_name(name)
        if "_" in plain:
            left = tuple(other for other in self.alike_names.pop(plain) if other != name)
            if left:
                self.alike_names[plain] = left

    def _add_partition(self, record: PartitionRecord) -> None:
        topic = self.topics[self.topic_names[record.topic_id]]
        assert record.partition_id == len(topic.partitions), "partitions are recorded in their order"
        added = PartitionImage(
            record.leader,
            record.leader_epoch,
            record.replicas,
            record.isr,
            record.partition_epoch,
            record.removing,
            record.adding,
            record.leader_recovery_state,
            record.elr,
            record.last_known_elr,
        )
        self.topics[topic.name] = replace(topic, partitions=topic.partitions.with_appended(added))

    def _change_partition(self, record: PartitionChangeRecord) -> None:
        topic = self.topics[self.topic_names[record.topic_id]]
        changed = topic.partitions[record.partition_id].changed(record)
        partitions = topic.partitions.with_replaced(record.partition_id, changed)
        self.topics[topic.name] = replace(topic, partitions=partitions)

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

    # --- records out ---------------------------------------------------------------------------------------------

    def snapshot_records(self) -> Iterator[MetadataRecord]:
        """Records that build this image from an empty one."""
        for name, level in self.features.items():
            yield FeatureLevelRecord(name, level)
        for broker in self.brokers.values():
            yield broker.record()
        for topic in self.topics.values():
            yield TopicRecord(topic.name, topic.topic_id)
            for partition_id, partition in enumerate(topic.partitions):
                yield partition.record(topic.topic_id, partition_id)
        for (kind, resource), settings in self.configs.items():
            for name, value in settings.items():
                yield ConfigRecord(kind, resource, name, value)
        yield from self.client_quotas.records()
        for acl_id, acl in self.acls.items():
            yield AccessControlEntryRecord(acl_id, *acl)
        for mechanism, users in self.scram_credentials.items():
            for user, credential in users.items():
                yield UserScramCredentialRecord(user, mechanism, *credential)
        if self.next_producer_id:
            # The owner of the last block does not matter any more.
            yield ProducerIdsRecord(BrokerId(-1), -1, self.next_producer_id)
