"""What a leader does with markers, whoever sends them: on three whole nodes, on virtual time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from einmal.broker.coordinators.marker_writer import Markers, TransactionEnd
from einmal.broker.node import Node
from einmal.metadata.image import CONSUMER_OFFSETS, TRANSACTION_STATE
from einmal.metadata.partition_list import PartitionList
from einmal.replication.leader import Membership
from einmal.types import (
    BrokerId,
    ErrorCode,
    LeaderEpoch,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionVersion,
)
from tests.broker.three_nodes import IDS, ThreeNodes
from tests.virtual_time import virtual_time

DATA = TopicPartition("t", 0)


def marker(epoch: int = 1, *, coordinator_epoch: int = 5, version: TransactionVersion = TransactionVersion.TV_2) -> Any:
    return TransactionEnd(
        producer=ProducerIdAndEpoch(ProducerId(7), ProducerEpoch(epoch)),
        committed=True,
        coordinator_epoch=coordinator_epoch,
        transaction_version=version,
    )


class World:
    """``leader`` leads the data partition."""

    def __init__(self, nodes: ThreeNodes) -> None:
        self.nodes = nodes
        self.leader_id = nodes.leader(DATA)
        self.followers = [node_id for node_id in nodes.nodes if node_id != self.leader_id]

    @property
    def leader(self) -> Node:
        return self.nodes.nodes[self.leader_id]

    @property
    def end(self) -> int:
        partition = self.leader.partitions.get(DATA)
        assert partition is not None
        return partition.log_end_offset

    async def write(self, *asked: Markers, node_id: int | None = None) -> list[dict[TopicPartition, ErrorCode]]:
        node_id = node_id or self.leader_id
        work = self.nodes.nodes[node_id].transactions.markers.write_markers(asked)
        answer: list[dict[TopicPartition, ErrorCode]] = await self.nodes.on(node_id, work)
        return answer


def coordinators_have_moved(node: Node) -> None:
    """As if the coordinators' partitions had got a new leader seven times."""
    topics = node.metadata.image.topics
    moved = [replace(each, leader_epoch=LeaderEpoch(7)) for each in topics[TRANSACTION_STATE].partitions]
    topics[TRANSACTION_STATE] = replace(topics[TRANSACTION_STATE], partitions=PartitionList(moved))


async def started() -> World:
    nodes = ThreeNodes()
    await nodes.start()
    for name in (TRANSACTION_STATE, CONSUMER_OFFSETS, "t"):
        await nodes.make_topic(name)
    for index in range(3):
        await nodes.led(TopicPartition(CONSUMER_OFFSETS, index))
    await nodes.led(DATA)
    for node in nodes.nodes.values():
        coordinators_have_moved(node)
    return World(nodes)


@virtual_time
async def test_the_leader_answers_when_the_marker_is_committed() -> None:
    world = await started()
    assert await world.write(Markers(marker(), (DATA,))) == [{DATA: ErrorCode.none}]
    partition = world.leader.partitions.get(DATA)
    assert partition is not None
    assert partition.high_watermark == 1


@virtual_time
async def test_a_broker_that_does_not_lead_writes_no_marker() -> None:
    world = await started()
    for node_id in world.followers:
        answer = await world.write(Markers(marker(), (DATA,)), node_id=node_id)
        assert answer == [{DATA: ErrorCode.not_leader_or_follower}]
    assert world.end == 0


@virtual_time
async def test_a_marker_that_is_not_committed_in_time_does_not_hold_up_the_answer_of_others() -> None:
    world = await started()
    for node_id in world.followers:
        world.nodes.pause(node_id)
    other = TopicPartition("unknown", 0)
    since = world.nodes.loop.time()
    answer = await world.write(Markers(marker(), (DATA, other)))
    assert answer == [{DATA: ErrorCode.request_timed_out, other: ErrorCode.unknown_topic_or_partition}]
    assert world.nodes.loop.time() - since < 2.1
    for node_id in world.followers:
        world.nodes.resume(node_id)
    await world.nodes.until(lambda: world.nodes.leader(DATA) > 0)


