"""Requests that begin a transaction while the previous one of their id lacks markers, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

import pytest

from einmal.broker.coordinators.awaited_ends import WaitLimit, pause
from einmal.broker.coordinators.marker_writer import MarkerWriter
from einmal.types import ErrorCode, ProducerIdAndEpoch, TopicPartition
from einmal.wire import produce
from einmal.wire.messages import response_body_position
from tests.broker.nodes import batch
from tests.broker.test_coordinator_failover import COORDINATOR, DATA, TV_2, another_leads, started
from tests.broker.test_coordinator_failover import Client as ClusterClient
from tests.broker.test_transaction_handlers import ADD_OFFSETS, FIND_COORDINATOR, ID, SMALL, TransactionalClient
from tests.broker.virtual_node import VirtualMachine
from tests.virtual_time import running_loop, virtual_time

CONCURRENT: Final = ErrorCode.concurrent_transactions
MAX_MS: Final = "add.partitions.to.txn.retry.backoff.max.ms"
PRODUCE: Final = 0


class HeldMarkers:
    """Writes no markers before ``are_free`` is set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, writer: MarkerWriter) -> None:
        self.are_free = asyncio.Event()
        self._write = writer.write_markers
        monkeypatch.setattr(writer, "write_markers", self.write_markers)

    async def write_markers(self, asked: Sequence[Any]) -> Any:
        await self.are_free.wait()
        return await self._write(asked)

    def free_after(self, seconds: float) -> None:
        running_loop().call_later(seconds, self.are_free.set)


class Ending:
    """A transaction that is committed and lacks its marker in partition 0 of ``t``."""

    def __init__(self, machine: VirtualMachine, client: TransactionalClient, who: ProducerIdAndEpoch) -> None:
        self.machine = machine
        self.client = client
        self.who = who
        """The producer of the next transaction."""

    @property
    def end_offset(self) -> int:
        partition = self.machine.node.partitions.get(TopicPartition("t", 0))
        assert partition is not None
        return partition.log_end_offset

    def send_produce(self, timeout_ms: int = 10_000) -> None:
        data = batch(b"next", producer=self.who, sequence=0, transactional=True)
        request = produce.ProduceRequest(ID, -1, timeout_ms, [("t", [(0, data)])])
        self.client.client.send(PRODUCE, 12, b"".join(produce.encode_produce_request(12, request)))

    async def produce(self, timeout_ms: int = 10_000) -> ErrorCode:
        self.send_produce(timeout_ms)
        answer = await self.client.client.receive()
        position = response_body_position(PRODUCE, 12, answer)
        return produce.decode_produce_response(12, answer, position).topics[0][1][0].error_code

    async def add_partitions(self) -> ErrorCode:
        return (await self.client.add(self.who, 1))[1]

    async def add_offsets(self) -> ErrorCode:
        producer = {"producer_id": self.who.producer_id, "producer_epoch": self.who.producer_epoch}
        request = {"transactional_id": ID, "group_id": "g", **producer}
        answer = await self.client.client.call(ADD_OFFSETS, 3, request)
        return ErrorCode(answer.error_code)

    async def init(self) -> ErrorCode:
        return (await self.client.init())[0]


REQUESTS: Final = [Ending.produce, Ending.add_partitions, Ending.add_offsets, Ending.init]
every_request = pytest.mark.parametrize("request_of", REQUESTS, ids=lambda each: each.__name__)


@asynccontextmanager
async def ending(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any] | None = None
) -> AsyncIterator[tuple[Ending, HeldMarkers]]:
    machine = VirtualMachine()
    async with machine.running(SMALL | (settings or {})) as node, machine.client() as raw:
        await raw.create_topic("t", 2)
        for key_type in (0, 1):
            await raw.call(FIND_COORDINATOR, 3, {"key": ID, "key_type": key_type})
        client = TransactionalClient(raw, node)
        who = await client.begin()
        await client.add(who, 0)
        held = HeldMarkers(monkeypatch, node.transactions.markers)
        error, who = await client.end(who, True)
        assert error is ErrorCode.none
        yield Ending(machine, client, who), held
        held.are_free.set()


async def timed(answer: Any) -> tuple[Any, float]:
    """The answer, and the seconds that it took."""
    since = running_loop().time()
    return await answer, running_loop().time() - since


@every_request
@virtual_time
async def test_the_markers_wake_a_request_that_waits(
    monkeypatch: pytest.MonkeyPatch, request_of: Callable[[Ending], Any]
) -> None:
    async with ending(monkeypatch) as (transaction, held):
        held.free_after(0.043)
        error, seconds = await timed(request_of(transaction))
        assert error is ErrorCode.none
        assert 0.043 <= seconds < 0.053


@every_request
@virtual_time
async def test_the_wait_is_bounded_by_a_setting(
    monkeypatch: pytest.MonkeyPatch, request_of: Callable[[Ending], Any]
) -> None:
    async with ending(monkeypatch, {MAX_MS: 300}) as (transaction, _held):
        error, seconds = await timed(request_of(transaction))
        assert error is CONCURRENT
        assert 0.3 <= seconds < 0.31
    async with ending(monkeypatch, {MAX_MS: 0}) as (transaction, _held):
        error, seconds = await timed(request_of(transaction))
        assert error is CONCURRENT
        assert seconds < 0.01


