"""Consumer groups move to the target: everything that is needed is copied, and compared with both clusters."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from einmal.mirror.flow import Flow, MirrorNotice
from einmal.mirroring.groups import active_groups
from einmal.mirroring.run import MirrorProcess, MirrorStopped
from einmal.mirroring.source import SourceReader
from einmal.mirroring.status import FailoverState, MirrorStatus, status_of
from einmal.mirroring.target import TargetWriter
from einmal.pipeline.commit_record import CommitRecord

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
    of the groups, or of all. Raises MirrorStopped where a group has members at the source, KafkaError."""
    reader = SourceReader(source)
    try:
        known = groups or {each.group for each in _status(flow, reader, target).groups}
        if active := sorted(active_groups(reader.cluster.common, known)):
            raise MirrorStopped(f"groups run at the source: {', '.join(active)}", _HINT_ACTIVE)
        process = MirrorProcess(flow, source, target, notify=notify, committed=committed, ends_when_idle=True)
        try:
            process.run()
        finally:
            process.close()
        return _of_groups(_status(flow, reader, target), groups)
    finally:
        reader.close()


def fail_over_without_source(flow: Flow, target: Mapping[str, str], groups: Collection[str]) -> MirrorStatus:
    """After the source was lost: fence the mirror, and end what it has left open. Returns the status of the groups as
    of the last transaction. Raises KafkaError."""
    writer = TargetWriter(target, flow.name, flow.transactional_id)
    try:
        writer.target.acquire(None)
        writer.target.abandon()
        return _of_groups(status_of(flow, None, writer), groups)
    finally:
        writer.close()


def is_ready(status: MirrorStatus, groups: Collection[str]) -> bool:
    """Whether every group resumes at the target where it stands at the source."""
    return {each.group for each in status.groups} >= set(groups) and all(
        each.state is FailoverState.READY for each in status.groups
    )


def _status(flow: Flow, reader: SourceReader, target: Mapping[str, str]) -> MirrorStatus:
    writer = TargetWriter(target, flow.name, flow.transactional_id)
    try:
        return status_of(flow, reader, writer)
    finally:
        writer.close()


def _of_groups(status: MirrorStatus, groups: Collection[str]) -> MirrorStatus:
    found = [each for each in status.groups if not groups or each.group in groups]
    return MirrorStatus(batch_id=status.batch_id, records=status.records, partitions=status.partitions, groups=found)
