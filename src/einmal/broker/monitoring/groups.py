"""Samples of the groups that are coordinated on this broker: what they have committed, and their lag.

The coordinator has the committed offsets, and the leaders have the ends. The ends of partitions that are led elsewhere
are asked for once for a page, at each leader; where it does not answer in time, there is no lag.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Final, NamedTuple

from einmal.broker.monitoring.page import Page, labels
from einmal.broker.monitoring.parts import Monitored
from einmal.groups.requests import CommittedPosition
from einmal.rpc.connection import NoAnswer
from einmal.types import BrokerId, ErrorCode, IsolationLevel, TopicPartition
from einmal.wire.api.list_offsets import (
    API,
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from einmal.wire.errors import WireError

_VERSION: Final = 8
_LATEST: Final = -1
_CONSUMER: Final = -1
_TIMEOUT_MS: Final = 1_000
_LANE: Final = "monitoring"
_ASKED_MAX: Final = 1_000
"""Partitions of one request: more would take the loops of both brokers for too long."""


class Ends(NamedTuple):
    high_watermark: int
    last_stable_offset: int


Positions = Mapping[str, CommittedPosition]
"""Those of all groups here, by their ids."""


async def positions_of(node: Monitored) -> Positions:
    return {group_id: position async for group_id, position in node.turns.paced(_positions(node))}


async def ends_of(node: Monitored, positions: Positions) -> Mapping[TopicPartition, Ends]:
    """The ends of all partitions with a position, as far as their leaders answer. They are read after the positions, of
    which those after the end are therefore no newer ones."""
    ends: dict[TopicPartition, Ends] = {}
    elsewhere: dict[BrokerId, dict[TopicPartition, None]] = {}
    async for topic_partition in node.turns.paced(at for position in positions.values() for at in position.offsets):
        partition = node.partitions.get(topic_partition)
        if partition is not None and partition.is_leader:
            ends[topic_partition] = Ends(partition.high_watermark, partition.last_stable_offset)
            continue
        topic = node.metadata.image.topics.get(topic_partition.topic)
        if topic is not None and topic_partition.partition < len(topic.partitions):
            leader = topic.partitions[topic_partition.partition].leader
            elsewhere.setdefault(leader, {})[topic_partition] = None
    for leader_ends in await asyncio.gather(*(_asked(node, *leadership) for leadership in sorted(elsewhere.items()))):
        ends |= leader_ends
    return ends


def _positions(node: Monitored) -> Iterator[tuple[str, CommittedPosition]]:
    for runtime in node.groups.runtimes():
        shard = runtime.shard
        if shard is not None:
            for group_id in shard.group_ids():
                yield group_id, shard.position(group_id)


async def _asked(node: Monitored, leader: BrokerId, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Ends]:
    ends: dict[TopicPartition, Ends] = {}
    remaining = sorted(partitions)
    while remaining:
        asked, remaining = remaining[:_ASKED_MAX], remaining[_ASKED_MAX:]
        every = await _latest(node, leader, asked, IsolationLevel.READ_UNCOMMITTED)
        if not every:
            # A leader that does not answer is asked once only.
            break
        stable = await _latest(node, leader, asked, IsolationLevel.READ_COMMITTED)
        ends |= {
            partition: Ends(every[partition], stable[partition])
            for partition in asked
            if partition in every and partition in stable
        }
    return ends


async def _latest(
    node: Monitored, leader: BrokerId, partitions: Iterable[TopicPartition], isolation: IsolationLevel
) -> dict[TopicPartition, int]:
    topics = tuple(
        ListOffsetsTopic(topic, tuple(ListOffsetsPartition(partition.partition, -1, _LATEST) for partition in group))
        for topic, group in groupby(partitions, key=lambda partition: partition.topic)
    )
    request = ListOffsetsRequest(_CONSUMER, isolation.value, topics)
    try:
        answer = await node.peers.ask(leader, API, _VERSION, request, timeout_ms=_TIMEOUT_MS, lane=_LANE)
    except (NoAnswer, WireError):
        return {}
    return {
        TopicPartition(topic.name, partition.partition_index): partition.offset
        for topic in answer.topics
        for partition in topic.partitions
        if partition.error_code is ErrorCode.none
    }


def add_groups(page: Page, positions: Positions, ends: Mapping[TopicPartition, Ends]) -> Iterator[None]:
    for group_id, position in positions.items():
        page.add("kafka_consumergroup_members", position.members, labels(consumergroup=group_id))
        yield
        yield from _add_offsets(page, group_id, position.offsets, ends)


def _add_offsets(
    page: Page, group_id: str, offsets: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, Ends]
) -> Iterator[None]:
    for topic, partitions in groupby(sorted(offsets), key=lambda partition: partition.topic):
        current_sum = lag_sum = 0
        is_known = True
        for partition in partitions:
            committed = offsets[partition]
            own = labels(consumergroup=group_id, topic=topic, partition=partition.partition)
            page.add("kafka_consumergroup_current_offset", committed, own)
            current_sum += committed
            # A client may commit any number: a negative one is no position. After the end, records were lost, or the
            # topic is another one. Readers begin elsewhere.
            has_lag = partition in ends and 0 <= committed <= ends[partition].high_watermark
            is_known = is_known and has_lag
            if has_lag:
                high_watermark, stable = ends[partition]
                lag = high_watermark - committed
                lag_sum += lag
                page.add("kafka_consumergroup_lag", lag, own)
                # An end that is asked for second may be newer.
                blocked = max(0, high_watermark - max(stable, committed))
                page.add("einmal_consumergroup_lag_blocked_by_open_txn", blocked, own)
            yield
        of_topic = labels(consumergroup=group_id, topic=topic)
        page.add("kafka_consumergroup_current_offset_sum", current_sum, of_topic)
        if is_known:
            # A part of it would be least where a leader is lost, and readers are behind.
            page.add("kafka_consumergroup_lag_sum", lag_sum, of_topic)
