"""The values that the producer and the consumer take and give. Plain data: no I/O, no wire format."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from einmal.client.errors import LocalError
from einmal.types import Header, TopicPartition

HeadersLike = Iterable[Header | tuple[str, bytes | None]]


class RecordMetadata(NamedTuple):
    """Where an acknowledged record lies. ``offset`` is -1 when ``acks=0``: nobody answered."""

    topic: str
    partition: int
    offset: int
    timestamp: int


class ConsumerRecord(NamedTuple):
    """One record of a partition; ``timestamp`` in ms since 1970."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: tuple[Header, ...]
    leader_epoch: int = -1

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """A committed position: the offset of the *next* record to be read."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


@dataclass(frozen=True, slots=True)
class OffsetAndTimestamp:
    offset: int
    timestamp: int
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """A consumer's membership, for offsets in a transaction (KIP-447). Without a group: generation -1, no member."""

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


def headers_of(headers: HeadersLike) -> tuple[Header, ...]:
    return tuple(each if isinstance(each, Header) else Header(*each) for each in headers)


def bytes_of(value: bytes | str | None, what: str) -> bytes | None:
    """``str`` is taken as UTF-8. Raises LocalError for anything that is not bytes or str."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    raise LocalError(
        meaning=f"a record's {what} must be bytes, str or None, not {type(value).__name__}",
        what_to_do="serialize it first",
    )


class OffsetRange(NamedTuple):
    """From ``start`` up to, not with, ``end``."""

    start: int
    end: int


class WrittenRange(NamedTuple):
    """Where a writer's batches lie in a partition: offsets of its first and last record, and how many batches."""

    first_offset: int
    last_offset: int
    batches: int
