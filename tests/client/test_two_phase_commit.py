"""Two-phase commit (KIP-939) as a program uses it: broker and producer die, a database knows what is committed.

The database is a text that is committed or not. What a program does with a real one: ``docs/two-phase-commit.md``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from einmal.client import Admin, Consumer, NewTopic, PartitionWriter, PreparedTxnState, Producer, TransactionDriver, aio
from einmal.client.errors import AbortableError, ConfigError, FatalError, InvalidState, KafkaError, ProducerFenced
from einmal.types import ErrorCode, TopicPartition
from einmal.wire.record_batch import NewRecord, encode_batch
from tests.client.conftest import NameFactory
from tests.interop.conftest import Node
from tests.interop.einmal_broker import EinmalBroker

pytestmark = [pytest.mark.system, pytest.mark.time_limit(60)]
SETTINGS = {"transaction.two.phase.commit.enable": "true", "transaction.state.log.num.partitions": "1"}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EinmalBroker]:
    broker = EinmalBroker(tmp_path_factory.mktemp("two-phase"), SETTINGS)
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture
def topic(broker: EinmalBroker, name: NameFactory) -> TopicPartition:
    topic = name("topic")
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        admin.create_topics([NewTopic(topic, 1)])
    return TopicPartition(topic, 0)


def settings_of(broker: EinmalBroker, transactional_id: str) -> dict[str, str]:
    return {
        "bootstrap.servers": broker.bootstrap,
        "transactional.id": transactional_id,
        "transaction.two.phase.commit.enable": "true",
    }


def a_producer(broker: EinmalBroker, transactional_id: str, *, max_block_ms: int = 30_000) -> Producer:
    return Producer(settings_of(broker, transactional_id), max_block_ms=max_block_ms)


def read(broker: EinmalBroker, topic: TopicPartition) -> list[bytes | None]:
    """All committed records; no transaction is open."""
    with Consumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest") as consumer:
        consumer.assign([topic])
        end = consumer.end_offsets(topic)[topic]
        found: list[bytes | None] = []
        while consumer.position(topic) < end:
            found += [record.value for record in consumer.poll(100)]
        return found


STEPS = ("sent", "flushed", "prepared", "stored", "kept", "kept twice", "ended", "completed")
"""After which everything dies: broker with -9, and the producer. From "stored" on the database has committed."""


class Bank:
    """A program whose broker is killed with it."""

    def __init__(self, broker: EinmalBroker, topic: TopicPartition, transactional_id: str) -> None:
        self.rows = ""
        self.state = ""
        self._broker = broker
        self._topic = topic
        self._transactional_id = transactional_id
        self._producer: Producer | None = None

    def producer(self) -> Producer:
        assert self._producer is None
        self._producer = a_producer(self._broker, self._transactional_id)
        return self._producer

    def die(self) -> None:
        self._broker.kill()
        if self._producer is not None:
            self._producer.close(flush=False)
            self._producer = None
        self._broker.start()

    def run(self, killed_after: str) -> None:
        def has_reached(step: str) -> bool:
            return STEPS.index(step) <= STEPS.index(killed_after)

        producer = self.producer()
        producer.init_transactions()
        producer.begin_transaction()
        sent = producer.send(self._topic.topic, b"first", partition=0)
        if has_reached("flushed"):
            sent.result(300)
        if has_reached("prepared"):
            state = producer.prepare_transaction()
        if has_reached("stored"):
            self.rows, self.state = "first", str(state)
        if killed_after.startswith("kept"):
            for _ in range(1 + (killed_after == "kept twice")):
                self.die()
                self.producer().init_transactions(keep_prepared_txn=True)
        elif has_reached("ended"):
            producer.complete_transaction(PreparedTxnState.parse(self.state))
        if has_reached("completed"):
            self._await("CompleteCommit")

    def _await(self, state: str) -> None:
        with Admin(bootstrap_servers=self._broker.bootstrap) as admin:
            while admin.describe_transactions([self._transactional_id])[self._transactional_id].state != state:
                pass


@pytest.mark.representatives(4)
@pytest.mark.parametrize("killed_after", STEPS)
def test_topic_and_database_agree_wherever_broker_and_producer_are_killed(
    broker: EinmalBroker, topic: TopicPartition, name: NameFactory, killed_after: str
) -> None:
    bank = Bank(broker, topic, name("id"))
    bank.run(killed_after)
    bank.die()
    successor = bank.producer()
    successor.init_transactions(keep_prepared_txn=True)
    successor.complete_transaction(PreparedTxnState.parse(bank.state))
    assert read(broker, topic) == ([b"first"] if bank.rows else [])
    with successor.transaction() as transaction:
        transaction.send(topic.topic, b"next", partition=0)
    assert read(broker, topic)[-1] == b"next"
    successor.close()


def test_a_prepared_transaction_outlives_its_producer_and_any_timeout_and_holds_back_readers(
    broker: EinmalBroker, topic: TopicPartition, name: NameFactory
) -> None:
    transactional_id = name("id")
    with a_producer(broker, transactional_id) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic.topic, b"x", partition=0)
        state = producer.prepare_transaction()
    with Producer(bootstrap_servers=broker.bootstrap) as other:
        other.send(topic.topic, b"after it", partition=0).result(300)
    with Admin(bootstrap_servers=broker.bootstrap) as admin:
        described = admin.describe_transactions([transactional_id])[transactional_id]
        assert (described.state, described.timeout_ms) == ("Ongoing", 2**31 - 1)
    with Consumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest") as consumer:
        assert consumer.end_offsets(topic)[topic] == 0
    with a_producer(broker, transactional_id) as successor:
        successor.init_transactions(keep_prepared_txn=True)
        successor.complete_transaction(state)
    assert read(broker, topic) == [b"x", b"after it"]


def test_the_producer_that_was_replaced_can_neither_commit_nor_abort(
    broker: EinmalBroker, topic: TopicPartition, name: NameFactory
) -> None:
    transactional_id = name("id")
    with a_producer(broker, transactional_id) as zombie, a_producer(broker, transactional_id) as successor:
        zombie.init_transactions()
        zombie.begin_transaction()
        zombie.send(topic.topic, b"x", partition=0)
        zombie.prepare_transaction()
        successor.init_transactions(keep_prepared_txn=True)
        with pytest.raises(ProducerFenced):
            zombie.commit_transaction()
        successor.complete_transaction(PreparedTxnState())
    assert read(broker, topic) == []


def test_after_recovery_only_the_end_of_the_kept_transaction_is_possible(
    broker: EinmalBroker, topic: TopicPartition, name: NameFactory
) -> None:
    transactional_id = name("id")
    with a_producer(broker, transactional_id) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic.topic, b"x", partition=0)
        producer.flush()
    with a_producer(broker, transactional_id) as successor:
        successor.init_transactions(keep_prepared_txn=True)
        refused: list[Callable[[], object]] = [
            lambda: successor.send(topic.topic, b"y", partition=0),
            successor.begin_transaction,
            successor.prepare_transaction,
            successor.init_transactions,
        ]
        for call in refused:
            with pytest.raises(InvalidState):
                call()
        successor.abort_transaction()
    assert read(broker, topic) == []


def test_a_transaction_of_two_phase_commit_does_not_begin_before_recovery(
    broker: EinmalBroker, name: NameFactory
) -> None:
    """It would abort what its predecessor has prepared."""
    with (
        a_producer(broker, name("id")) as producer,
        pytest.raises(InvalidState, match="complete_transaction"),
        producer.transaction(),
    ):
        pass


class DatabaseLost(Exception):
    """COMMIT was sent, and nobody knows whether it was carried out."""


def test_a_transaction_that_a_block_has_prepared_is_not_aborted_when_the_block_raises(
    broker: EinmalBroker, topic: TopicPartition, name: NameFactory
) -> None:
    """The database may have committed it."""
    transactional_id = name("id")
    with a_producer(broker, transactional_id) as producer:
        producer.init_transactions()
        with pytest.raises(DatabaseLost), producer.transaction() as transaction:
            transaction.send(topic.topic, b"x", partition=0)
            state = producer.prepare_transaction()
            raise DatabaseLost
        with pytest.raises(InvalidState, match="Commit, abort or complete"):
            producer.begin_transaction()
    with a_producer(broker, transactional_id) as successor:
        successor.init_transactions(keep_prepared_txn=True)
        successor.complete_transaction(state)
    assert read(broker, topic) == [b"x"]


async def test_a_transaction_that_an_asyncio_block_has_prepared_is_not_aborted_when_the_block_raises(
    broker: EinmalBroker, topic: TopicPartition, name: NameFactory
) -> None:
    settings = settings_of(broker, name("id"))
    async with aio.Producer(settings) as producer:
        await producer.init_transactions()
        with pytest.raises(DatabaseLost):
            async with producer.transaction() as transaction:
                transaction.send(topic.topic, b"x", partition=0)
                state = await producer.prepare_transaction()
                raise DatabaseLost
        await producer.complete_transaction(state)
    assert read(broker, topic) == [b"x"]


@pytest.mark.parametrize("is_driver", [False, True])
def test_a_stored_text_that_was_not_parsed_ends_nothing(
    broker: EinmalBroker, topic: TopicPartition, name: NameFactory, is_driver: bool
) -> None:
    transactional_id = name("id")
    with a_producer(broker, transactional_id) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic.topic, b"x", partition=0)
        state = producer.prepare_transaction()
    text: Any = str(state)
    if is_driver:
        with TransactionDriver(settings_of(broker, transactional_id)) as driver:
            kept = driver.keep_prepared_txn()
            with pytest.raises(InvalidState, match=r"PreparedTxnState\.parse"):
                driver.complete_transaction(kept, text)
            driver.complete_transaction(kept, PreparedTxnState.parse(text))
    else:
        with a_producer(broker, transactional_id) as successor:
            successor.init_transactions(keep_prepared_txn=True)
            with pytest.raises(InvalidState, match=r"PreparedTxnState\.parse"):
                successor.complete_transaction(text)
            successor.complete_transaction(PreparedTxnState.parse(text))
    assert read(broker, topic) == [b"x"]


async def test_a_transaction_waits_for_its_offsets(
    broker: EinmalBroker, topic: TopicPartition, name: NameFactory
) -> None:
    """Without their answer nobody knows whether they are in it: a database would decide about half of it."""
    settings = settings_of(broker, name("id"))
    group = name("group")
    async with aio.Producer(settings) as producer, aio.Admin(bootstrap_servers=broker.bootstrap) as admin:
        await producer.init_transactions()
        producer.begin_transaction()
        committing = asyncio.create_task(producer.send_offsets_to_transaction({topic: 7}, group))
        await asyncio.sleep(0)
        for end in (producer.prepare_transaction, producer.commit_transaction):
            with pytest.raises(InvalidState, match="while offsets are being committed"):
                await end()
        await committing
        await producer.complete_transaction(await producer.prepare_transaction())
        assert (await admin.list_group_offsets(group))[topic].offset == 7

        producer.begin_transaction()
        committing = asyncio.create_task(producer.send_offsets_to_transaction({topic: 8}, group))
        await asyncio.sleep(0)
        committing.cancel()
        await asyncio.wait([committing])
        with pytest.raises(AbortableError, match="was cancelled"):
            await producer.prepare_transaction()
        await producer.abort_transaction()

        producer.begin_transaction()
        committing = asyncio.create_task(producer.send_offsets_to_transaction({topic: 9}, group))
        await asyncio.sleep(0)
        aborting = asyncio.create_task(producer.abort_transaction())
        await asyncio.sleep(0)
        committing.cancel()
        await aborting
        assert (await admin.list_group_offsets(group))[topic].offset == 7


async def test_the_asyncio_producer_prepares_and_completes_too(
    broker: EinmalBroker, topic: TopicPartition, name: NameFactory
) -> None:
    settings = settings_of(broker, name("id"))
    async with aio.Producer(settings) as producer:
        await producer.init_transactions(keep_prepared_txn=True)
        await producer.complete_transaction(PreparedTxnState.parse("7:7"))
        states = []
        for committed in (True, False):
            producer.begin_transaction()
            producer.send(topic.topic, str(committed), partition=0)
            states.append(await producer.prepare_transaction())
            await producer.complete_transaction(states[-1] if committed else states[0])
    assert read(broker, topic) == [b"True"]
    assert len(set(states)) == 2


def test_a_driver_keeps_what_its_predecessors_writers_wrote(
    broker: EinmalBroker, topic: TopicPartition, name: NameFactory
) -> None:
    settings = settings_of(broker, name("id"))

    def write(value: bytes) -> PreparedTxnState:
        with TransactionDriver(settings) as driver:
            kept = driver.keep_prepared_txn()
            assert not kept.prepared.has_transaction
            producer_id, epoch = kept.identity
            batch = encode_batch(
                [NewRecord(None, value, 1)],
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=0,
                transactional=True,
            )
            with PartitionWriter(settings, kept.identity, settings["transactional.id"]) as writer:
                writer.append(topic, batch)
                writer.flush()
            return PreparedTxnState(kept.identity)

    def complete(state: PreparedTxnState) -> None:
        with TransactionDriver(settings) as driver:
            kept = driver.keep_prepared_txn()
            following = driver.complete_transaction(kept, state)
            assert following.producer_epoch == kept.identity.producer_epoch + 1

    first = write(b"committed")
    complete(first)
    write(b"aborted")
    complete(first)
    assert read(broker, topic) == [b"committed"]


def test_settings_of_two_phase_commit_that_contradict_themselves_are_refused() -> None:
    settings: list[dict[str, object]] = [{}, {"transactional.id": "x", "transaction.timeout.ms": 5_000}]
    for each in settings:
        with pytest.raises(ConfigError, match=r"transaction\.two\.phase\.commit\.enable"):
            Producer(each, bootstrap_servers="127.0.0.1:9", transaction_two_phase_commit_enable=True)


def _refusal(bootstrap: str, transactional_id: str, *, two_phase: bool) -> KafkaError:
    settings = {"bootstrap.servers": bootstrap, "transactional.id": transactional_id}
    with Producer(settings, transaction_two_phase_commit_enable=two_phase) as producer:
        with pytest.raises(FatalError) as caught:
            producer.init_transactions(keep_prepared_txn=not two_phase)
        return caught.value


@pytest.mark.parametrize("two_phase", [True, False])
def test_a_cluster_without_two_phase_commit_is_named_with_what_to_do(
    node: Node, name: NameFactory, two_phase: bool
) -> None:
    """Apache Kafka up to 4.4, and our broker with its default."""
    error = _refusal(node.bootstrap, name("id"), two_phase=two_phase)
    assert error.code is ErrorCode.unsupported_version
    assert "does not take part in two-phase commits" in str(error)
    assert "transaction.two.phase.commit.enable=true" in str(error)


def test_two_phase_commit_needs_transactions_of_version_2(tmp_path: Path, name: NameFactory) -> None:
    broker = EinmalBroker(tmp_path, {**SETTINGS, "transaction.version": "1"})
    broker.start()
    try:
        error = _refusal(broker.bootstrap, name("id"), two_phase=True)
    finally:
        broker.stop()
    assert error.code is ErrorCode.unsupported_version
    assert "transaction.version is below 2" in str(error)
