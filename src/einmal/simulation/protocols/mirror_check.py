"""Check of what a simulated mirror must have copied: after every commit, and at the end.

Committed records once and in order, no aborted one, and every transaction whole or absent. A consumer that switches
clusters now finds offsets that fit: the application's output is that of exactly the input below its offset, and the
plain group's offset divides the records as its offset at the source did. A flow that copies by partition may tear
transactions, and separate an application's output from its offsets.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

from einmal.mirror_protocol.flow import Flow
from einmal.mirror_protocol.progress import RecordedPosition
from einmal.mirror_protocol.scan import GroupCommit
from einmal.simulation.protocols.mirror_target import MirrorTarget
from einmal.simulation.protocols.model_requests import RECORDS
from einmal.simulation.protocols.source_clients import APPLICATION, AUDIT, INPUT, OUTPUT, Processed, SourceClients
from einmal.simulation.protocols.source_cluster import SourceCluster
from einmal.types import TopicPartition

Visible = dict[TopicPartition, list[tuple[int, Any]]]
"""Target offsets and values, by source partition."""


@dataclass(slots=True)
class Checked:
    """Up to where the plain group's history was seen at the target, by partition."""

    history: dict[TopicPartition, int] = field(default_factory=dict)


def check_visible(source: SourceClients, target: MirrorTarget, flow: Flow, checked: Checked) -> list[str]:
    """The target as its readers see it now."""
    visible = _visible(source.cluster, target, flow)
    anomalies = [*_misplaced(source.cluster, visible), *_audit(source, target, flow, visible, checked)]
    if not flow.by_partition:
        anomalies += [*_torn(source.cluster, visible), *_application(source.cluster, target, flow, visible)]
    return anomalies


def check_all(
    source: SourceClients, target: MirrorTarget, flow: Flow, skipped: Collection[tuple[TopicPartition, int]]
) -> list[str]:
    """The end: everything is copied, and offsets are translated unless the mirror has reported them as ``skipped``."""
    cluster = source.cluster
    copied = {value for records in _visible(cluster, target, flow).values() for _, value in records}
    lost = [
        f"lost: {value} at offset {offset} of {partition}"
        for (_, partition), written in cluster.order.items()
        for offset, value, transaction in written
        if cluster.is_committed(transaction) and value not in copied | cluster.removed
        if not isinstance(value, GroupCommit)
    ]
    return lost + list(_untranslated(source, target, flow, skipped))


def _visible(cluster: SourceCluster, target: MirrorTarget, flow: Flow) -> Visible:
    return {
        partition: list(target.decided_records(f"{flow.remote_topic(partition.topic)}-{partition.partition}"))
        for name, topic in cluster.topics.items()
        for partition in (TopicPartition(name, index) for index in range(len(topic.logs)))
        if not name.startswith("__")
    }


def _misplaced(cluster: SourceCluster, visible: Visible) -> Iterator[str]:
    """Every value of a partition, over all topics of that name, has one position in their order."""
    for partition, records in visible.items():
        written = [
            (value, transaction)
            for (_, log_partition), values in cluster.order.items()
            if log_partition == partition
            for _, value, transaction in values
        ]
        positions = {value: index for index, (value, _) in enumerate(written)}
        for value, count in Counter(value for _, value in records).items():
            if count > 1:
                yield f"duplicated: {value} in {partition}, {count} times"
            if value not in positions or not cluster.is_committed(written[positions[value]][1]):
                yield f"not committed: {value} in {partition}"
        order = [positions.get(value, -1) for _, value in records]
        if order != sorted(order):
            yield f"reordered: {partition}"


def _torn(cluster: SourceCluster, visible: Visible) -> Iterator[str]:
    copied = {value for records in visible.values() for _, value in records}
    for transaction, values in cluster.members.items():
        data = {value for value in values if not isinstance(value, GroupCommit)}
        absent = data - copied - cluster.removed
        if absent and data & copied:
            yield f"torn: transaction {transaction} lacks {sorted(map(str, absent))}"


