"""A look at a whole cluster: the read model's values from what its brokers report."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from einmal.client.errors import KafkaError
from einmal.inspection.model import (
    BrokerView,
    ClusterView,
    GroupOffsetView,
    GroupView,
    MemberView,
    PartitionView,
    ProducerView,
    TransactionView,
)
from einmal.inspection.reading import Bounds, bounds_of, log_ends_of, producers_of, reason, transactions_of
from einmal.types import TopicPartition

if TYPE_CHECKING:
    from einmal.client.blocking.admin import AdminCalls
    from einmal.client.cores.metadata_cache import PartitionMetadata
    from einmal.client.descriptions import GroupListing, MemberDescription


def look(admin: AdminCalls, clock: Callable[[], int]) -> ClusterView:
    """Read everything. ``clock``: ms since 1970. Raises KafkaError where not even metadata is to be had."""
    described = admin.describe_cluster()
    unknown: dict[str, str] = {}
    partitions = partitions_of(admin)
    # Where a leader is waited for, this is much later than the question.
    now = clock()
    bounds = {TopicPartition(partition.topic, partition.partition): partition for partition in partitions}
    return ClusterView(
        now,
        described.cluster_id,
        described.controller_id if described.controller_id >= 0 else None,
        described.transaction_version,
        tuple(BrokerView(broker.node_id, broker.host, broker.port, broker.rack) for broker in described.brokers),
        partitions,
        _transactions(admin, clock, unknown),
        _groups(admin, bounds, unknown),
        unknown=unknown,
    )


def partitions_of(admin: AdminCalls, topics: Iterable[str] | None = None) -> tuple[PartitionView, ...]:
    """The partitions of these topics, or of all, with offsets and producers. Raises KafkaError."""
    described = admin.describe_topics(topics)
    metadata = {
        TopicPartition(name, index): partition
        for name, topic in described.items()
        for index, partition in topic.partitions.items()
    }
    bounds, no_bounds = bounds_of(admin, metadata)
    # What has no bounds now has no leader that answers: each further question would wait for one again.
    log_ends, no_log_ends = log_ends_of(admin, bounds)
    producers, no_producers = producers_of(admin, bounds)
    return tuple(
        _partition(
            at,
            partition,
            bounds.get(at),
            producers.get(at),
            log_ends.get(at),
            _unknown(at, no_bounds, no_bounds | no_log_ends, no_bounds | no_producers),
        )
        for at, partition in metadata.items()
    )


def _unknown(
    at: TopicPartition,
    no_bounds: Mapping[TopicPartition, str],
    no_log_ends: Mapping[TopicPartition, str],
    no_producers: Mapping[TopicPartition, str],
) -> dict[str, str]:
    unknown = {}
    if at in no_log_ends:
        unknown["log_end_offset"] = no_log_ends[at]
    if at in no_bounds:
        unknown |= dict.fromkeys(("log_start_offset", "last_stable_offset", "high_watermark"), no_bounds[at])
    if at in no_producers:
        unknown["producers"] = no_producers[at]
    return unknown


def _partition(
    at: TopicPartition,
    metadata: PartitionMetadata,
    bounds: Bounds | None,
    producers: tuple[ProducerView, ...] | None,
    log_end: int | None,
    unknown: Mapping[str, str],
) -> PartitionView:
    start, stable, high = bounds or (None, None, None)
    return PartitionView(
        at.topic,
        at.partition,
        metadata.leader if metadata.leader >= 0 else None,
        metadata.leader_epoch,
        metadata.replicas,
        metadata.isr,
        start,
        stable,
        high,
        producers,
        log_end,
        unknown,
    )


def _transactions(
    admin: AdminCalls, clock: Callable[[], int], unknown: dict[str, str]
) -> tuple[TransactionView, ...] | None:
    try:
        return transactions_of(admin, admin.list_transactions(), clock())
    except KafkaError as error:
        unknown["transactions"] = reason(error)
        return None


def _groups(
    admin: AdminCalls, partitions: Mapping[TopicPartition, PartitionView], unknown: dict[str, str]
) -> tuple[GroupView, ...] | None:
    try:
        return tuple(_group(admin, group, partitions) for group in admin.list_groups())
    except KafkaError as error:
        unknown["groups"] = reason(error)
        return None


def _group(admin: AdminCalls, listed: GroupListing, partitions: Mapping[TopicPartition, PartitionView]) -> GroupView:
    members, offsets, unknown = None, None, {}
    try:
        described = admin.describe_groups([listed.group_id])[listed.group_id]
        members = tuple(map(_member, described.members))
    except KafkaError as error:
        unknown["members"] = reason(error)
    try:
        committed = admin.list_group_offsets(listed.group_id, require_stable=False)
        offsets = tuple(_offset(at, committed[at].offset, partitions.get(at)) for at in sorted(committed))
    except KafkaError as error:
        unknown["offsets"] = reason(error)
    return GroupView(listed.group_id, listed.state, listed.protocol_type, members, offsets, unknown)


def _member(member: MemberDescription) -> MemberView:
    return MemberView(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        member.client_host,
        tuple(map(str, member.partitions)),
    )


def _offset(at: TopicPartition, offset: int, partition: PartitionView | None) -> GroupOffsetView:
    stable, high = (partition.last_stable_offset, partition.high_watermark) if partition else (None, None)
    # Behind a position after the end nothing is known: records were lost, or the topic is another one.
    unread = None if stable is None or (high is not None and offset > high) else max(0, stable - offset)
    return GroupOffsetView(
        at.topic, at.partition, offset, unread, None if stable is None or high is None else high - stable
    )
