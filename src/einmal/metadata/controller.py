"""What may be done to the cluster's metadata: decided here, written to ``__cluster_metadata``, done by ``replay``.

A shard (``shard/decision.py``). Knows no brokers but those in its image, no files and no clock; topic ids are given in,
because they are random. A topic's answer is decided alone: one that cannot be made does not stop the others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from einmal.metadata.image import CONSUMER_OFFSETS, TOPIC_RESOURCE, TRANSACTION_STATE, ClusterImage
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
from einmal.metadata.topic_configs import TOPIC_SETTINGS, problem_of
from einmal.shard.decision import Decision
from einmal.types import BrokerId, ErrorCode, Instant, LeaderEpoch, ProducerId, ProducerIdAndEpoch

PRODUCER_IDS_PER_BLOCK: Final = 1_000
PARTITIONS_PER_REQUEST_MAX: Final = 10_000
"""As in Kafka, where one request may write so many records."""
_NAME_LENGTH_MAX: Final = 249
_LEGAL_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")
_NO_TOPIC_ID: Final = UUID(int=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """``partitions`` and ``replication_factor`` -1: the cluster's default. ``assignments``: replicas by partition."""

    name: str
    topic_id: UUID
    partitions: int = -1
    replication_factor: int = -1
    assignments: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    configs: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicResult:
    name: str | None
    topic_id: UUID = _NO_TOPIC_ID
    error: ErrorCode = ErrorCode.none
    message: str | None = None
    partitions: int = -1
    replication_factor: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPartitions:
    """``count``: how many the topic shall have in the end."""

    name: str
    count: int
    assignments: tuple[tuple[int, ...], ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigChange:
    """``operation``: Kafka's numbers, see the constants."""

    name: str
    operation: int
    value: str | None


SET, DELETE, APPEND, SUBTRACT = range(4)


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerDefaults:
    partitions: int = 1
    replication_factor: int = 1


@dataclass(frozen=True, slots=True)
class ImageLoaded:
    """Action: this is what the whole log says."""

    image: ClusterImage


@dataclass(frozen=True, slots=True)
class TopicsCreated:
    """Action: make the replicas of these topics."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopicsDeleted:
    """Action: remove the replicas of these topics (name and id)."""

    topics: tuple[tuple[str, UUID], ...]


@dataclass(frozen=True, slots=True)
class ConfigsChanged:
    """Action: these topics have other settings now."""

    names: tuple[str, ...]


class Controller:
    def __init__(self, defaults: ControllerDefaults | None = None) -> None:
        self.image = ClusterImage()
        self._defaults = defaults or ControllerDefaults()

    # --- the shard -----------------------------------------------------------------------------------------------

    def replay(self, record: MetadataRecord) -> None:
        self.image.replay(record)

    def replay_marker(self, producer: ProducerIdAndEpoch, committed: bool) -> None:
        raise AssertionError("no transaction writes to the metadata log")

    def loaded(self, now: Instant) -> tuple[Decision[None], ...]:
        return (Decision(response=None, actions=(ImageLoaded(self.image.copy()),)),)

    def next_deadline(self) -> int | None:
        return None

    def tick(self, now: Instant) -> tuple[Decision[None], ...]:
        return ()

    # --- brokers -------------------------------------------------------------------------------------------------

    def register_broker(
        self,
        broker_id: BrokerId,
        incarnation_id: UUID,
        broker_epoch: int,
        end_points: tuple[BrokerEndpoint, ...],
        rack: str | None,
        features: Mapping[str, int],
    ) -> Decision[None]:
        """A broker process has come up: it leads what it led, under new leader epochs.

        The epoch moves also when nothing was lost, for whoever starts cannot know: followers and consumers find out by
        it where a log that lost its end went another way (KIP-101, KIP-320).
        """
        records: list[MetadataRecord] = [
            RegisterBrokerRecord(broker_id, incarnation_id, broker_epoch, end_points, rack, is_fenced=False),
            *(
                FeatureLevelRecord(name, level)
                for name, level in features.items()
                if self.image.features.get(name, 0) != level
            ),
        ]
        for topic in self.image.topics.values():
            for partition_id, partition in enumerate(topic.partitions):
                if partition.leader == broker_id:
                    records.append(PartitionChangeRecord(partition_id, topic.topic_id, leader=broker_id))
        return Decision(records=tuple(records), response=None)

    def allocate_producer_ids(self, broker_id: BrokerId, broker_epoch: int) -> Decision[range]:
        """A block of producer ids that nobody else will get."""
        first = self.image.next_producer_id
        after = ProducerId(first + PRODUCER_IDS_PER_BLOCK)
        return Decision(records=(ProducerIdsRecord(broker_id, broker_epoch, after),), response=range(first, after))

    # --- topics --------------------------------------------------------------------------------------------------

    def create_topics(self, topics: Sequence[NewTopic], *, validate_only: bool = False) -> Decision[list[TopicResult]]:
        records: list[MetadataRecord] = []
        results: list[TopicResult] = []
        created: list[str] = []
        names = [topic.name for topic in topics]
        room = PARTITIONS_PER_REQUEST_MAX
        for topic in topics:
            if names.count(topic.name) > 1:
                results.append(
                    TopicResult(name=topic.name, error=ErrorCode.invalid_request, message="Duplicate topic name.")
                )
                continue
            result, replicas = self._plan(topic, room)
            results.append(result)
            if result.error is ErrorCode.none:
                room -= len(replicas)
                created.append(topic.name)
                records += self._topic_records(topic, replicas)
        if validate_only or not records:
            return Decision(response=results)
        return Decision(records=tuple(records), response=results, actions=(TopicsCreated(tuple(created)),))

    def _plan(self, topic: NewTopic, room: int) -> tuple[TopicResult, list[tuple[BrokerId, ...]]]:
        """What would come of a new topic, and the replicas of its partitions."""
        error, message = self._name_problem(topic.name)
        if error is ErrorCode.none:
            for name, value in topic.configs.items():
                if (reason := problem_of(name, value)) is not None:
                    error, message = ErrorCode.invalid_config, reason
                    break
        replicas: list[tuple[BrokerId, ...]] = []
        if error is ErrorCode.none:
            error, message, replicas = self._place(topic, room)
        if error is not ErrorCode.none:
            return TopicResult(name=topic.name, error=error, message=message), []
        return (
            TopicResult(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=len(replicas),
                replication_factor=len(replicas[0]),
            ),
            replicas,
        )

    def _name_problem(self, name: str) -> tuple[ErrorCode, str | None]:
        if not name or name in (".", "..") or len(name) > _NAME_LENGTH_MAX or not _LEGAL_NAME.fullmatch(name):
            return (
                ErrorCode.invalid_topic_exception,
                f"Topic name is invalid: 1 to {_NAME_LENGTH_MAX} of the characters a-z, A-Z, 0-9, '.', '_' and '-'.",
            )
        if name in self.image.topics:
            return ErrorCode.topic_already_exists, f"Topic '{name}' already exists."
        # Kafka's metric names have '_' for '.', so it refuses names that differ only in that.
        plain = name.replace(".", "_")
        if plain != name or "_" in name:
            for other in self.image.topics:
                if other.replace(".", "_") == plain:
                    return ErrorCode.invalid_topic_exception, f"Topic '{name}' collides with existing topic: {other}"
        return ErrorCode.none, None

    def _place(self, topic: NewTopic, room: int) -> tuple[ErrorCode, str | None, list[tuple[BrokerId, ...]]]:
        if topic.assignments:
            return self._place_by_hand(topic)
        count = self._defaults.partitions if topic.partitions == -1 else topic.partitions
        factor = self._defaults.replication_factor if topic.replication_factor == -1 else topic.replication_factor
        if count <= 0:
            return ErrorCode.invalid_partitions, "Number of partitions must be larger than 0.", []
        if count > room:
            return (
                ErrorCode.invalid_partitions,
                f"More than {PARTITIONS_PER_REQUEST_MAX} partitions in one request.",
                [],
            )
        return (*self._check_factor(factor), self._spread(factor, count))

    def _check_factor(self, factor: int) -> tuple[ErrorCode, str | None]:
        if factor <= 0:
            return ErrorCode.invalid_replication_factor, "Replication factor must be larger than 0."
        if factor > len(self.image.brokers):
            return (
                ErrorCode.invalid_replication_factor,
                f"Unable to replicate the partition {factor} time(s): "
                f"The target replication factor of {factor} cannot be reached because only "
                f"{len(self.image.brokers)} broker(s) are registered.",
            )
        return ErrorCode.none, None

    def _spread(self, factor: int, count: int, first: int = 0) -> list[tuple[BrokerId, ...]]:
        brokers = sorted(self.image.brokers)
        return [
            tuple(brokers[(partition + replica) % len(brokers)] for replica in range(min(factor, len(brokers))))
            for partition in range(first, first + count)
        ]

    def _place_by_hand(self, topic: NewTopic) -> tuple[ErrorCode, str | None, list[tuple[BrokerId, ...]]]:
        if topic.partitions != -1 or topic.replication_factor != -1:
            return ErrorCode.invalid_request, "A manual assignment goes without partition count and factor.", []
        replicas = [topic.assignments.get(partition, ()) for partition in range(len(topic.assignments))]
        if not self._are_valid(replicas):
            return ErrorCode.invalid_replica_assignment, "The manual partition assignment is not valid.", []
        return ErrorCode.none, None, [tuple(map(BrokerId, item)) for item in replicas]

    def _are_valid(self, replicas: Sequence[tuple[int, ...]]) -> bool:
        return all(
            item
            and len(dict.fromkeys(item)) == len(item)
            and len(item) == len(replicas[0])
            and all(broker in self.image.brokers for broker in item)
            for item in replicas
        )

    def _topic_records(self, topic: NewTopic, replicas: list[tuple[BrokerId, ...]]) -> list[MetadataRecord]:
        return [
            TopicRecord(topic.name, topic.topic_id),
            *_partition_records(topic.topic_id, 0, replicas),
            *(
                ConfigRecord(TOPIC_RESOURCE, topic.name, name, value)
                for name, value in topic.configs.items()
                if value is not None
            ),
        ]

    def delete_topics(self, topics: Sequence[tuple[str | None, UUID]]) -> Decision[list[TopicResult]]:
        """Each by its name, or by its id where the name is None."""
        results: list[TopicResult] = []
        deleted: dict[str, UUID] = {}
        for name, topic_id in topics:
            missing = ErrorCode.unknown_topic_or_partition
            if name is None:
                name = self.image.topic_names.get(topic_id)
                missing = ErrorCode.unknown_topic_id
            topic = None if name is None else self.image.topics.get(name)
            if topic is None:
                results.append(TopicResult(name=name, topic_id=topic_id, error=missing))
            elif topic.is_internal:
                # Coordinators live in it.
                message = f"{topic.name} is internal and cannot be deleted."
                results.append(TopicResult(name=name, error=ErrorCode.invalid_topic_exception, message=message))
            elif topic.name in deleted:
                results.append(TopicResult(name=name, error=ErrorCode.invalid_request, message="Duplicate topic name."))
            else:
                deleted[topic.name] = topic.topic_id
                results.append(TopicResult(name=topic.name, topic_id=topic.topic_id))
        if not deleted:
            return Decision(response=results)
        return Decision(
            records=tuple(RemoveTopicRecord(topic_id) for topic_id in deleted.values()),
            response=results,
            actions=(TopicsDeleted(tuple(deleted.items())),),
        )

    def create_partitions(
        self, topics: Sequence[NewPartitions], *, validate_only: bool = False
    ) -> Decision[list[TopicResult]]:
        records: list[MetadataRecord] = []
        results: list[TopicResult] = []
        for wanted in topics:
            result, added = self._plan_partitions(wanted)
            results.append(result)
            records += added
        if validate_only or not records:
            return Decision(response=results)
        grown = tuple(result.name for result in results if result.error is ErrorCode.none and result.name)
        return Decision(records=tuple(records), response=results, actions=(TopicsCreated(grown),))

    def _plan_partitions(self, wanted: NewPartitions) -> tuple[TopicResult, list[MetadataRecord]]:
        def refuse(error: ErrorCode, message: str) -> tuple[TopicResult, list[MetadataRecord]]:
            return TopicResult(name=wanted.name, error=error, message=message), []

        topic = self.image.topics.get(wanted.name)
        if topic is None:
            return refuse(ErrorCode.unknown_topic_or_partition, "This server does not host this topic.")
        has = len(topic.partitions)
        if wanted.count == has:
            return refuse(ErrorCode.invalid_partitions, f"Topic already has {has} partition(s).")
        if wanted.count < has:
            return refuse(
                ErrorCode.invalid_partitions,
                f"The topic {wanted.name} currently has {has} partition(s); {wanted.count} would not be an increase.",
            )
        added = wanted.count - has
        if added > PARTITIONS_PER_REQUEST_MAX:
            return refuse(
                ErrorCode.invalid_partitions, f"More than {PARTITIONS_PER_REQUEST_MAX} partitions in one request."
            )
        if wanted.name in (CONSUMER_OFFSETS, TRANSACTION_STATE):
            # Who coordinates a group or a transaction follows from the count: it must never change.
            return refuse(ErrorCode.invalid_request, f"The partitions of {wanted.name} are fixed.")
        if wanted.assignments is not None:
            if len(wanted.assignments) != added or not self._are_valid(wanted.assignments):
                return refuse(ErrorCode.invalid_replica_assignment, "The manual partition assignment is not valid.")
            replicas = [tuple(map(BrokerId, item)) for item in wanted.assignments]
        else:
            replicas = self._spread(len(topic.partitions[0].replicas), added, first=has)
        return TopicResult(name=wanted.name), _partition_records(topic.topic_id, has, replicas)

    # --- settings ------------------------------------------------------------------------------------------------

    def alter_topic_configs(
        self, changes: Sequence[tuple[str, Sequence[ConfigChange]]], *, validate_only: bool = False
    ) -> Decision[list[TopicResult]]:
        """Change single settings (KIP-339)."""
        records: list[MetadataRecord] = []
        results: list[TopicResult] = []
        for name, wanted in changes:
            result, added = self._plan_configs(name, wanted)
            results.append(result)
            records += added
        return self._configs_decision(records, results, validate_only)

    def replace_topic_configs(
        self, settings: Sequence[tuple[str, Mapping[str, str | None]]], *, validate_only: bool = False
    ) -> Decision[list[TopicResult]]:
        """Give topics these settings and no others."""
        records: list[MetadataRecord] = []
        results: list[TopicResult] = []
        for name, wanted in settings:
            dropped = [item for item in self.image.topic_configs(name) if item not in wanted]
            result, added = self._plan_configs(
                name,
                [
                    *(ConfigChange(name=item, operation=DELETE, value=None) for item in dropped),
                    *(ConfigChange(name=item, operation=SET, value=value) for item, value in wanted.items()),
                ],
            )
            results.append(result)
            records += added
        return self._configs_decision(records, results, validate_only)

    def _configs_decision(
        self, records: list[MetadataRecord], results: list[TopicResult], validate_only: bool
    ) -> Decision[list[TopicResult]]:
        if validate_only or not records:
            return Decision(response=results)
        changed = tuple(result.name for result in results if result.error is ErrorCode.none and result.name)
        return Decision(records=tuple(records), response=results, actions=(ConfigsChanged(changed),))

    def _plan_configs(self, topic: str, changes: Sequence[ConfigChange]) -> tuple[TopicResult, list[MetadataRecord]]:
        if topic not in self.image.topics:
            return TopicResult(name=topic, error=ErrorCode.unknown_topic_or_partition), []
        settings: dict[str, str | None] = dict(self.image.topic_configs(topic))
        touched: dict[str, None] = {}
        for change in changes:
            value, problem = _changed(settings.get(change.name), change)
            if problem is not None:
                return TopicResult(name=topic, error=ErrorCode.invalid_config, message=problem), []
            settings[change.name] = value
            touched[change.name] = None
        records = [ConfigRecord(TOPIC_RESOURCE, topic, name, settings[name]) for name in touched]
        return TopicResult(name=topic), list(records)


def _changed(current: str | None, change: ConfigChange) -> tuple[str | None, str | None]:
    """The new value of a setting, and what is wrong with the change."""
    value = change.value
    if change.operation == DELETE:
        value = None
    elif value is None:
        return None, f"Null value not supported for: {change.name}"
    elif change.operation in (APPEND, SUBTRACT):
        setting = TOPIC_SETTINGS.get(change.name)
        if setting is None or setting.kind != "LIST":
            return None, f"{change.name} is not a list: nothing can be appended to it or subtracted from it"
        items = [item for item in (current or "").split(",") if item]
        if change.operation == APPEND:
            value = ",".join(dict.fromkeys([*items, *value.split(",")]))
        else:
            value = ",".join(item for item in items if item not in value.split(","))
    return value, problem_of(change.name, value)


def _partition_records(topic_id: UUID, first: int, replicas: list[tuple[BrokerId, ...]]) -> list[MetadataRecord]:
    return [
        PartitionRecord(first + index, topic_id, item, item, item[0], LeaderEpoch(0), 0)
        for index, item in enumerate(replicas)
    ]
