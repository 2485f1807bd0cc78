"""Consumer groups move to the target: everything that is needed is copied, and compared with both clusters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from einmal.commit_protocol.commit_record import CommitRecord
from einmal.mirror_protocol.flow import Flow, MirrorNotice
from einmal.mirror_protocol.progress import OFFSETS_TOPIC
from einmal.mirroring.groups import active_groups
from einmal.mirroring.run import MirrorIncomplete, MirrorProcess, MirrorStopped
from einmal.mirroring.source import SourceReader
from einmal.mirroring.status import FailoverState, MirrorStatus, PartitionStatus, status_of
from einmal.mirroring.target import TargetWriter
from einmal.types import TopicPartition

_NAMED_MAX = 8
_HINT_UNKNOWN = "correct --group, or topics and groups in the declaration, or permit DESCRIBE"
_HINT_UNTRANSLATED = "correct --group; a group without one begins at auto.offset.reset"
_HINT_ACTIVE = "stop their consumers; what they would still commit at the source could not be copied any more"


def fail_over(
    flow: Flow,
    source: Mapping[str, str],
    target: Mapping[str, str],
    groups: Collection[str],
    *,
    notify: Callable[[MirrorNotice], None],
    committed: Callable[[CommitRecord], None],
) -> MirrorStatus:
    """Copy what was committed until now, under this process: another mirror of the flow is fenced. Returns the status
    of the groups, or of all, compared with what the source had at the start; ``unready`` has what is missing. Raises
    MirrorStopped where a group has members at the source, or no offset in the flow's topics; KafkaError."""
    reader = SourceReader(source)
    try:
        known = _names(_status(flow, reader, target))
        _refuse_active(reader, groups or known)
        # Before a running mirror is fenced.
        _refuse_unknown(groups, known, "has no offset in the flow's topics", _HINT_UNKNOWN)
        process = MirrorProcess(flow, source, target, notify=notify, committed=committed, ends_when_idle=True)
        incomplete = ""
        try:
            process.run()
        except MirrorIncomplete as error:
            incomplete = str(error)
        finally:
            process.close()
        status = _status(flow, reader, target)
        # A group may have begun meanwhile.
        _refuse_active(reader, groups or {group.group for group in status.groups})
        return _of_groups(replace(status, partitions=_since(flow, status, process), incomplete=incomplete), groups)
    finally:
        reader.close()


def _refuse_active(reader: SourceReader, groups: Collection[str]) -> None:
    if active := sorted(active_groups(reader.cluster, groups)):
        raise MirrorStopped(f"groups run at the source: {', '.join(active)}", _HINT_ACTIVE)


def _refuse_unknown(groups: Collection[str], known: Collection[str], problem: str, hint: str) -> None:
    if unknown := sorted(set(groups) - set(known)):
        shown = sorted(known)[:_NAMED_MAX] + ["..."] * (len(known) > _NAMED_MAX)
        reason = "; ".join(f"group {group!r} {problem}" for group in unknown)
        raise MirrorStopped(reason, f"groups that have one: {', '.join(shown) or 'none'}; {hint}")


def _since(flow: Flow, status: MirrorStatus, process: MirrorProcess) -> list[PartitionStatus]:
    """Positions compared with the ends at the start: more may be written meanwhile, and the mirror's position may be
    before offsets without a record, such as markers."""
    statuses = {partition_status.partition: partition_status for partition_status in status.partitions}
    for partition, end in process.goal.items():
        if partition.topic != OFFSETS_TOPIC:
            known = statuses.get(partition)
            position = max(process.reached.get(partition, 0), 0 if known is None else known.position)
            copy = TopicPartition(flow.remote_topic(partition.topic), partition.partition)
            statuses[partition] = PartitionStatus(partition=partition, target=copy, position=position, end=end)
    return [statuses[partition] for partition in sorted(statuses)]


def fail_over_without_source(flow: Flow, target: Mapping[str, str], groups: Collection[str]) -> MirrorStatus:
    """After the source was lost: fence the mirror, and end what it has left open. Returns the status of the groups as
    of the last transaction. Raises MirrorStopped for a group without a translated offset, KafkaError."""
    writer = TargetWriter(target, flow.name, flow.transactional_id)
    try:
        writer.target.acquire(None)
        writer.target.abandon()
        status = status_of(flow, None, writer)
        if status.batch_id is not None:
            _refuse_unknown(groups, _names(status), "has no translated offset", _HINT_UNTRANSLATED)
        return _of_groups(status, groups)
    finally:
        writer.close()


def unready(status: MirrorStatus, groups: Collection[str]) -> list[str]:
    """Return what keeps the groups from resuming at the target where they stand at the source; without groups, what
    keeps the target from replacing the source."""
    obstacles = [
        f"group {group.group!r} in {group.partition} is {group.state.value}"
        + (f": {group.reason}" if group.reason else "")
        for group in status.groups
        if group.state is not FailoverState.READY
    ]
    topics = {group.partition.topic for group in status.groups} if groups else None
    obstacles += [
        f"{partition.partition} is copied up to offset {partition.position} of {partition.end}"
        for partition in status.partitions
        if partition.lag and (topics is None or partition.partition.topic in topics)
    ]
    obstacles += [
        f"topic {topic.topic!r} is left out: {topic.reason}"
        for topic in status.left_out
        if topics is None or topic.topic in topics or topic.topic == OFFSETS_TOPIC
    ]
    if status.incomplete and (topics is None or obstacles):
        obstacles.append(status.incomplete)
    if not groups and not status.partitions:
        obstacles.append("nothing is copied")
    return obstacles


def is_ready(status: MirrorStatus, groups: Collection[str]) -> bool:
    """Whether nothing is ``unready``."""
    return not unready(status, groups)


def unready_without_source(status: MirrorStatus) -> list[str]:
    """Return what an operator who has lost the source must know: whether there is anything to resume from."""
    return ["nothing was copied"] if status.batch_id is None else []


def _names(status: MirrorStatus) -> set[str]:
    return {group.group for group in status.groups}


def _status(flow: Flow, reader: SourceReader, target: Mapping[str, str]) -> MirrorStatus:
    writer = TargetWriter(target, flow.name, flow.transactional_id)
    try:
        return status_of(flow, reader, writer)
    finally:
        writer.close()


def _of_groups(status: MirrorStatus, groups: Collection[str]) -> MirrorStatus:
    statuses = [group for group in status.groups if not groups or group.group in groups]
    return replace(status, groups=statuses)
