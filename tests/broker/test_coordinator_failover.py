"""Transactions and groups on three whole nodes, on virtual time, while brokers die, hang and come back."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import pytest

from einmal.broker.coordinators.awaited_ends import WaitLimit
from einmal.broker.node import Node
from einmal.groups.requests import OffsetCommit, OffsetFetchGroup, OffsetToCommit, TxnOffsetCommit
from einmal.log.producer_state import AppendOrigin
from einmal.metadata.image import CONSUMER_OFFSETS, TRANSACTION_STATE
from einmal.simulation.network import QUIET, NetworkFaults
from einmal.transactions.coordinator import EndTxnResult, InitProducerIdResult
from einmal.transactions.states import AT_REST
from einmal.transactions.transaction import Transaction
from einmal.types import (
    ErrorCode,
    ProducerEpoch,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionVersion,
)
from einmal.wire.control_batch import decode_marker
from einmal.wire.java_hash import partition_for_id
from einmal.wire.record_batch import NewRecord, decode_records, encode_batch, iter_headers
from tests.broker.three_nodes import IDS, ThreeNodes
from tests.virtual_time import virtual_time
from tests.wire.mapped import APIS, request_of

ID, GROUP = "orders", "g"
TV_0, TV_2 = TransactionVersion.TV_0, TransactionVersion.TV_2
BOTH = pytest.mark.parametrize("version", [TV_0, TV_2], ids=["TV1", "TV2"])
DATA = tuple(TopicPartition("t", index) for index in range(3))
COORDINATOR = TopicPartition(TRANSACTION_STATE, partition_for_id(ID, 3))
OFFSETS = TopicPartition(CONSUMER_OFFSETS, partition_for_id(GROUP, 3))
COME_AGAIN = (
    ErrorCode.not_coordinator,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.concurrent_transactions,
    ErrorCode.not_enough_replicas,
    ErrorCode.not_leader_or_follower,
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.network_exception,
    ErrorCode.request_timed_out,
)


class Client:
    """One transactional id; asks candidates until one coordinates. Under TV2 it adopts the returned epoch."""

    def __init__(self, world: ThreeNodes, version: TransactionVersion) -> None:
        self.world = world
        self.version = version
        self.sequences: dict[TopicPartition, int] = {}
        self.who = ProducerIdAndEpoch(-1, -1)  # type: ignore[arg-type]
        self.answers: list[Any] = []
        self.value = b"x"

    async def _ask(self, where: TopicPartition, ask: Callable[[Node], Coroutine[Any, Any, Any]]) -> Any:
        """Ask the leader of a partition. Who is killed or hangs does not answer: then another is asked."""
        for _ in range(2_000):
            leader = self.world.leader(where)
            if not leader:
                await asyncio.sleep(0.01)
                continue
            task = self.world.on(leader, ask(self.world.nodes[leader]))
            node = self.world.nodes[leader]
            for _ in range(200):
                if task.done() or self.world.nodes.get(leader) is not node:
                    break
                await asyncio.sleep(0.005)
            if not task.done():
                continue
            self.answers.append(task.result())
            error = getattr(task.result(), "error", task.result())
            if not isinstance(error, ErrorCode) or error not in COME_AGAIN:
                return task.result()
            await asyncio.sleep(0.01)
        raise AssertionError(f"no answer: {error}")

    async def coordinator(self, decide: Any) -> Any:
        return await self._ask(COORDINATOR, lambda node: node.transactions.submit(ID, decide))

    async def begin(self, timeout_ms: int = 60_000) -> Client:
        async def init(node: Node) -> Any:
            await node.transactions.producer_ids.ready()
            return await node.transactions.submit(
                ID, lambda shard, now: shard.init_producer_id(ID, timeout_ms, None, now)
            )

        answer = await self._ask(COORDINATOR, init)
        assert isinstance(answer, InitProducerIdResult)
        assert answer.error is ErrorCode.none
        self._adopt(ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch))
        return self

    def _adopt(self, who: ProducerIdAndEpoch) -> None:
        if who != self.who:
            self.who, self.sequences = who, {}

    async def write(self, *partitions: TopicPartition) -> None:
        """One record to each, as Produce 11 and 12 do it."""
        if self.version is not TV_2:
            added = await self.coordinator(
                lambda shard, now: shard.add_partitions_to_txn(ID, self.who, partitions, TV_0, now)
            )
            assert added is ErrorCode.none
        for partition in partitions:
            error = await self._ask(partition, partial(self._append, topic_partition=partition))
            assert error is ErrorCode.none
            self.sequences[partition] = self.sequences.get(partition, 0) + 1

    async def _append(self, node: Node, topic_partition: TopicPartition) -> ErrorCode:
        partition = node.partitions.get(topic_partition)
        if partition is None or not partition.is_leader:
            return ErrorCode.not_leader_or_follower
        # Whoever gives up and asks again, for this transaction or a later one, does not change what is on its way.
        who, value = self.who, self.value
        producers = partition.producers
        sequence = self.sequences.get(topic_partition, 0)
        guard = producers.begin_verification(who, sequence, self.version)  # type: ignore[arg-type]
        if guard is not None:
            request = 12 if self.version is TV_2 else 11
            errors = await node.transactions.verify_produce(ID, who, [topic_partition], request, WaitLimit(100, None))
            if errors[topic_partition] is not ErrorCode.none:
                return errors[topic_partition]
        if not partition.has_enough_replicas:
            return ErrorCode.not_enough_replicas
        batch = encode_batch(
            [NewRecord(None, value, node.clock.now().wall_ms)],
            producer_id=who.producer_id,
            producer_epoch=who.producer_epoch,
            base_sequence=sequence,
            transactional=True,
        )
        result = partition.append(bytearray(batch), node.clock.now(), AppendOrigin.CLIENT, guard or 0)  # type: ignore[arg-type]
        if result.error is not ErrorCode.none:
            return result.error
        return await partition.committed(result.last_offset)

    async def commit_offset(self, offset: int) -> None:
        commit = TxnOffsetCommit(
            group_id=GROUP,
            producer=self.who,
            generation_id=-1,
            member_id="",
            group_instance_id=None,
            offsets={DATA[0]: OffsetToCommit(offset, -1, "")},
        )

        async def ask(node: Node) -> Any:
            runtime = node.groups.runtime_of(GROUP)
            if isinstance(runtime, ErrorCode):
                return runtime
            request = 5 if self.version is TV_2 else 4
            guard = await node.transactions.verify_offset_commit(
                ID, self.who, runtime.partition, request, WaitLimit(100, None)
            )
            if isinstance(guard, ErrorCode):
                return guard
            return await runtime.submit(lambda shard, now: shard.txn_offset_commit(commit, now), verification=guard)

        if self.version is not TV_2:
            added = await self.coordinator(
                lambda shard, now: shard.add_partitions_to_txn(ID, self.who, (OFFSETS,), TV_0, now)
            )
            assert added is ErrorCode.none
        answer = await self._ask(OFFSETS, ask)
        assert answer.topics[0].partitions[0].error_code is ErrorCode.none

    async def committed_offset(self) -> int:
        """What the group has, once no transaction may move it any more."""

        async def ask(node: Node) -> Any:
            answer = await node.groups.ask(
                GROUP,
                lambda shard, _: shard.offset_fetch(OffsetFetchGroup(GROUP, (DATA[0],)), require_stable=True),
                reads_only=True,
            )
            if isinstance(answer, ErrorCode):
                return answer
            partition = answer.topics[0].partitions[0]
            is_stable = partition.error_code is ErrorCode.none
            return partition.committed_offset if is_stable else ErrorCode.coordinator_load_in_progress

        return int(await self._ask(OFFSETS, ask))

    async def end(self, *, committed: bool) -> EndTxnResult:
        who = self.who
        answer = await self.coordinator(
            lambda shard, now: shard.end_txn(ID, who, committed=committed, version=self.version, now=now)
        )
        assert isinstance(answer, EndTxnResult)
        if self.version is TV_2 and answer.error is ErrorCode.none:
            self._adopt(ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch))
        return answer


async def started(**settings: Any) -> ThreeNodes:
    world = ThreeNodes(**{"num_partitions": 3, **settings})
    await world.start()
    for name in (TRANSACTION_STATE, CONSUMER_OFFSETS, "t"):
        await world.make_topic(name)
    for topic_partition in (*DATA, COORDINATOR, OFFSETS):
        await world.led(topic_partition)
    return world


async def settled(client: Client, within: float = 10.0) -> float:
    """Wait until the transaction is over and every partition is stable; how long that took."""
    world = client.world
    since = world.loop.time()
    while True:
        transaction = await client.coordinator(lambda shard, _: shard.describe_transactions(ID))
        if isinstance(transaction, Transaction) and transaction.state in AT_REST:
            break
        assert world.loop.time() - since < within, transaction
        await asyncio.sleep(0.01)

    def is_stable(topic_partition: TopicPartition) -> bool:
        leader = world.leader(topic_partition)
        partition = world.nodes[leader].partitions.get(topic_partition) if leader else None
        log = None if partition is None else partition
        return log is not None and log.last_stable_offset == log.high_watermark == log.log_end_offset

    took = world.loop.time() - since
    for topic_partition in DATA:
        await world.until(partial(is_stable, topic_partition))
    return took


def another_leads(world: ThreeNodes, topic_partition: TopicPartition, old: int) -> bool:
    return world.leader(topic_partition) not in (0, old)


def outcomes(world: ThreeNodes) -> list[list[bool]]:
    """For each partition with data: the outcomes of its markers, in order, at its leader."""
    found = []
    for topic_partition in DATA:
        partition = world.nodes[world.leader(topic_partition)].partitions.get(topic_partition)
        assert partition is not None
        log = partition
        data = log.read(log.log_start_offset, 1 << 20, below=log.log_end_offset)
        headers = list(iter_headers(data))
        if any(not header.is_control for _, header in headers):
            found.append(
                [
                    decode_marker(decode_records(data, position, header)[0]).committed
                    for position, header in headers
                    if header.is_control
                ]
            )
    return found


def decided(world: ThreeNodes) -> dict[bytes, dict[TopicPartition, bool]]:
    """What became of each value, by the markers in each partition's log."""
    found: dict[bytes, dict[TopicPartition, bool]] = {}
    for topic_partition in DATA:
        partition = world.nodes[world.leader(topic_partition)].partitions.get(topic_partition)
        assert partition is not None
        log = partition
        undecided: list[bytes] = []
        data = log.read(log.log_start_offset, 1 << 24, below=log.log_end_offset)
        for position, header in iter_headers(data):
            records = decode_records(data, position, header)
            if not header.is_control:
                undecided += [record.value or b"" for record in records]
                continue
            for value in undecided:
                found.setdefault(value, {})[topic_partition] = decode_marker(records[0]).committed
            undecided.clear()
        assert not undecided
    return found


