"""Who is in sync and who leads: ISR changes that leaders ask for, and elections that operators or time ask for.

A leader asks for another ISR under the partition epoch it knows, so at most one of its requests per epoch is carried
out (KIP-497). One that found damage in its log asks for an ISR of the others, and one of them leads then. Brokers that
are fenced, shutting down, or of another epoch than the one that the leader saw fetching are not let in (KIP-841,
KIP-903).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

from einmal.metadata.image import PartitionImage, TopicImage
from einmal.metadata.partition_change import Election
from einmal.metadata.plan import ControllerDefaults, Deciding, MetadataDecision, Plan
from einmal.metadata.records import NO_LEADER, RECOVERED, RECOVERING
from einmal.shard.decision import Decision
from einmal.types import BrokerId, ErrorCode, Instant, LeaderEpoch, TopicPartition

PREFERRED: Final = 0
UNCLEAN: Final = 1
"""ElectLeaders' kinds of election, in Kafka's numbers."""
_CHANGES_AT_A_TIME_MAX: Final = 1_000
_ANY_EPOCH: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class IsrRequest:
    """ISR that a leader asks for. ``isr``: brokers and their epochs; -1: whatever its epoch."""

    partition_id: int
    leader_epoch: LeaderEpoch
    partition_epoch: int
    isr: tuple[tuple[BrokerId, int], ...]
    leader_recovery_state: int = RECOVERED


@dataclass(frozen=True, slots=True)
class IsrResult:
    """``partition``: as it is now; None where nothing was changed."""

    partition_id: int
    error: ErrorCode
    partition: PartitionImage | None = None


@dataclass(frozen=True, slots=True)
class ElectionResult:
    topic_partition: TopicPartition
    error: ErrorCode = ErrorCode.none
    message: str | None = None


class PartitionDecisions(Deciding):
    def __init__(self, defaults: ControllerDefaults) -> None:
        super().__init__(defaults)
        self._next_look_ms: int | None = None

    # --- ISR -----------------------------------------------------------------------------------------------------

    def alter_partition(
        self, broker_id: BrokerId, broker_epoch: int, topics: Sequence[tuple[UUID, Sequence[IsrRequest]]]
    ) -> MetadataDecision[ErrorCode | list[tuple[UUID, list[IsrResult]]]]:
        """Write what a leader asks for, even where it holds already: the new epoch fences its older requests."""
        sender = self.image.brokers.get(broker_id)
        if sender is None or sender.broker_epoch != broker_epoch:
            return Decision(response=ErrorCode.stale_broker_epoch)
        plan = self._plan()
        results = []
        for topic_id, requests in topics:
            name = self.image.topic_names.get(topic_id)
            if name is None:
                unknown = [IsrResult(request.partition_id, ErrorCode.unknown_topic_id) for request in requests]
                results.append((topic_id, unknown))
                continue
            topic = self.image.topics[name]
            results.append((topic_id, [self._alter_isr(plan, broker_id, topic, request) for request in requests]))
        return plan.decision(results)

    def _alter_isr(self, plan: Plan, broker_id: BrokerId, topic: TopicImage, request: IsrRequest) -> IsrResult:
        partition_id = request.partition_id
        partition = plan.partition(topic, partition_id)
        if partition is None:
            return IsrResult(partition_id, ErrorCode.unknown_topic_or_partition)
        error = _isr_problem(broker_id, partition, request)
        if error is ErrorCode.none and not all(self._may_be_in_sync(*member) for member in request.isr):
            error = ErrorCode.ineligible_replica
        if error is not ErrorCode.none:
            return IsrResult(partition_id, error)
        isr = tuple(member for member, _epoch in request.isr)
        wanted = replace(partition, isr=isr, leader_recovery_state=request.leader_recovery_state)
        after = plan.change(topic, partition_id, wanted, restate_isr=True)
        if after.leader != broker_id:
            # It has resigned, or this finished a reassignment in which the leader is one of those that go.
            return IsrResult(partition_id, ErrorCode.new_leader_elected)
        return IsrResult(partition_id, ErrorCode.none, after)

    def _may_be_in_sync(self, broker_id: BrokerId, broker_epoch: int) -> bool:
        broker = self.image.brokers.get(broker_id)
        return broker is not None and broker.is_active and broker_epoch in (_ANY_EPOCH, broker.broker_epoch)

    # --- elections -----------------------------------------------------------------------------------------------

    def elect_leaders(
        self, kind: int, partitions: Sequence[TopicPartition] | None
    ) -> MetadataDecision[ErrorCode | list[ElectionResult]]:
        """Let preferred replicas lead, or any replica where nobody leads. None: wherever that changes something."""
        if kind not in (PREFERRED, UNCLEAN):
            return Decision(response=ErrorCode.invalid_request)
        plan = self._plan()
        asked = self._everything() if partitions is None else partitions
        results = [self._elect_leader(plan, kind, topic_partition) for topic_partition in asked]
        if partitions is None:
            results = [result for result in results if result.error is not ErrorCode.election_not_needed]
        return plan.decision(results)

    def _everything(self) -> list[TopicPartition]:
        return [TopicPartition(topic.name, partition_id) for topic, partition_id, _ in self._plan().partitions()]

    def _elect_leader(self, plan: Plan, kind: int, topic_partition: TopicPartition) -> ElectionResult:
        topic = self.image.topics.get(topic_partition.topic)
        partition = None if topic is None else plan.partition(topic, topic_partition.partition)
        if topic is None or partition is None:
            message = f"There is no partition {topic_partition}."
            return ElectionResult(topic_partition, ErrorCode.unknown_topic_or_partition, message)
        is_there = partition.leader != NO_LEADER if kind == UNCLEAN else partition.leader == partition.replicas[0]
        if is_there:
            return ElectionResult(topic_partition, ErrorCode.election_not_needed, "It leads already.")
        election = Election.UNCLEAN if kind == UNCLEAN else Election.PREFERRED
        after = plan.change(topic, topic_partition.partition, partition, election=election)
        if after.leader != partition.leader:
            return ElectionResult(topic_partition)
        if kind == UNCLEAN:
            return ElectionResult(topic_partition, ErrorCode.eligible_leaders_not_available, "No replica is alive.")
        message = "The preferred leader is not in sync."
        return ElectionResult(topic_partition, ErrorCode.preferred_leader_not_available, message)

    def _begin_looking(self, now: Instant) -> None:
        """From now on, from time to time: can preferred replicas lead again?"""
        every_ms = self.defaults.preferred_leaders_every_ms
        self._next_look_ms = None if every_ms is None else now.monotonic_ms + every_ms

    def _move_leaders_back(self) -> Plan:
        plan = self._plan()
        for topic, partition_id, partition in plan.partitions():
            preferred = partition.replicas[0]
            if partition.leader != preferred and preferred in partition.isr and plan.is_active(preferred):
                plan.change(topic, partition_id, partition, election=Election.PREFERRED)
            if len(plan.records) >= _CHANGES_AT_A_TIME_MAX:
                break
        return plan


def _isr_problem(broker_id: BrokerId, partition: PartitionImage, request: IsrRequest) -> ErrorCode:
    """Return what is wrong with the request of this broker, whatever the other brokers are."""
    if request.leader_epoch > partition.leader_epoch or request.partition_epoch > partition.partition_epoch:
        # Whoever knows more than the controller has a newer controller to ask.
        return ErrorCode.not_controller
    if request.leader_epoch < partition.leader_epoch:
        return ErrorCode.fenced_leader_epoch
    if broker_id != partition.leader:
        return ErrorCode.invalid_request
    if request.partition_epoch < partition.partition_epoch:
        return ErrorCode.invalid_update_version
    isr = [member for member, _epoch in request.isr]
    is_sound = (
        bool(isr)
        and len(dict.fromkeys(isr)) == len(isr)
        and all(member in partition.replicas for member in isr)
        and request.leader_recovery_state in (RECOVERED, RECOVERING)
    )
    if request.leader_recovery_state == RECOVERING:
        is_sound = is_sound and len(isr) == 1 and partition.leader_recovery_state == RECOVERING
    return ErrorCode.none if is_sound else ErrorCode.invalid_request
