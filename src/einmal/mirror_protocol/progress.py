"""State of a mirror between two transactions: topics, positions, scans, maps and groups.

A commit record has two positions: offsets in the source, and the ids of the target's topics, which have none.

What a flow accepts may change between two runs. What was committed in a topic that was not copied, or by a group that
was not accepted, was passed without being translated. So the record has these topics and the filter of the groups, and
``__consumer_offsets`` is read again for what the flow accepts since.

An offset that a group commits names a topic, and not its id. When a topic was created again, the log of the groups'
offsets still has some of the old topic. The coordinator deletes them (a tombstone for each) when it learns that the old
topic is gone. So an offset before a tombstone is one of an old topic; and below the ends that ``__consumer_offsets``
had when the new topic was first seen, it is one of the new topic only behind a tombstone. These ends are part of the
position until they are passed. What remains is a coordinator that is later to learn of the topic than the mirror.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from einmal.commit_protocol.commit_record import CommitRecord
from einmal.commit_protocol.positions import cluster_id, identity, topic_ids, topics_in
from einmal.mirror_protocol.cut import Cut
from einmal.mirror_protocol.effects import GroupPosition, MapKey
from einmal.mirror_protocol.offset_map import OffsetMap
from einmal.mirror_protocol.replication_policy import NameFilter
from einmal.mirror_protocol.scan import EpochSpan, PartitionScan
from einmal.types import NO_LEADER_EPOCH, TopicPartition

OFFSETS_TOPIC: Final = "__consumer_offsets"
"""Scanned for the offsets of groups, and copied nowhere."""
UNKNOWN: Final = -1
"""The position in a partition of which nothing was read yet: its log start offset, when that is known. As the offset of
a group: the group's offset was deleted."""
_SEEN: Final = "@seen="
_ASIDE: Final = "@aside="
_REFUSED: Final = "@refused="
_EPOCH: Final = "@epoch="
_SETTINGS: Final = "@settings="
_GONE: Final = "@gone="
_GROUPS: Final = "@groups="


@dataclass(frozen=True, slots=True)
class MirroredTopic:
    """A source topic and its target. ``target``: empty for ``OFFSETS_TOPIC``."""

    name: str
    source_id: str
    partitions: int
    target: str = ""
    target_id: str = ""

    def topic_partitions(self) -> Iterator[TopicPartition]:
        return (TopicPartition(self.name, index) for index in range(self.partitions))

    def key(self, partition: TopicPartition) -> MapKey:
        return MapKey(partition, self.source_id, self.target_id)


class RefusedAt(NamedTuple):
    """Why the target has refused a group, and where the first offset that was passed for it is in ``OFFSETS_TOPIC``."""

    reason: str
    partition: int
    position: int

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(OFFSETS_TOPIC, self.partition)


