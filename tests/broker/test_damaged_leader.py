"""A leader whose log has damage that only it has lets another replica lead. Three whole nodes on virtual time."""

from __future__ import annotations

import asyncio
import random
from pathlib import PurePosixPath

import pytest

from einmal.client.aio import RangeReader
from einmal.client.errors import KafkaError
from einmal.client.records import OffsetRange
from einmal.metadata.image import CONSUMER_OFFSETS, PartitionImage
from einmal.simulation.loop import Host
from einmal.types import ErrorCode, TopicPartition
from tests.broker.nodes import batch
from tests.broker.test_confirmed_leadership import OFFSETS, fetch, insist
from tests.broker.three_nodes import IDS, ThreeNodes
from tests.virtual_time import virtual_time

DATA = TopicPartition("t", 0)
RECORDS = 8
BROKEN = 3
DEFAULT_API_TIMEOUT_S = 60


def value(number: int) -> bytes:
    """Large enough that no end of the file is near: those are checked when a log is opened."""
    return b"%d " % number + bytes(20_000)


async def filled() -> ThreeNodes:
    world = ThreeNodes()
    await world.start()
    await world.make_topic("t")
    leader = await world.led(DATA)
    partition = world.nodes[leader].partitions.get(DATA)
    assert partition is not None
    for number in range(RECORDS):
        data = bytearray(batch(value(number)))
        result = world.hosts[leader].context.copy().run(partition.append, data, world.nodes[leader].clock.now())
        assert result.error is ErrorCode.none
    await world.until(lambda: partition.high_watermark == RECORDS)
    await world.until(lambda: in_sync(world) == set(IDS))
    return world


async def restart_with_a_flipped_bit(world: ThreeNodes, node_id: int) -> None:
    """In the middle of a log that a checkpoint covers, so that only a read can find it."""
    partition = world.nodes[node_id].partitions.get(DATA)
    assert partition is not None
    partition._log.durability.marks_moved()
    await world.on(node_id, world.nodes[node_id].partitions.checkpoint())
    world.crash(node_id)
    flip_a_bit(world, node_id, DATA, (BROKEN + 0.5) / RECORDS)
    await world.start(node_id)
    await world.until(lambda: in_sync(world) == set(IDS))


def image_of(world: ThreeNodes, topic_partition: TopicPartition) -> PartitionImage:
    node = next(iter(world.nodes.values()))
    image: PartitionImage = node.metadata.image.topics[topic_partition.topic].partitions[topic_partition.partition]
    return image


def successor(world: ThreeNodes, topic_partition: TopicPartition) -> int:
    """Who leads if the leader does not."""
    image = image_of(world, topic_partition)
    return next(replica for replica in image.replicas if replica != image.leader)


def in_sync(world: ThreeNodes) -> set[int]:
    return set(image_of(world, DATA).isr)


def flip_a_bit(world: ThreeNodes, node_id: int, topic_partition: TopicPartition, share: float) -> None:
    """At this share of the log's only segment."""
    path = PurePosixPath(f"/data/{topic_partition.topic}-{topic_partition.partition}/{0:020}.log")
    data = world.disks[node_id].inode(path).data
    data[int(len(data) * share)] ^= 4


async def read(world: ThreeNodes) -> list[bytes | None]:
    host = Host("reader")
    world.network.light(host.name)

    async def values() -> list[bytes | None]:
        async with RangeReader(
            bootstrap_servers=",".join(f"b{node_id}:9092" for node_id in world.nodes),
            network=world.network.of(host),
            clock=world.clock,
            random=random.Random(1),
        ) as reader:
            return [
                record.value
                async for piece in reader.read({DATA: OffsetRange(0, RECORDS)})
                for record in piece.records()
            ]

    found: list[bytes | None] = await world.loop.create_task(values(), context=host.context.copy())
    return found


@virtual_time
async def test_a_replica_that_is_whole_leads_once_the_leader_has_found_damage() -> None:
    world = await filled()
    damaged = successor(world, DATA)
    await restart_with_a_flipped_bit(world, damaged)
    first = world.leader(DATA)
    world.crash(first)
    await world.until(lambda: world.leader(DATA) == damaged)
    await world.start(first)
    await world.until(lambda: in_sync(world) == set(IDS))
    # The reader gets CORRUPT_MESSAGE, and retries.
    assert await read(world) == [value(number) for number in range(RECORDS)]
    assert world.leader(DATA) not in (0, damaged)
    # What it appends is as good as before: it counts again, and nobody has removed anything of its log.
    await world.until(lambda: in_sync(world) == set(IDS))


@virtual_time
async def test_damage_that_all_replicas_have_does_not_move_the_lead_all_the_time() -> None:
    world = await filled()
    for node_id in IDS:
        await restart_with_a_flipped_bit(world, node_id)
    before = image_of(world, DATA).leader_epoch
    with pytest.raises(KafkaError, match="CORRUPT_MESSAGE"):
        await read(world)
    assert world.loop.time() > DEFAULT_API_TIMEOUT_S
    assert 1 <= image_of(world, DATA).leader_epoch - before <= len(IDS)


@virtual_time
async def test_a_coordinator_with_damage_in_its_log_is_succeeded_by_a_whole_one() -> None:
    """Also with damage in what its broker has written itself: a coordinator reads it all when it begins to lead."""
    world = ThreeNodes()
    await world.start()
    await world.make_topic("t")
    await world.make_topic(CONSUMER_OFFSETS)
    first = await world.led(OFFSETS)
    for offset in range(1, RECORDS):
        await insist(world, offset)
    damaged = successor(world, OFFSETS)
    flip_a_bit(world, damaged, OFFSETS, 0.5)
    world.crash(first)
    found = None
    while found != RECORDS - 1:
        leader = await world.led(OFFSETS)
        found = await fetch(world, leader)
        assert isinstance(found, ErrorCode) or found == RECORDS - 1
        await asyncio.sleep(0.05)
    assert leader not in (first, damaged)
