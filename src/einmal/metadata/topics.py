"""Topics: create them with settings and replicas, delete them, and add partitions.

Each topic is decided alone: one that cannot be created does not stop the others. Topic ids are arguments, because
they are random. A new partition's ISR are those of its replicas that are active.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from einmal.metadata.image import CLUSTER_METADATA, INTERNAL_TOPICS, TOPIC_RESOURCE, TopicImage, plain_name
from einmal.metadata.placement import Placement, Replicas
from einmal.metadata.plan import Deciding, MetadataDecision
from einmal.metadata.records import ConfigRecord, MetadataRecord, PartitionRecord, RemoveTopicRecord, TopicRecord
from einmal.metadata.topic_configs import conflict_of, problem_of
from einmal.shard.decision import Decision
from einmal.types import BrokerId, ErrorCode, LeaderEpoch

PARTITIONS_PER_REQUEST_MAX: Final = 10_000
"""The limit of records of one request, as in Kafka."""
_NAME_LENGTH_MAX: Final = 249
_LEGAL_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")
_RESERVED: Final = {name: name for name in (CLUSTER_METADATA, *INTERNAL_TOPICS)}
_NO_TOPIC_ID: Final = UUID(int=0)
_OVER_QUOTA: Final = "The throttling quota has been exceeded: try again when throttle_time_ms are over."
_TOO_MANY: Final = f"More than {PARTITIONS_PER_REQUEST_MAX} partitions in one request."


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """``partitions`` and ``replication_factor`` -1: the cluster's default. ``assignments``: partitions and replicas."""

    name: str
    topic_id: UUID
    partitions: int = -1
    replication_factor: int = -1
    assignments: Sequence[tuple[int, Sequence[int]]] = ()
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
    """``count``: the new total."""

    name: str
    count: int
    assignments: tuple[tuple[int, ...], ...] | None = None


def _always(_partitions: int) -> bool:
    return True


def is_legal_name(name: str) -> bool:
    """Whether a topic may have this name as far as its characters go."""
    return name not in (".", "..") and len(name) <= _NAME_LENGTH_MAX and bool(_LEGAL_NAME.fullmatch(name))


def error_of_absent(name: str) -> ErrorCode:
    """The error of a question about a topic that there is not: one of this name there may never be."""
    return ErrorCode.unknown_topic_or_partition if is_legal_name(name) else ErrorCode.invalid_topic_exception


def name_problem(name: str) -> tuple[ErrorCode, str | None]:
    """The problem of a new topic's name, whatever topics exist."""
    if not is_legal_name(name):
        return (
            ErrorCode.invalid_topic_exception,
            f"Topic name is invalid: 1 to {_NAME_LENGTH_MAX} of the characters a-z, A-Z, 0-9, '.', '_' and '-'.",
        )
    if name == CLUSTER_METADATA:
        # The metadata log's own directory would be this topic's: Apache Kafka answers the same.
        return ErrorCode.invalid_request, f"Creation of internal topic {name} is prohibited: it is the metadata log."
    reserved = _RESERVED.get(plain_name(name), name)
    if reserved != name:
        # The internal topic may not exist yet, and could then not be created any more.
        return ErrorCode.invalid_topic_exception, f"Topic '{name}' collides with internal topic: {reserved}"
    return ErrorCode.none, None


def policy_problem(name: str, configs: Mapping[str, str | None]) -> str | None:
    """The setting that would let an internal topic forget committed offsets or transactional ids; None: none does."""
    if name in INTERNAL_TOPICS and configs.get("cleanup.policy") != "compact":
        return f"{name} keeps the state of coordinators: it must have cleanup.policy=compact."
    return None


