"""The present activity of a cluster: rates between two looks, groups with their true lag, open transactions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from einmal.client.errors import KafkaError
from einmal.inspection.cluster import look
from einmal.inspection.lag import GroupLag, lag_of
from einmal.inspection.model import ClusterView, GroupView, PartitionView, TransactionView
from einmal.inspection.reading import partition_of, reason
from einmal.types import TopicPartition

if TYPE_CHECKING:
    from einmal.client.blocking.admin import AdminCalls
    from einmal.client.blocking.raw import RangeReader

COUNTED_EACH_LOOK: Final = 2_000
"""How many offsets of a partition are read at each look to count a group's lag: a dashboard must not be a load."""
_NO_TIME: Final = "a rate needs two looks"
_NOT_THERE: Final = "there is no such partition, or it may not be described"


@dataclass(frozen=True, slots=True)
class BrokerActivity:
    """``leads``: partitions that it leads."""

    node_id: int
    host: str
    port: int
    is_controller: bool
    leads: int


@dataclass(frozen=True, slots=True)
class TopicActivity:
    """``offsets_per_s``: new offsets in a second, records and markers alike. ``held_back``: offsets behind open
    transactions."""

    topic: str
    partitions: int
    under_replicated: int
    offsets_per_s: float | None
    held_back: int | None
    unknown: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupActivity:
    """``unread``, ``behind``, ``is_upper_bound``: as of ``GroupLag``."""

    group_id: str
    state: str
    members: int | None
    unread: int | None
    behind: int | None
    is_upper_bound: bool
    unknown: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Activity:
    time: int
    cluster_id: str | None
    brokers: tuple[BrokerActivity, ...]
    topics: tuple[TopicActivity, ...]
    groups: tuple[GroupActivity, ...] | None
    open_transactions: tuple[TransactionView, ...] | None
    unknown: Mapping[str, str] = field(default_factory=dict)


def watch(
    admin: AdminCalls, reader: RangeReader, before: ClusterView | None, clock: Callable[[], int]
) -> tuple[Activity, ClusterView]:
    """Look once more; rates are those since ``before``, which is the view that the last call returned. ``reader``: one
    that reads uncommitted records. ``clock``: ms since 1970. Raises KafkaError."""
    view = look(admin, clock)
    partitions = {TopicPartition(partition.topic, partition.partition): partition for partition in view.partitions}

    def without_offsets(at: TopicPartition) -> str | None:
        partition = partitions.get(at)
        return _NOT_THERE if partition is None else partition.unknown.get("high_watermark")

    lags: dict[str, GroupLag | str] = {}
    for group in view.groups or ():
        try:
            assigned = [partition_of(name) for member in group.members or () for name in member.partitions]
            lags[group.group_id] = lag_of(admin, reader, group.group_id, assigned, COUNTED_EACH_LOOK, without_offsets)
        except KafkaError as error:
            lags[group.group_id] = reason(error)
    return activity(view, lags, before), view


def activity(view: ClusterView, lags: Mapping[str, GroupLag | str], before: ClusterView | None) -> Activity:
    """``lags``: of each group, or why it is not known."""
    if before is not None and before.cluster_id != view.cluster_id:
        # Another cluster answers at the address: nothing has grown from one to the other.
        before = None
    leaders = [partition.leader for partition in view.partitions]
    topics: dict[str, list[PartitionView]] = {}
    for partition in view.partitions:
        topics.setdefault(partition.topic, []).append(partition)
    ends = (
        {}
        if before is None
        else {(partition.topic, partition.partition): partition.high_watermark for partition in before.partitions}
    )
    seconds = 0.0 if before is None else (view.time - before.time) / 1000
    transactions = view.transactions
    return Activity(
        view.time,
        view.cluster_id,
        tuple(
            BrokerActivity(
                broker.node_id,
                broker.host,
                broker.port,
                broker.node_id == view.controller,
                leaders.count(broker.node_id),
            )
            for broker in view.brokers
        ),
        tuple(_topic(name, partitions, ends, seconds) for name, partitions in topics.items()),
        None if view.groups is None else tuple(_group(group, lags[group.group_id]) for group in view.groups),
        None if transactions is None else tuple(transaction for transaction in transactions if transaction.is_open),
        {_FIELDS.get(name, name): why for name, why in view.unknown.items()},
    )


_FIELDS: Final = {"transactions": "open_transactions"}
"""Fields of a ``ClusterView`` that have another name here."""


def _topic(
    name: str, partitions: list[PartitionView], ends: Mapping[tuple[str, int], int | None], seconds: float
) -> TopicActivity:
    under_replicated = sum(len(partition.isr) < len(partition.replicas) for partition in partitions)
    grown, held_back = 0, 0
    unknown: dict[str, str] = {}
    for partition in partitions:
        high, stable = partition.high_watermark, partition.last_stable_offset
        if high is None or stable is None:
            unknown |= dict.fromkeys(("offsets_per_s", "held_back"), partition.unknown["high_watermark"])
            continue
        held_back += high - stable
        before = ends.get((partition.topic, partition.partition))
        if before is None or seconds <= 0:
            unknown.setdefault("offsets_per_s", _NO_TIME)
        else:
            # A topic may have been deleted and made again.
            grown += max(0, high - before)
    return TopicActivity(
        name,
        len(partitions),
        under_replicated,
        None if "offsets_per_s" in unknown else round(grown / seconds, 1),
        None if "held_back" in unknown else held_back,
        unknown,
    )


def _group(view: GroupView, lag: GroupLag | str) -> GroupActivity:
    members = None if view.members is None else len(view.members)
    unknown = {name: why for name, why in view.unknown.items() if name == "members"}
    if isinstance(lag, str):
        unknown |= dict.fromkeys(("unread", "behind"), lag)
        return GroupActivity(view.group_id, view.state, members, None, None, False, unknown)
    if lag.unread is None or lag.behind is None:
        why = next(partition.unknown["unread"] for partition in lag.partitions if partition.unread is None)
        unknown |= dict.fromkeys(("unread", "behind"), why)
    return GroupActivity(view.group_id, view.state, members, lag.unread, lag.behind, lag.is_upper_bound, unknown)
