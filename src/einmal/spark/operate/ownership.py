"""Pipelines as their owner manages them, without Spark: their status, and changes of their commit records.

A change is made under the pipeline's own transactional.id, in a transaction. It fences the instance that runs under the
name, and an instance that acquires the name in the meantime fences the change.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Self, TypeVar

from einmal.client.descriptions import TransactionDescription
from einmal.client.errors import KafkaError, NoBrokerReachable
from einmal.clusters.kafka_cluster import KafkaCluster
from einmal.commit_protocol.commit_record import COMMIT_TOPIC, CommitRecord, UnreadableCommitRecord
from einmal.commit_protocol.positions import offsets_of, topics_in
from einmal.commit_protocol.source_offsets import SourcePosition
from einmal.options.sink import TWO_PHASE_COMMIT
from einmal.sinks.commit_point import Committed, SinkFailed
from einmal.sinks.kafka.commit_log import PARTITIONS, TOPIC_CONFIG
from einmal.sinks.sink import Opening, RowSink
from einmal.sinks.two_phase import TwoPhaseSink
from einmal.spark.sinks.kafka.sink import KafkaFrameSink

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStatus:
    """``lag``: offsets up to the last stable offset of its topics in this cluster, None where they are not here.
    ``transaction``: what its coordinator knows; None: it has forgotten the name. ``open_ms``: how old it is.
    ``problem``: why its record, its transaction or its lag is not known, where that has a reason."""

    committed: Committed
    lag: int | None
    transaction: TransactionDescription | None
    open_ms: int | None
    problem: str = ""


class Changed(Exception):
    """The record is not the one that the change was decided on. The pipeline is fenced, and nothing is written."""


class Ownership:
    """Questions about the pipelines of one sink, and actions on them. ``with`` closes it.

    ``sources``: the cluster that their sources read, for lag and ends; None: unknown.
    """

    def __init__(self, sink: RowSink, sources: KafkaCluster | None = None) -> None:
        self._sink = sink
        self._sources = sources

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._sink.close()
        if self._sources is not None:
            self._sources.close()

    # --- asking -------------------------------------------------------------------------------------------------

    def committed(self) -> Mapping[str, Committed]:
        """The last committed record of every pipeline, by name. Raises SinkError."""
        return self._sink.committed()

    def status(self, last: Committed) -> PipelineStatus:
        """Ask; a question that is refused hides no other pipeline. Raises NoBrokerReachable."""
        problems = [last.problem]
        transaction = _answer("transaction", lambda: self.transaction(last.transactional_id), problems)
        now = time.time_ns() // 1_000_000
        record, sources = last.record, self._sources
        lag = None
        if record is not None and sources is not None:
            lag = _answer("lag", lambda: _lag(record, sources), problems)
        return PipelineStatus(
            committed=last,
            lag=lag,
            transaction=transaction,
            open_ms=max(0, now - transaction.start_time) if transaction is not None and transaction.is_open else None,
            problem="; ".join(filter(None, problems)),
        )

    def transaction(self, transactional_id: str) -> TransactionDescription | None:
        """Return what a coordinator knows of a name; None: nothing, or there is none."""
        return None

    def ends(self, position: tuple[object, ...], *, earliest: bool) -> tuple[object, ...]:
        """The same topics at their beginning, or at their last stable offset. Raises KafkaError, ValueError."""
        if self._sources is None:
            raise ValueError("it is not known from which cluster the topics were read")
        if offsets_of(position) is None:
            raise ValueError("the sources are not Kafka topics")
        return tuple(_end(source_position, self._sources, earliest=earliest) for source_position in position)

    # --- changing -----------------------------------------------------------------------------------------------

    def change(self, transactional_id: str, expected: CommitRecord | None, record: CommitRecord | None) -> None:
        """Fence the name, and make ``record`` its commit record (None: delete it). A transaction in topics that the
        old record has decided is committed before.

        Raises Changed where the record was not ``expected`` any more, KafkaError, SinkError.
        """
        if expected is not None and expected.prepared and not isinstance(self._sink, TwoPhaseSink):
            # Its name would be lost: the next start would abort what the database has committed.
            raise SinkFailed(
                f"the record of {transactional_id!r} decides that transaction {expected.prepared} in the topics is "
                f"committed, and the change needs to commit it first. Hint: --file FILE, with the "
                f'declaration\'s topics and kafka.{TWO_PHASE_COMMIT} = "true"'
            )
        with closing(self._sink.commit_point(Opening(name=transactional_id))) as commit_point:
            identity = commit_point.acquire(None)
            # Only now nobody else can commit any more.
            try:
                last_record = commit_point.read()
            except UnreadableCommitRecord:
                # It is replaced, as announced to its owner.
                last_record = None
            if last_record != expected:
                raise Changed(
                    f"{transactional_id!r} has committed since the change was planned; it is fenced now and has stopped"
                )
            commit_point.record(identity, record)
            commit_point.commit(identity)


class KafkaOwnership(Ownership):
    """Ownership of the pipelines of one Kafka cluster. ``client``: settings under Kafka's names."""

    def __init__(self, client: Mapping[str, str]) -> None:
        sink = KafkaFrameSink(dict(client))
        super().__init__(sink, sink.cluster)
        self._cluster = sink.cluster

    def transaction(self, transactional_id: str) -> TransactionDescription | None:
        """None: its coordinator has forgotten the name, or it never was, or these brokers do not report it."""
        return self._cluster.transaction(transactional_id)

    def change(self, transactional_id: str, expected: CommitRecord | None, record: CommitRecord | None) -> None:
        self._cluster.create_topic(COMMIT_TOPIC, PARTITIONS, TOPIC_CONFIG)
        super().change(transactional_id, expected, record)


def _answer(what: str, ask: Callable[[], T], problems: list[str]) -> T | None:
    """Or None, and ``problems`` has why. Raises NoBrokerReachable."""
    try:
        return ask()
    except NoBrokerReachable:
        raise
    except KafkaError as error:
        problems.append(f"{what}: {error.name}: {error.meaning}")
        return None


def _end(position: object, cluster: KafkaCluster, *, earliest: bool) -> object:
    assert isinstance(position, dict)
    topics = sorted(topics_in(position))
    seen = cluster.look(topics)
    if len(seen.topics) < len(topics):
        raise ValueError(f"not all of {', '.join(topics)} are in this cluster")
    # All partitions that there are now: a topic that was created again may have others.
    partitions = [partition for topic in topics for partition in seen.topics[topic].partitions]
    offsets = cluster.earliest(partitions) if earliest else cluster.latest(partitions, committed=True)
    return SourcePosition(offsets, seen.topic_ids(), seen.cluster_id).to_json()


def _lag(record: CommitRecord, cluster: KafkaCluster) -> int | None:
    if offsets_of(record.end) is None:
        return None
    lag = 0
    for source_end in record.end:
        position = SourcePosition.from_json(source_end)
        here = cluster.existing(position)
        if len(here) < len(position.offsets):
            # They were read from another cluster, or deleted since.
            return None
        ends = cluster.latest(here, committed=True)
        lag += sum(max(0, ends[partition] - max(0, position.offsets[partition])) for partition in here)
    return lag
