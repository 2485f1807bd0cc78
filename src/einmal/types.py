"""The types that every package shares: offsets, epochs, identities.

Knows nothing of bytes, files or sockets. Integers that can be confused with one another have types
of their own; everything else is a plain ``int``. Times are milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple, NewType

from kio.schema.errors import ErrorCode as ErrorCode

Offset = NewType("Offset", int)
"""Position of a record in a partition."""
Position = NewType("Position", int)
"""Position of a byte in a segment file."""
LeaderEpoch = NewType("LeaderEpoch", int)
ProducerId = NewType("ProducerId", int)
ProducerEpoch = NewType("ProducerEpoch", int)
Sequence = NewType("Sequence", int)
BrokerId = NewType("BrokerId", int)

NO_PRODUCER_ID: Final = ProducerId(-1)
NO_PRODUCER_EPOCH: Final = ProducerEpoch(-1)
NO_SEQUENCE: Final = Sequence(-1)
NO_LEADER_EPOCH: Final = LeaderEpoch(-1)
NO_OFFSET: Final = Offset(-1)

SEQUENCE_MAX: Final = 2**31 - 1
"""After this sequence comes 0 again."""

EPOCH_MAX: Final = 32_766
"""Last epoch that a client may hold: 32,767 is reserved so that the coordinator can always fence it."""


class TopicPartition(NamedTuple):
    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


class EpochEnd(NamedTuple):
    """The largest leader epoch of a log that is not above the one that was asked for, and the offset after its last
    record; -1 and -1 where that is not known (KIP-101, KIP-279)."""

    epoch: int
    offset: int


class ProducerIdAndEpoch(NamedTuple):
    producer_id: ProducerId
    producer_epoch: ProducerEpoch


NO_PRODUCER: Final = ProducerIdAndEpoch(NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


class Instant(NamedTuple):
    """One reading of both clocks. Decisions use only ``monotonic_ms``; ``wall_ms`` is logged."""

    wall_ms: int
    monotonic_ms: int


class IsolationLevel(IntEnum):
    READ_UNCOMMITTED = 0
    READ_COMMITTED = 1


class TransactionVersion(IntEnum):
    """The protocol version of a transaction's client (KIP-890).

    TV_0: classic; TV_1: as TV_0, with the transaction log's flexible records;
    TV_2: Produce adds partitions, and every EndTxn bumps the epoch.
    """

    TV_0 = 0
    TV_1 = 1
    TV_2 = 2


@dataclass(frozen=True, slots=True)
class Header:
    """A record header: ``value`` may be null."""

    key: str
    value: bytes | None


def next_sequence(sequence: Sequence, count: int) -> Sequence:
    """The sequence ``count`` records after ``sequence``; 2^31-1 is followed by 0."""
    return Sequence((sequence + count) & SEQUENCE_MAX)