@virtual_time
async def test_while_too_few_replicas_are_in_sync_the_retries_leave_no_copies() -> None:
    world = await started()
    partition = world.leader.partitions.get(DATA)
    assert partition is not None
    assert partition.replication is not None
    alone = Membership(
        tuple(map(BrokerId, IDS)), (BrokerId(world.leader_id),), partition.replication.partition_epoch + 1
    )
    partition.replication.membership_changed(alone, 0)
    for _ in range(3):
        assert await world.write(Markers(marker(), (DATA,))) == [{DATA: ErrorCode.not_enough_replicas}]
    assert world.end == 0


@virtual_time
async def test_an_earlier_coordinator_is_fenced_also_after_the_partition_has_another_leader() -> None:
    world = await started()
    assert await world.write(Markers(marker(coordinator_epoch=5), (DATA,))) == [{DATA: ErrorCode.none}]
    world.nodes.crash(world.leader_id)
    world.leader_id = await world.nodes.led(DATA)
    for version in TransactionVersion:
        late = Markers(marker(coordinator_epoch=4, version=version), (DATA,))
        assert await world.write(late) == [{DATA: ErrorCode.transaction_coordinator_fenced}]
    # Its successor may write it once more: nobody knows whether the first one had written it.
    for epoch in (5, 6):
        again = Markers(marker(coordinator_epoch=epoch), (DATA,))
        assert await world.write(again) == [{DATA: ErrorCode.none}]
    assert await world.write(Markers(marker(0, coordinator_epoch=7), (DATA,))) == [
        {DATA: ErrorCode.invalid_producer_epoch}
    ]


@virtual_time
async def test_a_group_coordinator_that_is_loading_is_not_there_yet_and_writes_nothing() -> None:
    world = await started()
    offsets = TopicPartition(CONSUMER_OFFSETS, 0)
    node_id = world.nodes.leader(offsets)
    assert await world.write(Markers(marker(), (offsets,)), node_id=node_id) == [{offsets: ErrorCode.none}]
    runtime = world.nodes.nodes[node_id].groups.runtime(0)
    assert runtime is not None
    end = runtime.partition.log_end_offset

    async def while_it_loads() -> Any:
        runtime.start()
        assert not runtime.is_loaded
        return await world.nodes.nodes[node_id].transactions.markers.write_markers([Markers(marker(), (offsets,))])

    answer = await world.nodes.on(node_id, while_it_loads())
    assert answer == [{offsets: ErrorCode.not_leader_or_follower}]
    assert runtime.partition.log_end_offset == end
    other = next(each for each in world.nodes.nodes if each != node_id)
    assert await world.write(Markers(marker(), (offsets,)), node_id=other) == [
        {offsets: ErrorCode.not_leader_or_follower}
    ]


@virtual_time
async def test_no_marker_is_written_into_the_transaction_log() -> None:
    world = await started()
    log = TopicPartition(TRANSACTION_STATE, 0)
    node_id = await world.nodes.led(log)
    answer = await world.write(Markers(marker(), (log,)), node_id=node_id)
    assert answer == [{log: ErrorCode.topic_authorization_failed}]


@virtual_time
async def test_a_brokers_markers_are_late_when_it_has_used_a_later_connection() -> None:
    world = await started()
    markers = world.leader.transactions.markers
    assert not markers.is_late("node-1", 5)
    assert not markers.is_late("node-1", 5)
    assert not markers.is_late("node-2", 3), "another broker"
    assert not markers.is_late("node-1", 7)
    assert markers.is_late("node-1", 5)
    assert not markers.is_late("node-1", 7)
    assert not markers.is_late("node-9", 2), "no broker"
    assert not markers.is_late("node-9", 1)
    assert not markers.is_late("admin", 1)