class TopicDecisions(Deciding):
    def create_topics(
        self,
        topics: Sequence[NewTopic],
        *,
        validate_only: bool = False,
        admits: Callable[[int], bool] = _always,
    ) -> MetadataDecision[list[TopicResult]]:
        """``admits``: whether the quota of whoever asks allows so many more partitions (KIP-599)."""
        records: list[MetadataRecord] = []
        results: list[TopicResult] = []
        counts = Counter(topic.name for topic in topics)
        placement = Placement(self.image)
        room = PARTITIONS_PER_REQUEST_MAX
        for topic in topics:
            if counts[topic.name] > 1:
                results.append(_twice(topic.name))
                continue
            result, replicas = self._plan_topic(topic, placement, room)
            if result.error is ErrorCode.none and not admits(len(replicas)):
                result = _over_quota(topic.name)
            results.append(result)
            if result.error is ErrorCode.none:
                room -= len(replicas)
                records += self._topic_records(topic, replicas)
        return Decision(records=() if validate_only else tuple(records), response=results)

    def _plan_topic(self, topic: NewTopic, placement: Placement, room: int) -> tuple[TopicResult, list[Replicas]]:
        """The result for a new topic, and the replicas of its partitions."""
        error, message = self._name_problem(topic.name)
        if error is ErrorCode.none:
            for name, value in topic.configs.items():
                reason = f"Null value not supported for: {name}" if value is None else problem_of(name, value)
                if reason is not None:
                    error, message = ErrorCode.invalid_config, reason
                    break
        if error is ErrorCode.none:
            message = policy_problem(topic.name, topic.configs) or conflict_of(topic.configs)
            error = ErrorCode.none if message is None else ErrorCode.invalid_config
        replicas: list[Replicas] = []
        if error is ErrorCode.none:
            error, message, replicas = self._assign_replicas(topic, placement, room)
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
        error, message = name_problem(name)
        if error is not ErrorCode.none:
            return error, message
        if name in self.image.topics:
            return ErrorCode.topic_already_exists, f"Topic '{name}' already exists."
        for other in self.image.alike_names.get(plain_name(name), ()):
            return ErrorCode.invalid_topic_exception, f"Topic '{name}' collides with existing topic: {other}"
        return ErrorCode.none, None

    def _assign_replicas(
        self, topic: NewTopic, placement: Placement, room: int
    ) -> tuple[ErrorCode, str | None, list[Replicas]]:
        if topic.assignments:
            if topic.partitions != -1 or topic.replication_factor != -1:
                return ErrorCode.invalid_request, "A manual assignment excludes partition count and factor.", []
            if len(topic.assignments) > room:
                return ErrorCode.invalid_partitions, _TOO_MANY, []
            by_number = dict(topic.assignments)
            if len(by_number) < len(topic.assignments):
                return ErrorCode.invalid_replica_assignment, "A partition has more than one manual assignment.", []
            assignments = [by_number.get(number, ()) for number in range(len(by_number))]
            return self._by_hand(assignments, len(assignments[0]))
        count = self.defaults.partitions if topic.partitions == -1 else topic.partitions
        factor = self.defaults.replication_factor if topic.replication_factor == -1 else topic.replication_factor
        if count <= 0:
            return ErrorCode.invalid_partitions, "Number of partitions must be larger than 0.", []
        if count > room:
            return ErrorCode.invalid_partitions, _TOO_MANY, []
        error, message = _factor_problem(factor, placement)
        return error, message, [] if message else placement.assign((), count, factor)

    def _by_hand(
        self, assignments: Sequence[Sequence[int]], factor: int
    ) -> tuple[ErrorCode, str | None, list[Replicas]]:
        """Replicas by a manual assignment, or its problem."""
        plan = self._plan()
        replicas = [tuple(map(BrokerId, item)) for item in assignments]
        for item in replicas:
            if not (
                item
                and len(dict.fromkeys(item)) == len(item) == factor
                and all(broker in self.image.brokers for broker in item)
            ):
                return ErrorCode.invalid_replica_assignment, "The manual partition assignment is not valid.", []
            if not any(map(plan.is_active, item)):
                message = f"All brokers of the assignment {list(item)} are fenced or shutting down."
                return ErrorCode.invalid_replica_assignment, message, []
        return ErrorCode.none, None, replicas

    def _topic_records(self, topic: NewTopic, replicas: list[Replicas]) -> list[MetadataRecord]:
        return [
            TopicRecord(topic.name, topic.topic_id),
            *self._partition_records(topic.topic_id, 0, replicas),
            *(
                ConfigRecord(TOPIC_RESOURCE, topic.name, name, value)
                for name, value in topic.configs.items()
                if value is not None
            ),
        ]

    def _partition_records(self, topic_id: UUID, first: int, replicas: list[Replicas]) -> list[MetadataRecord]:
        plan = self._plan()
        records: list[MetadataRecord] = []
        for partition_id, item in enumerate(replicas, first):
            isr = tuple(broker for broker in item if plan.is_active(broker))
            records.append(PartitionRecord(partition_id, topic_id, item, isr, isr[0], LeaderEpoch(0), 0))
        return records

    def delete_topics(
        self, topics: Sequence[tuple[str | None, UUID]], *, admits: Callable[[int], bool] = _always
    ) -> MetadataDecision[list[TopicResult]]:
        """Each by its name, or by its id where the name is None. ``admits``: as in ``create_topics``.

        One that is named twice is not deleted, in whichever way it is named.
        """
        results: list[TopicResult] = []
        deleted: list[UUID] = []
        asked = [self._asked_topic(name, topic_id) for name, topic_id in topics]
        keys = [question if topic is None else topic.topic_id for question, topic in zip(topics, asked, strict=True)]
        counts = Counter(keys)
        for (name, topic_id), topic, key in zip(topics, asked, keys, strict=True):
            error, message = _deletion_problem(name, topic_id, topic)
            if counts[key] > 1:
                error, message = ErrorCode.invalid_request, "Duplicate topic name or id."
            name = name if topic is None else topic.name
            if error is not ErrorCode.none or topic is None:
                results.append(TopicResult(name=name, topic_id=topic_id, error=error, message=message))
            elif not admits(len(topic.partitions)):
                results.append(_over_quota(topic.name))
            else:
                deleted.append(topic.topic_id)
                results.append(TopicResult(name=name, topic_id=topic.topic_id))
        return Decision(records=tuple(map(RemoveTopicRecord, deleted)), response=results)

    def _asked_topic(self, name: str | None, topic_id: UUID) -> TopicImage | None:
        if name is None:
            name = self.image.topic_names.get(topic_id)
        return None if name is None else self.image.topics.get(name)

    def create_partitions(
        self,
        topics: Sequence[NewPartitions],
        *,
        validate_only: bool = False,
        admits: Callable[[int], bool] = _always,
    ) -> MetadataDecision[list[TopicResult]]:
        """``admits``: as in ``create_topics``."""
        records: list[MetadataRecord] = []
        results: list[TopicResult] = []
        counts = Counter(wanted.name for wanted in topics)
        placement = Placement(self.image)
        room = PARTITIONS_PER_REQUEST_MAX
        for wanted in topics:
            if counts[wanted.name] > 1:
                results.append(_twice(wanted.name))
                continue
            result, added = self._plan_partitions(wanted, placement, room)
            if result.error is ErrorCode.none and not admits(len(added)):
                result, added = _over_quota(wanted.name), []
            results.append(result)
            room -= len(added)
            records += added
        return Decision(records=() if validate_only else tuple(records), response=results)

    def _plan_partitions(
        self, wanted: NewPartitions, placement: Placement, room: int
    ) -> tuple[TopicResult, list[MetadataRecord]]:
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
        if added > room:
            return refuse(ErrorCode.invalid_partitions, _TOO_MANY)
        if wanted.name in INTERNAL_TOPICS:
            # The coordinator of a group or a transaction depends on the count: it must never change.
            return refuse(ErrorCode.invalid_request, f"The partitions of {wanted.name} are fixed.")
        existing = [partition.replicas for partition in topic.partitions]
        factor = len(existing[0])
        if wanted.assignments is None:
            error, message = _factor_problem(factor, placement)
            replicas = [] if message else placement.assign(existing, added, factor)
        elif len(wanted.assignments) != added:
            error, message = ErrorCode.invalid_replica_assignment, f"{added} assignments are needed."
        else:
            error, message, replicas = self._by_hand(wanted.assignments, factor)
        if message is not None:
            return refuse(error, message)
        return TopicResult(name=wanted.name), self._partition_records(topic.topic_id, has, replicas)