# --- across brokers ------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("committed", [True, False])
@virtual_time
async def test_a_transaction_over_three_brokers_ends_in_all_of_them(
    version: TransactionVersion, committed: bool
) -> None:
    world = await started()
    assert len({world.leader(each) for each in DATA}) == 3
    client = await Client(world, version).begin()
    for _ in range(3):
        await client.write(*DATA)
        await client.commit_offset(7)
        assert (await client.end(committed=committed)).error is ErrorCode.none
        assert await settled(client) < 0.1
    assert outcomes(world) == [[committed] * 3] * 3
    assert await client.committed_offset() == (7 if committed else -1)


@virtual_time
async def test_a_partition_that_is_not_in_the_transaction_is_refused_by_a_coordinator_elsewhere() -> None:
    world = await started()
    client = await Client(world, TV_0).begin()
    await client.write(DATA[0])
    for partition in DATA[1:]:
        error = await client._ask(partition, partial(client._append, topic_partition=partition))
        assert error is ErrorCode.transaction_abortable


@virtual_time
async def test_all_coordinators_give_different_producer_ids() -> None:
    world = await started()
    given = []
    for _ in range(3):
        for node_id, node in list(world.nodes.items()):
            for _ in range(10):
                assert await world.on(node_id, node.transactions.producer_ids.ready()) is ErrorCode.none
                given.append(node.transactions.producer_ids.take())
        world.crash(1)
        await world.start(1)
    assert None not in given
    assert len(set(given)) == len(given)


