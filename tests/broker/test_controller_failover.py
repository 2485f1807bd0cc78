"""Controller decisions on three whole nodes, on virtual time, while nodes die, hang, stop and come back."""

from __future__ import annotations

import asyncio

import pytest

from einmal.metadata.image import ClusterImage
from einmal.types import BrokerId, ErrorCode, TopicPartition
from tests.broker.three_nodes import IDS, ThreeNodes
from tests.virtual_time import virtual_time

T0 = TopicPartition("t", 0)


def active(world: ThreeNodes) -> int:
    """Who is the active controller; 0: nobody, or more than one thinks so."""
    believers = [number for number, node in world.nodes.items() if node.controller.is_active]
    return believers[0] if len(believers) == 1 else 0


async def one_active(world: ThreeNodes) -> int:
    await world.until(lambda: active(world) > 0)
    return active(world)


def images(world: ThreeNodes) -> list[ClusterImage]:
    return [node.metadata.image for number, node in world.nodes.items() if not world.hosts[number].is_paused]


def fenced(world: ThreeNodes) -> set[int]:
    """What every node that is alive thinks; {0}: they do not agree."""
    told = [{int(number) for number, broker in image.brokers.items() if broker.is_fenced} for image in images(world)]
    return told[0] if all(each == told[0] for each in told) else {0}


async def settled(world: ThreeNodes) -> None:
    """Everybody takes part, and all have the same image."""
    await world.until(lambda: not fenced(world))
    await world.until(lambda: all(image == images(world)[0] for image in images(world)))


@virtual_time
async def test_three_nodes_agree_on_one_controller_and_one_image() -> None:
    world = ThreeNodes()
    await world.start()
    assert await one_active(world) > 0
    await world.make_topic("t")
    await settled(world)
    image = images(world)[0]
    assert sorted(image.brokers) == list(IDS)
    assert sorted(image.topics["t"].partitions[0].replicas) == list(IDS)
    assert sorted(image.topics["t"].partitions[0].isr) == list(IDS)
    assert image.features["metadata.version"] == 27


@pytest.mark.parametrize("who", ["the controller", "another"])
@virtual_time
async def test_a_broker_that_is_killed_is_fenced_at_once_and_its_leads_are_with_others(who: str) -> None:
    world = ThreeNodes()
    await world.start()
    await world.make_topic("t")
    controller = await one_active(world)
    victim = controller if who == "the controller" else next(number for number in IDS if number != controller)
    await settled(world)
    world.crash(victim)
    took = await world.until(lambda: fenced(world) == {victim})
    assert took < 1.5
    for image in images(world):
        assert victim not in image.topics["t"].partitions[0].isr
        assert image.topics["t"].partitions[0].leader in world.nodes
    await world.start(victim)
    await settled(world)


@virtual_time
async def test_a_broker_that_hangs_is_fenced_after_its_session_and_comes_back_by_itself() -> None:
    world = ThreeNodes()
    await world.start()
    await world.make_topic("t")
    controller = await one_active(world)
    await settled(world)
    victim = next(number for number in IDS if number != controller)
    epoch = images(world)[0].brokers[BrokerId(victim)].broker_epoch
    world.pause(victim)
    await world.until(lambda: fenced(world) == {victim})
    world.resume(victim)
    await settled(world)
    assert images(world)[0].brokers[BrokerId(victim)].broker_epoch == epoch, "it is the same process"


@virtual_time
async def test_a_controller_that_hangs_is_replaced_and_finds_out() -> None:
    world = ThreeNodes()
    await world.start()
    old = await one_active(world)
    world.pause(old)
    await world.until(lambda: any(node.controller.is_active for number, node in world.nodes.items() if number != old))
    world.resume(old)
    assert await one_active(world) != old
    await settled(world)
    await world.make_topic("t")


@virtual_time
async def test_a_broker_that_stops_hands_over_what_it_leads_and_comes_back_without_loss() -> None:
    world = ThreeNodes()
    await world.start()
    await world.make_topic("t")
    await settled(world)
    leader = world.leader(T0)
    before = images(world)[0].topics["t"].partitions[0]
    node = world.nodes[leader]
    await world.on(leader, node.stop())
    del world.nodes[leader]
    await world.until(lambda: fenced(world) == {leader})
    after = images(world)[0].topics["t"].partitions[0]
    assert after.leader_epoch == before.leader_epoch + 1, "it was handed over once"
    await world.start(leader)
    await settled(world)


@virtual_time
async def test_all_nodes_die_and_come_back_with_everything_they_knew() -> None:
    world = ThreeNodes()
    await world.start()
    for name in ("t", "u", "v"):
        await world.make_topic(name)
    await settled(world)
    topics = {name: topic.topic_id for name, topic in images(world)[0].topics.items()}
    for number in IDS:
        world.crash(number)
    await world.start()
    await settled(world)
    image = images(world)[0]
    assert {name: topic.topic_id for name, topic in image.topics.items()} == topics
    await world.until(lambda: world.leader(T0) > 0)


@virtual_time
async def test_changes_are_made_while_controllers_come_and_go() -> None:
    world = ThreeNodes()
    await world.start()
    for number in range(6):
        victim = await one_active(world)
        other = next(each for each in IDS if each != victim)
        making = world.on(other, world.nodes[other].topic_creation.ensure(f"t{number}"))
        await asyncio.sleep(0.001 * number)
        world.crash(victim)
        assert await making in (ErrorCode.none, ErrorCode.request_timed_out)
        await world.start(victim)
        await settled(world)
    await world.make_topic("last")
    names = list(images(world)[0].topics)
    assert len(names) == len(dict.fromkeys(names))
