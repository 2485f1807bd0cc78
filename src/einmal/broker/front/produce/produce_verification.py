"""Which batches of a Produce the transaction coordinator must verify first, and what its answer allows.

It verifies the first batch of a transaction in a partition (KIP-890), since the transaction may have ended. Sends no
requests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from einmal.broker.replicas.partition import Partition
from einmal.log.producer_state import VerificationGuard
from einmal.types import ErrorCode, LeaderEpoch, ProducerIdAndEpoch, TopicPartition, TransactionVersion
from einmal.wire.errors import WireError
from einmal.wire.produce import ProduceRequest, Records
from einmal.wire.record_batch import HEADER_SIZE, TRANSACTIONAL, read_header

_ATTRIBUTES_LOW_BYTE: Final = 22
"""Position of the attribute byte of a batch, one of two, that has the transactional bit."""


class Unverified(NamedTuple):
    """A transactional batch that may be the first of its transaction in its partition."""

    topic_partition: TopicPartition
    producer: ProducerIdAndEpoch
    guard: VerificationGuard
    leader_epoch: LeaderEpoch
    """A guard means nothing to a later leader, nor to this one when it leads again."""


class Verified(NamedTuple):
    item: Unverified
    error: ErrorCode
    """The coordinator's answer."""

    def verification(self, partition: Partition) -> ErrorCode | VerificationGuard:
        """How the batch may be appended now."""
        if self.error is not ErrorCode.none:
            return self.error
        if not partition.is_leader or partition.leader_epoch != self.item.leader_epoch:
            return ErrorCode.not_leader_or_follower
        return self.item.guard


def is_transactional(request: ProduceRequest) -> bool:
    """Whether any batch may be of a transaction."""
    for _topic, partitions in request.topics:
        for _index, records in partitions:
            if records is not None and len(records) >= HEADER_SIZE and records[_ATTRIBUTES_LOW_BYTE] & TRANSACTIONAL:
                return True
    return False


def unverified(
    batches: Iterable[tuple[Partition | ErrorCode, Records | None]], version: TransactionVersion
) -> Iterator[Unverified]:
    """Those of the batches that must be verified. Begins their verification in their partitions."""
    for partition, records in batches:
        if records is None or isinstance(partition, ErrorCode):
            continue
        try:
            header = read_header(records)
        except WireError:
            continue
        if not header.is_transactional:
            continue
        producer = ProducerIdAndEpoch(header.producer_id, header.producer_epoch)
        guard = partition.producers.begin_verification(producer, header.base_sequence, version)
        if guard is not None:
            yield Unverified(partition.topic_partition, producer, guard, partition.leader_epoch)


def by_producer(items: Iterable[Unverified]) -> dict[ProducerIdAndEpoch, list[Unverified]]:
    """Return what each coordinator request is about."""
    producers: dict[ProducerIdAndEpoch, list[Unverified]] = {}
    for item in items:
        producers.setdefault(item.producer, []).append(item)
    return producers