def _deletion_problem(name: str | None, topic_id: UUID, topic: TopicImage | None) -> tuple[ErrorCode, str | None]:
    """Why a topic, which is asked for by its name or its id, cannot be deleted, however often it is named."""
    if name is None and topic_id == _NO_TOPIC_ID:
        return ErrorCode.invalid_request, "Neither topic name nor id were specified."
    if name is not None and topic_id != _NO_TOPIC_ID:
        return ErrorCode.invalid_request, "You may not specify both topic name and topic id."
    if topic is None:
        return ErrorCode.unknown_topic_id if name is None else ErrorCode.unknown_topic_or_partition, None
    if topic.is_internal:
        # Coordinators live in it.
        return ErrorCode.invalid_topic_exception, f"{topic.name} is internal and cannot be deleted."
    return ErrorCode.none, None


def _over_quota(name: str) -> TopicResult:
    return TopicResult(name=name, error=ErrorCode.throttling_quota_exceeded, message=_OVER_QUOTA)


def _twice(name: str) -> TopicResult:
    return TopicResult(name=name, error=ErrorCode.invalid_request, message="Duplicate topic name.")


def _factor_problem(factor: int, placement: Placement) -> tuple[ErrorCode, str | None]:
    if factor <= 0:
        return ErrorCode.invalid_replication_factor, "Replication factor must be larger than 0."
    if factor > placement.usable:
        return (
            ErrorCode.invalid_replication_factor,
            f"Unable to replicate the partition {factor} time(s): "
            f"The target replication factor of {factor} cannot be reached because only "
            f"{placement.usable} broker(s) are registered.",
        )
    if not placement.has_leader:
        return ErrorCode.invalid_replication_factor, "All brokers are currently fenced."
    return ErrorCode.none, None
