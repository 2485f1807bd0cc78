"""Where a mirror is, compared with both clusters: positions of partitions, and offsets of groups. Reads only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from einmal.mirror_protocol.effects import MapKey, SavedMap, SourceTopic
from einmal.mirror_protocol.flow import Flow
from einmal.mirror_protocol.offset_map import OffsetMap
from einmal.mirror_protocol.progress import OFFSETS_TOPIC, UNKNOWN, RecordedPosition
from einmal.mirroring.groups import active_groups, group_names, shown_offsets
from einmal.mirroring.source import SourceReader
from einmal.mirroring.target import TargetWriter
from einmal.types import TopicPartition


class FailoverState(Enum):
    """State of a group in one partition."""

    READY = "ready"
    """At the target it resumes where it stands at the source."""
    BEHIND = "behind"
    """The offset that it has committed at the source is not translated yet."""
    MOVED = "moved"
    """It has committed at the target, or has members there: the mirror leaves it alone."""
    UNKNOWN = "unknown"
    """The source was not asked, or a cluster does not show the group's offsets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """``end``: the source's last stable offset; None where it was not asked. ``lag``: offsets, not records."""

    partition: TopicPartition
    target: TopicPartition
    position: int
    end: int | None

    @property
    def lag(self) -> int | None:
        return None if self.end is None else max(0, self.end - self.position)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStatus:
    """Offsets that are committed; None: none, or not asked. ``reason``: why it is behind or unknown, where known."""

    group: str
    partition: TopicPartition
    source_offset: int | None
    target_offset: int | None
    state: FailoverState
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStatus:
    """A source topic that matches and is not copied, and why."""

    topic: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MirrorStatus:
    """``batch_id`` and ``records``: of the last transaction; None: there was none. ``left_out``: not known where the
    source was not asked, apart from what the mirror has recorded."""

    batch_id: int | None
    records: int
    partitions: Sequence[PartitionStatus]
    groups: Sequence[GroupStatus]
    left_out: Sequence[TopicStatus] = ()
    incomplete: str = ""
    """Reason why not everything is copied, in a failover."""


def status_of(flow: Flow, source: SourceReader | None, target: TargetWriter) -> MirrorStatus:
    """``source``: None where it cannot be reached. Raises KafkaError, UnreadableCommitRecord, UnreadableMap."""
    record = target.last_record()
    recorded = RecordedPosition.of(record)
    seen = None if source is None else source.topics()
    listed = None if seen is None else {name: topic for name, topic in seen.items() if _accepts(flow, name)}
    copied = {partition: offset for partition, offset in recorded.offsets.items() if partition.topic != OFFSETS_TOPIC}
    for name, topic in (listed or {}).items():
        if name != OFFSETS_TOPIC and recorded.source_ids.get(name) == topic.topic_id:
            # Partitions that were added since are not copied yet.
            copied |= {partition: UNKNOWN for partition in _partitions(name, topic) if partition not in copied}
    hidden = {} if source is None else source.hidden({name for name, _ in copied} - (seen or {}).keys())
    # The end of another topic of that name is not compared with what is copied of the old one.
    compared = [
        partition
        for partition in copied
        if partition.topic not in hidden and not _is_another(recorded, listed or {}, partition.topic)
    ]
    ends, unanswered = ({}, {}) if source is None else source.stable_ends(compared)
    partitions = [
        PartitionStatus(
            partition=partition, target=_copy(flow, partition), position=max(0, position), end=ends.get(partition)
        )
        for partition, position in sorted(copied.items())
    ]
    return MirrorStatus(
        batch_id=None if record is None else record.batch_id,
        records=0 if record is None else record.records,
        partitions=partitions,
        groups=[_of_hidden(status, hidden) for status in _groups(flow, recorded, source, target, listed or {})],
        left_out=_left_out(
            recorded, listed, unanswered, {name: why for name, why in hidden.items() if _accepts(flow, name)}
        ),
    )


def _of_hidden(status: GroupStatus, hidden: Mapping[str, str]) -> GroupStatus:
    """The source does not show offsets in topics that it does not show."""
    reason = hidden.get(status.partition.topic)
    return status if reason is None else replace(status, state=FailoverState.UNKNOWN, reason=reason)


def _partitions(name: str, topic: SourceTopic) -> list[TopicPartition]:
    return [TopicPartition(name, index) for index in range(topic.partitions)]


def _is_another(recorded: RecordedPosition, listed: Mapping[str, SourceTopic], name: str) -> bool:
    return name in listed and recorded.source_ids.get(name) != listed[name].topic_id


def _accepts(flow: Flow, name: str) -> bool:
    return name == OFFSETS_TOPIC or flow.accepts_topic(name)


def _left_out(
    recorded: RecordedPosition,
    listed: Mapping[str, SourceTopic] | None,
    unanswered: Mapping[str, str],
    hidden: Mapping[str, str],
) -> list[TopicStatus]:
    reasons = dict(hidden)
    reasons |= {topic: reason for topic, reason in unanswered.items() if listed is not None and topic in listed}
    reasons |= {topic: reason for topic, reason in recorded.aside.items() if listed is None or topic in listed}
    for name, topic in (listed or {}).items():
        if topic.leaderless:
            reasons[name] = f"partition {name}-{topic.leaderless[0]} has no leader at the source."
        elif recorded.source_ids.get(name) != topic.topic_id and name != OFFSETS_TOPIC:
            reasons.setdefault(name, "Nothing of it is copied yet.")
    return [TopicStatus(topic=topic, reason=reasons[topic]) for topic in sorted(reasons)]


def _copy(flow: Flow, partition: TopicPartition) -> TopicPartition:
    return TopicPartition(flow.remote_topic(partition.topic), partition.partition)


def _groups(
    flow: Flow,
    recorded: RecordedPosition,
    source: SourceReader | None,
    target: TargetWriter,
    listed: Mapping[str, SourceTopic],
) -> list[GroupStatus]:
    maps = {}
    if recorded.source_ids:
        maps = {key: saved for key, saved in target.read_maps().items() if _is_current(flow, recorded, key)}
    names = {group for saved in maps.values() for group in saved.groups}
    committed: dict[str, dict[TopicPartition, int]] = {}
    denied: dict[str, str] = {}
    if source is not None:
        accepted = {name for name in group_names(source.cluster) if flow.groups.accepts(name)}
        committed = shown_offsets(source.cluster, sorted(names | accepted), denied)
        names |= accepted
    # Offsets in what is not copied yet are not translated either.
    mapped = {key.partition for key in maps}
    for partition in {partition for offsets in committed.values() for partition in offsets} - mapped:
        if partition.topic in listed:
            maps[MapKey(partition, listed[partition.topic].topic_id, "")] = SavedMap(())
    active = active_groups(target.cluster, names)
    at_target = shown_offsets(target.cluster, sorted(names - active), denied)
    statuses = [
        _group(
            group,
            _Copied(key.partition, _copy(flow, key.partition), recorded.offsets.get(key.partition, UNKNOWN), saved),
            committed if source is not None else None,
            at_target,
            is_active=group in active,
        )
        for key, saved in sorted(maps.items())
        for group in sorted(names)
        if group in saved.groups or key.partition in committed.get(group, {})
    ]
    return [_with_reason(status, recorded, denied) for status in statuses]


def _with_reason(status: GroupStatus, recorded: RecordedPosition, denied: Mapping[str, str]) -> GroupStatus:
    """``denied``: groups whose offsets a cluster does not show."""
    if status.group in denied:
        return replace(status, state=FailoverState.UNKNOWN, reason=denied[status.group])
    if status.state is FailoverState.BEHIND and status.group in recorded.refused:
        return replace(status, reason=recorded.refused[status.group].reason)
    return status


def _is_current(flow: Flow, recorded: RecordedPosition, key: MapKey) -> bool:
    return (
        recorded.source_ids.get(key.partition.topic) == key.source_id
        and recorded.target_ids.get(flow.remote_topic(key.partition.topic)) == key.target_id
    )


class _Copied(NamedTuple):
    """``position``: everything of the source partition below it is copied."""

    partition: TopicPartition
    copy: TopicPartition
    position: int
    saved: SavedMap

    def is_translated(self, here: int, there: int) -> bool:
        """Whether a group at the source's offset ``here`` resumes at its offset ``there`` with the same record."""
        return here <= self.position and bool(self.saved.runs) and OffsetMap(self.saved.runs).resumes_at(there, here)


def _group(
    group: str,
    copied: _Copied,
    committed: Mapping[str, Mapping[TopicPartition, int]] | None,
    at_target: Mapping[str, Mapping[TopicPartition, int]],
    *,
    is_active: bool,
) -> GroupStatus:
    known = copied.saved.groups.get(group)
    there = at_target.get(group, {}).get(copied.copy)
    here = None if committed is None else committed.get(group, {}).get(copied.partition)
    if is_active or (there is not None and (known is None or there != known.target)):
        state = FailoverState.MOVED
    elif committed is None:
        state = FailoverState.UNKNOWN
    elif here is None or (known is not None and there is not None and copied.is_translated(here, there)):
        state = FailoverState.READY
    else:
        state = FailoverState.BEHIND
    source_offset = here
    if committed is None and known is not None and known.source != UNKNOWN:
        source_offset = known.source
    return GroupStatus(
        group=group, partition=copied.partition, source_offset=source_offset, target_offset=there, state=state
    )
