"""Pipelines, ingesters and mirrors by their commit records: the read model's values from the cluster's commit topic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeAlias

from einmal.client.errors import KafkaError
from einmal.commit_protocol.commit_record import CommitRecord
from einmal.commit_protocol.positions import offsets_of
from einmal.commit_protocol.source_offsets import SourcePosition
from einmal.inspection.model import ClusterView, CommittedPipelineView, SourcePositionView
from einmal.inspection.reading import reason
from einmal.sinks.kafka.committed import committed
from einmal.types import TopicPartition

if TYPE_CHECKING:
    from einmal.clusters.kafka_cluster import KafkaCluster
    from einmal.sinks.commit_point import Committed

_OTHER_SOURCE: Final = "its sources are not Kafka topics"
_UNREADABLE: Final = (ValueError, TypeError, KeyError, AttributeError)
"""From a position that some client has written."""
_Ends: TypeAlias = Mapping[TopicPartition, int | None]


def with_pipelines(view: ClusterView, cluster: KafkaCluster) -> ClusterView:
    """The view with those that commit to this cluster: reads the whole commit topic.

    Raises NoBrokerReachable; any other failure is the reason why there are none.
    """
    unknown = {name: text for name, text in view.unknown.items() if name != "pipelines"}
    ends = {TopicPartition(at.topic, at.partition): at.last_stable_offset for at in view.partitions}
    try:
        records = committed(cluster)
        ids = _topic_ids(cluster, records.values())
    except KafkaError as error:
        return replace(view, pipelines=None, unknown={**unknown, "pipelines": reason(error)})
    transactions = {transaction.transactional_id: transaction for transaction in view.transactions or ()}
    pipelines = []
    for name, last in records.items():
        pipeline = _view(last, view.cluster_id, ids, ends)
        if (transaction := transactions.get(name)) is not None:
            pipeline = replace(pipeline, transaction_state=transaction.state, transaction_age_ms=transaction.age_ms)
        elif view.transactions is None:
            why = {"transaction_state": view.unknown.get("transactions", "")}
            pipeline = replace(pipeline, unknown={**pipeline.unknown, **why})
        pipelines.append(pipeline)
    return replace(view, pipelines=tuple(pipelines), unknown=unknown)


def _topic_ids(cluster: KafkaCluster, records: Iterable[Committed]) -> dict[str, str]:
    """The ids of the topics that the records name, as far as they are here. Raises KafkaError."""
    names: set[str] = set()
    for last in records:
        if last.record is not None:
            # A position that cannot be read gets its reason later.
            with suppress(*_UNREADABLE):
                names |= {at.topic for at in _offsets(last.record) or ()}
    return cluster.look(sorted(names), names).topic_ids() if names else {}


def _offsets(record: CommitRecord) -> dict[TopicPartition, tuple[int, SourcePosition]] | None:
    """By partition: the offset, and the position that it is in; None where a source counts in something else."""
    if offsets_of(record.end) is None:
        return None
    positions = map(SourcePosition.from_json, record.end)
    # A mirror that has not begun with a partition has -1.
    return {at: (max(0, offset), position) for position in positions for at, offset in position.offsets.items()}


def _view(last: Committed, cluster_id: str | None, ids: Mapping[str, str], ends: _Ends) -> CommittedPipelineView:
    record = last.record
    if record is None:
        return CommittedPipelineView(
            last.transactional_id, committed_at=last.timestamp, unknown={"batch_id": last.problem}
        )
    unknown: dict[str, str] = {}
    positions: tuple[SourcePositionView, ...] | None = None
    try:
        offsets = _offsets(record)
    except _UNREADABLE as error:
        offsets, unknown["positions"] = None, f"its position cannot be read: {error}"
    if offsets is None:
        unknown.setdefault("positions", _OTHER_SOURCE)
    else:
        positions = tuple(
            _position(at, offset, _why_elsewhere(at.topic, position, cluster_id, ids), ends)
            for at, (offset, position) in sorted(offsets.items())
        )
    return CommittedPipelineView(
        last.transactional_id,
        record.kind.value,
        record.batch_id,
        record.records,
        last.timestamp,
        record.checkpoint,
        positions,
        _total(positions),
        unknown=unknown,
    )


def _why_elsewhere(topic: str, position: SourcePosition, cluster_id: str | None, ids: Mapping[str, str]) -> str:
    """Why the position is not one in this cluster's topic of the name; empty: it may be."""
    if position.cluster_id is not None and position.cluster_id != cluster_id:
        return f"it is in the cluster {position.cluster_id}"
    if topic not in ids:
        return "there is no such topic here"
    recorded = position.topic_ids.get(topic)
    if recorded is not None and recorded != ids[topic]:
        return "the topic was deleted, and created again"
    return ""


def _position(at: TopicPartition, offset: int, elsewhere: str, ends: _Ends) -> SourcePositionView:
    if elsewhere:
        return SourcePositionView(at.topic, at.partition, offset, None, {"unread_offsets": elsewhere})
    end = ends.get(at)
    if end is None:
        return SourcePositionView(at.topic, at.partition, offset, None, {"unread_offsets": "it has no leader now"})
    return SourcePositionView(at.topic, at.partition, offset, max(0, end - offset))


def _total(positions: Sequence[SourcePositionView] | None) -> int | None:
    """None where one of them is not known."""
    counts = [position.unread_offsets for position in positions or ()]
    known = [count for count in counts if count is not None]
    return sum(known) if positions is not None and len(known) == len(counts) else None