@virtual_time
async def test_a_produce_waits_no_longer_than_its_own_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ending(monkeypatch) as (transaction, held):
        error, seconds = await timed(transaction.produce(timeout_ms=30))
        assert error is CONCURRENT
        assert 0.03 <= seconds < 0.04
        held.are_free.set()
        assert await transaction.produce() is ErrorCode.none


@virtual_time
async def test_init_producer_id_that_aborts_a_transaction_waits_when_repeated(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ending(monkeypatch) as (transaction, held):
        held.are_free.set()
        assert await transaction.produce() is ErrorCode.none
        held.are_free.clear()
        error, seconds = await timed(transaction.init())
        assert error is CONCURRENT
        assert seconds < 0.01
        held.free_after(0.02)
        error, seconds = await timed(transaction.init())
        assert error is ErrorCode.none
        assert 0.02 <= seconds < 0.03


@virtual_time
async def test_a_waiting_produce_delays_its_own_connection_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ending(monkeypatch) as (transaction, held), transaction.machine.client() as other:
        transaction.send_produce()
        behind = running_loop().create_task(timed(transaction.client.client.receive()))
        assert (await timed(other.answers()))[1] < 0.01
        assert not behind.done()
        held.free_after(0.05)
        await behind
        assert await transaction.client.client.answers()


@virtual_time
async def test_a_wait_ends_with_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ending(monkeypatch, {MAX_MS: 60_000}) as (transaction, held):
        transaction.send_produce()
        await asyncio.sleep(0.02)
        transaction.client.client.writer.close()
        await asyncio.sleep(0.02)
        held.are_free.set()
        await asyncio.sleep(1)
        assert transaction.end_offset == 1, "the marker, and no record of a client that has left"


@virtual_time
async def test_a_wait_ends_when_its_requester_leaves_also_before_the_next_wait() -> None:
    class LeavingRequester:
        def on_connection_lost(self, key: object, callback: Callable[[], None]) -> None:
            running_loop().call_later(0.01, callback)

    limit = WaitLimit(1_000, LeavingRequester())
    forever = running_loop().create_future()
    since = running_loop().time()
    assert not await limit.wait(forever)
    assert running_loop().time() - since == pytest.approx(0.01)
    assert not await limit.wait(pause(0.001))


@virtual_time
async def test_the_limit_is_the_time_of_all_waits_together() -> None:
    limit = WaitLimit(100, None)
    since = running_loop().time()
    assert [await limit.wait(pause(0.03)) for _ in range(5)] == [True, True, True, False, False]
    assert running_loop().time() - since == pytest.approx(0.1)


@virtual_time
async def test_many_waits_for_a_transaction_without_markers_leave_nothing_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ending(monkeypatch, {MAX_MS: 1}) as (transaction, held):
        ends = transaction.machine.node.transactions.ends._ends
        for _ in range(50):
            assert await transaction.add_partitions() is CONCURRENT
        (end,) = ends.values()
        assert not end._callbacks
        held.are_free.set()
        await asyncio.sleep(0.05)
        assert not ends


async def cluster_ending(monkeypatch: pytest.MonkeyPatch) -> tuple[ClusterClient, list[HeldMarkers]]:
    """As ``ending``, on three nodes."""
    world = await started()
    client = await ClusterClient(world, TV_2).begin()
    await client.write(DATA[0])
    held = [HeldMarkers(monkeypatch, node.transactions.markers) for node in world.nodes.values()]
    await client.end(committed=True)
    return client, held


@virtual_time
async def test_a_leader_asks_the_coordinator_on_another_broker_until_the_markers_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client, held = await cluster_ending(monkeypatch)
    world, who = client.world, client.who
    coordinator = world.leader(COORDINATOR)
    leader, data = next((world.leader(each), each) for each in DATA if world.leader(each) != coordinator)
    verify = partial(world.nodes[leader].transactions.verify_produce, producer=who, partitions=[data], version=12)
    verified = await world.on(leader, timed(verify(ID, limit=WaitLimit(100, None))))
    assert verified[0] == {data: CONCURRENT}
    assert 0.1 <= verified[1] < 0.11

    waiting = world.on(leader, timed(verify(ID, limit=WaitLimit(100, None))))
    other = await world.on(leader, timed(verify("another", limit=WaitLimit(100, None))))
    assert other[1] < 0.02, "others do not wait"
    for markers in held:
        markers.free_after(0.03)
    verified = await waiting
    assert verified[0] == {data: ErrorCode.none}
    assert 0.03 <= verified[1] < 0.08


@virtual_time
async def test_a_coordinator_that_loses_its_shard_answers_not_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    client, _held = await cluster_ending(monkeypatch)
    world, who = client.world, client.who
    old = world.leader(COORDINATOR)
    answer = world.nodes[old].transactions.submit_next(
        ID, lambda shard, now: shard.add_partitions_to_txn(ID, who, DATA, TV_2, now), WaitLimit(60_000, None)
    )
    waiting = world.on(old, timed(answer))
    await asyncio.sleep(0.02)
    world.pause(old)
    await world.until(partial(another_leads, world, COORDINATOR, old))
    world.resume(old)
    error, seconds = await waiting
    assert error is ErrorCode.not_coordinator
    assert seconds < 30
