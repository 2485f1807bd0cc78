"""Pipelines as their owner manages them, without Spark: their status, and changes of their commit records.

A change is made under the pipeline's own transactional.id, in a transaction. It fences the instance that runs under the
name, and an instance that acquires the name in the meantime fences the change.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass

from einmal.client import Admin
from einmal.client.descriptions import TransactionDescription
from einmal.client.errors import RequestRefused
from einmal.pipeline.commit_record import COMMIT_TOPIC, CommitRecord, UnreadableCommitRecord
from einmal.pipeline.positions import offsets_of, topics_in
from einmal.spark.offsets import SourcePosition
from einmal.spark.targets.kafka.commit_log import PARTITIONS, TOPIC_CONFIG
from einmal.spark.targets.kafka.committed import committed
from einmal.spark.targets.kafka.destination import KafkaDestination
from einmal.spark.targets.target import Committed, Opening, Target


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStatus:
    """``lag``: offsets up to the last stable offset of its topics in this cluster, None where they are not here.
    ``transaction``: what its coordinator knows; None: it has forgotten the name. ``open_ms``: how old it is."""

    committed: Committed
    lag: int | None
    transaction: TransactionDescription | None
    open_ms: int | None


class Changed(Exception):
    """The record is not the one that the change was decided on. The pipeline is fenced, and nothing is written."""


class Ownership:
    """What can be asked and done in one Kafka cluster. ``client``: settings under Kafka's names. ``with`` closes it."""

    def __init__(self, client: Mapping[str, str]) -> None:
        self._destination = KafkaDestination(dict(client))
        self._cluster = self._destination.cluster
        self._admin = Admin(self._cluster.common)

    def __enter__(self) -> Ownership:
        return self

    def __exit__(self, *_: object) -> None:
        self._admin.close()
        self._destination.close()

    # --- asking -------------------------------------------------------------------------------------------------

    def committed(self) -> Mapping[str, Committed]:
        """The last committed record of every pipeline, by transactional id. Raises KafkaError."""
        return committed(self._cluster)

    def status(self, last: Committed) -> PipelineStatus:
        transaction = self.transaction(last.transactional_id)
        is_open = transaction is not None and transaction.start_time >= 0 and bool(transaction.partitions)
        now = time.time_ns() // 1_000_000
        return PipelineStatus(
            committed=last,
            lag=None if last.record is None else self._lag(last.record),
            transaction=transaction,
            open_ms=max(0, now - transaction.start_time) if is_open and transaction is not None else None,
        )

    def transaction(self, transactional_id: str) -> TransactionDescription | None:
        """What the coordinator knows of a name; None: nothing, it has expired or never was."""
        try:
            return self._admin.describe_transactions([transactional_id])[transactional_id]
        except RequestRefused:
            return None

    def ends(self, position: tuple[object, ...], *, earliest: bool) -> tuple[object, ...]:
        """The same topics at their beginning, or at their last stable offset. Raises KafkaError, ValueError."""
        if offsets_of(position) is None:
            raise ValueError("the sources are not Kafka topics")
        moved = []
        for each in position:
            assert isinstance(each, dict)
            topics = sorted(topics_in(each))
            seen = self._cluster.look(topics)
            if len(seen.topics) < len(topics):
                raise ValueError(f"not all of {', '.join(topics)} are in this cluster")
            # All partitions that there are now: a topic that was created again may have others.
            places = [place for topic in topics for place in seen.topics[topic].partitions]
            found = self._cluster.earliest(places) if earliest else self._cluster.latest(places, committed=True)
            moved.append(SourcePosition(found, seen.topic_ids(), seen.cluster_id).to_json())
        return tuple(moved)

    def _lag(self, record: CommitRecord) -> int | None:
        if offsets_of(record.end) is None:
            return None
        lag = 0
        for each in record.end:
            position = SourcePosition.from_json(each)
            here = self._cluster.existing(position)
            if len(here) < len(position.offsets):
                # They were read from another cluster, or deleted since.
                return None
            ends = self._cluster.latest(here, committed=True)
            lag += sum(max(0, ends[place] - position.offsets[place]) for place in here)
        return lag

    # --- changing -----------------------------------------------------------------------------------------------

    def change(self, transactional_id: str, expected: CommitRecord | None, record: CommitRecord | None) -> None:
        """Fence the name, and make ``record`` its commit record (None: delete it).

        Raises Changed where the record was not ``expected`` any more, KafkaError, TargetError.
        """
        self._cluster.create_topic(COMMIT_TOPIC, PARTITIONS, TOPIC_CONFIG)
        with closing(self._destination.target(Opening(name=transactional_id))) as target:
            change(target, transactional_id, expected, record)


def change(target: Target, name: str, expected: CommitRecord | None, record: CommitRecord | None) -> None:
    """Fence a name, and make ``record`` its commit record (None: delete it). Raises Changed, TargetError."""
    identity = target.acquire(None)
    # Only now nobody else can commit any more.
    try:
        found = target.read()
    except UnreadableCommitRecord:
        # It is replaced, as announced to its owner.
        found = None
    if found != expected:
        raise Changed(f"{name!r} has committed since the change was planned; it is fenced now and has stopped")
    target.record(identity, record)
    target.commit(identity)
