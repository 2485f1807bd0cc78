"""Operators' requests to any of three whole nodes: reassignment under load, elections, features."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from einmal.log.producer_state import AppendOrigin
from einmal.types import ErrorCode, Offset, TopicPartition
from einmal.wire.record_batch import NewRecord, encode_batch
from tests.broker.test_controller_failover import images, one_active, settled
from tests.broker.three_nodes import IDS, ThreeNodes
from tests.virtual_time import virtual_time
from tests.wire.mapped import APIS, request_of

T0 = TopicPartition("t", 0)
CREATE_TOPICS, ELECT, REASSIGN, LIST, FEATURES = 19, 43, 45, 46, 57


async def ask(world: ThreeNodes, number: int, api_key: int, version: int, fields: dict[str, Any]) -> Any:
    """Ask a broker as a client does, from another node."""
    asker = next(each for each in world.nodes if each != number and not world.hosts[each].is_paused)
    peers, request = world.nodes[asker].peers, request_of(api_key, fields)
    return await world.on(asker, peers.ask(number, APIS[api_key], version, request, timeout_ms=5_000))


async def create(world: ThreeNodes, *replicas: int) -> None:
    assignment = [{"partition_index": 0, "broker_ids": replicas}]
    topic = {"name": "t", "num_partitions": -1, "replication_factor": -1, "assignments": assignment, "configs": ()}
    answer = await ask(world, 1, CREATE_TOPICS, 7, {"topics": [topic], "timeout": 5_000})
    assert answer.topics[0].error_code is ErrorCode.none
    await settled(world)


async def move(world: ThreeNodes, number: int, *replicas: int) -> ErrorCode:
    topics = [{"name": "t", "partitions": [{"partition_index": 0, "replicas": replicas}]}]
    answer = await ask(world, number, REASSIGN, 0, {"timeout": 5_000, "topics": topics})
    error: ErrorCode = answer.responses[0].partitions[0].error_code
    return error


async def write(world: ThreeNodes, value: bytes) -> Offset:
    """Acknowledged by all that are in sync, whoever leads by then."""
    for _ in range(500):
        leader = world.leader(T0)
        node = world.nodes.get(leader)
        partition = None if node is None else node.partitions.get(T0)
        if node is not None and partition is not None and partition.is_leader and partition.has_enough_replicas:

            async def append(node: Any = node, partition: Any = partition) -> Any:
                batch = bytearray(encode_batch([NewRecord(None, value, 0)]))
                result = partition.append(batch, node.clock.now(), AppendOrigin.CLIENT)
                if result.error is ErrorCode.none:
                    return await partition.committed(result.last_offset), result.last_offset
                return result.error, Offset(-1)

            error, offset = await world.on(leader, append())
            if error is ErrorCode.none:
                return Offset(offset)
        await asyncio.sleep(0.01)
    raise AssertionError("nothing can be written")


def has(world: ThreeNodes, number: int) -> bool:
    return world.nodes[number].partitions.get(T0) is not None


@pytest.mark.parametrize("asked", IDS)
@virtual_time
async def test_a_partition_moves_to_other_brokers_while_it_is_written_to(asked: int) -> None:
    world = ThreeNodes()
    await world.start()
    await create(world, 1, 2)
    for number in range(20):
        await write(world, b"%d" % number)
    assert await move(world, asked, 3, 2) is ErrorCode.none
    for number in range(20):
        await write(world, b"%d" % number)
    await world.until(lambda: not images(world)[0].topics["t"].partitions[0].is_reassigning)
    await settled(world)
    assert images(world)[0].topics["t"].partitions[0].replicas == (3, 2)
    assert world.leader(T0) == 3
    await world.until(lambda: not has(world, 1))
    # What was being written when the leader changed is there once or twice: a plain producer's fate.
    assert 40 <= await write(world, b"after") <= 41


@pytest.mark.parametrize("seed", [1, 8, 43])
@virtual_time
async def test_a_partition_moves_though_its_leader_and_the_controller_die_meanwhile(seed: int) -> None:
    """8: the leader took the ISR of the answer, not the replicas. 43: a replica knew of itself before its leader."""
    world = ThreeNodes(seed=seed)
    await world.start()
    await create(world, 1, 2)
    for number in range(20):
        await write(world, b"%d" % number)
    controller = await one_active(world)
    assert await move(world, 1, 2, 3) is ErrorCode.none
    world.crash(controller)
    await world.start(controller)
    await world.until(lambda: not images(world)[0].topics["t"].partitions[0].is_reassigning, 60)
    await settled(world)
    assert images(world)[0].topics["t"].partitions[0].replicas == (2, 3)
    assert 20 <= await write(world, b"after") <= 21


@virtual_time
async def test_what_moves_is_listed_by_every_node() -> None:
    world = ThreeNodes()
    await world.start()
    controller = await one_active(world)
    slow = next(number for number in IDS if number != controller)
    others = [number for number in IDS if number != slow]
    await create(world, *others)
    world.pause(slow)
    assert await move(world, controller, controller, slow) is ErrorCode.none
    for number in others:
        listed = await ask(world, number, LIST, 0, {"timeout": 0, "topics": None})
        assert [(topic.name, topic.partitions[0].adding_replicas) for topic in listed.topics] == [("t", (slow,))]
    world.resume(slow)
    await world.until(lambda: not images(world)[0].topics["t"].partitions[0].is_reassigning, 60)


@virtual_time
async def test_the_preferred_leader_leads_again_on_request_to_any_node() -> None:
    world = ThreeNodes()
    await world.start()
    await create(world, 1, 2, 3)
    world.crash(1)
    await world.until(lambda: world.leader(T0) not in (0, 1))
    await world.start(1)
    await world.until(lambda: 1 in images(world)[0].topics["t"].partitions[0].isr, 60)
    assert world.leader(T0) != 1
    fields = {"election_type": 0, "topic_partitions": [{"topic": "t", "partitions": [0]}], "timeout": 5_000}
    answer = await ask(world, 2, ELECT, 2, fields)
    assert answer.replica_election_results[0].partition_result[0].error_code is ErrorCode.none
    await world.until(lambda: world.leader(T0) == 1)


@virtual_time
async def test_a_feature_is_lowered_and_raised_through_any_node() -> None:
    world = ThreeNodes()
    await world.start()
    for number, (level, kind) in enumerate([(1, 2), (2, 1)], 1):
        update = {"feature": "transaction.version", "max_version_level": level, "upgrade_type": kind}
        answer = await ask(world, number, FEATURES, 2, {"timeout": 5_000, "feature_updates": [update]})
        assert answer.error_code is ErrorCode.none, answer

        def is_known(level: int = level) -> bool:
            return all(image.features["transaction.version"] == level for image in images(world))

        await world.until(is_known)
