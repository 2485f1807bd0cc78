"""Contents of one target transaction besides records: the changes of the maps, and translated group offsets. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

from einmal.commit_protocol.claims import Output
from einmal.mirror_protocol.cut import Cut
from einmal.mirror_protocol.effects import GroupPartitions, GroupPosition, MapChange, MapKey, TargetGroupsRead
from einmal.mirror_protocol.flow import Flow, MirrorNotice, NoticeKind
from einmal.mirror_protocol.offset_map import InvalidRun, OffsetMap, OffsetRun
from einmal.mirror_protocol.progress import UNKNOWN, MirrorProgress, RecordedPosition, RefusedAt
from einmal.mirror_protocol.scan import GroupCommit
from einmal.types import TopicPartition


@dataclass(frozen=True, slots=True)
class StagedBatch:
    """``maps`` and ``groups``: as they are once the transaction is committed. ``offsets``: target offsets by group.
    ``metadata``: what was committed with them. ``notices``: what is reported once the transaction is committed."""

    outputs: tuple[Output, ...]
    maps: Mapping[MapKey, OffsetMap]
    changes: Mapping[MapKey, MapChange]
    groups: Mapping[MapKey, Mapping[str, GroupPosition]]
    offsets: Mapping[str, Mapping[TopicPartition, int]]
    metadata: Mapping[str, Mapping[TopicPartition, str]]
    notices: tuple[MirrorNotice, ...]


_REFUSALS_MAX: Final = 500
"""Groups that the commit record names, since it has them all. What others commit later is translated."""
_REASON_MAX: Final = 100
GroupPartition = tuple[str, TopicPartition]
"""A group, and a partition of the source."""


def groups_of(progress: MirrorProgress, cut: Cut, refused: Collection[str]) -> GroupPartitions:
    """Whose offsets a transaction that copies up to ``cut`` may commit, and in which partitions of the target; without
    groups that the target has refused."""
    groups: dict[str, set[TopicPartition]] = {}
    for (group, partition), commit in _last_commits(progress, cut).items():
        if commit.offset is not None and group not in refused:
            groups.setdefault(group, set()).add(_at_target(progress, partition))
    return {group: frozenset(partitions) for group, partitions in groups.items()}


def refusals(progress: MirrorProgress, cut: Cut, refused: Mapping[str, str]) -> dict[str, RefusedAt]:
    """Groups with offsets that are passed without being translated once everything up to ``cut`` is copied: of those
    that are ``refused`` now, with reasons, and of earlier transactions, until they are read again."""
    groups = {
        group: refusal if group in refused else progress.read_on(group, cut)
        for group, refusal in progress.recorded.refused.items()
        if group in refused or not progress.is_read_again(group, cut)
    }
    if not refused:
        return groups
    for partition, scan in progress.scans.items():
        position = scan.resumes_at(scan.position)
        for commit in scan.commits_below(cut[partition]):
            if commit.group not in refused or not progress.is_copied(commit.partition):
                continue
            known = groups.get(commit.group)
            # Known ones: what is read again for a topic that is back, or of another __consumer_offsets, is before.
            if len(groups) < _REFUSALS_MAX if known is None else position < known.position:
                reason = refused[commit.group][:_REASON_MAX]
                groups[commit.group] = RefusedAt(reason, partition.partition, position)
    return groups


def moved_groups(
    progress: MirrorProgress, cut: Cut, target_groups: TargetGroupsRead, refused: Mapping[str, str]
) -> dict[GroupPartition, MirrorNotice]:
    """Groups whose offsets are not translated, because the target refuses them, or because they belong to the target
    now: they have members there, or an offset that is not the last one that was translated. To overwrite it would
    repeat or skip records of whoever has committed it."""
    moved = {}
    for (group, partition), commit in _last_commits(progress, cut).items():
        offset, copy = commit.offset, _at_target(progress, partition)
        actual = target_groups.offsets.get(group, {}).get(copy)
        if offset is None:
            continue
        if group in refused:
            text = (
                f"offset {offset} of group {group!r} in {partition} is not translated: {refused[group].rstrip('.')}; "
                "it is tried again from time to time"
            )
            moved[group, partition] = MirrorNotice(NoticeKind.REFUSED, group, text, partition, offset)
            continue
        if group in target_groups.active:
            why = "has members at the target"
        elif actual is not None and not _is_own(progress, group, partition, actual):
            why = f"has committed offset {actual} in {copy} at the target"
        else:
            continue
        text = (
            f"group {group!r} {why}: its offsets at the source are not translated any more. If it is to run at the "
            f"source, delete its offsets at the target: einmal group delete {group}"
        )
        moved[group, partition] = MirrorNotice(NoticeKind.MOVED, group, text, partition, offset)
    return moved


def _is_own(progress: MirrorProgress, group: str, partition: TopicPartition, offset: int) -> bool:
    """Whether a group's offset at the target is the one that was translated last, also of an earlier source topic of
    that name: what is deleted at the source stays at the target."""
    target_id = progress.key(partition).target_id
    return any(
        group in groups and groups[group].target == offset
        for key, groups in progress.groups.items()
        if key.partition == partition and key.target_id == target_id
    )


def _at_target(progress: MirrorProgress, partition: TopicPartition) -> TopicPartition:
    return TopicPartition(progress.topics[partition.topic].target, partition.partition)


def stage(
    flow: Flow,
    progress: MirrorProgress,
    cut: Cut,
    runs: Mapping[TopicPartition, tuple[OffsetRun, ...]],
    moved: Mapping[GroupPartition, MirrorNotice],
) -> StagedBatch:
    """After the records of a cut were copied as ``runs``; without the offsets of ``moved``. Raises InvalidRun."""
    maps = {**progress.maps, **progress.begun}
    saved = dict(progress.maps)
    outputs = []
    for partition, copied in runs.items():
        key = progress.key(partition)
        start, end = progress.scans[partition].position, cut[partition]
        if any(run.source < start or run.source_end > end for run in copied):
            raise InvalidRun(f"{copied} outside of {partition} from {start} to {end}")
        maps[key] = maps[key].extended(copied)
        outputs += _outputs(progress, partition, copied)
    groups = {key: dict(known) for key, known in progress.groups.items()}
    offsets, untranslated = _translate(progress, cut, maps, groups, moved)
    metadata = _metadata(progress, cut, offsets)
    for key in _current(progress):
        maps[key] = _shortened(flow, progress, maps[key], key, groups.get(key, {}))
    changes = {}
    for key in _current(progress):
        change = _change(saved.get(key), maps[key], progress.groups.get(key, {}), groups.get(key, {}))
        if change != MapChange():
            changes[key] = change
    return StagedBatch(tuple(outputs), maps, changes, groups, offsets, metadata, (*moved.values(), *untranslated))


def advance(progress: MirrorProgress, cut: Cut, position: RecordedPosition, staged: StagedBatch) -> None:
    """The transaction that copies up to ``cut`` is committed."""
    progress.recorded = position
    progress.seen = {topic: dict(ends) for topic, ends in position.seen.items()}
    if position.groups != progress.former_groups:
        progress.former_groups = None
    progress.maps.update(staged.maps)
    progress.begun.clear()
    progress.groups = {key: dict(groups) for key, groups in staged.groups.items()}
    for group in progress.returned_groups.keys() - position.refused.keys():
        del progress.returned_groups[group]
    for partition, end in cut.items():
        progress.scans[partition].advance(end)


def _current(progress: MirrorProgress) -> list[MapKey]:
    return [progress.key(scan) for scan in progress.scans if progress.is_copied(scan)]


def _outputs(progress: MirrorProgress, partition: TopicPartition, runs: tuple[OffsetRun, ...]) -> list[Output]:
    if not runs:
        return []
    topic = progress.topics[partition.topic].target
    count = sum(run.records for run in runs)
    return [Output(topic, partition.partition, runs[0].target, runs[-1].target_end - 1, count)]


def _translate(
    progress: MirrorProgress,
    cut: Cut,
    maps: Mapping[MapKey, OffsetMap],
    groups: dict[MapKey, dict[str, GroupPosition]],
    moved: Mapping[GroupPartition, MirrorNotice],
) -> tuple[dict[str, dict[TopicPartition, int]], list[MirrorNotice]]:
    """The last offset of each group in each partition; ``groups`` is updated."""
    offsets: dict[str, dict[TopicPartition, int]] = {}
    untranslated = []
    for (group, partition), commit in _last_commits(progress, cut).items():
        if (group, partition) in moved:
            continue
        offset, key = commit.offset, progress.key(partition)
        if offset is None:
            # The target's offset of the group stays: deleting is the decision of an operator there.
            known = groups.setdefault(key, {})
            if group in known or partition.topic in progress.seen:
                known[group] = GroupPosition(UNKNOWN, known[group].target if group in known else UNKNOWN)
            continue
        translated = maps[key].translate(offset) if offset <= cut[partition] else None
        if translated is None:
            text = f"offset {offset} of group {group!r} in {partition} has no exact offset at the target"
            untranslated.append(MirrorNotice(NoticeKind.UNTRANSLATED, group, text, partition, offset))
            continue
        groups.setdefault(key, {})[group] = GroupPosition(offset, translated)
        offsets.setdefault(group, {})[_at_target(progress, partition)] = translated
    return offsets, untranslated


def _metadata(
    progress: MirrorProgress, cut: Cut, offsets: Mapping[str, Mapping[TopicPartition, int]]
) -> dict[str, dict[TopicPartition, str]]:
    """Metadata of the offsets that were translated: Kafka Streams, for one, keeps the time of a partition there."""
    metadata: dict[str, dict[TopicPartition, str]] = {}
    for (group, partition), commit in _last_commits(progress, cut).items():
        copy = _at_target(progress, partition)
        if commit.metadata and copy in offsets.get(group, {}):
            metadata.setdefault(group, {})[copy] = commit.metadata
    return metadata


def _last_commits(progress: MirrorProgress, cut: Cut) -> dict[GroupPartition, GroupCommit]:
    last: dict[GroupPartition, GroupCommit] = {}
    for partition, scan in progress.scans.items():
        for commit in scan.commits_below(cut[partition]):
            if progress.is_copied(commit.partition):
                last[commit.group, commit.partition] = commit
    return last


def _shortened(
    flow: Flow, progress: MirrorProgress, offset_map: OffsetMap, key: MapKey, groups: Mapping[str, GroupPosition]
) -> OffsetMap:
    """Without what no group can need: offsets below all known groups and the log start offset, below which no other
    group can begin. Where too many runs are left, a group that is still unknown is not waited for."""
    known = min(
        (group.source for group in groups.values() if group.source != UNKNOWN), default=offset_map.runs[-1].source
    )
    shortened = offset_map.dropped(min(known, progress.starts.get(key.partition, 0)))
    return shortened if len(shortened.runs) <= flow.runs_max else shortened.dropped(known)


def _change(
    saved: OffsetMap | None,
    offset_map: OffsetMap,
    known: Mapping[str, GroupPosition],
    groups: Mapping[str, GroupPosition],
) -> MapChange:
    before = frozenset(() if saved is None else saved.runs)
    now = frozenset(offset_map.runs)
    return MapChange(
        tuple(run for run in offset_map.runs if run not in before),
        tuple(run for run in (() if saved is None else saved.runs) if run not in now),
        {group: position for group, position in groups.items() if known.get(group) != position},
    )
