"""Effects that the mirror's machine asks for, and events that are reported back. The effects of
``commit_protocol.effects`` that a transaction needs are among them, with their own events.

Offsets are exclusive ends unless they are called otherwise. Every effect has one answer; ``EffectFailed`` is a possible
answer to each of them and means: nothing has happened, try again later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from einmal.commit_protocol import effects as protocol
from einmal.mirror_protocol.offset_map import OffsetRun
from einmal.mirror_protocol.scan import EpochSpan, Header
from einmal.types import NO_LEADER_EPOCH, EpochEnd, ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition

# --- what is known of the clusters ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SourceTopic:
    """``leaderless``: partitions that nobody can read now."""

    topic_id: str
    partitions: int
    leaderless: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TargetTopic:
    """``ends``: the high watermark of each partition. ``leaderless``: see ``SourceTopic``."""

    topic_id: str
    ends: tuple[int, ...]
    leaderless: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Extent:
    """Log start offset and high watermark of a partition. ``leader_epoch``: of the leader that has answered.
    ``epoch_end``: of the epoch in ``Reached``; None: it was not asked for, or is not reported."""

    start: int
    end: int
    leader_epoch: int = NO_LEADER_EPOCH
    epoch_end: EpochEnd | None = None

    @property
    def lacks_epoch(self) -> bool:
        """Whether the leader does not know the epoch: it is of an earlier one."""
        return self.epoch_end is not None and self.epoch_end.epoch == NO_LEADER_EPOCH


class Reached(NamedTuple):
    """Up to where a partition is copied, and the last leader epoch that was read of it, if that is known."""

    position: int
    epoch: EpochSpan | None


class MapKey(NamedTuple):
    """The identity of a map: a source partition, and the ids of its topic and of the target's."""

    partition: TopicPartition
    source_id: str
    target_id: str


class GroupPosition(NamedTuple):
    """The offset of a group that was translated last, and what it became at the target."""

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class SavedMap:
    """The runs of one map, and the positions of groups."""

    runs: tuple[OffsetRun, ...]
    groups: Mapping[str, GroupPosition] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MapChange:
    """To be saved in the transaction: ``added`` runs, and positions of groups. ``dropped``: runs that
    are no longer needed, or are replaced by one that is added at the same source offset."""

    added: tuple[OffsetRun, ...] = ()
    dropped: tuple[OffsetRun, ...] = ()
    groups: Mapping[str, GroupPosition] = field(default_factory=dict)


TargetOffsets = Mapping[str, Mapping[TopicPartition, int]]
"""Target offsets by group."""
GroupPartitions = Mapping[str, frozenset[TopicPartition]]
"""Partitions of the target by group."""

# --- effects -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListTopics:
    """All topics of both clusters, from brokers that are not behind. Answer: TopicsListed."""


@dataclass(frozen=True, slots=True)
class CreateTopic:
    """Create a topic at the target like the source's. Answer: TopicReady."""

    source: str
    target: str
    partitions: int


@dataclass(frozen=True, slots=True)
class AddPartitions:
    """Let a topic of the target, the copy of ``source``, have so many partitions. Answer: TopicReady."""

    target: str
    partitions: int
    source: str = ""


@dataclass(frozen=True, slots=True)
class ReadMaps:
    """The saved maps, read_committed. Answer: MapsRead."""


@dataclass(frozen=True, slots=True)
class TakeEnds:
    """Ask the leaders of these source partitions, and confirm that they lead: all of them, after this effect was
    returned. ``reached``: of partitions that were read; where one ends before, or its leader has another epoch, the end
    of the epoch is asked for, too. Answer: EndsTaken."""

    partitions: tuple[TopicPartition, ...]
    reached: Mapping[TopicPartition, Reached] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ReadTransactions:
    """Read the source's ``__transaction_state`` up to high watermarks that are asked for after this effect was
    returned. Answer: TransactionsRead."""


