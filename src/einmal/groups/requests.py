"""Version-independent requests about offsets, what the coordinator decides, and the action with which it answers later.

Field names are Kafka's. What only some versions of a request can express has a field of its own here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, NewType, TypeAlias, TypeVar

from einmal.groups.records import CommittedOffset, Record
from einmal.shard.decision import Decision
from einmal.types import NO_LEADER_EPOCH, ErrorCode, ProducerIdAndEpoch, TopicPartition
from einmal.wire.api.join_group import JoinGroupResponse
from einmal.wire.api.sync_group import SyncGroupResponse

R = TypeVar("R")

Ticket = NewType("Ticket", int)
"""Identifies a request whose answer may come later. Chosen by the caller; never reused."""

Response: TypeAlias = JoinGroupResponse | SyncGroupResponse
"""Responses that may come later."""


class CommittedPosition(NamedTuple):
    """How many members a group has, and the next offset to read of each partition."""

    members: int
    offsets: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class Respond:
    """Answer the request that waits under ``ticket``, if it still waits."""

    ticket: Ticket
    response: Response


GroupDecision: TypeAlias = Decision[Record, Respond, R]


@dataclass(slots=True)
class Effects:
    """Collects the parts of one decision."""

    records: list[Record] = field(default_factory=list)
    actions: list[Respond] = field(default_factory=list)

    def decide(self, response: R) -> GroupDecision[R]:
        return Decision(records=tuple(self.records), response=response, actions=tuple(self.actions))


@dataclass(frozen=True, slots=True)
class OffsetToCommit:
    committed_offset: int
    committed_leader_epoch: int
    committed_metadata: str | None

    def stamp(self, now: int, retention_ms: int | None = None) -> CommittedOffset:
        """The offset as it is logged at ``now`` (wall clock)."""
        metadata = self.committed_metadata or ""
        if retention_ms is None:
            return CommittedOffset(self.committed_offset, self.committed_leader_epoch, metadata, now)
        # The only value version with a time of expiry has no leader epoch: memory must keep what can be read again.
        return CommittedOffset(self.committed_offset, NO_LEADER_EPOCH, metadata, now, now + retention_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommit:
    """``retention_ms``: asked for by clients before v5; None: the broker's.

    ``unknown_group``: the error for a generation of a missing group in this version (v9+: GROUP_ID_NOT_FOUND).
    """

    group_id: str
    generation_id: int
    member_id: str
    group_instance_id: str | None
    offsets: Mapping[TopicPartition, OffsetToCommit]
    retention_ms: int | None = None
    unknown_group: ErrorCode = ErrorCode.illegal_generation


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnOffsetCommit:
    """``generation_id`` -1 and an empty ``member_id``: a client from before KIP-447, which cannot be fenced here."""

    group_id: str
    producer: ProducerIdAndEpoch
    generation_id: int
    member_id: str
    group_instance_id: str | None
    offsets: Mapping[TopicPartition, OffsetToCommit]
    unknown_group: ErrorCode = ErrorCode.illegal_generation


@dataclass(frozen=True, slots=True)
class OffsetFetchGroup:
    """``partitions`` None: all that the group has."""

    group_id: str
    partitions: tuple[TopicPartition, ...] | None