# --- the coordinator dies ------------------------------------------------------------------------------------------

MOMENTS = [0.0, 0.0005, 0.001, 0.0015, 0.002, 0.003, 0.004, 0.005, 0.006, 0.008, 0.01, 0.02]


@BOTH
@pytest.mark.parametrize("after", MOMENTS)
@virtual_time
async def test_a_coordinator_that_dies_at_any_moment_of_the_end_leaves_one_outcome_everywhere(
    after: float, version: TransactionVersion
) -> None:
    world = await started()
    client = await Client(world, version).begin()
    await client.write(*DATA)
    await client.commit_offset(7)
    old = world.leader(COORDINATOR)
    ending = asyncio.ensure_future(client.end(committed=True))
    if after:
        await asyncio.sleep(after)
    world.crash(old)
    assert (await ending).error is ErrorCode.none, "the retry finds what was decided, or decides"
    assert await settled(client) < 5
    assert {marker for markers in outcomes(world) for marker in markers} == {True}
    assert len(outcomes(world)) == 3
    assert await client.committed_offset() == 7
    await client.write(*DATA)
    assert (await client.end(committed=False)).error is ErrorCode.none
    await settled(client)
    await world.start(old)
    assert [markers[-1] for markers in outcomes(world)] == [False] * 3
    assert await client.committed_offset() == 7


