"""The read model of a cluster: brokers, partitions, producers, transactions, groups and pipelines, as plain values.

Times are ms since 1970, durations ms. What is not known is None, and ``unknown`` has the reason under the field's name:
never a zero. ``schema.json`` describes the JSON form of these values, which is a contract.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from einmal.client.descriptions import OPEN_STATES

NOT_REPORTED: Final = "not reported by this broker"


@dataclass(frozen=True, slots=True)
class BrokerView:
    node_id: int
    host: str
    port: int
    rack: str | None


@dataclass(frozen=True, slots=True)
class ProducerView:
    """A producer in the state of a partition's leader."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    last_timestamp: int
    coordinator_epoch: int
    transaction_start_offset: int | None
    """None: it has no open transaction in this partition."""


@dataclass(frozen=True, slots=True)
class PartitionView:
    """``log_end_offset``: with the records that are not replicated yet."""

    topic: str
    partition: int
    leader: int | None
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    log_start_offset: int | None
    last_stable_offset: int | None
    high_watermark: int | None
    producers: tuple[ProducerView, ...] | None
    log_end_offset: int | None = None
    unknown: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TransactionView:
    """A transactional id, as its coordinator knows it. ``timeout_ms`` is None for a two-phase commit, which has none.
    ``age_ms``: of an open transaction."""

    transactional_id: str
    state: str
    coordinator: int
    producer_id: int
    producer_epoch: int | None
    is_two_phase: bool | None
    timeout_ms: int | None
    start_time: int | None
    age_ms: int | None
    partitions: tuple[str, ...] | None
    client_id: str | None = None
    client_host: str | None = None
    unknown: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        return self.state in OPEN_STATES

    @property
    def is_overdue(self) -> bool:
        """Whether its coordinator should have aborted it."""
        age, timeout = self.age_ms, self.timeout_ms
        return self.state == "Ongoing" and age is not None and timeout is not None and age > timeout


@dataclass(frozen=True, slots=True)
class GroupOffsetView:
    """A group's position in a partition. ``unread_offsets`` counts offsets up to the last stable offset, records and
    markers alike: the most that is unread. ``held_back`` are the offsets behind an open transaction."""

    topic: str
    partition: int
    offset: int
    unread_offsets: int | None
    held_back: int | None


@dataclass(frozen=True, slots=True)
class MemberView:
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    partitions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GroupView:
    group_id: str
    state: str
    protocol_type: str
    members: tuple[MemberView, ...] | None
    offsets: tuple[GroupOffsetView, ...] | None
    unknown: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class SourcePositionView:
    """A pipeline's position in a partition that it reads. ``offset``: the next one. ``unread_offsets``: as of a group;
    None where the topic is not one of this cluster."""

    topic: str
    partition: int
    offset: int
    unread_offsets: int | None
    unknown: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CommittedPipelineView:
    """A pipeline, an ingester or a mirror (``kind``), by its last commit record. ``name``: its transactional id.

    ``batch_id`` and ``records``: of its last transaction. ``unread_offsets``: of all its positions. The transaction is
    what a coordinator knows under its name; ``transaction_age_ms``: of an open one.
    """

    name: str
    kind: str | None = None
    batch_id: int | None = None
    records: int | None = None
    committed_at: int | None = None
    checkpoint: str | None = None
    positions: tuple[SourcePositionView, ...] | None = None
    unread_offsets: int | None = None
    transaction_state: str | None = None
    transaction_age_ms: int | None = None
    unknown: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Everything, at about ``time``: no broker freezes what it reports. ``pipelines``: those that commit here."""

    time: int
    cluster_id: str | None
    controller: int | None
    transaction_version: int
    brokers: tuple[BrokerView, ...]
    partitions: tuple[PartitionView, ...]
    transactions: tuple[TransactionView, ...] | None
    groups: tuple[GroupView, ...] | None
    unknown: Mapping[str, str] = field(default_factory=dict)
    pipelines: tuple[CommittedPipelineView, ...] | None = None
