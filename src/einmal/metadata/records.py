"""The records of ``__cluster_metadata``, in KRaft's own format.

A record has no key. Its value: frame version 1, API key and version as unsigned varints, then the fields in flexible
encoding. Everything is written in version 0; tagged fields that are not known here are skipped when reading. Knows
nothing of what a record does to the image (KIP-500, KIP-631).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias
from uuid import UUID

from einmal.types import BrokerId, LeaderEpoch, ProducerId
from einmal.wire.errors import Malformed, Truncated
from einmal.wire.messages import read_uvarint

_FRAME_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class BrokerEndpoint:
    name: str
    host: str
    port: int
    security_protocol: int = 0


@dataclass(frozen=True, slots=True)
class RegisterBrokerRecord:
    """A broker process has come up; ``broker_epoch`` tells it from the ones before."""

    broker_id: BrokerId
    incarnation_id: UUID
    broker_epoch: int
    end_points: tuple[BrokerEndpoint, ...]
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class TopicRecord:
    name: str
    topic_id: UUID


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    partition_id: int
    topic_id: UUID
    replicas: tuple[BrokerId, ...]
    isr: tuple[BrokerId, ...]
    leader: BrokerId
    leader_epoch: LeaderEpoch
    partition_epoch: int


@dataclass(frozen=True, slots=True)
class PartitionChangeRecord:
    """What changes in a partition; None: stays. Naming a leader, also the same one, begins a new leader epoch."""

    partition_id: int
    topic_id: UUID
    isr: tuple[BrokerId, ...] | None = None
    leader: BrokerId | None = None


@dataclass(frozen=True, slots=True)
class ConfigRecord:
    """``value`` None removes the setting."""

    resource_type: int
    resource_name: str
    name: str
    value: str | None


@dataclass(frozen=True, slots=True)
class RemoveTopicRecord:
    topic_id: UUID


@dataclass(frozen=True, slots=True)
class FeatureLevelRecord:
    """Level 0 removes the feature."""

    name: str
    feature_level: int


@dataclass(frozen=True, slots=True)
class ProducerIdsRecord:
    """Every producer id below ``next_producer_id`` has been given away in a block."""

    broker_id: BrokerId
    broker_epoch: int
    next_producer_id: ProducerId


MetadataRecord: TypeAlias = (
    RegisterBrokerRecord
    | TopicRecord
    | PartitionRecord
    | PartitionChangeRecord
    | ConfigRecord
    | RemoveTopicRecord
    | FeatureLevelRecord
    | ProducerIdsRecord
)


def encode(record: MetadataRecord) -> tuple[None, bytes]:
    """Key and value of the record in the log."""
    writer = _Writer()
    writer.uvarint(_FRAME_VERSION)
    writer.uvarint(_API_KEYS[type(record)])
    writer.uvarint(0)
    _WRITERS[type(record)](writer, record)
    return None, bytes(writer.buffer)


def decode(key: bytes | None, value: bytes | None, producer_id: ProducerId | None = None) -> MetadataRecord | None:
    """The record; None: a kind that is not ours. Raises Truncated or Malformed."""
    reader = _Reader(value or b"")
    if reader.uvarint() != _FRAME_VERSION:
        raise Malformed("frame version of a metadata record")
    read = _READERS.get(reader.uvarint())
    version = reader.uvarint()
    return None if read is None else read(reader, version)


# --- fields -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Writer:
    buffer: bytearray = field(default_factory=bytearray)

    def uvarint(self, value: int) -> None:
        while value >= 0x80:
            self.buffer.append(value & 0x7F | 0x80)
            value >>= 7
        self.buffer.append(value)

    def fixed(self, layout: str, value: int) -> None:
        self.buffer += struct.pack(layout, value)

    def string(self, value: str | None) -> None:
        if value is None:
            self.uvarint(0)
            return
        encoded = value.encode()
        self.uvarint(len(encoded) + 1)
        self.buffer += encoded

    def uuid(self, value: UUID) -> None:
        self.buffer += value.bytes

    def int32s(self, values: tuple[int, ...]) -> None:
        self.uvarint(len(values) + 1)
        for value in values:
            self.fixed(">i", value)

    def tags(self, fields: Mapping[int, bytes]) -> None:
        self.uvarint(len(fields))
        for tag, data in fields.items():
            self.uvarint(tag)
            self.uvarint(len(data))
            self.buffer += data


@dataclass(slots=True)
class _Reader:
    data: bytes
    position: int = 0

    def uvarint(self) -> int:
        value, self.position = read_uvarint(self.data, self.position)
        return value

    def take(self, size: int) -> bytes:
        taken = self.data[self.position : self.position + size]
        if len(taken) != size:
            raise Truncated("metadata record")
        self.position += size
        return taken

    def fixed(self, layout: str) -> int:
        value: int = struct.unpack(layout, self.take(struct.calcsize(layout)))[0]
        return value

    def nullable_string(self) -> str | None:
        size = self.uvarint()
        try:
            return None if size == 0 else self.take(size - 1).decode()
        except UnicodeDecodeError as error:
            raise Malformed("a string of a metadata record is not UTF-8") from error

    def string(self) -> str:
        return self.nullable_string() or ""

    def uuid(self) -> UUID:
        return UUID(bytes=self.take(16))

    def brokers(self) -> tuple[BrokerId, ...]:
        return tuple(BrokerId(self.fixed(">i")) for _ in range(self.uvarint() - 1))

    def tags(self) -> dict[int, bytes]:
        fields = {}
        for _ in range(self.uvarint()):
            tag = self.uvarint()
            fields[tag] = self.take(self.uvarint())
        return fields


# --- records ----------------------------------------------------------------------------------------------------


def _write_register_broker(writer: _Writer, record: RegisterBrokerRecord) -> None:
    writer.fixed(">i", record.broker_id)
    writer.uuid(record.incarnation_id)
    writer.fixed(">q", record.broker_epoch)
    writer.uvarint(len(record.end_points) + 1)
    for point in record.end_points:
        writer.string(point.name)
        writer.string(point.host)
        writer.fixed(">H", point.port)
        writer.fixed(">h", point.security_protocol)
        writer.tags({})
    writer.uvarint(1)  # no features
    writer.string(record.rack)
    writer.fixed(">b", 0)  # not fenced
    writer.tags({})


def _read_register_broker(reader: _Reader, version: int) -> RegisterBrokerRecord:
    broker_id = BrokerId(reader.fixed(">i"))
    if version >= 2:
        reader.take(1)
    incarnation_id = reader.uuid()
    broker_epoch = reader.fixed(">q")
    points = []
    for _ in range(reader.uvarint() - 1):
        points.append(BrokerEndpoint(reader.string(), reader.string(), reader.fixed(">H"), reader.fixed(">h")))
        reader.tags()
    for _ in range(reader.uvarint() - 1):
        reader.string()
        reader.take(4)
        reader.tags()
    return RegisterBrokerRecord(broker_id, incarnation_id, broker_epoch, tuple(points), reader.nullable_string())


def _write_topic(writer: _Writer, record: TopicRecord) -> None:
    writer.string(record.name)
    writer.uuid(record.topic_id)
    writer.tags({})


def _read_topic(reader: _Reader, version: int) -> TopicRecord:
    return TopicRecord(reader.string(), reader.uuid())


def _write_partition(writer: _Writer, record: PartitionRecord) -> None:
    writer.fixed(">i", record.partition_id)
    writer.uuid(record.topic_id)
    writer.int32s(record.replicas)
    writer.int32s(record.isr)
    writer.int32s(())  # removing
    writer.int32s(())  # adding
    writer.fixed(">i", record.leader)
    writer.fixed(">i", record.leader_epoch)
    writer.fixed(">i", record.partition_epoch)
    writer.tags({})


def _read_partition(reader: _Reader, version: int) -> PartitionRecord:
    partition_id, topic_id = reader.fixed(">i"), reader.uuid()
    replicas, isr, _removing, _adding = (reader.brokers() for _ in range(4))
    leader, leader_epoch, partition_epoch = (reader.fixed(">i") for _ in range(3))
    return PartitionRecord(
        partition_id, topic_id, replicas, isr, BrokerId(leader), LeaderEpoch(leader_epoch), partition_epoch
    )


_ISR_TAG: Final = 0
_LEADER_TAG: Final = 1


def _write_partition_change(writer: _Writer, record: PartitionChangeRecord) -> None:
    writer.fixed(">i", record.partition_id)
    writer.uuid(record.topic_id)
    tags: dict[int, bytes] = {}
    if record.isr is not None:
        isr = _Writer()
        isr.int32s(record.isr)
        tags[_ISR_TAG] = bytes(isr.buffer)
    if record.leader is not None:
        tags[_LEADER_TAG] = struct.pack(">i", record.leader)
    writer.tags(tags)


def _read_partition_change(reader: _Reader, version: int) -> PartitionChangeRecord:
    partition_id, topic_id, tags = reader.fixed(">i"), reader.uuid(), reader.tags()
    isr = _Reader(tags[_ISR_TAG]).brokers() if _ISR_TAG in tags else None
    leader = BrokerId(_Reader(tags[_LEADER_TAG]).fixed(">i")) if _LEADER_TAG in tags else None
    return PartitionChangeRecord(partition_id, topic_id, isr, leader)


def _write_config(writer: _Writer, record: ConfigRecord) -> None:
    writer.fixed(">b", record.resource_type)
    writer.string(record.resource_name)
    writer.string(record.name)
    writer.string(record.value)
    writer.tags({})


def _read_config(reader: _Reader, version: int) -> ConfigRecord:
    return ConfigRecord(reader.fixed(">b"), reader.string(), reader.string(), reader.nullable_string())


def _write_remove_topic(writer: _Writer, record: RemoveTopicRecord) -> None:
    writer.uuid(record.topic_id)
    writer.tags({})


def _read_remove_topic(reader: _Reader, version: int) -> RemoveTopicRecord:
    return RemoveTopicRecord(reader.uuid())


def _write_feature_level(writer: _Writer, record: FeatureLevelRecord) -> None:
    writer.string(record.name)
    writer.fixed(">h", record.feature_level)
    writer.tags({})


def _read_feature_level(reader: _Reader, version: int) -> FeatureLevelRecord:
    return FeatureLevelRecord(reader.string(), reader.fixed(">h"))


def _write_producer_ids(writer: _Writer, record: ProducerIdsRecord) -> None:
    writer.fixed(">i", record.broker_id)
    writer.fixed(">q", record.broker_epoch)
    writer.fixed(">q", record.next_producer_id)
    writer.tags({})


def _read_producer_ids(reader: _Reader, version: int) -> ProducerIdsRecord:
    return ProducerIdsRecord(BrokerId(reader.fixed(">i")), reader.fixed(">q"), ProducerId(reader.fixed(">q")))


_API_KEYS: Final[Mapping[type[Any], int]] = {
    RegisterBrokerRecord: 0,
    TopicRecord: 2,
    PartitionRecord: 3,
    ConfigRecord: 4,
    PartitionChangeRecord: 5,
    RemoveTopicRecord: 9,
    FeatureLevelRecord: 12,
    ProducerIdsRecord: 15,
}
_WRITERS: Final[Mapping[type[Any], Callable[[_Writer, Any], None]]] = {
    RegisterBrokerRecord: _write_register_broker,
    TopicRecord: _write_topic,
    PartitionRecord: _write_partition,
    ConfigRecord: _write_config,
    PartitionChangeRecord: _write_partition_change,
    RemoveTopicRecord: _write_remove_topic,
    FeatureLevelRecord: _write_feature_level,
    ProducerIdsRecord: _write_producer_ids,
}
_READERS: Final[Mapping[int, Callable[[_Reader, int], MetadataRecord]]] = {
    0: _read_register_broker,
    2: _read_topic,
    3: _read_partition,
    4: _read_config,
    5: _read_partition_change,
    9: _read_remove_topic,
    12: _read_feature_level,
    15: _read_producer_ids,
}