@BOTH
@virtual_time
async def test_an_open_transaction_continues_at_the_next_coordinator_and_times_out_there(
    version: TransactionVersion,
) -> None:
    world = await started()
    client = await Client(world, version).begin(timeout_ms=5_000)
    await client.write(DATA[0])
    world.crash(world.leader(COORDINATOR))
    await client.write(DATA[1])
    assert (await client.end(committed=True)).error is ErrorCode.none
    await settled(client)
    await client.write(DATA[2])
    world_time = world.loop.time()
    await settled(client, within=6)
    assert world.loop.time() - world_time > 4
    assert sorted(outcomes(world)) == [[False], [True], [True]]


@BOTH
@virtual_time
async def test_a_coordinator_paused_during_its_deposition_changes_nothing(version: TransactionVersion) -> None:
    """It wakes up in the middle of sending markers, and believes for a moment that it still decides."""
    world = await started()
    client = await Client(world, version).begin()
    for round_number in range(3):
        await client.write(*DATA)
        old = world.leader(COORDINATOR)
        ending = asyncio.ensure_future(client.end(committed=True))
        await asyncio.sleep(0.002 + 0.001 * round_number)
        world.pause(old)
        await world.until(partial(another_leads, world, COORDINATOR, old))
        assert (await ending).error is ErrorCode.none
        await settled(client)
        await client.write(*DATA)
        world.resume(old)
        await asyncio.sleep(1)
        assert (await client.end(committed=False)).error is ErrorCode.none
        await settled(client)
        await world.until(lambda: all(node.lifecycle.is_unfenced for node in world.nodes.values()))
        await asyncio.sleep(1)
    for markers in outcomes(world):
        # One may be written twice in a row, never another one in between.
        changes = [each for index, each in enumerate(markers) if index == 0 or markers[index - 1] != each]
        assert changes == [True, False] * 3


