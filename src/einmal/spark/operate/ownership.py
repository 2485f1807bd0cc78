"""Pipelines as their owner manages them, without Spark: their status, and changes of their commit records.

A change is made under the pipeline's own transactional.id, in a transaction. It fences the instance that runs under the
name, and an instance that acquires the name in the meantime fences the change.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from einmal.client import Admin, TransactionDriver
from einmal.client.descriptions import TransactionDescription
from einmal.client.errors import RequestRefused, UnknownTopic
from einmal.client.fetched import RawBatch
from einmal.pipeline.commit_record import COMMIT_TOPIC, CommitRecord, UnreadableCommitRecord
from einmal.pipeline.positions import offsets_of, topics_in
from einmal.spark.cluster import KafkaCluster
from einmal.spark.offsets import SourcePosition
from einmal.spark.protocol.commit_log import (
    PARTITIONS,
    TOPIC_CONFIG,
    BatchReader,
    CommitLog,
    Value,
    batches_below,
    candidates,
    is_commit,
    value_of,
)
from einmal.types import ErrorCode, TopicPartition

_MARKER_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Committed:
    """A pipeline's last committed record, and when it was written (ms). ``problem``: why it cannot be read."""

    transactional_id: str
    record: CommitRecord | None
    timestamp: int
    problem: str = ""


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
    """What can be asked and done in one cluster. ``client``: settings under Kafka's names. ``with`` closes it."""

    def __init__(self, client: Mapping[str, str]) -> None:
        self._client = dict(client)
        self._cluster = KafkaCluster(client)
        self._admin = Admin(self._cluster.common)

    def __enter__(self) -> Ownership:
        return self

    def __exit__(self, *_: object) -> None:
        self._admin.close()
        self._cluster.close()

    # --- asking -------------------------------------------------------------------------------------------------

    def committed(self) -> dict[str, Committed]:
        """The last committed record of every pipeline, by transactional id."""
        try:
            partitions = self._cluster.partitions([COMMIT_TOPIC])
        except UnknownTopic:
            return {}
        ends = self._cluster.latest(partitions, committed=False)
        found: dict[str, dict[TopicPartition, Value]] = {}
        for place, values in _last_values(batches_below(self._cluster, ends)).items():
            for name, value in values.items():
                found.setdefault(name, {})[place] = value
        last = {name: _last_of(name, places, len(partitions)) for name, places in sorted(found.items())}
        return {
            name: Committed(name, value.record, value.timestamp, value.problem)
            for name, value in last.items()
            if value.record is not None or value.problem
        }

    def status(self, committed: Committed) -> PipelineStatus:
        transaction = self.transaction(committed.transactional_id)
        is_open = transaction is not None and transaction.start_time >= 0 and bool(transaction.partitions)
        now = time.time_ns() // 1_000_000
        return PipelineStatus(
            committed=committed,
            lag=None if committed.record is None else self._lag(committed.record),
            transaction=transaction,
            open_ms=max(0, now - transaction.start_time) if is_open and transaction is not None else None,
        )

    def transaction(self, transactional_id: str) -> TransactionDescription | None:
        """What the coordinator knows of a name; None: nothing, it has expired or never was."""
        try:
            return self._admin.describe_transactions([transactional_id])[transactional_id]
        except RequestRefused as error:
            if error.code is not ErrorCode.transactional_id_not_found:
                raise
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

        Raises Changed where the record was not ``expected`` any more, KafkaError, Uncertain.
        """
        self._cluster.create_topic(COMMIT_TOPIC, PARTITIONS, TOPIC_CONFIG)
        log = CommitLog(self._cluster, self._client, transactional_id)
        with TransactionDriver(self._client | {"transactional.id": transactional_id}) as driver:
            identity = driver.init_producer_id()
            # Only now nobody else can commit any more.
            try:
                found = log.read(_MARKER_S)
            except UnreadableCommitRecord:
                # It is replaced, as announced to its owner.
                found = None
            if found != expected:
                raise Changed(
                    f"{transactional_id!r} has committed since the change was planned; it is fenced now and has stopped"
                )
            version = driver.transaction_version
            driver.add_partitions(identity, [log.partition])
            log.write(record, identity, version)
            driver.end_txn(identity, committed=True)


def _last_values(batches: Iterator[RawBatch]) -> dict[TopicPartition, dict[str, Value]]:
    """The last committed value of every name, by partition; what is undecided does not count."""
    found: dict[TopicPartition, dict[str, Value]] = {}
    open_values: dict[tuple[TopicPartition, int], dict[str, Value]] = {}
    reader = BatchReader()
    for batch in batches:
        place = batch.topic_partition
        if batch.header.is_control:
            undecided = open_values.pop((place, batch.header.producer_id), {})
            if is_commit(batch):
                found.setdefault(place, {}).update(undecided)
            continue
        told = {(each.key or b"").decode(errors="replace"): value_of(each, batch) for each in reader.records(batch)}
        if batch.header.is_transactional:
            open_values.setdefault((place, batch.header.producer_id), {}).update(told)
        else:
            found.setdefault(place, {}).update(told)
    return found


def _last_of(name: str, places: dict[TopicPartition, Value], partitions: int) -> Value:
    """Where a pipeline would look for it; a record that is nowhere there is no pipeline's, and is shown."""
    return next((places[each] for each in candidates(name, partitions) if each in places), next(iter(places.values())))
