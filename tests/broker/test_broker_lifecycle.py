"""A broker and its controller: what it says when it comes, while it lives, and when it goes."""

import asyncio
import json
import random
from pathlib import Path

from einmal.broker.broker_lifecycle import CLEAN_SHUTDOWN_FILE
from einmal.broker.config import BrokerConfig
from einmal.broker.node import Node
from einmal.broker.partition import Partition
from einmal.simulation.disk import DiskFaults
from einmal.simulation.loop import Host
from einmal.types import BrokerId, ErrorCode, Offset, TopicPartition
from tests.broker.nodes import Client, batch, run, running_node
from tests.broker.three_nodes import IDS, ThreeNodes

FLUSH_EACH = {"log.flush.interval.messages": 1}


def remembered_epoch(folder: Path) -> int | None:
    """Under which this broker stopped, or would stop, without losing anything."""
    path = folder / CLEAN_SHUTDOWN_FILE
    return json.loads(path.read_text())["brokerEpoch"] if path.exists() else None


def test_only_after_a_clean_stop_nothing_is_lost(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_node(tmp_path) as node:
            first = node.broker_epoch
            assert remembered_epoch(tmp_path) is None
        assert remembered_epoch(tmp_path) == first
        async with running_node(tmp_path) as node:
            assert node.broker_epoch > first
            assert remembered_epoch(tmp_path) is None

    run(scenario())


def test_where_every_write_is_flushed_a_crash_loses_nothing(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with running_node(tmp_path, FLUSH_EACH) as node, Client.connect(node) as client:
            await client.create_topic("t")
            assert remembered_epoch(tmp_path) == node.broker_epoch
            await client.create_topic("quick", flush_messages="1000")
            assert remembered_epoch(tmp_path) is None
        async with running_node(tmp_path, FLUSH_EACH) as node, Client.connect(node) as client:
            assert remembered_epoch(tmp_path) is None
            await client.call(20, 6, {"topics": [{"name": "quick"}], "timeout": 10_000})
        async with running_node(tmp_path, FLUSH_EACH) as node:
            assert remembered_epoch(tmp_path) == node.broker_epoch

    run(scenario())


def test_who_has_everything_leads_and_not_who_was_emptied_by_a_power_cut() -> None:
    """Nobody has noticed yet that its machine is off, and meanwhile the two others are killed and start again."""
    topic_partition = TopicPartition("t", 0)

    async def main(world: ThreeNodes) -> None:
        await world.start()
        await world.make_topic("t")
        leader = await world.led(topic_partition)
        partition = world.nodes[leader].partitions.get(topic_partition)
        assert isinstance(partition, Partition)
        records = bytearray(batch(b"a"))
        assert partition.append(records, world.clock.now()).error is ErrorCode.none
        assert await world.on(leader, partition.committed(Offset(0))) is ErrorCode.none
        controller = next(node_id for node_id, node in world.nodes.items() if node.controller.is_active)
        emptied, other = (node_id for node_id in IDS if node_id != controller)
        world.cut_power(emptied)
        for killed in (other, controller):
            world.crash(killed)
            await world.start(killed)
        await world.start(emptied)
        again = await world.led(topic_partition)
        assert again != emptied
        partition = world.nodes[again].partitions.get(topic_partition)
        assert isinstance(partition, Partition)
        assert partition.log.log_end_offset == 1

    ThreeNodes().run(main)


def test_a_process_that_dies_before_it_is_told_its_epoch_has_lost_nothing_either() -> None:
    async def main(world: ThreeNodes) -> None:
        await world.start()
        await world.make_topic("t")
        controller = next(node_id for node_id, node in world.nodes.items() if node.controller.is_active)
        killed = next(node_id for node_id in IDS if node_id != controller)
        image = world.nodes[controller].metadata.image
        before = image.brokers[BrokerId(killed)]
        world.crash(killed)
        world.network.slow_down(f"b{controller}", f"b{killed}", 0.5)
        starting = asyncio.ensure_future(world.start(killed))
        await world.until(lambda: image.brokers[BrokerId(killed)].broker_epoch > before.broker_epoch)
        told = image.brokers[BrokerId(killed)]
        assert world.nodes[killed].broker_epoch == -1
        world.crash(killed)
        starting.cancel()
        world.network.slow_down(f"b{controller}", f"b{killed}", 0.0)
        await world.start(killed)
        assert image.brokers[BrokerId(killed)].incarnation_id == told.incarnation_id
        assert world.nodes[killed].broker_epoch == told.broker_epoch

    ThreeNodes().run(main)


def test_after_a_power_cut_nothing_is_said_of_what_was_lost() -> None:
    async def main(world: ThreeNodes) -> None:
        await world.start()
        known = []
        for end in (world.crash, world.cut_power):
            end(1)
            lifecycle = Node(
                BrokerConfig(node_id=1, log_dirs="/data"),
                clock=world.clock,
                network=world.network.of(Host("b1")),
                disk=world.disks[1].view(Host("b1")),
                random=random.Random(1),
            ).lifecycle
            lifecycle.load()
            known.append(lifecycle._known_epoch)
            await world.start(1)
        assert known[0] > 0
        assert known[1] == -1

    ThreeNodes().run(main)


def test_a_broker_whose_connection_is_lost_is_fenced_long_before_its_session_is_over() -> None:
    async def main(world: ThreeNodes) -> None:
        await world.start()
        await world.make_topic("t")
        controller = next(node_id for node_id, node in world.nodes.items() if node.controller.is_active)
        gone = next(node_id for node_id in world.nodes if node_id != controller)
        world.crash(gone)
        image = world.nodes[controller].metadata.image
        assert await world.until(lambda: image.brokers[BrokerId(gone)].is_fenced) < 0.2
        await world.start(gone)
        assert not image.brokers[BrokerId(gone)].is_fenced

    ThreeNodes().run(main)


def test_a_paused_broker_is_fenced_with_its_session_and_comes_back_by_itself() -> None:
    async def main(world: ThreeNodes) -> None:
        await world.start()
        controller = next(node_id for node_id, node in world.nodes.items() if node.controller.is_active)
        paused = next(node_id for node_id in world.nodes if node_id != controller)
        epoch = world.nodes[paused].broker_epoch
        world.pause(paused)
        image = world.nodes[controller].metadata.image
        assert 2.0 < await world.until(lambda: image.brokers[BrokerId(paused)].is_fenced) < 4.0
        world.resume(paused)
        await world.until(lambda: image.brokers[BrokerId(paused)].is_active)
        assert world.nodes[paused].broker_epoch == epoch

    ThreeNodes().run(main)


def test_a_broker_that_was_forgotten_meanwhile_registers_again() -> None:
    async def main(world: ThreeNodes) -> None:
        await world.start()
        controller = next(node_id for node_id, node in world.nodes.items() if node.controller.is_active)
        paused = next(node_id for node_id in world.nodes if node_id != controller)
        epoch = world.nodes[paused].broker_epoch
        world.pause(paused)
        active = world.nodes[controller]
        await world.until(lambda: active.metadata.image.brokers[BrokerId(paused)].is_fenced)
        forget = active.controller.submit(lambda shard, _: shard.unregister_broker(BrokerId(paused)))
        assert (await world.on(controller, forget)).error is ErrorCode.none
        assert BrokerId(paused) not in active.metadata.image.brokers
        world.resume(paused)
        await world.until(lambda: BrokerId(paused) in active.metadata.image.brokers)
        await world.until(lambda: active.metadata.image.brokers[BrokerId(paused)].is_active)
        assert world.nodes[paused].broker_epoch > epoch

    ThreeNodes().run(main)


def test_a_broker_with_a_broken_disk_hands_over_and_stays_away_until_it_starts_anew() -> None:
    async def main(world: ThreeNodes) -> None:
        await world.start()
        await world.make_topic("t")
        leads = TopicPartition("t", 0)
        controller = next(node_id for node_id, node in world.nodes.items() if node.controller.is_active)
        await world.until(lambda: world.leader(leads) > 0)
        broken = next(node_id for node_id in world.nodes if node_id != controller)
        world.disks[broken].faults = DiskFaults(sync_error=1.0)
        await world.until(lambda: not world.nodes[controller].partitions.is_disk_broken)
        other = world.nodes[controller]
        await world.on(controller, other.metadata.ensure_topic("u"))
        await world.until(lambda: other.metadata.image.brokers[BrokerId(broken)].is_fenced)
        await asyncio.sleep(5)
        assert other.metadata.image.brokers[BrokerId(broken)].is_fenced
        topics = other.metadata.image.topics.values()
        assert all(partition.leader != broken for topic in topics for partition in topic.partitions)
        world.crash(broken)
        world.disks[broken].faults = DiskFaults()
        await world.start(broken)
        await world.until(lambda: other.metadata.image.brokers[BrokerId(broken)].is_active)

    ThreeNodes().run(main)


def test_what_a_hanging_controller_was_asked_the_next_one_is_asked_too() -> None:
    async def main(world: ThreeNodes) -> None:
        await world.start()
        hanging = next(node_id for node_id, node in world.nodes.items() if node.controller.is_active)
        asking = next(node_id for node_id in world.nodes if node_id != hanging)
        world.pause(hanging)
        began = world.loop.time()
        error = await world.on(asking, world.nodes[asking].metadata.ensure_topic("t"))
        # With two of three brokers there is no room for three replicas: but it is a controller that says so.
        assert error in (ErrorCode.none, ErrorCode.invalid_replication_factor)
        assert world.loop.time() - began < 4.5
        world.resume(hanging)

    ThreeNodes().run(main)
