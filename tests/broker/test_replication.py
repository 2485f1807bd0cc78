"""Followers, sessions and in-sync replicas, on virtual time."""

import asyncio
from pathlib import PurePosixPath

import pytest

from einmal.simulation.disk import RELIABLE, DiskFaults
from einmal.types import BrokerId, ErrorCode, Offset, TopicPartition
from tests.broker.replicas import TOPIC, World
from tests.virtual_time import virtual_time

LAG = {"replica_lag_time_max_ms": 2_000}


@virtual_time
async def test_what_is_committed_is_with_every_replica() -> None:
    world = World()
    world.start()
    world.create_topic()
    await world.until(lambda: world.stands[BrokerId(1)].partitions.get(TopicPartition("t", 0)) is not None)
    for number in range(20):
        assert await world.append(b"%d" % number) is ErrorCode.none
    await world.until(world.are_equal)
    assert world.leader().partition().high_watermark == 20


@pytest.mark.parametrize("name", ["replica_fetch_response_max_bytes", "replica_fetch_max_bytes"])
@virtual_time
async def test_a_follower_that_asks_for_no_bytes_gets_a_batch_at_a_time(name: str) -> None:
    """It was answered at once with nothing, and asked again, for ever; Apache Kafka takes 0, too."""
    world = World(**{name: 0})
    world.start()
    world.create_topic()
    await world.until(lambda: world.stands[BrokerId(1)].partitions.get(TopicPartition("t", 0)) is not None)
    for number in range(3):
        assert await asyncio.wait_for(world.append(b"%d" % number), 30) is ErrorCode.none
    await world.until(world.are_equal)


@virtual_time
async def test_a_commit_takes_one_round_trip() -> None:
    world = World()
    world.start()
    world.create_topic()
    await asyncio.sleep(1)
    for _ in range(50):
        before = world.loop.time()
        await world.append(b"a")
        assert world.loop.time() - before < 0.005
        await asyncio.sleep(0.03)


@virtual_time
async def test_a_new_leader_commits_at_once_and_the_old_one_truncates_unreplicated_records() -> None:
    world = World()
    world.start()
    world.create_topic()
    await asyncio.sleep(1)
    for number in range(5):
        await world.append(b"%d" % number)
    world.cut(1)
    lost = world.append(b"nobody has this", b"nor this", to=1)
    world.fence(1)
    await asyncio.sleep(0.01)
    before = world.loop.time()
    assert await world.append(b"five") is ErrorCode.none
    assert world.loop.time() - before < 0.05
    assert not lost.done()
    world.heal(1)
    world.unfence(1)
    await world.until(lambda: world.isr() == {1, 2, 3})
    assert await lost is ErrorCode.not_leader_or_follower
    await world.until(world.are_equal)
    assert world.leader().partition().log_end_offset == 6


@virtual_time
async def test_a_new_leader_commits_at_once_even_if_followers_have_just_begun_to_fetch() -> None:
    world = World()
    world.start()
    world.create_topic(2)
    world.change(1, leader=BrokerId(2))
    await asyncio.sleep(0.1)
    world.cut(1)
    world.fence(1)
    await asyncio.sleep(0.01)
    for index in range(2):
        before = world.loop.time()
        assert await world.append(b"a", index=index) is ErrorCode.none
        assert world.loop.time() - before < 0.05


@virtual_time
async def test_a_follower_that_stands_still_leaves_the_isr_and_comes_back() -> None:
    world = World(**LAG)
    world.start()
    world.create_topic(min_insync_replicas="2")
    await asyncio.sleep(1)
    world.cut(3)
    before = world.loop.time()
    assert await world.append(b"a") is ErrorCode.none
    assert 1.5 < world.loop.time() - before < 4
    assert world.isr() == {1, 2}
    assert await world.append(b"b") is ErrorCode.none
    world.heal(3)
    await world.until(lambda: world.isr() == {1, 2, 3})
    await world.until(world.are_equal)


