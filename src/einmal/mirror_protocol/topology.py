"""Which topics a flow copies where: compares the lists of both clusters with what the mirror knows.

A topic is known by its id. One with a known name and another id was created again: at the source, its records begin
anew and what was not copied of the old one is lost; at the target, what was copied is gone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from einmal.mirror_protocol.effects import AddPartitions, CreateTopic, TopicsListed
from einmal.mirror_protocol.flow import Flow, MirrorNotice, NoticeKind
from einmal.mirror_protocol.offset_map import OffsetMap
from einmal.mirror_protocol.progress import OFFSETS_TOPIC, UNKNOWN, MirroredTopic, MirrorProgress
from einmal.mirror_protocol.scan import EpochSpan, PartitionScan
from einmal.types import TopicPartition


class StaleList(Exception):
    """The list lacks what is known to exist: the broker that made it is behind."""


class WrongCluster(Exception):
    """The clusters are not those of the commit record, or are only one."""


def check_clusters(progress: MirrorProgress, listed: TopicsListed) -> None:
    """Raises WrongCluster."""
    recorded = progress.recorded
    if listed.source_cluster == listed.target_cluster:
        raise WrongCluster(f"source and target are one cluster, {listed.source_cluster}: it would copy its own copies")
    for side, known, cluster in (
        ("source", recorded.source_cluster, listed.source_cluster),
        ("target", recorded.target_cluster, listed.target_cluster),
    ):
        if known is not None and known != cluster:
            raise WrongCluster(f"the {side} is cluster {cluster}, but the commit record's positions are of {known}")


def missing(flow: Flow, listed: TopicsListed, aside: Collection[str] = ()) -> Iterator[CreateTopic | AddPartitions]:
    """Yield what the target lacks. ``aside``: source topics that are left out."""
    for name, topic in sorted(listed.source.items()):
        if name in aside or not flow.accepts_topic(name):
            continue
        target = flow.remote_topic(name)
        existing = listed.target.get(target)
        if existing is None:
            yield CreateTopic(name, target, topic.partitions)
        elif len(existing.ends) < topic.partitions:
            yield AddPartitions(target, topic.partitions, name)


def adopt(
    flow: Flow, progress: MirrorProgress, listed: TopicsListed, aside: Collection[str] = ()
) -> list[MirrorNotice] | None:
    """Let ``progress`` have the listed topics without those that are left out; None if it has them already. Nothing is
    ``missing``. What was read ahead is forgotten. Raises StaleList."""
    topics = _mirrored(flow, listed, aside)
    if topics == progress.topics:
        return None
    for name, topic in topics.items():
        known = progress.topics.get(name)
        if known is not None and known.source_id == topic.source_id and known.partitions > topic.partitions:
            raise StaleList(f"{name} is listed with {topic.partitions} of {known.partitions} partitions")
    notices = list(_changes(flow, progress, listed, topics))
    returned = set(_returned(progress, topics))
    scans: dict[TopicPartition, PartitionScan] = {}
    for topic in topics.values():
        for partition in topic.topic_partitions():
            position, epoch = _position(progress, topic, partition)
            scans[partition] = PartitionScan(partition, position, position, is_copied=bool(topic.target))
            scans[partition].epochs += [] if epoch is None else [epoch]
            key = topic.key(partition)
            if topic.target and key not in progress.maps:
                end = listed.target[topic.target].ends[partition.partition]
                progress.begun.setdefault(key, OffsetMap.beginning(max(0, position), end))
    before, now = progress.topics.get(OFFSETS_TOPIC), topics.get(OFFSETS_TOPIC)
    if before is not None and now is not None and before.source_id != now.source_id:
        progress.passed.clear()
        progress.returned.clear()
        progress.returned_groups.clear()
    if before is not None and now is None:
        # What was to be read again is, once the topic is back.
        progress.forget_passed()
        progress.returned_groups.clear()
    is_back = before is None and now is not None and bool(progress.topics)
    progress.topics, progress.scans = topics, scans
    progress.rescan()
    if now is None:
        progress.returned |= returned if OFFSETS_TOPIC in aside else set()
        return notices
    returned |= progress.returned if is_back else set()
    if returned or (before is None and progress.former_groups is not None):
        _read_offsets_again(progress, returned)
    return notices


def _returned(progress: MirrorProgress, topics: dict[str, MirroredTopic]) -> Iterator[str]:
    """Topics whose groups may have committed offsets before the mirror has begun to copy them, or while they were left
    out, or did not match."""
    recorded = progress.recorded
    known = set(progress.topics)
    if not progress.topics:
        known = recorded.source_ids.keys() - recorded.aside.keys() - recorded.gone
    for topic in topics.values():
        is_same = recorded.source_ids.get(topic.name, topic.source_id) == topic.source_id
        if topic.target and topic.name not in known and is_same:
            yield topic.name


def _read_offsets_again(progress: MirrorProgress, returned: set[str]) -> None:
    progress.forget_passed()
    for partition, scan in progress.scans.items():
        if partition.topic == OFFSETS_TOPIC and scan.position != UNKNOWN:
            progress.rewind(scan, UNKNOWN)
    if progress.passed:
        progress.returned |= returned


def _mirrored(flow: Flow, listed: TopicsListed, aside: Collection[str]) -> dict[str, MirroredTopic]:
    topics = {}
    for name, topic in sorted(listed.source.items()):
        if name in aside:
            continue
        if name == OFFSETS_TOPIC:
            topics[name] = MirroredTopic(name, topic.topic_id, topic.partitions)
        elif flow.accepts_topic(name):
            target = flow.remote_topic(name)
            topics[name] = MirroredTopic(name, topic.topic_id, topic.partitions, target, listed.target[target].topic_id)
    return topics


def _changes(
    flow: Flow, progress: MirrorProgress, listed: TopicsListed, topics: dict[str, MirroredTopic]
) -> Iterator[MirrorNotice]:
    sources, targets = dict(progress.recorded.source_ids), dict(progress.recorded.target_ids)
    for known in progress.topics.values():
        sources[known.name], targets[known.target] = known.source_id, known.target_id
    for name in sorted(progress.topics or sources):
        # A topic that is listed and matches is left out, and was reported.
        if name not in topics and not (name in listed.source and (name == OFFSETS_TOPIC or flow.accepts_topic(name))):
            why = "no longer matches the flow's topics" if name in listed.source else "was deleted, or is not visible"
            yield MirrorNotice(
                NoticeKind.GONE, name, f"topic {name!r} {why}: records after its position are not copied"
            )
    if OFFSETS_TOPIC not in topics:
        yield MirrorNotice(
            NoticeKind.UNTRANSLATED,
            OFFSETS_TOPIC,
            f"the source has no {OFFSETS_TOPIC}, or it cannot be read: offsets of groups are not translated",
        )
    for topic in topics.values():
        if sources.get(topic.name, topic.source_id) != topic.source_id:
            progress.recreated.add(topic.name)
            yield MirrorNotice(
                NoticeKind.DATA_LOSS,
                topic.name,
                f"topic {topic.name!r} was deleted and created again (topic id {sources[topic.name]}, now "
                f"{topic.source_id}): records of the old topic after its position are lost",
            )
        if topic.target and targets.get(topic.target, topic.target_id) != topic.target_id:
            yield MirrorNotice(
                NoticeKind.DATA_LOSS,
                topic.target,
                f"topic {topic.target!r} of the target was deleted and created again (topic id "
                f"{targets[topic.target]}, now {topic.target_id}): the records copied before are gone",
            )


def _position(
    progress: MirrorProgress, topic: MirroredTopic, partition: TopicPartition
) -> tuple[int, EpochSpan | None]:
    """And the last leader epoch below it, if that is known."""
    known = progress.topics.get(topic.name)
    if known is not None and known.source_id == topic.source_id and partition in progress.scans:
        scan = progress.scans[partition]
        return scan.position, scan.epoch_below(scan.position)
    if progress.recorded.source_ids.get(topic.name) == topic.source_id:
        return progress.recorded.offsets.get(partition, UNKNOWN), progress.recorded.epochs.get(partition)
    return UNKNOWN, None
