"""Transactions on a whole node, on virtual time, network and disk: crashes, time limits, deleted topics."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from einmal.broker.config import BrokerConfig
from einmal.broker.coordinators.awaited_ends import WaitLimit
from einmal.broker.identity import new_uuid
from einmal.broker.node import Node
from einmal.log.producer_state import AppendOrigin
from einmal.metadata.image import CONSUMER_OFFSETS, TRANSACTION_STATE
from einmal.metadata.topics import NewTopic
from einmal.simulation.clock import SimulatedClock
from einmal.simulation.disk import DiskFaults, SimulatedDisk
from einmal.simulation.loop import Host
from einmal.simulation.network import SimulatedNetwork
from einmal.simulation.trace import Trace
from einmal.transactions.coordinator import EndTxnResult, InitProducerIdResult
from einmal.transactions.states import TransactionState
from einmal.transactions.transaction import Transaction
from einmal.types import (
    ErrorCode,
    ProducerEpoch,
    ProducerId,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionVersion,
)
from einmal.wire.control_batch import decode_marker
from einmal.wire.record_batch import NewRecord, decode_records, encode_batch, iter_headers
from tests.virtual_time import running_loop, virtual_time

ID = "orders"
TV_2 = TransactionVersion.TV_2
PARTITIONS = tuple(TopicPartition("t", index) for index in range(5))


class World:
    def __init__(self, seed: int = 1, **settings: Any) -> None:
        self.loop = running_loop()
        self.disk = SimulatedDisk(self.loop, random.Random(seed), Trace())
        self.network = SimulatedNetwork(self.loop, random.Random(seed), Trace())
        self.clock = SimulatedClock(self.loop)
        self.config = BrokerConfig(
            listeners="PLAINTEXT://broker:9092",
            log_dirs="/data",
            transaction_state_log_num_partitions=2,
            offsets_topic_num_partitions=2,
            **settings,
        )

    async def start(self) -> Node:
        self.host = Host("broker")
        self.node = Node(
            self.config,
            clock=self.clock,
            network=self.network.of(self.host),
            disk=self.disk.view(self.host),
            random=random.Random(1),
        )
        await self.on_broker(self.node.start())
        return self.node

    def on_broker(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        return self.loop.create_task(work, context=self.host.context.copy())

    def crash(self, *, power: bool = False) -> None:
        self.loop.kill(self.host)
        self.network.lose(self.host)
        if power:
            self.disk.cut_power()

    # --- a client, without a wire ----------------------------------------------------------------------------------

    async def begin(self, *, timeout_ms: int = 60_000) -> ProducerIdAndEpoch:
        for name in (TRANSACTION_STATE, CONSUMER_OFFSETS):
            assert await self.on_broker(self.node.topic_creation.ensure(name)) is ErrorCode.none
        if "t" not in self.node.metadata.image.topics:
            topic = NewTopic(name="t", topic_id=new_uuid(self.node.random), partitions=len(PARTITIONS))
            await self.on_broker(self.node.controller.submit(lambda shard, _: shard.create_topics([topic])))
        await self.on_broker(self.node.transactions.producer_ids.ready())
        answer = await self.submit(lambda shard, now: shard.init_producer_id(ID, timeout_ms, None, now))
        assert isinstance(answer, InitProducerIdResult)
        assert answer.error is ErrorCode.none
        return ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)

    async def submit(self, decide: Any) -> Any:
        return await self.on_broker(self.node.transactions.submit(ID, decide))

    async def write(self, who: ProducerIdAndEpoch, *partitions: TopicPartition) -> None:
        """One record to each, as a Produce of version 12 does it."""

        async def write() -> None:
            errors = await self.node.transactions.verify_produce(ID, who, partitions, 12, WaitLimit(100, None))
            for topic_partition in partitions:
                assert errors[topic_partition] is ErrorCode.none
                partition = self.node.partitions.get(topic_partition)
                assert partition is not None
                batch = encode_batch(
                    [NewRecord(None, b"x", self.clock.now().wall_ms)],
                    producer_id=who.producer_id,
                    producer_epoch=who.producer_epoch,
                    base_sequence=0,
                    transactional=True,
                )
                result = partition.append(bytearray(batch), self.clock.now(), AppendOrigin.CLIENT)
                assert result.error is ErrorCode.none
                assert await partition.committed(result.last_offset) is ErrorCode.none

        await self.on_broker(write())

    async def end(self, who: ProducerIdAndEpoch, *, committed: bool) -> EndTxnResult | ErrorCode:
        answer: EndTxnResult | ErrorCode = await self.submit(
            lambda shard, now: shard.end_txn(ID, who, committed=committed, version=TV_2, now=now)
        )
        return answer

    async def described(self) -> Transaction | ErrorCode:
        answer: Transaction | ErrorCode = await self.submit(lambda shard, _: shard.describe_transactions(ID))
        return answer

    async def settled(self, within: float) -> float:
        """Wait until the transaction is over and stable in every partition; how long that took."""
        since = self.loop.time()
        while self.loop.time() - since < within:
            transaction = await self.described()
            if isinstance(transaction, Transaction) and transaction.state in (
                TransactionState.COMPLETE_COMMIT,
                TransactionState.COMPLETE_ABORT,
                TransactionState.EMPTY,
            ):
                break
            await asyncio.sleep(0.01)
        else:
            raise AssertionError(f"still {transaction}")
        for topic_partition in PARTITIONS:
            partition = self.node.partitions.get(topic_partition)
            assert partition is not None
            assert partition.last_stable_offset == partition.high_watermark == partition.log_end_offset
        return self.loop.time() - since

    def outcomes(self) -> list[list[bool]]:
        """For each partition that has data: the outcomes of its markers, in order."""
        outcomes = []
        for topic_partition in PARTITIONS:
            partition = self.node.partitions.get(topic_partition)
            assert partition is not None
            log = partition
            data = log.read(log.log_start_offset, 1 << 20, below=log.log_end_offset)
            headers = list(iter_headers(data))
            if any(not header.is_control for _, header in headers):
                outcomes.append(
                    [
                        decode_marker(decode_records(data, position, header)[0]).committed
                        for position, header in headers
                        if header.is_control
                    ]
                )
        return outcomes


@virtual_time
async def test_a_hung_transaction_is_cleared_when_its_time_is_over_and_not_at_the_next_sweep() -> None:
    world = World()
    await world.start()
    who = await world.begin(timeout_ms=10_000)
    await world.write(who, *PARTITIONS)
    took = await world.settled(within=10.5)
    assert took > 9.9
    assert world.outcomes() == [[False]] * 5
    assert await world.end(who, committed=True) == EndTxnResult(ErrorCode.invalid_txn_state)


@virtual_time
async def test_a_hung_transaction_is_cleared_after_a_restart_too() -> None:
    world = World()
    await world.start()
    who = await world.begin(timeout_ms=10_000)
    await world.write(who, *PARTITIONS)
    await asyncio.sleep(5)
    world.crash()
    await world.start()
    assert await world.settled(within=10.5) > 9.9
    assert world.outcomes() == [[False]] * 5


CRASHES = [0.0, 0.0003, 0.001, 0.002, 0.003, 0.004, 0.005, 0.0065, 0.008, 0.01, 0.013]


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("power", [False, True], ids=["kill", "power cut"])
@pytest.mark.parametrize("after", CRASHES)
@virtual_time
async def test_a_crash_at_any_moment_of_the_end_leaves_one_outcome_everywhere(
    after: float, power: bool, committed: bool
) -> None:
    """Before the outcome is in the log, between it and the markers, between markers, before the completion."""
    world = World(log_flush_interval_messages=1)
    await world.start()
    who = await world.begin(timeout_ms=5_000)
    await world.write(who, *PARTITIONS)
    answers: list[EndTxnResult | ErrorCode] = []

    async def end() -> None:
        answers.append(await world.end(who, committed=committed))

    asking = world.on_broker(end())
    if after:
        await asyncio.sleep(after)
    world.crash(power=power)
    was_answered = asking.done()
    await world.start()
    await world.settled(within=6)
    outcomes = world.outcomes()
    assert len(outcomes) == 5, "acknowledged data is there"
    # A marker may be written twice; its outcome never changes.
    assert {marker for markers in outcomes for marker in markers} in ({True}, {False})
    if was_answered:
        assert answers == [EndTxnResult(ErrorCode.none, who.producer_id, ProducerEpoch(who.producer_epoch + 1))]
        assert outcomes[0][0] is committed


@virtual_time
async def test_the_markers_of_a_deleted_topic_are_not_waited_for() -> None:
    world = World(log_flush_interval_messages=1)
    await world.start()
    who = await world.begin()
    await world.write(who, *PARTITIONS)
    end = world.on_broker(world.end(who, committed=True))
    await asyncio.sleep(0)
    topic_id = world.node.metadata.image.topics["t"].topic_id
    await world.on_broker(world.node.controller.submit(lambda shard, _: shard.delete_topics([(None, topic_id)])))
    await end
    for _ in range(1_000):
        transaction = await world.described()
        assert isinstance(transaction, Transaction)
        if transaction.state is TransactionState.COMPLETE_COMMIT:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(transaction)


@pytest.mark.parametrize("committed", [True, False])
@virtual_time
async def test_a_transaction_whose_end_found_a_full_disk_is_over_once_there_is_space(committed: bool) -> None:
    world = World(log_flush_interval_messages=1)
    await world.start()
    who = await world.begin()
    await world.write(who, PARTITIONS[0])
    answer = world.on_broker(world.end(who, committed=committed))
    for _ in range(10_000):
        if world.outcomes() == [[committed]]:
            break
        await asyncio.sleep(0.0001)
    world.disk.faults = DiskFaults(full=1.0)
    await asyncio.sleep(10)
    assert answer.done()
    transaction = await world.described()
    assert isinstance(transaction, Transaction) and transaction.state.is_prepared
    world.disk.faults = DiskFaults()
    await world.settled(within=2)


@virtual_time
async def test_producer_ids_are_not_given_again_after_a_crash() -> None:
    world = World()
    given: list[ProducerId] = []
    for _ in range(3):
        node = await world.start()
        for _ in range(5):
            assert await world.on_broker(node.transactions.producer_ids.ready()) is ErrorCode.none
            producer_id = node.transactions.producer_ids.take()
            assert producer_id is not None
            given.append(producer_id)
        world.crash(power=True)
    assert len(set(given)) == len(given)


@virtual_time
async def test_more_producer_ids_than_one_block_has_are_there() -> None:
    world = World()
    node = await world.start()
    ids = node.transactions.producer_ids
    given = []
    for _ in range(2_500):
        assert await world.on_broker(ids.ready()) is ErrorCode.none
        given.append(ids.take())
    assert None not in given
    assert len(set(given)) == 2_500


@virtual_time
async def test_a_cluster_without_transactions_has_no_shard() -> None:
    world = World()
    node = await world.start()
    assert node.transactions.runtimes() == []
    assert await world.submit(lambda shard, _: shard.describe_transactions(ID)) is ErrorCode.not_coordinator
