"""The values that the producer and the consumer take and give. Plain data: no I/O, no wire format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from einmal.client.errors import LocalError
from einmal.types import Header, TopicPartition

if TYPE_CHECKING:
    from einmal.wire.record_batch import BatchHeader

HeadersLike = Mapping[str, bytes | str | None] | Iterable[Header | tuple[str, bytes | str | None]]


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
    batch: BatchHeader | None = None
    """The header of the record's batch: its producer, leader epoch and kind of timestamp."""

    @property
    def leader_epoch(self) -> int:
        """-1: not known."""
        return -1 if self.batch is None else self.batch.partition_leader_epoch

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class LogEnds(NamedTuple):
    """Where a partition ends for readers of committed records, and for all others; -1: not known."""

    last_stable_offset: int
    high_watermark: int


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


def positions_of(
    offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Positions as callers write them: a bare number is an offset without metadata."""
    return {
        TopicPartition(*partition): OffsetAndMetadata(offset) if isinstance(offset, int) else offset
        for partition, offset in offsets.items()
    }


def headers_of(headers: HeadersLike) -> tuple[Header, ...]:
    """A mapping, or pairs of a name and a value; ``str`` is taken as UTF-8. Raises LocalError."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    try:
        return tuple(_header(pair.key, pair.value) if isinstance(pair, Header) else _header(*pair) for pair in pairs)
    except (TypeError, ValueError) as error:
        raise LocalError(
            meaning=f"headers cannot be {headers!r}",
            what_to_do='write headers={"name": b"value"}, or [("name", b"value")]',
        ) from error


def _header(name: str, value: bytes | str | None) -> Header:
    if not isinstance(name, str):
        raise TypeError(name)
    return Header(name, value if isinstance(value, bytes) else bytes_of(value, "header value"))


def check_destination(topic: str, partition: int | None, timestamp: int | None) -> None:
    """Raises LocalError for what cannot name a topic, a partition or a time in ms."""
    if not isinstance(topic, str) or not topic:
        raise LocalError(meaning=f"a topic is named by text, not {topic!r}", what_to_do='write send("topic", value)')
    if partition is not None and (not isinstance(partition, int) or partition < 0):
        raise LocalError(meaning=f"a partition is a whole number from 0 on, not {partition!r}")
    if timestamp is not None and (not isinstance(timestamp, int) or not 0 <= timestamp < 2**63):
        raise LocalError(
            meaning=f"a timestamp is whole milliseconds since 1970, not {timestamp!r}",
            what_to_do="write int(time.time() * 1000)",
        )


def check_timeout(timeout_ms: int) -> None:
    """Raises LocalError for anything but whole milliseconds: ``poll(1.0)`` means a second elsewhere."""
    if not isinstance(timeout_ms, int) or timeout_ms < 0:
        what_to_do = "write the milliseconds as an int"
        if isinstance(timeout_ms, float) and timeout_ms >= 0:
            what_to_do = f"for {timeout_ms:g} seconds write poll({timeout_ms * 1000:.0f})"
        raise LocalError(meaning=f"poll() waits whole milliseconds, not {timeout_ms!r}", what_to_do=what_to_do)


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
        what_to_do="encode it first, as in json.dumps(value)",
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