@dataclass(frozen=True, slots=True)
class ScanHeaders:
    """Read headers and markers of source partitions, read_uncommitted, from the first to the second offset, in the
    topics with these ids. Answer: HeadersScanned."""

    ranges: Mapping[TopicPartition, tuple[int, int]]
    topic_ids: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CopyRecords:
    """Read the committed records of these ranges, in the topics with these ids, and append them in order inside the
    transaction. ``targets``: where each source partition goes. Answer: RecordsCopied, CopyRefused, Failed, Fenced,
    Unclear."""

    identity: ProducerIdAndEpoch
    ranges: Mapping[TopicPartition, tuple[int, int]]
    topic_ids: Mapping[str, str]
    targets: Mapping[TopicPartition, TopicPartition]


@dataclass(frozen=True, slots=True)
class ReadTargetGroups:
    """Which of these groups have members at the target, and which offsets. Answer: TargetGroupsRead, GroupsRefused,
    EffectFailed."""

    groups: GroupPartitions


@dataclass(frozen=True, slots=True)
class SaveMaps:
    """Append the changes of maps inside the transaction. Answer: Done, Failed, Fenced, Unclear."""

    identity: ProducerIdAndEpoch
    changes: Mapping[MapKey, MapChange]


@dataclass(frozen=True, slots=True)
class CommitGroupOffsets:
    """TxnOffsetCommit of these target offsets, by group. ``metadata``: of those that have any. Answer: Done,
    GroupsRefused, Failed, Fenced, Unclear."""

    identity: ProducerIdAndEpoch
    offsets: TargetOffsets
    metadata: Mapping[str, Mapping[TopicPartition, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to copy, or nothing that may be copied yet. Answer: Woken, after a while."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """The run has ended; no answer. ``may_restart``: a new run reads the outcome from the commit record."""

    reason: str
    hint: str
    may_restart: bool


MirrorEffect = (
    ListTopics
    | CreateTopic
    | AddPartitions
    | ReadMaps
    | TakeEnds
    | ReadTransactions
    | ScanHeaders
    | CopyRecords
    | ReadTargetGroups
    | SaveMaps
    | CommitGroupOffsets
    | Wait
    | Stopped
    | protocol.Effect
)

# --- events --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TopicsListed:
    """``source_cluster``, ``target_cluster``: their ids."""

    source_cluster: str
    target_cluster: str
    source: Mapping[str, SourceTopic]
    target: Mapping[str, TargetTopic]


@dataclass(frozen=True, slots=True)
class TopicReady:
    """The topic exists, or has the partitions."""


@dataclass(frozen=True, slots=True)
class MapsRead:
    maps: Mapping[MapKey, SavedMap]


@dataclass(frozen=True, slots=True)
class EndsTaken:
    extents: Mapping[TopicPartition, Extent]


@dataclass(frozen=True, slots=True)
class TransactionsRead:
    """``preparing``: see ``cut.Probe``."""

    preparing: Mapping[ProducerId, ProducerEpoch] | None


@dataclass(frozen=True, slots=True)
class HeadersScanned:
    """``reached``: up to where the headers of each partition are known, possibly before the end of its range."""

    headers: Mapping[TopicPartition, tuple[Header, ...]]
    reached: Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class RecordsCopied:
    """Every record is acknowledged; the runs by source partition."""

    runs: Mapping[TopicPartition, tuple[OffsetRun, ...]]


@dataclass(frozen=True, slots=True)
class TargetGroupsRead:
    """``active``: groups with members. ``offsets``: what is committed, by group."""

    active: frozenset[str]
    offsets: TargetOffsets


@dataclass(frozen=True, slots=True)
class EffectFailed:
    """``topic``: of the source, if the reason lasts and concerns it alone. ``others``: further topics, with reasons of
    their own."""

    reason: str
    topic: str = ""
    others: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupsRefused:
    """The target will never take offsets of these groups, or show those that it has; with the reasons."""

    reasons: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class CopyRefused:
    """The records of this source topic cannot be copied, whenever it is tried."""

    topic: str
    reason: str


@dataclass(frozen=True, slots=True)
class Woken:
    """Continue."""


MirrorEvent = (
    TopicsListed
    | TopicReady
    | MapsRead
    | EndsTaken
    | TransactionsRead
    | HeadersScanned
    | RecordsCopied
    | TargetGroupsRead
    | EffectFailed
    | CopyRefused
    | GroupsRefused
    | Woken
    | protocol.Event
)
