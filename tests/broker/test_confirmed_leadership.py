"""Read for certain: who was replaced and does not know it answers no positions from the past, and ends no logs.

Three whole nodes on virtual time. Whoever asks reaches the node at all times; the node may not reach its peers.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from einmal.broker.node import Node
from einmal.client.aio import RangeReader
from einmal.client.errors import OffsetOutOfRange, RetriableError
from einmal.client.records import OffsetRange
from einmal.groups.requests import OffsetCommit, OffsetFetchGroup, OffsetToCommit
from einmal.metadata.image import CONSUMER_OFFSETS
from einmal.simulation.loop import Host
from einmal.types import ErrorCode, TopicPartition
from einmal.wire.java_hash import partition_for_id
from tests.broker.three_nodes import IDS, ThreeNodes
from tests.virtual_time import virtual_time

GROUP = "g"
DATA = TopicPartition("t", 0)
OFFSETS = TopicPartition(CONSUMER_OFFSETS, partition_for_id(GROUP, 3))


async def started(**settings: Any) -> ThreeNodes:
    world = ThreeNodes(**settings)
    await world.start()
    await world.make_topic(CONSUMER_OFFSETS)
    await world.make_topic("t")
    await world.led(OFFSETS)
    return world


async def commit(world: ThreeNodes, node_id: int, offset: int) -> ErrorCode:
    request = OffsetCommit(
        group_id=GROUP,
        generation_id=-1,
        member_id="",
        group_instance_id=None,
        offsets={DATA: OffsetToCommit(offset, -1, "")},
    )
    node = world.nodes[node_id]
    answer = await world.on(node_id, node.groups.ask(GROUP, lambda shard, now: shard.offset_commit(request, now)))
    return answer if isinstance(answer, ErrorCode) else answer.topics[0].partitions[0].error_code


async def insist(world: ThreeNodes, offset: int) -> None:
    for _ in range(500):
        if await commit(world, await world.led(OFFSETS), offset) is ErrorCode.none:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it cannot be committed")


async def position(node: Node) -> int | ErrorCode:
    group = OffsetFetchGroup(GROUP, (DATA,))
    answer = await node.groups.ask_for_certain(GROUP, lambda shard, _: shard.offset_fetch(group, require_stable=True))
    return answer if isinstance(answer, ErrorCode) else int(answer.topics[0].partitions[0].committed_offset)


async def fetch(world: ThreeNodes, node_id: int) -> int | ErrorCode:
    found: int | ErrorCode = await world.on(node_id, position(world.nodes[node_id]))
    return found


def isolate(world: ThreeNodes, node_id: int) -> None:
    for other in IDS:
        if other != node_id:
            world.network.cut(f"b{node_id}", f"b{other}")
            world.network.cut(f"b{other}", f"b{node_id}")


@virtual_time
async def test_a_coordinator_that_was_replaced_answers_nothing_from_the_past() -> None:
    world = await started()
    await insist(world, 1)
    old = world.leader(OFFSETS)
    deposed = world.nodes[old]
    isolate(world, old)
    others = [world.nodes[node_id] for node_id in IDS if node_id != old]
    await world.until(
        lambda: all(
            node.metadata.image.topics[CONSUMER_OFFSETS].partitions[OFFSETS.partition].leader != old for node in others
        )
    )
    new = others[0].metadata.image.topics[CONSUMER_OFFSETS].partitions[OFFSETS.partition].leader
    await world.until(lambda: not isinstance(world.nodes[new].groups.runtime_of(GROUP), ErrorCode))
    for _ in range(500):
        if await commit(world, new, 2) is ErrorCode.none:
            break
        await asyncio.sleep(0.02)
    assert deposed.groups.runtime(OFFSETS.partition) is not None, "it has heard of its successor"
    assert await fetch(world, old) is ErrorCode.not_coordinator
    assert await fetch(world, new) == 2
    world.network.heal()
    await world.until(lambda: world.leader(OFFSETS) == new)
    assert await fetch(world, old) is ErrorCode.not_coordinator


async def ask_beyond_the_end(world: ThreeNodes, node_id: int) -> None:
    """A client whose whole view of the cluster is this node's."""
    host = Host("client")
    world.network.light(host.name)

    async def read() -> None:
        async with RangeReader(
            bootstrap_servers=f"b{node_id}:9092",
            default_api_timeout_ms=1_000,
            network=world.network.of(host),
            clock=world.clock,
            random=random.Random(1),
        ) as reader:
            async for _ in reader.read({DATA: OffsetRange(5, 6)}):
                raise AssertionError("there is no such offset")

    await world.loop.create_task(read(), context=host.context.copy())


@virtual_time
async def test_only_the_leader_reports_the_end_of_a_log() -> None:
    world = await started()
    old = await world.led(DATA)
    with pytest.raises(OffsetOutOfRange):
        await ask_beyond_the_end(world, old)
    isolate(world, old)
    for other in IDS:
        # No client learns from another node who leads.
        if other != old:
            world.network.cut("client", f"b{other}")
    with pytest.raises(RetriableError):
        await ask_beyond_the_end(world, old)


@virtual_time
async def test_positions_read_for_certain_take_a_few_round_trips() -> None:
    # A fetch that is parked is answered early.
    world = await started(replica_fetch_wait_max_ms=5000)
    await insist(world, 1)
    leader = world.leader(OFFSETS)
    await asyncio.sleep(2)
    for _ in range(5):
        since = world.loop.time()
        assert await asyncio.gather(*(fetch(world, leader) for _ in range(10))) == [1] * 10
        assert world.loop.time() - since < 0.05
        await asyncio.sleep(0.1234)


@virtual_time
async def test_once_a_follower_that_died_is_out_of_the_isr_positions_can_be_read_again() -> None:
    world = await started()
    await insist(world, 1)
    leader = world.leader(OFFSETS)
    world.crash(next(node_id for node_id in IDS if node_id != leader))
    leader = await world.led(OFFSETS)
    for _ in range(20):
        found = await fetch(world, leader)
        if found is not ErrorCode.not_coordinator:
            break
    assert found == 1