@BOTH
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2))])
@virtual_time
async def test_markers_that_their_sender_has_given_up_end_no_later_transaction(
    version: TransactionVersion, seed: int
) -> None:
    """Under TV1 the next transaction has the same epoch, and a late copy of a marker looks like one of its own."""
    world = await started(seed=seed)
    client = await Client(world, version).begin()
    outcome = {}
    world.network.faults = NetworkFaults(give_up=0.1, late_max=0.3)
    for number in range(60):
        client.value = str(number).encode()
        outcome[client.value] = number % 2 == 0
        await client.write(*DATA)
        assert (await client.end(committed=outcome[client.value])).error is ErrorCode.none
    world.network.faults = QUIET
    await settled(client)
    assert decided(world) == {value: dict.fromkeys(DATA, committed) for value, committed in outcome.items()}


# --- the leader of a partition dies --------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("after", [0.0, 0.001, 0.002, 0.003, 0.005])
@virtual_time
async def test_a_marker_finds_the_next_leader_of_its_partition(after: float, version: TransactionVersion) -> None:
    world = await started()
    client = await Client(world, version).begin()
    await client.write(*DATA)
    victim = next(world.leader(each) for each in DATA if world.leader(each) != world.leader(COORDINATOR))
    ending = asyncio.ensure_future(client.end(committed=True))
    if after:
        await asyncio.sleep(after)
    world.crash(victim)
    assert (await ending).error is ErrorCode.none
    assert await settled(client) < 3
    assert {marker for markers in outcomes(world) for marker in markers} == {True}
    assert len(outcomes(world)) == 3


@virtual_time
async def test_a_partition_without_a_leader_gets_its_marker_when_it_has_one_again() -> None:
    """Its only replica is away for a minute: the transaction waits for it, and is not taken for complete."""
    world = await started()
    client = await Client(world, TV_2).begin()
    victim = next(each for each in (1, 2, 3) if each != world.leader(COORDINATOR))
    node = world.nodes[next(each for each in (1, 2, 3) if each != victim)]
    fields = {
        "topics": [
            {
                "name": "single",
                "num_partitions": -1,
                "replication_factor": -1,
                "assignments": [{"partition_index": 0, "broker_ids": [victim]}],
                "configs": [{"name": "min.insync.replicas", "value": "1"}],
            }
        ],
        "timeout": 5_000,
    }
    await world.on(
        node.config.node_id, node.controller_channel.ask(APIS[19], 7, request_of(19, fields), timeout_ms=5_000)
    )
    single = TopicPartition("single", 0)
    assert await world.led(single) == victim
    await client.write(single, DATA[0])
    assert (await client.end(committed=True)).error is ErrorCode.none
    world.crash(victim)
    await asyncio.sleep(60)
    transaction = await client.coordinator(lambda shard, _: shard.describe_transactions(ID))
    is_written = transaction.state in AT_REST
    await world.start(victim)
    await world.led(single)
    assert await settled(client) < 3
    partition = world.nodes[victim].partitions.get(single)
    assert partition is not None
    await world.until(lambda: partition.last_stable_offset == partition.log_end_offset)
    assert partition.log_end_offset >= 2, "the record and its marker"
    assert not is_written or partition.log_end_offset == 2


# --- groups --------------------------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("committed", [True, False])
@virtual_time
async def test_pending_offsets_are_settled_by_the_next_group_coordinator(
    version: TransactionVersion, committed: bool
) -> None:
    world = await started()
    client = await Client(world, version).begin()
    await client.commit_offset(5)
    assert (await client.end(committed=True)).error is ErrorCode.none
    assert await client.committed_offset() == 5
    await client.commit_offset(9)
    world.crash(world.leader(OFFSETS))
    assert (await client.end(committed=committed)).error is ErrorCode.none
    assert await client.committed_offset() == (9 if committed else 5)


