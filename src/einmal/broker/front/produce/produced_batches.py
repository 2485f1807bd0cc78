"""The batches of one Produce: appends or refuses each, and keeps the results.

Each partition is decided alone. Nothing here waits: a batch that the transaction coordinator must verify first is left
*unverified*, one that takes longer to check *undecided*; an appended batch that is not yet as durable as ``acks``
requires is *waiting*. Knows neither versions nor encodings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from einmal.broker.cluster_metadata import ClusterMetadata
from einmal.broker.front.produce.produce_verification import Unverified, unverified
from einmal.broker.front.produce.refused_batches import RefusedBatches
from einmal.broker.replicas.partition import Partition
from einmal.broker.replicas.partitions import Partitions
from einmal.log.admission import Admission
from einmal.log.producer_state import CONTINUES, VerificationGuard
from einmal.metadata.image import INTERNAL_TOPICS
from einmal.types import (
    ErrorCode,
    Instant,
    LeaderEpoch,
    Offset,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionVersion,
)
from einmal.wire.errors import Unanswered
from einmal.wire.primitives import Topic
from einmal.wire.produce import ProducedPartition, ProduceRequest, Records

ALL_REPLICAS: Final = -1
_NONE: Final = ErrorCode.none


@dataclass(frozen=True, slots=True)
class Destinations:
    """Where a client may write."""

    metadata: ClusterMetadata
    partitions: Partitions

    def find(self, topic: Topic, index: int) -> Partition | ErrorCode:
        """The partition, if it is led here; else why nothing can be written."""
        name = self.metadata.image.name_of_topic(topic)
        if name is None:
            return ErrorCode.unknown_topic_id
        if name in INTERNAL_TOPICS:
            # Only coordinators write there.
            return ErrorCode.invalid_topic_exception
        topic_partition = TopicPartition(name, index)
        partition = self.partitions.get(topic_partition)
        if partition is None:
            return self.partitions.error_of_missing(topic_partition)
        return partition if partition.is_leader else ErrorCode.not_leader_or_follower


class Waiting(NamedTuple):
    """A batch whose result holds only when ``offset`` is as safe in ``partition`` as acks wants.

    ``met``: awaited from the append on, since a later leadership may have other records at the offset.
    """

    topic_index: int
    partition_index: int
    partition: Partition
    offset: Offset
    met: asyncio.Future[ErrorCode]


class Undecided(NamedTuple):
    """A batch with so many records that other clients are served while they are checked."""

    slot: tuple[int, int]
    """Position of its topic in the request, and of its partition there."""
    partition: Partition
    leader_epoch: LeaderEpoch
    batch: bytearray | memoryview
    verification: VerificationGuard
    admission: Admission


class ProducedBatches:
    """``refused``: what was refused on this connection before; None where nobody sends again what is refused.

    ``transaction_version``: how transactional batches are verified; None: there are none.
    """

    def __init__(
        self,
        request: ProduceRequest,
        destinations: Destinations,
        refused: RefusedBatches | None,
        transaction_version: TransactionVersion | None = None,
    ) -> None:
        self._request = request
        self._destinations = destinations
        self._refused = refused
        self._transaction_version = transaction_version
        self.topics: list[tuple[Topic, list[ProducedPartition]]] = []
        """The results, in the order of the request."""
        self._refusal: ErrorCode | None = None
        """Error of the topic that was begun last."""
        self.waiting: list[Waiting] = []
        self.unverified: dict[ProducerIdAndEpoch, list[Unverified]] = {}
        self.undecided: list[Undecided] = []
        self.has_refused = False
        """Whether anything was, so that there may be a leader to name."""
        self.needs_all = request.acks == ALL_REPLICAS

    def begin(self, topic: Topic, refusal: ErrorCode | None = None) -> None:
        """The next topic of the request. ``refusal``: of all its batches."""
        self.topics.append((topic, []))
        self._refusal = refusal

    def append(self, partitions: Iterable[tuple[int, Records | None]], now: Instant) -> None:
        """Append to partitions of the topic that was begun last."""
        results = self.topics[-1][1]
        for partition in partitions:
            slot = (len(self.topics) - 1, len(results))
            results.append(self._decide(slot, partition, self._refusal, None, now))

    def append_verified(self, item: Unverified, verdict: ErrorCode, refusal: ErrorCode | None, now: Instant) -> None:
        """Append one of ``unverified``. ``verdict``: the coordinator's. ``refusal``: of all batches of its topic."""
        topic_index, number = item.slot
        partition = self._request.topics[topic_index][1][number]
        self.topics[topic_index][1][number] = self._decide(item.slot, partition, refusal, (item, verdict), now)

    def _decide(
        self,
        slot: tuple[int, int],
        asked: tuple[int, Records | None],
        refusal: ErrorCode | None,
        verified: tuple[Unverified, ErrorCode] | None,
        now: Instant,
    ) -> ProducedPartition:
        """The result: for now, of what is unverified, undecided or waiting. ``verified``: with its verdict."""
        topic = self.topics[slot[0]][0]
        index, records = asked
        if refusal is not None:
            return self._refuse(topic, index, records, refusal)
        # Nearly always nothing was refused before.
        if self._refused and (error := self._refused.error_behind(topic, index, records)) is not _NONE:
            self.has_refused = True
            return ProducedPartition(index, error)
        partition = self._destinations.find(topic, index)
        if isinstance(partition, ErrorCode):
            return self._refuse(topic, index, records, partition)
        if records is None:
            return self._refuse(topic, index, records, ErrorCode.invalid_record)
        guard = CONTINUES
        if verified is not None:
            item, verdict = verified
            if verdict is _NONE and partition.leader_epoch != item.leader_epoch:
                verdict = ErrorCode.not_leader_or_follower
            if verdict is not _NONE:
                return self._refuse(topic, index, records, verdict)
            guard = item.guard
        elif self._transaction_version is not None:
            unverified_batch = unverified(slot, partition, records, self._transaction_version)
            if unverified_batch is not None:
                self.unverified.setdefault(unverified_batch.producer, []).append(unverified_batch)
                return ProducedPartition(index)
        batch = _writable(records)
        admission = partition.admit(batch, now)
        if admission.is_decided:
            return self._append(slot, partition, batch, guard, admission, now)
        self.undecided.append(Undecided(slot, partition, partition.leader_epoch, batch, guard, admission))
        return ProducedPartition(index)

    def append_decided(self, decided: Undecided, now: Instant) -> None:
        """Append one of ``undecided``, whose admission is decided by now."""
        slot, partition, leader_epoch, batch, verification, admission = decided
        topic_index, number = slot
        topic, results = self.topics[topic_index]
        if partition.leader_epoch == leader_epoch:
            results[number] = self._append(slot, partition, batch, verification, admission, now)
        else:
            # A verification under another leader epoch means nothing.
            results[number] = self._refuse(topic, results[number].partition, batch, ErrorCode.not_leader_or_follower)

    def refuse_all(self, error: ErrorCode) -> None:
        self.has_refused = True
        for topic, partitions in self._request.topics:
            self.topics.append((topic, [ProducedPartition(index, error) for index, _records in partitions]))

    def is_met(self, partition: Partition, last_offset: Offset) -> bool:
        """Whether a batch is as safe as acks wants."""
        return partition.is_committed(last_offset) if self.needs_all else partition.is_written(last_offset)

    def fail(self, waiting: Waiting, error: ErrorCode) -> None:
        """Fail a batch: what was appended will not be as safe as acks wants, or not in time."""
        self.has_refused = True
        results = self.topics[waiting.topic_index][1]
        results[waiting.partition_index] = ProducedPartition(results[waiting.partition_index].partition, error)

    def expire(self) -> None:
        """The request's time is over: fail what still waits."""
        for waiting in self.waiting:
            if not self.is_met(waiting.partition, waiting.offset):
                has_enough = not self.needs_all or waiting.partition.has_enough_replicas
                late = ErrorCode.request_timed_out if has_enough else ErrorCode.not_enough_replicas_after_append
                self.fail(waiting, late)

    def check_unanswered(self) -> None:
        """Raises Unanswered, as Apache Kafka closes the connection: its client asks anew who leads."""
        if not self.has_refused:
            return
        for topic, results in self.topics:
            for result in results:
                if result.error_code is not _NONE:
                    raise Unanswered(f"acks=0: {topic}-{result.partition}: {result.error_code.name}")

    def _append(
        self,
        slot: tuple[int, int],
        partition: Partition,
        batch: bytearray | memoryview,
        verification: VerificationGuard,
        admission: Admission,
        now: Instant,
    ) -> ProducedPartition:
        topic_index, number = slot
        topic, partitions = self._request.topics[topic_index]
        index = partitions[number][0]
        if self.needs_all and not partition.has_enough_replicas:
            return self._refuse(topic, index, batch, ErrorCode.not_enough_replicas)
        appended = partition.append(batch, now, verification=verification, admission=admission)
        error, base_offset, last_offset, append_time, log_start_offset, _is_duplicate, message, errors = appended
        if error is not _NONE:
            self._refuse(topic, index, batch, error)
        elif not self.is_met(partition, last_offset):
            met = partition.when_committed(last_offset) if self.needs_all else partition.when_written(last_offset)
            self.waiting.append(Waiting(topic_index, number, partition, last_offset, met))
        return ProducedPartition(index, error, base_offset, append_time, log_start_offset, errors, message)

    def _refuse(self, topic: Topic, index: int, records: Records | None, error: ErrorCode) -> ProducedPartition:
        self.has_refused = True
        if self._refused is not None:
            self._refused.refuse(topic, index, records, error)
        return ProducedPartition(index, error)


def _writable(records: Records) -> bytearray | memoryview:
    """The log writes offsets into what it appends. The frame is ours: nothing is copied unless it is read-only."""
    if isinstance(records, memoryview) and not records.readonly:
        return records
    return bytearray(records)
