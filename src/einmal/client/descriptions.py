"""The admin client's descriptions of topics, producers, transactions and groups: values, times in ms since 1970."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from einmal.client.cores.metadata_cache import BrokerAddress
from einmal.client.errors import KafkaError
from einmal.types import ErrorCode, TopicPartition

BROKER_DEFAULT: Final = -1


OPEN_STATES: Final = ("Ongoing", "PrepareCommit", "PrepareAbort")
"""States of a transaction that has begun and is not ended everywhere."""
_NO_TIMEOUT_MS: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to create; -1 leaves a number to the broker."""

    name: str
    num_partitions: int = BROKER_DEFAULT
    replication_factor: int = BROKER_DEFAULT
    configs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """``is_default``: it is not set for this topic."""

    name: str
    value: str | None
    is_default: bool
    is_read_only: bool
    is_sensitive: bool


@dataclass(frozen=True, slots=True)
class ClientQuota:
    """``entity``: names by type (user, client-id, ip); None is the default of the type. ``values``: by quota."""

    entity: Mapping[str, str | None]
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class ClusterDescription:
    cluster_id: str | None
    controller_id: int
    brokers: tuple[BrokerAddress, ...]
    transaction_version: int


@dataclass(frozen=True, slots=True)
class ProducerDescription:
    """A producer as a partition's leader knows it; ``current_transaction_start_offset`` is -1 without a transaction."""

    topic_partition: TopicPartition
    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    current_transaction_start_offset: int


@dataclass(frozen=True, slots=True)
class HangingProducers:
    """``producers``: those whose transactions hang; ``unseen``: partitions that could not be searched, and why."""

    producers: Sequence[ProducerDescription]
    unseen: Mapping[TopicPartition, KafkaError]


@dataclass(frozen=True, slots=True)
class TransactionListing:
    transactional_id: str
    producer_id: int
    state: str
    coordinator_id: int


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """``start_time`` is -1 when no transaction is open. ``timeout_ms`` is 2**31 - 1 for none: see ``is_two_phase``."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_time: int
    partitions: tuple[TopicPartition, ...]
    coordinator_id: int
    error_code: ErrorCode = ErrorCode.none

    @property
    def is_open(self) -> bool:
        """Whether it has begun and is not ended everywhere. Partitions do not show it: topics that may not be described
        are left out of them."""
        return self.state in OPEN_STATES and self.start_time >= 0

    @property
    def is_two_phase(self) -> bool:
        """Whether it takes part in a two-phase commit (KIP-939): it has no timeout, and may be prepared."""
        return self.timeout_ms == _NO_TIMEOUT_MS


@dataclass(frozen=True, slots=True)
class GroupListing:
    group_id: str
    protocol_type: str
    state: str


@dataclass(frozen=True, slots=True)
class MemberDescription:
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    partitions: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    group_id: str
    state: str
    protocol_type: str
    protocol: str
    members: tuple[MemberDescription, ...]
    coordinator_id: int
