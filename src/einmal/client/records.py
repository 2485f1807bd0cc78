"""The values that the producer and the consumer take and give. Plain data: no I/O, no wire format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard, TypeVar

from einmal.client.errors import LocalError
from einmal.types import Header, TopicPartition

if TYPE_CHECKING:
    from einmal.wire.record_batch import BatchHeader

T = TypeVar("T")

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
    """Positions as callers write them: a bare number is an offset without metadata. Raises LocalError."""
    return {partition: position_of(offset) for partition, offset in by_partition(offsets).items()}


def by_partition(values: Mapping[TopicPartition, T]) -> dict[TopicPartition, T]:
    """A mapping of partitions as callers write it. Raises LocalError for what is none."""
    if not isinstance(values, Mapping):
        raise LocalError(
            meaning=f"partitions and their values are a mapping, not {values!r}",
            what_to_do='write {TopicPartition("topic", 0): 5}',
        )
    return {partition_of(partition): value for partition, value in values.items()}


def position_of(offset: OffsetAndMetadata | int) -> OffsetAndMetadata:
    """A position as callers write it. Raises LocalError for an offset or an epoch that no log can have."""
    at = OffsetAndMetadata(offset) if isinstance(offset, int) else offset
    if not isinstance(at, OffsetAndMetadata) or not is_whole(at.offset) or not 0 <= at.offset < 2**63:
        raise LocalError(
            meaning=f"an offset is a whole number from 0 on and below 2**63, not {offset!r}",
            what_to_do="write the offset of the next record as an int, or an OffsetAndMetadata",
        )
    if not is_whole(at.leader_epoch) or not -1 <= at.leader_epoch < 2**31:
        raise LocalError(
            meaning=f"a leader epoch is a whole number from 0 on and below 2**31, not {at.leader_epoch!r}",
            what_to_do="leave it out, or write -1, where it is not known",
        )
    if not isinstance(at.metadata, str | None):
        raise LocalError(meaning=f"an offset's metadata is text, not {at.metadata!r}")
    if at.metadata is not None:
        check_text(at.metadata, "an offset's metadata")
    return at


def is_whole(number: object) -> TypeGuard[int]:
    """Whether it is a whole number: True, which Python takes for 1, is none."""
    return isinstance(number, int) and not isinstance(number, bool)


def partition_of(partition: TopicPartition | tuple[str, int]) -> TopicPartition:
    """A partition as callers write it. Raises LocalError for what no partition can be named."""
    parts: tuple[Any, ...] = tuple(partition) if isinstance(partition, tuple | list) else ()
    if len(parts) != 2 or not isinstance(parts[0], str):
        raise LocalError(
            meaning=f"a partition is a topic and a number, not {partition!r}",
            what_to_do='write TopicPartition("topic", 0); several are arguments of their own, as in pause(*partitions)',
        )
    topic, index = parts
    check_topic(topic)
    if not is_whole(index) or not 0 <= index < 2**31:
        raise LocalError(meaning=f"a partition is a whole number from 0 on and below 2**31, not {index!r}")
    return TopicPartition(topic, index)


def group_of(group: GroupMetadata | str) -> GroupMetadata:
    """A consumer's membership, or only its group, as callers write it. Raises LocalError."""
    member = GroupMetadata(group) if isinstance(group, str) else group
    if (
        not isinstance(member, GroupMetadata)
        or not (isinstance(member.group_id, str) and member.group_id)
        or not (is_whole(member.generation_id) and -1 <= member.generation_id < 2**31)
        or not isinstance(member.member_id, str)
        or not isinstance(member.group_instance_id, str | None)
    ):
        raise LocalError(
            meaning=f"a group is its name, or a consumer's metadata, not {group!r}",
            what_to_do="pass consumer.group_metadata()",
        )
    for text in (member.group_id, member.member_id, member.group_instance_id or ""):
        check_text(text, "a group or a member of it")
    return member


def headers_of(headers: HeadersLike) -> tuple[Header, ...]:
    """A mapping, or pairs of a name and a value; ``str`` is taken as UTF-8. Raises LocalError."""
    pairs = headers.items() if isinstance(headers, Mapping) else headers
    try:
        return tuple(
            _header(pair.key, pair.value) if isinstance(pair, Header) else _header(*_pair(pair)) for pair in pairs
        )
    except (TypeError, ValueError) as error:
        raise LocalError(
            meaning=f"headers cannot be {headers!r}",
            what_to_do='write headers={"name": b"value"}, or [("name", b"value")]',
        ) from error