@dataclass(frozen=True, slots=True)
class RecordedPosition:
    """A commit record's position. Raises ValueError from ``of`` if the record is no mirror's."""

    source_cluster: str | None = None
    target_cluster: str | None = None
    source_ids: Mapping[str, str] = field(default_factory=dict)
    target_ids: Mapping[str, str] = field(default_factory=dict)
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    seen: Mapping[str, Mapping[int, int]] = field(default_factory=dict)
    """By topic that was created again: the ends of ``__consumer_offsets`` when it was first seen."""
    aside: Mapping[str, str] = field(default_factory=dict)
    """Why a topic was left out of the transaction, by topic. Older versions neither write nor read it."""
    refused: Mapping[str, RefusedAt] = field(default_factory=dict)
    """Groups with offsets that were passed without being translated. In the same way."""
    epochs: Mapping[TopicPartition, EpochSpan] = field(default_factory=dict)
    """The last leader epoch below each offset, where that is known. In the same way."""
    settings: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of the settings that were copied, by the target's topic. In the same way."""
    gone: frozenset[str] = frozenset()
    """Topics that were copied before, and neither copied nor left out: they were deleted, or no longer matched. In the
    same way."""
    groups: NameFilter | None = None
    """Groups whose offsets were translated, of what was read of ``OFFSETS_TOPIC``. In the same way."""

    @staticmethod
    def of(record: CommitRecord | None) -> RecordedPosition:
        if record is None:
            return RecordedPosition()
        if len(record.end) != 2 or not all(isinstance(side, dict) for side in record.end):
            raise ValueError(f"the commit record of {record.transactional_id!r} is not of a mirror")
        source, target = record.end
        offsets = {
            TopicPartition(topic, int(index)): int(offset)
            for topic, partitions in topics_in(source).items()
            for index, offset in partitions.items()
        }
        seen: dict[str, dict[int, int]] = {}
        for key in source:
            if key.startswith(_SEEN):
                topic, index, end = key.removeprefix(_SEEN).split("=")
                seen.setdefault(topic, {})[int(index)] = int(end)
        aside = {
            topic: reason
            for key in source
            if key.startswith(_ASIDE)
            for topic, _, reason in [key.removeprefix(_ASIDE).partition("=")]
        }
        refused: dict[str, RefusedAt] = {}
        for key in source:
            if key.startswith(_REFUSED):
                group, *rest = json.loads(key.removeprefix(_REFUSED))
                refused[group] = RefusedAt(*rest)
        epochs = {}
        for key in source:
            if key.startswith(_EPOCH):
                topic, *numbers = key.removeprefix(_EPOCH).split("=")
                index, *span = map(int, numbers)
                epochs[TopicPartition(topic, index)] = EpochSpan(*span)
        settings = {
            topic: tuple(filter(None, names.split(",")))
            for key in source
            if key.startswith(_SETTINGS)
            for topic, _, names in [key.removeprefix(_SETTINGS).partition("=")]
        }
        groups = next((json.loads(key.removeprefix(_GROUPS)) for key in source if key.startswith(_GROUPS)), None)
        return RecordedPosition(
            cluster_id(source),
            cluster_id(target),
            topic_ids(source),
            topic_ids(target),
            offsets,
            seen,
            aside,
            refused,
            epochs,
            settings,
            frozenset(key.removeprefix(_GONE) for key in source if key.startswith(_GONE)),
            None if groups is None else NameFilter(*map(tuple, groups)),
        )

    def end(self) -> tuple[Any, Any]:
        """As ``CommitRecord.end``."""
        topics: dict[str, dict[str, int]] = {}
        for (topic, index), offset in sorted(self.offsets.items()):
            topics.setdefault(topic, {})[str(index)] = offset
        seen: dict[str, dict[str, int]] = {
            f"{_SEEN}{topic}={index}={end}": {}
            for topic, ends in sorted(self.seen.items())
            for index, end in sorted(ends.items())
        }
        aside: dict[str, dict[str, int]] = {f"{_ASIDE}{topic}={self.aside[topic]}": {} for topic in sorted(self.aside)}
        refused: dict[str, dict[str, int]] = {
            _REFUSED + json.dumps([group, *self.refused[group]]): {} for group in sorted(self.refused)
        }
        epochs: dict[str, dict[str, int]] = {
            _EPOCH + "=".join(map(str, (*partition, *span))): {} for partition, span in sorted(self.epochs.items())
        }
        settings: dict[str, dict[str, int]] = {
            f"{_SETTINGS}{topic}={','.join(names)}": {} for topic, names in sorted(self.settings.items())
        }
        flow: dict[str, dict[str, int]] = {f"{_GONE}{topic}": {} for topic in sorted(self.gone)}
        if self.groups is not None:
            flow[_GROUPS + json.dumps([self.groups.include, self.groups.exclude])] = {}
        known = identity(self.source_cluster, self.source_ids, {})
        return (
            topics | known | seen | aside | refused | epochs | settings | flow,
            identity(self.target_cluster, self.target_ids, {}),
        )