@virtual_time
async def test_with_too_few_in_sync_nothing_is_committed_until_one_comes_back() -> None:
    world = World(**LAG)
    world.start()
    world.create_topic(min_insync_replicas="2")
    await asyncio.sleep(1)
    world.fence(2)
    world.fence(3)
    await asyncio.sleep(0.1)
    partition = world.leader().partition()
    assert not partition.has_enough_replicas
    waiting = world.append(b"a")
    await asyncio.sleep(5)
    assert not waiting.done()
    world.unfence(2)
    assert await waiting is ErrorCode.none
    assert partition.has_enough_replicas


@virtual_time
async def test_idle_partitions_cost_nothing() -> None:
    world = World()
    world.start()
    world.create_topic(100)
    await asyncio.sleep(3)
    world.fetches.clear()
    for _ in range(10):
        await world.append(b"a", index=50)
        await asyncio.sleep(0.5)
    assert sum(named for _replica, named in world.fetches) == 2 * 10
    assert len(world.fetches) < 2 * 10 * 3


@virtual_time
async def test_a_partition_with_a_broken_disk_holds_up_no_other() -> None:
    world = World()
    world.start()
    world.create_topic(3)
    await asyncio.sleep(1)
    sick = world.stands[BrokerId(2)].partition(1)
    world.disks[BrokerId(2)].view(world.stands[BrokerId(2)].host).remove(PurePosixPath(f"/data/{TOPIC}-1/{0:020}.log"))
    sick.check_directory()
    assert sick.is_offline
    waiting = world.append(b"a", index=1)
    for _ in range(10):
        for index in (0, 2):
            before = world.loop.time()
            assert await world.append(b"a", index=index) is ErrorCode.none
            assert world.loop.time() - before < 0.05
    assert not waiting.done()
    world.fence(2)
    assert await waiting is ErrorCode.none


@pytest.mark.parametrize("late", [0.0, 0.005, 0.03, 0.3, 3.0])
@virtual_time
async def test_followers_retry_until_a_leader_learns_of_its_partition(late: float) -> None:
    world = World()
    world.start()
    world.untold[BrokerId(1)] = None
    world.create_topic()
    await asyncio.sleep(late)
    del world.untold[BrokerId(1)]
    world.tell(BrokerId(1))
    await world.until(lambda: world.leader().partitions.get(TopicPartition("t", 0)) is not None)
    before = world.loop.time()
    assert await world.append(b"a") is ErrorCode.none
    assert world.loop.time() - before < 0.6


@virtual_time
async def test_a_follower_far_behind_begins_where_the_leader_does() -> None:
    world = World(**LAG)
    world.start()
    world.create_topic()
    await asyncio.sleep(1)
    await world.append(b"a")
    world.crash(3)
    world.fence(3)
    for number in range(10):
        await world.append(b"%d" % number)
    world.leader().partition().delete_records_before(Offset(8))
    world.start(3)
    await world.until(lambda: world.isr() == {1, 2, 3})
    assert world.stands[BrokerId(3)].partition().log_start_offset == 8
    await world.append(b"z")
    await asyncio.sleep(1)
    starts = [world.stands[BrokerId(number)].partition().log_start_offset for number in (1, 2, 3)]
    assert starts == [8, 8, 8]


@virtual_time
async def test_a_reassigned_replica_is_removed_and_a_new_one_filled() -> None:
    world = World(brokers=4)
    world.start()
    world.create_topic(replicas=(1, 2, 3))
    await asyncio.sleep(1)
    for number in range(10):
        await world.append(b"%d" % number)
    world.change(0, replicas=(1, 2, 3, 4))
    await world.until(lambda: world.isr() == {1, 2, 3, 4})
    world.change(0, replicas=(1, 2, 4), isr=(1, 2, 4))
    await world.until(lambda: world.stands[BrokerId(3)].partitions.get(TopicPartition("t", 0)) is None)
    assert await world.append(b"z") is ErrorCode.none
    assert world.log_of(1) == world.log_of(4)


