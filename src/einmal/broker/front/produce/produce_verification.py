"""Which batches of a Produce the transaction coordinator must verify first.

It verifies the first batch of a transaction in a partition (KIP-890), since the transaction may have ended. Sends no
requests.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from einmal.broker.replicas.partition import Partition
from einmal.log.producer_state import VerificationGuard
from einmal.types import LeaderEpoch, ProducerIdAndEpoch, TopicPartition, TransactionVersion
from einmal.wire.errors import WireError
from einmal.wire.produce import ProduceRequest, Records
from einmal.wire.record_batch import HEADER_SIZE, TRANSACTIONAL, read_header

_ATTRIBUTES_LOW_BYTE: Final = 22
"""Position of the attribute byte of a batch, one of two, that has the transactional bit."""


class Unverified(NamedTuple):
    """A transactional batch that may be the first of its transaction in its partition."""

    slot: tuple[int, int]
    """Positions of its topic in the request, and of its partition there."""
    topic_partition: TopicPartition
    producer: ProducerIdAndEpoch
    guard: VerificationGuard
    leader_epoch: LeaderEpoch
    """A guard means nothing to a later leader, nor to this one when it leads again."""


def is_transactional(request: ProduceRequest) -> bool:
    """Whether any batch may be of a transaction."""
    for _topic, partitions in request.topics:
        for _index, records in partitions:
            if records is not None and len(records) >= HEADER_SIZE and records[_ATTRIBUTES_LOW_BYTE] & TRANSACTIONAL:
                return True
    return False


def unverified(
    slot: tuple[int, int], partition: Partition, records: Records, version: TransactionVersion
) -> Unverified | None:
    """The batch, if it must be verified. Begins its verification in its partition."""
    try:
        header = read_header(records)
    except WireError:
        return None
    if not header.is_transactional:
        return None
    producer = ProducerIdAndEpoch(header.producer_id, header.producer_epoch)
    guard = partition.producers.begin_verification(producer, header.base_sequence, version)
    if guard is None:
        return None
    return Unverified(slot, partition.topic_partition, producer, guard, partition.leader_epoch)
