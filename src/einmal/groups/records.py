"""The records of ``__consumer_offsets``, and Kafka's bytes for them, both ways.

Keys: version 0 or 1 is an offset {group, topic, partition}, version 2 a group of the classic protocol; others (KIP-848,
share and streams groups) are not ours and are skipped. Offset values are read in versions 0-4 and written in 3, or in 1
when they carry a time of expiry, as Kafka does; group values are read in 0-4 and written in 3. A null value is a
tombstone.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, TypeAlias

from einmal.groups.fields import FieldReader
from einmal.types import ProducerId

NO_TIMESTAMP: Final = -1

TEXT_BYTES_MAX: Final = 32_000
"""Limit of a name in a record. A string's length has 16 bits, and a member id is a name and a random tail."""


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """The next offset to read of one partition. Timestamps are wall clock; ``expire_timestamp`` -1: by retention."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp: int
    expire_timestamp: int = NO_TIMESTAMP


@dataclass(frozen=True, slots=True)
class OffsetRecord:
    """``producer_id``: written inside a transaction of this producer, so pending until its marker."""

    group_id: str
    topic: str
    partition: int
    value: CommittedOffset | None
    producer_id: ProducerId | None = None


@dataclass(frozen=True, slots=True)
class MemberMetadata:
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """One generation of a group: what a new coordinator must know to let its members continue."""

    protocol_type: str
    generation_id: int
    protocol_name: str | None
    leader: str | None
    current_state_timestamp: int
    members: tuple[MemberMetadata, ...]


@dataclass(frozen=True, slots=True)
class GroupRecord:
    group_id: str
    value: GroupMetadata | None


Record: TypeAlias = OffsetRecord | GroupRecord

_OFFSET_KEY_VERSION: Final = 1
_GROUP_KEY_VERSION: Final = 2
_OFFSET_VALUE_VERSION: Final = 3
_OFFSET_VALUE_VERSION_WITH_EXPIRY: Final = 1
_GROUP_VALUE_VERSION: Final = 3


def encode(record: Record) -> tuple[bytes, bytes | None]:
    """Key and value of a record."""
    if isinstance(record, OffsetRecord):
        key = _int16(_OFFSET_KEY_VERSION) + _string(record.group_id) + _string(record.topic) + _int32(record.partition)
        return key, None if record.value is None else _encode_offset(record.value)
    key = _int16(_GROUP_KEY_VERSION) + _string(record.group_id)
    return key, None if record.value is None else _encode_group(record.value)


def decode(key: bytes | None, value: bytes | None, producer_id: ProducerId | None = None) -> Record | None:
    """The record of a key and a value; None when the key is of a kind that is not ours, or absent.

    ``producer_id``: of the batch, when that is transactional. Raises Truncated or Malformed.
    """
    if key is None:
        return None
    reader = FieldReader(key)
    version = reader.int16()
    if version in (0, _OFFSET_KEY_VERSION):
        group_id, topic, partition = reader.string(), reader.string(), reader.int32()
        return OffsetRecord(group_id, topic, partition, None if value is None else _decode_offset(value), producer_id)
    if version == _GROUP_KEY_VERSION:
        return GroupRecord(reader.string(), None if value is None else _decode_group(value))
    return None


def _encode_offset(value: CommittedOffset) -> bytes:
    if value.expire_timestamp != NO_TIMESTAMP:
        return (
            _int16(_OFFSET_VALUE_VERSION_WITH_EXPIRY)
            + _int64(value.offset)
            + _string(value.metadata)
            + _int64(value.commit_timestamp)
            + _int64(value.expire_timestamp)
        )
    return (
        _int16(_OFFSET_VALUE_VERSION)
        + _int64(value.offset)
        + _int32(value.leader_epoch)
        + _string(value.metadata)
        + _int64(value.commit_timestamp)
    )


def _decode_offset(value: bytes) -> CommittedOffset:
    reader = FieldReader(value)
    version = reader.value_version("offset")
    offset = reader.int64()
    leader_epoch = reader.int32() if version >= 3 else -1
    metadata = reader.string()
    commit_timestamp = reader.int64()
    expire_timestamp = reader.int64() if version == 1 else NO_TIMESTAMP
    reader.tagged_fields()
    return CommittedOffset(offset, leader_epoch, metadata, commit_timestamp, expire_timestamp)


def _encode_group(value: GroupMetadata) -> bytes:
    parts = [
        _int16(_GROUP_VALUE_VERSION),
        _string(value.protocol_type),
        _int32(value.generation_id),
        _string(value.protocol_name),
        _string(value.leader),
        _int64(value.current_state_timestamp),
        _int32(len(value.members)),
    ]
    for member in value.members:
        parts += (
            _string(member.member_id),
            _string(member.group_instance_id),
            _string(member.client_id),
            _string(member.client_host),
            _int32(member.rebalance_timeout_ms),
            _int32(member.session_timeout_ms),
            _bytes(member.subscription),
            _bytes(member.assignment),
        )
    return b"".join(parts)


def _decode_group(value: bytes) -> GroupMetadata:
    reader = FieldReader(value)
    version = reader.value_version("group")
    protocol_type = reader.string()
    generation_id = reader.int32()
    protocol_name = reader.nullable_string()
    leader = reader.nullable_string()
    current_state_timestamp = reader.int64() if version >= 2 else NO_TIMESTAMP
    members = tuple(_decode_member(reader, version) for _ in range(reader.array_length()))
    reader.tagged_fields()
    return GroupMetadata(protocol_type, generation_id, protocol_name, leader, current_state_timestamp, members)


def _decode_member(reader: FieldReader, version: int) -> MemberMetadata:
    member_id = reader.string()
    group_instance_id = reader.nullable_string() if version >= 3 else None
    client_id = reader.string()
    client_host = reader.string()
    rebalance_timeout_ms = reader.int32() if version >= 1 else None
    session_timeout_ms = reader.int32()
    member = MemberMetadata(
        member_id,
        group_instance_id,
        client_id,
        client_host,
        # Before version 1 a member had as long to rejoin as its session lasts.
        session_timeout_ms if rebalance_timeout_ms is None else rebalance_timeout_ms,
        session_timeout_ms,
        reader.blob(),
        reader.blob(),
    )
    reader.tagged_fields()
    return member


def text_bytes(text: str | None) -> int:
    """Bytes of a text in a record, without its length."""
    if text is None:
        return 0
    return len(text) if text.isascii() else len(text.encode())


_int16 = struct.Struct(">h").pack
_int32 = struct.Struct(">i").pack
_int64 = struct.Struct(">q").pack


def _string(value: str | None) -> bytes:
    if value is None:
        return _int16(-1)
    encoded = value.encode()
    return _int16(len(encoded)) + encoded


def _bytes(value: bytes) -> bytes:
    return _int32(len(value)) + value
