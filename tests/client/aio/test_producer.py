"""What becomes of records at the edges of the asyncio producer's life, against our broker."""

from __future__ import annotations

import asyncio

import pytest

from einmal.client.aio import Admin, Producer
from einmal.client.errors import LocalError, RequestRefused, UnknownOutcome, UnknownTopic
from einmal.client.records import RecordMetadata
from einmal.types import Header, TopicPartition
from einmal.wire.record_batch import NewRecord
from tests.client.conftest import NameFactory
from tests.interop.conftest import NodeFactory
from tests.suite.patience import patient

pytestmark = pytest.mark.system


@pytest.fixture
def bootstrap(node_of: NodeFactory) -> str:
    return node_of("einmal", 2).bootstrap


async def test_a_record_that_is_sent_again_right_after_its_topic_was_refused_has_an_outcome_too(bootstrap: str) -> None:
    async with Producer(bootstrap_servers=bootstrap) as producer:
        async with asyncio.timeout(patient(20)):
            for _ in range(3):
                with pytest.raises(RequestRefused):
                    await producer.send("no/such topic", b"x")


async def test_a_record_in_flight_when_the_producer_is_closed_is_of_unknown_outcome(
    bootstrap: str, name: NameFactory
) -> None:
    topic = name("closed")
    producer = Producer(bootstrap_servers=bootstrap, linger_ms=0)
    await producer.send(topic, b"first")
    future = producer.send(topic, b"second", partition=0)
    # One turn of the loop: the sender's.
    await asyncio.sleep(0)
    assert producer._outbox.core.in_flight
    await producer.close(flush=False)
    with pytest.raises(UnknownOutcome):
        await future


async def test_a_partition_that_does_not_exist_fails_no_record_for_another(bootstrap: str, name: NameFactory) -> None:
    topic = name("partitions")
    async with Producer(bootstrap_servers=bootstrap, max_block_ms=300) as producer:
        await producer.send(topic, b"first", partition=0)
        missing, behind = producer.send(topic, b"x", partition=99), producer.send(topic, b"y", partition=0)
        with pytest.raises(UnknownTopic):
            await missing
        assert (await behind).offset == 1


async def test_a_negative_offset_is_refused_and_leaves_the_transaction_as_it_is(
    bootstrap: str, name: NameFactory
) -> None:
    topic = name("topic")
    async with Producer(bootstrap_servers=bootstrap, transactional_id=name("id")) as producer:
        async with producer.transaction() as transaction:
            future = transaction.send(topic, b"x")
            with pytest.raises(LocalError, match="from 0 on"):
                await transaction.send_offsets({TopicPartition(topic, 0): -1}, name("group"))
        assert (await future).offset == 0


async def test_a_record_whose_flush_was_cancelled_is_in_the_transaction(bootstrap: str, name: NameFactory) -> None:
    """It waited for its topic's metadata, and the commit knew nothing of it any more."""
    async with Producer(bootstrap_servers=bootstrap, transactional_id=name("id")) as producer:
        await producer.init_transactions()
        producer.begin_transaction()
        future = producer.send(name("topic"), b"x")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await producer.flush()
        await producer.commit_transaction()
        assert future.done()
        assert (await future).offset == 0


async def test_a_record_that_cannot_be_encoded_fails_alone(bootstrap: str, name: NameFactory) -> None:
    topic = name("unencodable")
    async with Producer(bootstrap_servers=bootstrap, linger_ms=0) as producer, asyncio.timeout(patient(20)):
        assert (await producer.send(topic, b"first", partition=0)).offset == 0
        # No such header passes send().
        refused: asyncio.Future[RecordMetadata] = asyncio.get_running_loop().create_future()
        record = NewRecord(None, b"v", 1, (Header("caf\udce9", b"x"),))
        now_ms = producer._clock.now().monotonic_ms
        producer._outbox.put(topic, record, producer.settings.batch_size, 0, refused, now_ms)
        behind = producer.send(topic, b"behind", partition=0)
        elsewhere = producer.send(name("other"), b"elsewhere")
        await producer.flush()
        with pytest.raises(LocalError, match="UnicodeEncodeError"):
            await refused
        assert (await behind).offset == 1
        assert (await elsewhere).offset == 0
        assert producer.buffered_bytes == 0


async def test_a_topic_that_is_not_written_to_any_more_is_not_created_again(bootstrap: str, name: NameFactory) -> None:
    """The brokers of the tests create topics that a producer asks for."""
    deleted, other = name("deleted"), name("other")
    settings = {"bootstrap_servers": bootstrap, "metadata_max_age_ms": 10, "metadata_max_idle_ms": 300}
    async with Producer(settings) as producer, Admin(bootstrap_servers=bootstrap) as admin:
        cluster = producer._cluster
        await producer.send(deleted, b"x")
        await cluster.refresh_soon()
        assert deleted in cluster.metadata.topics
        async with asyncio.timeout(patient(20)):
            while deleted in cluster.metadata.topics:
                await producer.send(other, b"x")
        await admin.delete_topics([deleted])
        for _ in range(3):
            await producer.send(other, b"x")
            await cluster.refresh_soon()
        listed = await admin.list_topics()
        assert other in listed and deleted not in listed
        assert (await producer.send(deleted, b"x")).offset == 0


async def test_metadata_that_comes_after_its_topic_was_forgotten_stays_fresh(bootstrap: str, name: NameFactory) -> None:
    """Its partitions may move: an answer that was on its way brought them back, and nothing would ask again."""
    topic, other = name("forgotten"), name("other")
    settings = {"bootstrap_servers": bootstrap, "metadata_max_age_ms": 10, "metadata_max_idle_ms": 300}
    async with Producer(settings) as producer, asyncio.timeout(patient(20)):
        cluster = producer._cluster
        await producer.send(topic, b"x")
        while topic in cluster.metadata.topics:
            await producer.send(other, b"x")
        await cluster.refresh_metadata([topic])
        await producer.send(topic, b"y")
        assert topic in cluster.wanted.now()