@virtual_time
async def test_a_log_that_could_not_be_synced_stays_closed_until_the_machine_starts_again() -> None:
    """A second sync would seem to succeed: its pages count as clean, and are not on the disk."""
    world = World(brokers=1, log_flush_interval_messages=1)
    world.start()
    world.create_topic()
    await asyncio.sleep(1)
    assert await world.append(b"a") is ErrorCode.none
    world.crash(1)
    world.disks[BrokerId(1)].faults = DiskFaults(sync_error=1.0)
    world.start(1)
    world.disks[BrokerId(1)].faults = RELIABLE
    world.change(0, isr=(1,))
    await asyncio.sleep(1)
    partitions = world.stands[BrokerId(1)].partitions
    assert partitions.get(TopicPartition("t", 0)) is None
    assert not partitions.may_open_more
    assert partitions.error_of_missing(TopicPartition("t", 0)) is ErrorCode.kafka_storage_error
    world.crash(1, power=True)
    world.start(1)
    assert world.stands[BrokerId(1)].partition().log_end_offset == 1


class Ordeal:
    """Writes to three partitions while brokers die, lose their power, or are cut off."""

    def __init__(self, world: World, *, power: bool) -> None:
        self.world = world
        self.power = power
        self.acknowledged: list[bytes] = []

    async def write(self, number: int) -> None:
        value = b"value %d;" % number
        try:
            waiting = self.world.append(value, index=number % 3)
            if await asyncio.wait_for(waiting, 5) is ErrorCode.none:
                self.acknowledged.append(value)
        except (TimeoutError, KeyError, AssertionError):
            # No leader just now, or one that does not know it.
            return

    async def trouble(self) -> None:
        world = self.world
        for _ in range(25):
            await asyncio.sleep(world.random.uniform(0.1, 1.0))
            broker_id = world.random.choice(world.ids)
            kind = world.random.random()
            if broker_id not in world.stands:
                world.start(broker_id)
            elif broker_id in world.cut_off:
                world.heal(broker_id)
                world.unfence(broker_id)
            elif kind < 0.5 and len(world.stands) > 1:
                world.crash(broker_id, power=self.power)
                world.loop.call_later(0.3, self.fence_if_dead, broker_id)
            elif kind < 0.8:
                world.cut(broker_id)
                world.fence(broker_id)
            elif not world.image.brokers[broker_id].is_active:
                world.unfence(broker_id)

    def fence_if_dead(self, broker_id: int) -> None:
        if broker_id not in self.world.stands:
            self.world.fence(broker_id)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        troubling = loop.create_task(self.trouble())
        writing: list[asyncio.Task[None]] = []
        while not troubling.done():
            writing.append(loop.create_task(self.write(len(writing))))
            await asyncio.sleep(0.02)
        await troubling
        for broker_id in self.world.ids:
            self.world.heal(broker_id)
            if broker_id not in self.world.stands:
                self.world.start(broker_id)
            self.world.unfence(broker_id)
        for task in writing:
            await task


@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 8))])
@pytest.mark.parametrize("flush", [False, True])
@virtual_time
async def test_nothing_acknowledged_is_lost_by_kills_power_cuts_and_partitions(seed: int, flush: bool) -> None:
    settings = {"log_flush_interval_messages": 1} if flush else {}
    world = World(seed=seed, **LAG, **settings)
    world.start()
    world.create_topic(3)
    await asyncio.sleep(0.5)
    ordeal = Ordeal(world, power=flush)
    await ordeal.run()
    await world.until(lambda: all(world.isr(index) == {1, 2, 3} for index in range(3)))
    await world.until(lambda: world.are_equal(3))
    everything = b"".join(world.log_of(1, index) for index in range(3))
    assert len(ordeal.acknowledged) > 50
    assert [value for value in ordeal.acknowledged if everything.count(value) != 1] == []