@dataclass(slots=True)
class MirrorProgress:
    """Changed between two transactions only. ``maps`` and ``groups`` are the saved ones; ``begun``: maps that are saved
    with the first records. ``groups``: what was translated last of each group."""

    recorded: RecordedPosition = field(default_factory=RecordedPosition)
    topics: dict[str, MirroredTopic] = field(default_factory=dict)
    scans: dict[TopicPartition, PartitionScan] = field(default_factory=dict)
    maps: dict[MapKey, OffsetMap] = field(default_factory=dict)
    begun: dict[MapKey, OffsetMap] = field(default_factory=dict)
    groups: dict[MapKey, dict[str, GroupPosition]] = field(default_factory=dict)
    recreated: set[str] = field(default_factory=set)
    """Topics that were created again, since the last probe has begun."""
    seen: dict[str, dict[int, int]] = field(default_factory=dict)
    """See ``RecordedPosition``."""
    deleted: set[tuple[str, TopicPartition]] = field(default_factory=set)
    """Offsets of groups whose tombstones were read ahead."""
    starts: dict[TopicPartition, int] = field(default_factory=dict)
    """Log start offsets, as the last probe has read them."""
    returned: set[str] = field(default_factory=set)
    """Topics that are copied from now on, while the offsets of groups were read further: those that are behind
    ``passed`` are read again for these topics alone."""
    returned_groups: dict[str, int] = field(default_factory=dict)
    """The same for groups that the target had refused: the position from which each is read again."""
    behind: dict[TopicPartition, int] = field(default_factory=dict)
    """Where partitions have ended before their positions, of which no leader epoch is known."""
    former_groups: NameFilter | None = None
    """Groups whose offsets were translated by an earlier run; those of others that are behind ``passed`` are read
    again. None: the flow accepts the same ones."""
    passed: dict[TopicPartition, int] = field(default_factory=dict)
    """Positions in ``__consumer_offsets`` before some were read again."""

    def key(self, partition: TopicPartition) -> MapKey:
        return self.topics[partition.topic].key(partition)

    def is_copied(self, partition: TopicPartition) -> bool:
        """Whether the partition's records go to the target."""
        topic = self.topics.get(partition.topic)
        return topic is not None and bool(topic.target) and partition.partition < topic.partitions

    def rescan(self) -> None:
        """Forget what was read ahead."""
        self.deleted.clear()
        for scan in self.scans.values():
            scan.forget(scan.position)

    def has_copied(self, goal: Mapping[TopicPartition, int]) -> bool:
        """Whether everything is copied that was committed when the logs had these ends; every partition has one."""
        return self.scans.keys() <= goal.keys() and all(
            scan.has_copied(goal[partition]) for partition, scan in self.scans.items()
        )

    def is_old(self, scanned: TopicPartition, last_offset: int, group: str, topic: str) -> bool:
        """Whether a group's offset was passed before, and is only read again for the sake of others."""
        if last_offset >= self.passed.get(scanned, 0) or topic in self.returned:
            return False
        if self.former_groups is not None and not self.former_groups.accepts(group):
            return False
        position = self.returned_groups.get(group)
        return position is None or last_offset < position

    def read_again(self, groups: Collection[str]) -> None:
        """Read again what groups have committed since the target has refused them. What was read ahead is forgotten."""
        returned = {
            group: self.recorded.refused[group]
            for group in groups
            if group not in self.returned_groups and self.recorded.refused[group].topic_partition in self.scans
        }
        if not returned:
            return
        self.forget_passed()
        for group, refusal in returned.items():
            self.returned_groups[group] = refusal.position
            scan = self.scans[refusal.topic_partition]
            if refusal.position < scan.position:
                self.rewind(scan, refusal.position)
        self.rescan()

    def rewind(self, scan: PartitionScan, position: int) -> None:
        """Read a partition of ``__consumer_offsets`` again from there, and remember what was passed."""
        self.passed[scan.partition] = max(scan.resumes_at(scan.position), self.passed.get(scan.partition, 0))
        scan.forget(position)

    def truncate(self, scan: PartitionScan, offset: int, epoch: int) -> None:
        """The source's log was truncated to ``offset``, before the position: read on from there. ``epoch``: the last
        leader epoch below it there, if that is known."""
        partition = scan.partition
        scan.forget(offset)
        scan.epochs = [] if epoch == NO_LEADER_EPOCH else [EpochSpan(epoch, offset, offset)]
        if self.is_copied(partition):
            key = self.key(partition)
            self.begun[key] = (self.begun.get(key) or self.maps[key]).truncated(offset)
            return
        # What follows was not read before.
        if partition in self.passed:
            self.passed[partition] = min(self.passed[partition], offset)
        for ends in self.seen.values():
            if partition.partition in ends:
                ends[partition.partition] = min(ends[partition.partition], offset)

    def forget_passed(self) -> None:
        """Nothing is read again for topics any more once all that was passed is."""
        if all(
            partition in self.scans and self.scans[partition].position >= end for partition, end in self.passed.items()
        ):
            self.passed.clear()
            if any(scan.topic == OFFSETS_TOPIC for scan in self.scans):
                self.returned.clear()

    def read_on(self, group: str, cut: Cut) -> RefusedAt:
        """Return the rest that is still to be read again of a group once everything up to ``cut`` is."""
        refusal = self.recorded.refused[group]
        if group not in self.returned_groups:
            return refusal
        return refusal._replace(position=max(refusal.position, cut.get(refusal.topic_partition, UNKNOWN)))

    def aside_after(self, cut: Cut, aside: Mapping[str, str]) -> dict[str, str]:
        """Topics to record as left out: those whose groups' offsets are still to be read again are, too."""
        unread = () if self._passes_all(cut) else self.returned & self.topics.keys()
        return {**dict.fromkeys(unread, "The offsets of its groups are read again."), **aside}

    def groups_after(self, cut: Cut, groups: NameFilter) -> NameFilter:
        """Return whose offsets to record as translated. ``groups``: whose are now."""
        return groups if self.former_groups is None or self._passes_all(cut) else self.former_groups

    def _passes_all(self, cut: Cut) -> bool:
        """Whether everything of ``OFFSETS_TOPIC`` that is to be read again is, once everything up to ``cut`` is."""
        return any(partition.topic == OFFSETS_TOPIC for partition in cut) and all(
            cut.get(partition, UNKNOWN) >= end for partition, end in self.passed.items()
        )

    def is_read_again(self, group: str, cut: Cut) -> bool:
        """Whether everything that a refused group has committed is read again once everything up to ``cut`` is."""
        partition = self.recorded.refused[group].topic_partition
        return self._is_gone(partition) or (
            group in self.returned_groups and cut.get(partition, UNKNOWN) >= self.passed.get(partition, 0)
        )

    def waits(self, group: str) -> bool:
        """Whether a refused group's offsets cannot be translated yet, because older ones are not read again yet."""
        partition = self.recorded.refused[group].topic_partition
        return group not in self.returned_groups and not self._is_gone(partition)

    def _is_gone(self, partition: TopicPartition) -> bool:
        """Whether it was one of another ``__consumer_offsets``, which was deleted."""
        return partition not in self.scans and any(scan.topic == OFFSETS_TOPIC for scan in self.scans)

    def position_after(
        self,
        cut: Cut,
        aside: Mapping[str, str],
        refused: Mapping[str, RefusedAt],
        settings: Mapping[str, tuple[str, ...]],
        groups: NameFilter,
    ) -> RecordedPosition:
        """Return the position to record with a transaction that copies up to ``cut``. Topics that are gone keep their
        positions."""
        recorded = self.recorded
        sources = {topic.name: topic.source_id for topic in self.topics.values()}
        targets = {topic.target: topic.target_id for topic in self.topics.values() if topic.target}
        kept = {partition: offset for partition, offset in recorded.offsets.items() if partition.topic not in sources}
        kept_epochs = {partition: span for partition, span in recorded.epochs.items() if partition in kept}
        resumed = {
            partition: self.scans[partition].resumes_at(end)
            for partition, end in cut.items()
            if partition.topic == OFFSETS_TOPIC
        }
        epochs = {
            partition: span
            for partition, end in {**cut, **resumed}.items()
            if (span := self.scans[partition].epoch_below(end)) is not None
        }
        # What this run alone has passed is read again: the next one may accept the former groups.
        is_held = self.former_groups is not None and not self._passes_all(cut)
        return RecordedPosition(
            recorded.source_cluster,
            recorded.target_cluster,
            {**recorded.source_ids, **sources},
            {**recorded.target_ids, **targets},
            {
                **kept,
                **cut,
                **{
                    partition: self.passed.get(partition, UNKNOWN)
                    if is_held
                    else max(end, self.passed.get(partition, 0))
                    for partition, end in resumed.items()
                },
            },
            {topic: ends for topic, ends in self.seen.items() if is_held or self._is_needed(cut, ends, refused)},
            self.aside_after(cut, aside),
            dict(refused),
            {**kept_epochs, **epochs},
            dict(settings),
            frozenset(recorded.source_ids.keys() - sources.keys() - aside.keys() - {OFFSETS_TOPIC}),
            self.groups_after(cut, groups),
        )

    def see(self, ends: Mapping[TopicPartition, int]) -> None:
        """Ends that were taken after the topics were listed."""
        for topic in self.recreated:
            self.seen[topic] = {
                partition.partition: end for partition, end in ends.items() if partition.topic == OFFSETS_TOPIC
            }
        self.recreated.clear()

    @classmethod
    def _is_needed(cls, cut: Cut, ends: Mapping[int, int], refused: Mapping[str, RefusedAt]) -> bool:
        """Whether anything before the ends is still to be read, or read again."""
        return cls._is_before(cut, ends) or any(
            position < ends.get(partition, 0) for _, partition, position in refused.values()
        )

    @staticmethod
    def _is_before(cut: Cut, ends: Mapping[int, int]) -> bool:
        return any(cut.get(TopicPartition(OFFSETS_TOPIC, index), end) < end for index, end in ends.items())