def _application(cluster: SourceCluster, target: MirrorTarget, flow: Flow, visible: Visible) -> Iterator[str]:
    """A consumer that switches now resumes at the group's offset: what is below must be what has output."""
    offsets = target.group_offsets()
    committed = [record for _, record in target.decided_records(RECORDS)]
    refused = RecordedPosition.of(committed[-1] if committed else None).refused
    for partition, records in visible.items():
        if partition.topic != INPUT:
            continue
        resumes = offsets.get((APPLICATION, _at_target(partition, flow)), 0)
        passed = {value for offset, value in records if offset < resumes}
        output = visible[TopicPartition(OUTPUT, partition.partition)]
        processed = {payload.value for _, payload in output if isinstance(payload, Processed)}
        present = {value for _, value in records}
        again = (processed & present) - passed - cluster.removed
        # What the target refuses may be behind, but the commit record names it: it is not ready to fail over.
        if again and APPLICATION not in refused:
            yield f"processed again: {sorted(map(str, again))} of {partition} after a switch"
        if never := passed - processed - cluster.removed:
            yield f"never processed: {sorted(map(str, never))} of {partition} after a switch"


def _audit(
    source: SourceClients, target: MirrorTarget, flow: Flow, visible: Visible, checked: Checked
) -> Iterator[str]:
    offsets = target.group_offsets()
    for partition, records in visible.items():
        key = AUDIT, _at_target(partition, flow)
        resumes = offsets.get(key)
        if key in target.moved:
            if resumes != target.moved[key]:
                yield f"overwritten: offset {target.moved[key]} of {key}, which has moved, with {resumes}"
            continue
        if resumes is None:
            continue
        passed = {value for offset, value in records if offset < resumes}
        history = source.history.get(partition, [])
        for index in range(checked.history.get(partition, 0), len(history)):
            topic_id, offset = history[index]
            if offset is not None and passed == _passed(source.cluster, partition, records, topic_id, offset):
                checked.history[partition] = index
                break
        else:
            yield f"group offset {resumes} of {_at_target(partition, flow)} is no offset that the group has committed"


def _passed(
    cluster: SourceCluster, partition: TopicPartition, records: list[tuple[int, Any]], topic_id: str, offset: int
) -> set[Any]:
    """The copied values below an offset of one of the topics of that name; those of earlier topics are below it."""
    passed: set[Any] = set()
    copied = {value for _, value in records}
    created = cluster.topic_ids.index
    for (log_topic_id, log_partition), written in cluster.order.items():
        if log_partition == partition and created(log_topic_id) <= created(topic_id):
            passed |= {
                value for at, value, _ in written if value in copied and (log_topic_id != topic_id or at < offset)
            }
    return passed


def _untranslated(
    source: SourceClients, target: MirrorTarget, flow: Flow, skipped: Collection[tuple[TopicPartition, int]]
) -> Iterator[str]:
    """The last offset of the plain group in each partition has arrived."""
    visible = _visible(source.cluster, target, flow)
    offsets = target.group_offsets()
    for partition, history in source.history.items():
        topic_id, offset = history[-1]
        if offset is None or (partition, offset) in skipped or (AUDIT, _at_target(partition, flow)) in target.moved:
            continue
        if source.cluster.topics[partition.topic].topic_id != topic_id or not _is_in_range(
            source.cluster, partition, offset
        ):
            continue
        resumes = offsets.get((AUDIT, _at_target(partition, flow)))
        records = visible[partition]
        if resumes is None or {value for at, value in records if at < resumes} != _passed(
            source.cluster, partition, records, topic_id, offset
        ):
            yield f"group offset {offset} of {partition} is {resumes} at the target"


def _is_in_range(cluster: SourceCluster, partition: TopicPartition, offset: int) -> bool:
    """Whether a group can still resume at the offset in the source."""
    log = cluster.log(partition)
    return log is not None and log.start <= offset


def _at_target(partition: TopicPartition, flow: Flow) -> TopicPartition:
    return TopicPartition(flow.remote_topic(partition.topic), partition.partition)
