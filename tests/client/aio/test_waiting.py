"""Claims about waiting: calls without time or buffer space end or pause, and never occupy the event loop."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest

from einmal.client.aio import Admin, Consumer, PartitionWriter, Producer
from einmal.client.cores.metadata_cache import BrokerAddress, PartitionMetadata, TopicMetadata
from einmal.client.errors import ClientClosed, LocalError, NoBrokerReachable, RecordTooLarge, RetriableError
from einmal.seams import TcpNetwork
from einmal.types import TopicPartition
from einmal.wire.record_batch import NewRecord, encode_batch
from tests.suite.patience import patient

NOWHERE = "127.0.0.1:1"
PATIENT = 60_000


async def test_a_producer_without_time_to_block_pauses_between_its_attempts_to_get_an_identity() -> None:
    """Where no broker could be reached any more, it asked again and again without ever giving way to the event loop."""
    asked = 0
    has_come_back = asyncio.Event()

    async def refuse(*_arguments: Any, **_options: Any) -> None:
        nonlocal asked
        asked += 1
        assert asked < 1_000, "the loop never turns"
        if asked == 3:
            has_come_back.set()
        raise NoBrokerReachable()

    async with asyncio.timeout(patient(20)):
        producer = Producer(bootstrap_servers=NOWHERE, max_block_ms=0)
        producer._cluster.call_any = refuse  # type: ignore[method-assign, assignment]
        acquiring = asyncio.create_task(producer._outbox.acquire_identity())
        await has_come_back.wait()
        await asyncio.sleep(0)
        assert not acquiring.done()
        acquiring.cancel()
        await asyncio.gather(acquiring, return_exceptions=True)
        await producer.close(flush=False)
    assert asked < 100


async def test_a_flush_that_is_cancelled_leaves_no_record_without_an_outcome() -> None:
    async with asyncio.timeout(patient(20)):
        producer = Producer(bootstrap_servers=NOWHERE)
        future = producer.send("t", b"v")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await producer.flush()
        with pytest.raises(NoBrokerReachable):
            await future
        await producer.close(flush=False)


async def test_a_record_larger_than_the_buffer_does_not_wait_for_room_for_ever() -> None:
    async with asyncio.timeout(patient(20)):
        producer = Producer(bootstrap_servers=NOWHERE, buffer_memory=100)
        await producer.room(1_000)
        with pytest.raises(RecordTooLarge, match=r"Raise buffer\.memory"):
            producer.send("t", bytes(1_000))
        await producer.close(flush=False)


async def test_closing_a_producer_ends_the_calls_that_wait() -> None:
    async with asyncio.timeout(patient(20)):
        producer = Producer(bootstrap_servers=NOWHERE, buffer_memory=1_000, bootstrap_timeout_ms=PATIENT)
        sent = asyncio.get_running_loop().create_future()
        now_ms = producer._clock.now().monotonic_ms
        producer._outbox._append(TopicPartition("t", 0), NewRecord(None, b"v", 1, ()), 900, sent, now_ms)
        waiting = [asyncio.create_task(producer.room(200)), asyncio.create_task(producer.flush())]
        await asyncio.sleep(0)
        await producer.close(flush=False)
        await asyncio.gather(*waiting)
        with pytest.raises(ClientClosed):
            await sent
        await producer.flush()
        await producer.room(200)
        assert producer.buffered_bytes == 0


async def test_closing_a_consumer_ends_the_calls_that_wait() -> None:
    async with asyncio.timeout(patient(20)):
        consumer = Consumer(bootstrap_servers=NOWHERE, group_id="g", bootstrap_timeout_ms=PATIENT)
        at = TopicPartition("t", 0)
        consumer.assign([at])
        waiting = [asyncio.create_task(consumer.poll(PATIENT)), asyncio.create_task(consumer.position(at))]
        iterating = asyncio.create_task(anext(aiter(consumer), None))
        await asyncio.sleep(0)
        await consumer.close()
        for each in waiting:
            with pytest.raises(ClientClosed):
                await each
        assert await iterating is None


async def test_closing_a_consumer_ends_the_poll_that_joins_the_group() -> None:
    async with asyncio.timeout(patient(20)):
        consumer = Consumer(bootstrap_servers=NOWHERE, group_id="g", bootstrap_timeout_ms=PATIENT)
        consumer.subscribe(["t"])
        polling = asyncio.create_task(consumer.poll(PATIENT))
        await asyncio.sleep(0)
        await consumer.close()
        with pytest.raises(ClientClosed):
            await polling


class SilentNetwork(TcpNetwork):
    """No connection attempt ends."""

    async def connect(self, *_arguments: Any, **_options: Any) -> Any:
        await asyncio.Event().wait()


@pytest.mark.parametrize("turns", [1, 2, 3])
async def test_closing_a_client_that_connects_cancels_no_call(turns: int) -> None:
    """A task group takes a cancelled task for one that is over."""
    async with asyncio.timeout(patient(20)):
        at = TopicPartition("t", 0)
        admin = Admin(bootstrap_servers=NOWHERE, network=SilentNetwork())
        consumer = Consumer(bootstrap_servers=NOWHERE, network=SilentNetwork())
        writer = PartitionWriter({"bootstrap.servers": NOWHERE}, network=SilentNetwork())
        batch = encode_batch([NewRecord(None, b"v", 1, ())])
        calls: list[asyncio.Task[Any]] = [
            asyncio.create_task(admin.list_topics()),
            asyncio.create_task(consumer.end_offsets(at)),
            asyncio.create_task(writer.append(at, batch)),
        ]
        for _ in range(turns):
            await asyncio.sleep(0)
        for client in (admin, consumer, writer):
            await client.close()
        for call in calls:
            with pytest.raises(ClientClosed):
                await call


@pytest.mark.parametrize("turns", [1, 2, 3])
async def test_closing_a_client_that_waits_for_a_leader_cancels_no_call(turns: int) -> None:
    async with asyncio.timeout(patient(20)):
        writer = PartitionWriter({"bootstrap.servers": NOWHERE}, network=SilentNetwork())
        writer._cluster.metadata.topics["t"] = TopicMetadata("t", UUID(int=7), {0: PartitionMetadata(0, leader=-1)})
        batch = encode_batch([NewRecord(None, b"v", 1, ())])
        appending = asyncio.create_task(writer.append(TopicPartition("t", 0), batch))
        for _ in range(turns):
            await asyncio.sleep(0)
        await writer.close()
        with pytest.raises(ClientClosed):
            await appending


async def test_closing_a_writer_ends_the_calls_that_wait() -> None:
    async with asyncio.timeout(patient(20)):
        at = TopicPartition("t", 0)
        writer = PartitionWriter({"bootstrap.servers": NOWHERE, "buffer.memory": 10}, network=SilentNetwork())
        leader = {0: PartitionMetadata(0, leader=1)}
        writer._cluster.metadata.topics["t"] = TopicMetadata("t", UUID(int=7), leader)
        writer._cluster.metadata.brokers[1] = BrokerAddress(1, "127.0.0.1", 1)
        batch = encode_batch([NewRecord(None, b"v", 1, ())])
        calls = [asyncio.create_task(writer.append(at, batch)), asyncio.create_task(writer.flush())]
        for _ in range(3):
            await asyncio.sleep(0)
        assert not any(call.done() for call in calls)
        await writer.close()
        calls.append(asyncio.create_task(writer.flush()))
        for call in calls:
            with pytest.raises(ClientClosed):
                await call


async def test_polls_that_do_not_wait_let_the_event_loop_turn() -> None:
    async with asyncio.timeout(patient(20)):
        consumer = Consumer(bootstrap_servers=NOWHERE, bootstrap_timeout_ms=PATIENT)
        consumer.assign([("t", 0)])
        has_turned = asyncio.Event()
        turning = asyncio.get_running_loop().call_later(0.01, has_turned.set)
        while not has_turned.is_set():
            assert await consumer.poll(0) == []
        turning.cancel()
        await consumer.close()


async def test_a_poll_for_no_records_is_refused() -> None:
    consumer = Consumer(bootstrap_servers=NOWHERE)
    for most in (0, -1, 1.0):
        with pytest.raises(LocalError, match="from 1 on"):
            await consumer.poll(0, max_records=most)  # type: ignore[arg-type]
    await consumer.close()


async def test_a_position_that_cannot_be_found_ends_at_the_deadline() -> None:
    async with asyncio.timeout(patient(20)):
        settings: dict[str, Any] = {
            "group_id": "g",
            "enable_auto_commit": False,
            "default_api_timeout_ms": 200,
            "bootstrap_timeout_ms": 60_000,
        }
        consumer = Consumer(bootstrap_servers=NOWHERE, **settings)
        consumer.assign([("t", 0)])
        with pytest.raises(RetriableError):
            await consumer.position(TopicPartition("t", 0))
        await consumer.close()