def _pair(pair: tuple[str, bytes | str | None]) -> tuple[str, bytes | str | None]:
    if isinstance(pair, str):  # two letters would be a name and a value
        raise TypeError(pair)
    return pair


def _header(name: str, value: bytes | str | None) -> Header:
    if not isinstance(name, str):
        raise TypeError(name)
    check_text(name, "a header's name")
    return Header(name, value if isinstance(value, bytes) else bytes_of(value, "header value"))


def check_destination(topic: str, partition: int | None, timestamp: int | None) -> None:
    """Raises LocalError for what cannot name a topic, a partition or a time in ms."""
    check_topic(topic)
    if partition is not None and (not is_whole(partition) or partition < 0):
        raise LocalError(meaning=f"a partition is a whole number from 0 on, not {partition!r}")
    if timestamp is not None and (not is_whole(timestamp) or not 0 <= timestamp < 2**63):
        raise LocalError(
            meaning=f"a timestamp is whole milliseconds since 1970, not {timestamp!r}",
            what_to_do="write int(time.time() * 1000)",
        )


def check_topic(topic: str) -> None:
    """Raises LocalError for what no topic can be named."""
    if not isinstance(topic, str) or not topic:
        raise LocalError(meaning=f"a topic is named by text, not {topic!r}", what_to_do='write "topic"')
    check_text(topic, "a topic's name")


def names_of(names: Iterable[str], what: str) -> list[str]:
    """Names as callers list them. Raises LocalError for one text: each of its letters would be taken for a name."""
    if isinstance(names, str):
        raise LocalError(meaning=f"{what} are a list, not the text {names!r}", what_to_do=f"write [{names!r}]")
    listed = list(names)
    for name in listed:
        if not isinstance(name, str):
            raise LocalError(meaning=f"{what} are named by text, not {name!r}", what_to_do=f'write ["{name}"]')
        check_text(name, "a name")
    return listed


def settings_of(configs: Mapping[str, str | None]) -> Mapping[str, str | None]:
    """Settings as callers write them. Raises LocalError for a name or a value that is no text."""
    for name, value in configs.items():
        if not isinstance(name, str) or not isinstance(value, str | None):
            raise LocalError(
                meaning=f"settings are texts, not {name!r}: {value!r}",
                what_to_do=f'write "{name}": "{value}"',
            )
    return configs


def check_text(text: str, what: str) -> None:
    """Raises LocalError for text that the protocol cannot carry: a lone surrogate has no UTF-8 form."""
    if not text.isascii():
        encode_text(text, what)


def encode_text(text: str, what: str) -> bytes:
    """Text in UTF-8. Raises LocalError where it has no such form, as the names of some files."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise LocalError(
            meaning=f"UTF-8 cannot encode {what}, {text!r}: {error.reason}",
            what_to_do="clean the text, or encode it yourself where bytes are taken, as in os.fsencode(name)",
        ) from error


def times_of(times: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Times as callers write them. Raises LocalError for what is none: the protocol's negative numbers are ends of the
    log."""
    wanted = by_partition(times)
    for partition, time_ms in wanted.items():
        if not is_whole(time_ms) or not 0 <= time_ms < 2**63:
            raise LocalError(
                meaning=f"a time is whole milliseconds since 1970, from 0 on, not {time_ms!r} ({partition})",
                what_to_do="ask with 0 for the first record, or call beginning_offsets() or end_offsets()",
            )
    return wanted


def check_timeout(timeout_ms: int) -> None:
    """Raises LocalError for anything but whole milliseconds: ``poll(1.0)`` means a second elsewhere."""
    if not isinstance(timeout_ms, int) or timeout_ms < 0:
        what_to_do = "write the milliseconds as an int"
        if isinstance(timeout_ms, float) and timeout_ms >= 0:
            what_to_do = f"for {timeout_ms:g} seconds write poll({timeout_ms * 1000:.0f})"
        raise LocalError(meaning=f"poll() waits whole milliseconds, not {timeout_ms!r}", what_to_do=what_to_do)


def check_max_records(max_records: int) -> None:
    """Raises LocalError for anything but a whole number from 1 on: with 0 nothing would ever be returned."""
    if not isinstance(max_records, int) or max_records < 1:
        raise LocalError(meaning=f"poll() returns at most a whole number of records from 1 on, not {max_records!r}")


def bytes_of(value: bytes | str | None, what: str) -> bytes | None:
    """``str`` is taken as UTF-8. Raises LocalError for anything that is not bytes or str."""
    if value is None or isinstance(value, bytes):
        return value
    if isinstance(value, str):
        return encode_text(value, f"a record's {what}")
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
