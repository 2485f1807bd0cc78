"""The records of ``__cluster_metadata``, in KRaft's own format.

A record has no key. Its value: frame version 1, API key and version as unsigned varints, then the fields. Each kind is
written in the version that Apache Kafka 4.x writes; older ones are read. Knows nothing of what a record does to the
image (KIP-500, KIP-631; eligible leader replicas: KIP-966).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, TypeAlias
from uuid import UUID

from einmal.metadata.fields import (
    A_UUID,
    BOOL,
    BROKERS,
    BYTES,
    FLOAT64,
    INT8,
    INT16,
    INT32,
    INT64,
    NULLABLE_TEXT,
    TEXT,
    UINT16,
    UUIDS,
    Array,
    Field,
    Named,
    Reader,
    Structure,
    Tag,
    Unused,
    write_uvarint,
)
from einmal.security.acl import Acl, AclOperation, PatternType, Permission, ResourceType
from einmal.types import BrokerId, LeaderEpoch, ProducerId
from einmal.wire.errors import Malformed

_FRAME_VERSION: Final = 1

NO_LEADER: Final = BrokerId(-1)
RECOVERED: Final = 0
RECOVERING: Final = 1
"""Leader recovery state: elected uncleanly, may lack committed records until it reports that it has recovered."""


@dataclass(frozen=True, slots=True)
class BrokerEndpoint:
    name: str
    host: str
    port: int
    security_protocol: int = 0


@dataclass(frozen=True, slots=True)
class SupportedFeature:
    """Levels of a feature that a broker can work with, both ends included."""

    name: str
    min_supported_version: int
    max_supported_version: int


@dataclass(frozen=True, slots=True)
class RegisterBrokerRecord:
    """A broker process has started; ``broker_epoch``, the record's own offset, distinguishes it from earlier ones.

    ``log_dirs``: the ids of its data folders. A wiped folder gets a new id.
    """

    broker_id: BrokerId
    incarnation_id: UUID
    broker_epoch: int
    end_points: tuple[BrokerEndpoint, ...]
    rack: str | None = None
    features: tuple[SupportedFeature, ...] = ()
    is_fenced: bool = True
    in_controlled_shutdown: bool = False
    log_dirs: tuple[UUID, ...] = ()


FENCE: Final = 1
UNFENCE: Final = -1


@dataclass(frozen=True, slots=True)
class BrokerRegistrationChangeRecord:
    """``fenced``: FENCE, UNFENCE, or 0 for no change; ``in_controlled_shutdown``: 1, or 0 for no change."""

    broker_id: BrokerId
    broker_epoch: int
    fenced: int = 0
    in_controlled_shutdown: int = 0


@dataclass(frozen=True, slots=True)
class UnregisterBrokerRecord:
    broker_id: BrokerId
    broker_epoch: int


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
    removing: tuple[BrokerId, ...] = ()
    adding: tuple[BrokerId, ...] = ()
    leader_recovery_state: int = RECOVERED
    elr: tuple[BrokerId, ...] = ()
    last_known_elr: tuple[BrokerId, ...] = ()


@dataclass(frozen=True, slots=True)
class PartitionChangeRecord:
    """Changes of a partition; None: no change. A leader, also the same one, begins a new leader epoch."""

    partition_id: int
    topic_id: UUID
    isr: tuple[BrokerId, ...] | None = None
    leader: BrokerId | None = None
    replicas: tuple[BrokerId, ...] | None = None
    removing: tuple[BrokerId, ...] | None = None
    adding: tuple[BrokerId, ...] | None = None
    leader_recovery_state: int | None = None
    elr: tuple[BrokerId, ...] | None = None
    last_known_elr: tuple[BrokerId, ...] | None = None


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
class UserScramCredentialRecord:
    """A user's credential, new or changed (KIP-554). ``mechanism``: Kafka's number, see ``scram_users``."""

    name: str
    mechanism: int
    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int


@dataclass(frozen=True, slots=True)
class RemoveUserScramCredentialRecord:
    name: str
    mechanism: int


@dataclass(frozen=True, slots=True)
class FeatureLevelRecord:
    """Level 0: the feature is off."""

    name: str
    feature_level: int


@dataclass(frozen=True, slots=True)
class ProducerIdsRecord:
    """Every producer id below ``next_producer_id`` has been allocated in a block."""

    broker_id: BrokerId
    broker_epoch: int
    next_producer_id: ProducerId


class QuotaEntityPart(NamedTuple):
    """One dimension of what a quota applies to. ``entity_name`` None: all that have no quota of their own."""

    entity_type: str
    entity_name: str | None


@dataclass(frozen=True, slots=True)
class ClientQuotaRecord:
    """One value of a quota (KIP-546). ``remove``: there is none any more, whatever ``value`` is."""

    entity: tuple[QuotaEntityPart, ...]
    key: str
    value: float
    remove: bool = False


@dataclass(frozen=True, slots=True)
class AccessControlEntryRecord:
    """An ACL holds from now on; its id names it until it is removed."""

    acl_id: UUID
    resource_type: ResourceType
    resource_name: str
    pattern_type: PatternType
    principal: str
    host: str
    operation: AclOperation
    permission: Permission

    @property
    def acl(self) -> Acl:
        return Acl(
            self.resource_type,
            self.resource_name,
            self.pattern_type,
            self.principal,
            self.host,
            self.operation,
            self.permission,
        )


@dataclass(frozen=True, slots=True)
class RemoveAccessControlEntryRecord:
    acl_id: UUID


@dataclass(frozen=True, slots=True)
class NoOpRecord:
    """Changes nothing."""


MetadataRecord: TypeAlias = (
    RegisterBrokerRecord
    | BrokerRegistrationChangeRecord
    | UnregisterBrokerRecord
    | TopicRecord
    | PartitionRecord
    | PartitionChangeRecord
    | ConfigRecord
    | RemoveTopicRecord
    | UserScramCredentialRecord
    | FeatureLevelRecord
    | ProducerIdsRecord
    | ClientQuotaRecord
    | AccessControlEntryRecord
    | RemoveAccessControlEntryRecord
    | NoOpRecord
    | RemoveUserScramCredentialRecord
)


# --- layouts -----------------------------------------------------------------------------------------------------


class _Layout(NamedTuple):
    api_key: int
    version: int
    structure: Structure


_END_POINT: Final = Structure(
    BrokerEndpoint,
    (Field("name", TEXT), Field("host", TEXT), Field("port", UINT16), Field("security_protocol", INT16)),
)
_FEATURE: Final = Structure(
    SupportedFeature,
    (Field("name", TEXT), Field("min_supported_version", INT16), Field("max_supported_version", INT16)),
)
_QUOTA_ENTITY: Final = Structure(QuotaEntityPart, (Field("entity_type", TEXT), Field("entity_name", NULLABLE_TEXT)))

_LAYOUTS: Final[Mapping[type[Any], _Layout]] = {
    RegisterBrokerRecord: _Layout(
        0,
        3,
        Structure(
            RegisterBrokerRecord,
            (
                Field("broker_id", INT32),
                Field("is_migrating_zk_broker", Unused(BOOL, False), since=2),
                Field("incarnation_id", A_UUID),
                Field("broker_epoch", INT64),
                Field("end_points", Array(_END_POINT)),
                Field("features", Array(_FEATURE)),
                Field("rack", NULLABLE_TEXT),
                Field("is_fenced", BOOL),
                Field("in_controlled_shutdown", BOOL, since=1),
            ),
            (Tag(0, "log_dirs", UUIDS, absent=()),),
        ),
    ),
    UnregisterBrokerRecord: _Layout(
        1, 0, Structure(UnregisterBrokerRecord, (Field("broker_id", INT32), Field("broker_epoch", INT64)))
    ),
    TopicRecord: _Layout(2, 0, Structure(TopicRecord, (Field("name", TEXT), Field("topic_id", A_UUID)))),
    PartitionRecord: _Layout(
        3,
        2,
        Structure(
            PartitionRecord,
            (
                Field("partition_id", INT32),
                Field("topic_id", A_UUID),
                Field("replicas", BROKERS),
                Field("isr", BROKERS),
                Field("removing", BROKERS),
                Field("adding", BROKERS),
                Field("leader", INT32),
                Field("leader_epoch", INT32),
                Field("partition_epoch", INT32),
                # A broker has one log directory, so records need not name a replica's directory.
                Field("directories", Unused(UUIDS, ()), since=1),
            ),
            (
                Tag(0, "leader_recovery_state", INT8, absent=RECOVERED),
                Tag(1, "elr", BROKERS, absent=()),
                Tag(2, "last_known_elr", BROKERS, absent=()),
            ),
        ),
    ),
    ConfigRecord: _Layout(
        4,
        0,
        Structure(
            ConfigRecord,
            (
                Field("resource_type", INT8),
                Field("resource_name", TEXT),
                Field("name", TEXT),
                Field("value", NULLABLE_TEXT),
            ),
        ),
    ),
    PartitionChangeRecord: _Layout(
        5,
        2,
        Structure(
            PartitionChangeRecord,
            (Field("partition_id", INT32), Field("topic_id", A_UUID)),
            (
                Tag(0, "isr", BROKERS),
                Tag(1, "leader", INT32),
                Tag(2, "replicas", BROKERS),
                Tag(3, "removing", BROKERS),
                Tag(4, "adding", BROKERS),
                Tag(5, "leader_recovery_state", INT8),
                Tag(6, "elr", BROKERS),
                Tag(7, "last_known_elr", BROKERS),
            ),
        ),
    ),
    RemoveTopicRecord: _Layout(9, 0, Structure(RemoveTopicRecord, (Field("topic_id", A_UUID),))),
    UserScramCredentialRecord: _Layout(
        11,
        0,
        Structure(
            UserScramCredentialRecord,
            (
                Field("name", TEXT),
                Field("mechanism", INT8),
                Field("salt", BYTES),
                Field("stored_key", BYTES),
                Field("server_key", BYTES),
                Field("iterations", INT32),
            ),
        ),
    ),
    FeatureLevelRecord: _Layout(
        12, 0, Structure(FeatureLevelRecord, (Field("name", TEXT), Field("feature_level", INT16)))
    ),
    ClientQuotaRecord: _Layout(
        14,
        0,
        Structure(
            ClientQuotaRecord,
            (
                Field("entity", Array(_QUOTA_ENTITY)),
                Field("key", TEXT),
                Field("value", FLOAT64),
                Field("remove", BOOL),
            ),
        ),
    ),
    ProducerIdsRecord: _Layout(
        15,
        0,
        Structure(
            ProducerIdsRecord,
            (Field("broker_id", INT32), Field("broker_epoch", INT64), Field("next_producer_id", INT64)),
        ),
    ),
    BrokerRegistrationChangeRecord: _Layout(
        17,
        1,
        Structure(
            BrokerRegistrationChangeRecord,
            (Field("broker_id", INT32), Field("broker_epoch", INT64)),
            (Tag(0, "fenced", INT8, absent=0), Tag(1, "in_controlled_shutdown", INT8, absent=0)),
        ),
    ),
    AccessControlEntryRecord: _Layout(
        18,
        0,
        Structure(
            AccessControlEntryRecord,
            (
                Field("acl_id", A_UUID),
                Field("resource_type", Named(ResourceType)),
                Field("resource_name", TEXT),
                Field("pattern_type", Named(PatternType)),
                Field("principal", TEXT),
                Field("host", TEXT),
                Field("operation", Named(AclOperation)),
                Field("permission", Named(Permission)),
            ),
        ),
    ),
    RemoveAccessControlEntryRecord: _Layout(
        19, 0, Structure(RemoveAccessControlEntryRecord, (Field("acl_id", A_UUID),))
    ),
    NoOpRecord: _Layout(20, 0, Structure(NoOpRecord, ())),
    RemoveUserScramCredentialRecord: _Layout(
        22, 0, Structure(RemoveUserScramCredentialRecord, (Field("name", TEXT), Field("mechanism", INT8)))
    ),
}
_STRUCTURES: Final[Mapping[int, Structure]] = {layout.api_key: layout.structure for layout in _LAYOUTS.values()}


def encode(record: MetadataRecord) -> tuple[None, bytes]:
    """Key and value of the record in the log."""
    api_key, version, structure = _LAYOUTS[type(record)]
    buffer = bytearray()
    for number in (_FRAME_VERSION, api_key, version):
        write_uvarint(buffer, number)
    structure.write(buffer, record)
    return None, bytes(buffer)


def decode(key: bytes | None, value: bytes | None, producer_id: ProducerId | None = None) -> MetadataRecord | None:
    """The record; None: a kind that is not ours. Raises Truncated or Malformed."""
    reader = Reader(value or b"")
    frame_version = reader.uvarint()
    if frame_version != _FRAME_VERSION:
        raise Malformed(f"expected frame version {_FRAME_VERSION} of a metadata record, found {frame_version}")
    structure = _STRUCTURES.get(reader.uvarint())
    version = reader.uvarint()
    record: MetadataRecord | None = None if structure is None else structure.read(reader, version)
    return record
