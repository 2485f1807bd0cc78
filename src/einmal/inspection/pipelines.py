"""Pipelines, ingesters and mirrors by their commit records: the read model's values from the cluster's commit topic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from einmal.client.errors import KafkaError
from einmal.commit_protocol.batch_plan import NOBODY
from einmal.commit_protocol.commit_record import CommitRecord
from einmal.commit_protocol.positions import offsets_of
from einmal.commit_protocol.source_offsets import SourcePosition
from einmal.inspection.model import ClusterView, CommittedPipelineView, PartitionView, SourcePositionView
from einmal.inspection.reading import AFTER_THE_END, reason
from einmal.sinks.kafka.committed import committed
from einmal.types import TopicPartition

if TYPE_CHECKING:
    from einmal.clusters.kafka_cluster import KafkaCluster, TopicSeen
    from einmal.sinks.commit_point import Committed

_OTHER_SOURCE: Final = "its sources are not Kafka topics"
_SET: Final = "its position was set, and it has not committed since"
_OF_A_RECORD: Final = ("kind", "batch_id", "records", "checkpoint", "positions", "unread_offsets")


class _Here(NamedTuple):
    """Topics of this cluster. ``reasons``: why one of them is not among the ``topics``."""

    cluster_id: str | None
    topics: Mapping[str, TopicSeen]
    reasons: Mapping[str, str]
    partitions: Mapping[TopicPartition, PartitionView]


def with_pipelines(view: ClusterView, cluster: KafkaCluster) -> ClusterView:
    """The view with those that commit to this cluster: reads the whole commit topic.

    Raises NoBrokerReachable; any other failure is the reason why there are none.
    """
    try:
        records = committed(cluster)
    except KafkaError as error:
        return replace(view, unknown={**view.unknown, "pipelines": reason(error)})
    partitions = {TopicPartition(at.topic, at.partition): at for at in view.partitions}
    topics, reasons = _topics(cluster, _names(records.values(), view.cluster_id))
    here = _Here(view.cluster_id, topics, reasons, partitions)
    transactions = {transaction.transactional_id: transaction for transaction in view.transactions or ()}
    pipelines = []
    for name, last in records.items():
        pipeline = _view(last, here)
        if (transaction := transactions.get(name)) is not None:
            pipeline = replace(pipeline, transaction_state=transaction.state, transaction_age_ms=transaction.age_ms)
        else:
            why = view.unknown.get("transactions", "") if view.transactions is None else "no coordinator knows the name"
            pipeline = replace(pipeline, unknown={**pipeline.unknown, "transaction_state": why})
        pipelines.append(pipeline)
    return replace(view, pipelines=tuple(pipelines))


def _names(records: Iterable[Committed], cluster_id: str | None) -> list[str]:
    """The topics that positions in this cluster name."""
    names: set[str] = set()
    for last in records:
        offsets = None if last.record is None else _offsets(last.record)
        for at, (_, position) in (offsets or {}).items():
            if position.cluster_id in (None, cluster_id):
                names.add(at.topic)
    return sorted(names)


def _topics(cluster: KafkaCluster, names: list[str]) -> tuple[dict[str, TopicSeen], dict[str, str]]:
    """Those that are here, and why another one cannot be described."""
    topics: dict[str, TopicSeen] = {}
    reasons: dict[str, str] = {}
    try:
        return dict(cluster.look(names, names).topics) if names else {}, {}
    except KafkaError as error:
        # One that may not be described must not hide the others.
        reason(error)
    for name in names:
        try:
            topics |= cluster.look([name], [name]).topics
        except KafkaError as error:
            reasons[name] = reason(error)
    return topics, reasons


def _offsets(record: CommitRecord) -> dict[TopicPartition, tuple[int, SourcePosition]] | None:
    """By partition: the offset, and the position that it is in; None where a source counts in something else."""
    if offsets_of(record.end) is None:
        return None
    positions = map(SourcePosition.from_json, record.end)
    # A mirror that has not begun with a partition has -1.
    return {at: (max(0, offset), position) for position in positions for at, offset in position.offsets.items()}


def _view(last: Committed, here: _Here) -> CommittedPipelineView:
    record = last.record
    if record is None:
        unknown = dict.fromkeys(_OF_A_RECORD, last.problem)
        return CommittedPipelineView(last.transactional_id, committed_at=last.timestamp, unknown=unknown)
    unknown = {}
    positions: tuple[SourcePositionView, ...] | None = None
    if (offsets := _offsets(record)) is None:
        unknown = dict.fromkeys(("positions", "unread_offsets"), _OTHER_SOURCE)
    else:
        positions = tuple(_position(at, offset, position, here) for at, (offset, position) in sorted(offsets.items()))
        if why := next((why for position in positions for why in position.unknown.values()), ""):
            unknown["unread_offsets"] = why
    is_set = record.query_id == NOBODY
    if is_set:
        unknown |= dict.fromkeys(("batch_id", "records", "checkpoint"), _SET)
    return CommittedPipelineView(
        last.transactional_id,
        record.kind.value,
        None if is_set else record.batch_id,
        None if is_set else record.records,
        last.timestamp,
        None if is_set else record.checkpoint,
        positions,
        _total(positions),
        unknown=unknown,
    )


def _position(at: TopicPartition, offset: int, position: SourcePosition, here: _Here) -> SourcePositionView:
    partition = here.partitions.get(at)
    end = None if partition is None else partition.last_stable_offset
    why = _why_elsewhere(at.topic, position, here)
    if not why and end is None:
        why = "there is no such partition" if partition is None else partition.unknown.get("last_stable_offset", "")
    high = None if partition is None else partition.high_watermark
    if high is not None and offset > high:
        why = why or f"the position is after the end, {high}: {AFTER_THE_END}"
    if why or end is None:
        return SourcePositionView(at.topic, at.partition, offset, None, {"unread_offsets": why})
    return SourcePositionView(at.topic, at.partition, offset, max(0, end - offset))


def _why_elsewhere(topic: str, position: SourcePosition, here: _Here) -> str:
    """Why the position is not one in this cluster's topic of the name; empty: it may be."""
    if position.cluster_id not in (None, here.cluster_id):
        return f"it is in the cluster {position.cluster_id}"
    if (seen := here.topics.get(topic)) is None:
        return here.reasons.get(topic, "there is no such topic here")
    recorded = position.topic_ids.get(topic)
    if None not in (recorded, seen.topic_id) and recorded != seen.topic_id:
        return "the topic was deleted, and created again"
    return ""


def _total(positions: Sequence[SourcePositionView] | None) -> int | None:
    """None where one of them is not known."""
    counts = [position.unread_offsets for position in positions or ()]
    known = [count for count in counts if count is not None]
    return sum(known) if positions is not None and len(known) == len(counts) else None