def committed_by(commit: OffsetCommit, node: Node) -> Coroutine[Any, Any, Any]:
    return node.groups.ask(GROUP, lambda shard, now: shard.offset_commit(commit, now))


@virtual_time
async def test_committed_offsets_survive_every_coordinator_in_turn() -> None:
    world = await started()
    client = Client(world, TV_2)
    for offset in range(4):
        commit = OffsetCommit(
            group_id=GROUP,
            generation_id=-1,
            member_id="",
            group_instance_id=None,
            offsets={DATA[0]: OffsetToCommit(offset, -1, "")},
        )
        await client._ask(
            OFFSETS,
            partial(committed_by, commit),
        )
        victim = world.leader(OFFSETS)
        world.crash(victim)
        assert await client.committed_offset() == offset
        await world.start(victim)
        await world.until(lambda: all(node.lifecycle.is_unfenced for node in world.nodes.values()))
        await asyncio.sleep(2)


@virtual_time
async def test_producer_epochs_continue_after_every_failover() -> None:
    world = await started()
    client = await Client(world, TV_2).begin()
    epochs = [client.who.producer_epoch]
    for _ in range(3):
        await client.write(DATA[0])
        victim = world.leader(COORDINATOR)
        ending = asyncio.ensure_future(client.end(committed=True))
        await asyncio.sleep(0.003)
        world.crash(victim)
        await ending
        epochs.append(client.who.producer_epoch)
        await world.start(victim)
        await world.until(lambda: all(node.lifecycle.is_unfenced for node in world.nodes.values()))
        await asyncio.sleep(2)
    assert epochs == [ProducerEpoch(each) for each in range(4)]


# --- whatever happens ----------------------------------------------------------------------------------------------


async def strike(world: ThreeNodes, source: random.Random, until: float) -> None:
    """One broker after the other dies, sleeps, or loses another one; coordinators more often than others."""
    while world.loop.time() < until:
        await asyncio.sleep(source.uniform(0.2, 2.0))
        coordinators = [leader for leader in map(world.leader, (COORDINATOR, OFFSETS)) if leader]
        victim = source.choice([1, 2, 3, *coordinators])
        kind = source.choice(["crash", "crash", "pause", "cut"])
        if kind == "crash":
            world.crash(victim)
            await asyncio.sleep(source.uniform(0.05, 3.0))
            await world.start(victim)
        elif kind == "pause":
            world.pause(victim)
            await asyncio.sleep(source.uniform(0.05, 6.0))
            world.resume(victim)
        else:
            world.network.cut(f"b{victim}", f"b{source.choice([each for each in IDS if each != victim])}")
            await asyncio.sleep(source.uniform(0.1, 5.0))
            world.network.heal()


@BOTH
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
@virtual_time
async def test_whatever_happens_to_brokers_a_transaction_has_one_outcome_and_its_offsets_have_it_too(
    version: TransactionVersion, seed: int
) -> None:
    world = await started(seed=seed)
    source = random.Random(seed)
    client = await Client(world, version).begin()
    outcome: dict[bytes, dict[TopicPartition, bool]] = {}
    offset = -1
    world.network.faults = NetworkFaults(give_up=0.01, late_max=1.0, reset=0.002, stall=0.005)
    striking = asyncio.ensure_future(strike(world, source, world.loop.time() + 20))
    while not striking.done():
        client.value = str(len(outcome)).encode()
        committed = source.random() < 0.6
        partitions = source.sample(DATA, source.randint(1, 3))
        await client.write(*partitions)
        if source.random() < 0.5:
            await client.commit_offset(len(outcome))
            offset = len(outcome) if committed else offset
        assert (await client.end(committed=committed)).error is ErrorCode.none
        outcome[client.value] = dict.fromkeys(partitions, committed)
    await striking
    world.network.faults = QUIET
    await world.until(lambda: all(node.lifecycle.is_unfenced for node in world.nodes.values()))
    assert await settled(client) < 5
    assert decided(world) == outcome
    assert await client.committed_offset() == offset
