"""Moving partitions to other brokers while they are in use (KIP-455).

The new replicas are added to the old ones, in front; once all of them are in sync, the old ones go. A reassignment can
be changed on its way, and taken back: the replicas that it was to add are dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from einmal.metadata.image import PartitionImage, TopicImage
from einmal.metadata.plan import Deciding, MetadataDecision, Plan
from einmal.types import BrokerId, ErrorCode, TopicPartition


@dataclass(frozen=True, slots=True)
class Reassignment:
    """``replicas``: in the order of preference; None: take back what is under way."""

    topic_partition: TopicPartition
    replicas: tuple[BrokerId, ...] | None


@dataclass(frozen=True, slots=True)
class ReassignmentResult:
    topic_partition: TopicPartition
    error: ErrorCode = ErrorCode.none
    message: str | None = None


class ReassignmentDecisions(Deciding):
    def reassign_partitions(
        self, reassignments: Sequence[Reassignment], *, allow_replication_factor_change: bool = True
    ) -> MetadataDecision[list[ReassignmentResult]]:
        plan = self._plan()
        results = [self._reassign(plan, item, allow_replication_factor_change) for item in reassignments]
        return plan.decision(results)

    def _reassign(self, plan: Plan, item: Reassignment, may_change_factor: bool) -> ReassignmentResult:
        def refuse(error: ErrorCode, message: str) -> ReassignmentResult:
            return ReassignmentResult(item.topic_partition, error, message)

        topic = self.image.topics.get(item.topic_partition.topic)
        partition = None if topic is None else plan.partition(topic, item.topic_partition.partition)
        if topic is None or partition is None:
            return refuse(ErrorCode.unknown_topic_or_partition, f"There is no partition {item.topic_partition}.")
        old = tuple(broker for broker in partition.replicas if broker not in partition.adding)
        if item.replicas is None:
            if not partition.is_reassigning:
                return refuse(ErrorCode.no_reassignment_in_progress, "No reassignment is under way.")
            wanted = _with_replicas(partition, old, removing=(), adding=())
        else:
            if (message := self._problem(item.replicas)) is not None:
                return refuse(ErrorCode.invalid_replica_assignment, message)
            if not may_change_factor and len(item.replicas) != len(old):
                return refuse(ErrorCode.invalid_replication_factor, f"The replication factor is {len(old)}.")
            removing = tuple(broker for broker in old if broker not in item.replicas)
            adding = tuple(broker for broker in item.replicas if broker not in old)
            wanted = _with_replicas(partition, (*item.replicas, *removing), removing, adding)
        complete = partition.isr or partition.elr or partition.last_known_elr
        if complete and not any(broker in wanted.replicas for broker in complete):
            message = "Nobody who has all records would stay."
            return refuse(ErrorCode.invalid_replica_assignment, message)
        plan.change(topic, item.topic_partition.partition, wanted)
        return ReassignmentResult(item.topic_partition)

    def _problem(self, replicas: tuple[BrokerId, ...]) -> str | None:
        if not replicas:
            return "A partition has at least one replica."
        if len(dict.fromkeys(replicas)) < len(replicas):
            return "A broker is named twice."
        unknown = [broker for broker in replicas if broker not in self.image.brokers]
        return f"Broker {unknown[0]} is not registered." if unknown else None

    def reassignments(self) -> list[tuple[TopicImage, int, PartitionImage]]:
        """Return the partitions whose reassignment is under way."""
        return [item for item in self._plan().partitions() if item[2].is_reassigning]


def _with_replicas(
    partition: PartitionImage,
    replicas: tuple[BrokerId, ...],
    removing: tuple[BrokerId, ...],
    adding: tuple[BrokerId, ...],
) -> PartitionImage:
    """Replicas of an earlier reassignment that are not wanted any more go at once."""
    isr = tuple(broker for broker in partition.isr if broker in replicas)
    return replace(partition, replicas=replicas, isr=isr, removing=removing, adding=adding)
