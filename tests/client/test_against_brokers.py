"""Claims about the client as its users see it, on Apache Kafka and on our broker."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

import pytest

from einmal.client import (
    EARLIEST,
    LATEST,
    Admin,
    Consumer,
    GroupMetadata,
    IsolationLevel,
    NewTopic,
    OffsetRange,
    PartitionWriter,
    Producer,
    RangeReader,
    TransactionDriver,
    aio,
    apis,
)
from einmal.client.aio import raw
from einmal.client.apis import ApiKey
from einmal.client.errors import (
    AbortableError,
    CommitFailed,
    InvalidState,
    KafkaError,
    LocalError,
    NoOffset,
    OffsetOutOfRange,
    ProducerFenced,
    RecordTooLarge,
    RequestRefused,
    TopicAlreadyExists,
    UnknownOutcome,
    UnknownTopic,
)
from einmal.client.records import ConsumerRecord
from einmal.types import ErrorCode, Header, ProducerIdAndEpoch, TopicPartition
from einmal.wire.record_batch import NewRecord, encode_batch
from tests.client.conftest import NameFactory
from tests.client.lossy_network import LossyNetwork
from tests.interop.conftest import Node
from tests.interop.einmal_broker import EinmalBroker

PATIENCE_S = 120.0

pytestmark = pytest.mark.time_limit(PATIENCE_S)


def eventually(holds: Callable[[], bool]) -> None:
    """A controller's decision reaches the brokers a moment after its answer."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def create(bootstrap: str, topic: str, partitions: int = 1, **configs: str) -> list[TopicPartition]:
    with Admin(bootstrap_servers=bootstrap) as admin:
        admin.create_topics([NewTopic(topic, partitions, configs={k.replace("_", "."): v for k, v in configs.items()})])
    return [TopicPartition(topic, index) for index in range(partitions)]


def read(bootstrap: str, *partitions: TopicPartition, isolation: str = "read_committed") -> list[ConsumerRecord]:
    """Everything up to the present end, by partition and offset."""
    with Consumer(bootstrap_servers=bootstrap, isolation_level=isolation, auto_offset_reset="earliest") as consumer:
        consumer.assign(partitions)
        ends = consumer.end_offsets(*partitions)
        records: list[ConsumerRecord] = []
        deadline = time.monotonic() + PATIENCE_S
        while any(consumer.position(each) < ends[each] for each in partitions):
            assert time.monotonic() < deadline, "the end was not reached"
            records += consumer.poll(200)
    return sorted(records, key=lambda record: (record.partition, record.offset))


def values(records: list[ConsumerRecord]) -> list[bytes | None]:
    return [record.value for record in records]


def texts(start: int, end: int) -> list[bytes]:
    return [b"%d" % index for index in range(start, end)]


# --- produce and consume -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_what_is_sent_is_read_back_whole(bootstrap: str, name: NameFactory, codec: str) -> None:
    topic = name("whole")
    (partition,) = create(bootstrap, topic)
    headers = [Header("h", b"x"), Header("n", None)]
    with Producer(bootstrap_servers=bootstrap, compression_type=codec) as producer:
        first = producer.send(topic, "vä", key="k", headers=headers, timestamp=1_234)
        rest = [producer.send(topic, b"v" * 200) for _ in range(500)]
        producer.send(topic, None, key=b"")
        assert first.result(PATIENCE_S) == (topic, 0, 0, 1_234)
        assert [each.result(PATIENCE_S).offset for each in rest] == list(range(1, 501))
    records = read(bootstrap, partition)
    assert len(records) == 502
    assert records[0][:6] == (topic, 0, 0, 1_234, b"k", "vä".encode())
    assert records[0].headers == tuple(headers)
    assert (records[-1].key, records[-1].value) == (b"", None)


def test_keys_choose_partitions_and_each_keeps_its_order(bootstrap: str, name: NameFactory) -> None:
    topic = name("keys")
    partitions = create(bootstrap, topic, 4)
    with Producer(bootstrap_servers=bootstrap, batch_size=500, linger_ms=1) as producer:
        for index in range(2_000):
            producer.send(topic, b"%d" % index, key=b"%d" % (index % 10))
    records = read(bootstrap, *partitions)
    assert len(records) == 2_000
    for key in range(10):
        of_key = [record for record in records if record.key == b"%d" % key]
        assert len({record.partition for record in of_key}) == 1
        assert values(of_key) == texts(0, 2_000)[key::10]


async def test_records_sent_before_the_topic_exists_wait_in_order(bootstrap: str, name: NameFactory) -> None:
    topic = name("auto")

    async with aio.Producer(bootstrap_servers=bootstrap) as producer:
        sent = [producer.send(topic, b"%d" % index, partition=0) for index in range(50)]
        await producer.flush()
        assert [(await each).offset for each in sent] == list(range(50))
    assert values(read(bootstrap, TopicPartition(topic, 0))) == texts(0, 50)


@pytest.mark.parametrize(("acks", "offset"), [("0", -1), ("1", 0), ("all", 0)])
def test_each_kind_of_acknowledgement(bootstrap: str, name: NameFactory, acks: str, offset: int) -> None:
    topic = name("acks")
    (partition,) = create(bootstrap, topic)
    with Producer(bootstrap_servers=bootstrap, acks=acks) as producer:
        assert producer.send(topic, b"0").result(PATIENCE_S).offset == offset
        # The broker takes the next connection's requests only after this one's.
        assert producer.send(topic, b"1").result(PATIENCE_S).partition == 0
    deadline = time.monotonic() + PATIENCE_S
    while len(records := read(bootstrap, partition)) < 2:
        assert time.monotonic() < deadline
    assert values(records) == texts(0, 2)


def test_a_record_that_the_topic_rejects_fails_and_the_producer_continues(bootstrap: str, name: NameFactory) -> None:
    topic = name("small")
    (partition,) = create(bootstrap, topic, max_message_bytes="1000")
    with Producer(bootstrap_servers=bootstrap) as producer:
        assert producer.send(topic, b"0").result(PATIENCE_S).offset == 0
        with pytest.raises(RecordTooLarge, match=r"1 record\(s\) in a batch of \d+ bytes: .*max\.message\.bytes"):
            producer.send(topic, b"x" * 2_000).result(PATIENCE_S)
        assert producer.send(topic, b"1").result(PATIENCE_S).offset == 1
    assert values(read(bootstrap, partition)) == texts(0, 2)


async def test_a_lost_answer_to_produce_writes_nothing_twice(bootstrap: str, name: NameFactory) -> None:
    topic = name("lost-produce")
    (partition,) = create(bootstrap, topic)
    network = LossyNetwork()

    async with aio.Producer(bootstrap_servers=bootstrap, network=network, linger_ms=0, batch_size=1) as producer:
        await producer.send(topic, b"0")
        network.lose(ApiKey.PRODUCE, 3)
        sent = [producer.send(topic, value) for value in texts(1, 20)]
        await producer.flush()
        assert [(await each).offset for each in sent] == list(range(1, 20))
    assert ApiKey.PRODUCE in network.lost
    assert values(read(bootstrap, partition)) == texts(0, 20)


@pytest.mark.slow
def test_a_broker_killed_under_load_loses_and_doubles_nothing(own_node: Node, name: NameFactory) -> None:
    topic = name("killed")
    partitions = create(own_node.bootstrap, topic, 3)
    with Producer(bootstrap_servers=own_node.bootstrap, batch_size=2_000, linger_ms=1, retry_backoff_ms=20) as producer:
        sent = []
        for index in range(6_000):
            sent.append(producer.send(topic, b"%d" % index, partition=index % 3))
            if index in (2_000, 4_000):
                sent[index - 500].result(PATIENCE_S)
                own_node.kill()
                own_node.start()
        metadata = [each.result(PATIENCE_S) for each in sent]
    records = read(own_node.bootstrap, *partitions)
    by_place = {(record.partition, record.offset): record.value for record in records}
    assert [by_place[each.partition, each.offset] for each in metadata] == texts(0, 6_000)
    for partition in range(3):
        assert values([each for each in records if each.partition == partition]) == texts(0, 6_000)[partition::3]


def test_an_unreachable_cluster_is_an_error_with_the_addresses() -> None:
    with (
        Producer(bootstrap_servers="127.0.0.1:1", max_block_ms=300, retry_backoff_ms=20) as producer,
        pytest.raises(Exception, match=r"no broker could be reached.*127\.0\.0\.1:1"),
    ):
        producer.send("t", b"x").result(PATIENCE_S)


# --- transactions --------------------------------------------------------------------------------------------------


def test_a_transaction_over_topics_is_seen_as_a_whole_or_not_at_all(bootstrap: str, name: NameFactory) -> None:
    one, other = name("one"), name("other")
    partitions = [*create(bootstrap, one, 2), *create(bootstrap, other)]
    with Producer(bootstrap_servers=bootstrap, transactional_id=name("id")) as producer:
        for attempt in range(6):
            try:
                with producer.transaction() as transaction:
                    for index in range(10):
                        transaction.send(one, b"%d" % attempt, partition=index % 2)
                    transaction.send(other, b"%d" % attempt).result(PATIENCE_S)
                    if attempt % 2:
                        raise ValueError("changed my mind")
            except ValueError:
                pass
    for partition in partitions:
        settle(bootstrap, partition)
    records = read(bootstrap, *partitions[:2]) + read(bootstrap, partitions[2])
    counts = {value: values(records).count(value) for value in values(records)}
    assert counts == {b"0": 11, b"2": 11, b"4": 11}


def test_an_open_transaction_holds_back_committed_readers_only(bootstrap: str, name: NameFactory) -> None:
    topic = name("open")
    (partition,) = create(bootstrap, topic)
    with (
        Producer(bootstrap_servers=bootstrap, transactional_id=name("id")) as producer,
        Producer(bootstrap_servers=bootstrap) as plain,
        Admin(bootstrap_servers=bootstrap) as admin,
    ):
        plain.send(topic, b"before").result(PATIENCE_S)
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"within").result(PATIENCE_S)
        plain.send(topic, b"behind").result(PATIENCE_S)
        assert values(read(bootstrap, partition)) == [b"before"]
        assert values(read(bootstrap, partition, isolation="read_uncommitted")) == [b"before", b"within", b"behind"]
        committed = admin.list_offsets({partition: LATEST}, isolation=IsolationLevel.READ_COMMITTED)
        assert (committed[partition].offset, admin.list_offsets({partition: LATEST})[partition].offset) == (1, 3)
        producer.commit_transaction()
        settle(bootstrap, partition)
        assert values(read(bootstrap, partition)) == [b"before", b"within", b"behind"]


def settle(bootstrap: str, partition: TopicPartition) -> None:
    """EndTxn is answered before its markers are written: wait until no transaction is open here."""
    with Admin(bootstrap_servers=bootstrap) as admin:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            assert time.monotonic() < deadline, "the markers did not come"
            readable = admin.list_offsets({partition: LATEST}, isolation=IsolationLevel.READ_COMMITTED)
            if readable == admin.list_offsets({partition: LATEST}):
                return


def test_a_new_instance_fences_the_old_one_and_aborts_what_it_left(bootstrap: str, name: NameFactory) -> None:
    topic, transactional_id = name("fenced"), name("id")
    (partition,) = create(bootstrap, topic)
    settings: dict[str, Any] = {"bootstrap_servers": bootstrap, "transactional_id": transactional_id}
    with Producer(**settings) as old, Producer(**settings) as new:
        old.init_transactions()
        old.begin_transaction()
        old.send(topic, b"left open").result(PATIENCE_S)
        with new.transaction() as transaction:
            transaction.send(topic, b"new")
        old.send(topic, b"too late")
        with pytest.raises((ProducerFenced, AbortableError)):
            old.commit_transaction()
        with pytest.raises(ProducerFenced, match="run only one instance"):
            old.abort_transaction()
        with pytest.raises(ProducerFenced):
            old.begin_transaction()
    assert values(read(bootstrap, partition)) == [b"new"]


def test_an_empty_transaction_commits_and_aborts(bootstrap: str, name: NameFactory) -> None:
    with Producer(bootstrap_servers=bootstrap, transactional_id=name("id")) as producer:
        for _ in range(2):
            with producer.transaction():
                pass
            with pytest.raises(ZeroDivisionError), producer.transaction():
                raise ZeroDivisionError


def test_a_transaction_that_took_too_long_is_not_committed(bootstrap: str, name: NameFactory) -> None:
    topic = name("late")
    (partition,) = create(bootstrap, topic)
    settings: dict[str, Any] = {
        "bootstrap_servers": bootstrap,
        "transactional_id": name("id"),
    }
    # Its client must be in time to write the record, also if it stands still for some seconds.
    with Producer(**settings, transaction_timeout_ms=12_000) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"late").result(PATIENCE_S)
        settle(bootstrap, partition)
        with pytest.raises((ProducerFenced, AbortableError)):
            producer.commit_transaction()
    with Producer(**settings) as producer, producer.transaction() as transaction:
        transaction.send(topic, b"in time")
    settle(bootstrap, partition)
    assert values(read(bootstrap, partition)) == [b"in time"]


def test_calls_in_the_wrong_order_fail_at_once(bootstrap: str, name: NameFactory) -> None:
    with Producer(bootstrap_servers=bootstrap, transactional_id=name("id")) as producer:
        with pytest.raises(InvalidState, match=r"Call init_transactions\(\) first"):
            producer.begin_transaction()
        producer.init_transactions()
        with pytest.raises(InvalidState, match=r"Call begin_transaction\(\) first"):
            producer.send("t", b"x")
        with pytest.raises(InvalidState, match=r"Call begin_transaction\(\) first"):
            producer.commit_transaction()
    with Producer(bootstrap_servers=bootstrap) as plain, pytest.raises(InvalidState, match=r"Set transactional\.id"):
        plain.begin_transaction()


@pytest.mark.parametrize("api_key", [ApiKey.INIT_PRODUCER_ID, ApiKey.PRODUCE, ApiKey.END_TXN])
async def test_a_lost_answer_in_a_transaction_changes_nothing(
    bootstrap: str, name: NameFactory, api_key: ApiKey
) -> None:
    topic, transactional_id = name("lost-txn"), name("id")
    (partition,) = create(bootstrap, topic)
    network = LossyNetwork()
    settings: dict[str, Any] = {
        "bootstrap_servers": bootstrap,
        "transactional_id": transactional_id,
        "network": network,
    }
    async with aio.Producer(**settings) as producer:
        network.lose(api_key)
        for attempt in range(3):
            async with producer.transaction() as transaction:
                transaction.send(topic, b"%d" % attempt)
    assert network.lost == [api_key]
    settle(bootstrap, partition)
    assert values(read(bootstrap, partition)) == texts(0, 3)


async def test_a_commit_without_any_response_raises_unknown_outcome(bootstrap: str, name: NameFactory) -> None:
    topic = name("unknown")
    (partition,) = create(bootstrap, topic)
    network = LossyNetwork()
    settings: dict[str, Any] = {"bootstrap_servers": bootstrap, "transactional_id": name("id"), "network": network}
    async with aio.Producer(max_block_ms=3_000, **settings) as producer:
        await producer.init_transactions()
        producer.begin_transaction()
        await producer.send(topic, b"0")
        network.lose(ApiKey.END_TXN, 1_000)
        with pytest.raises(UnknownOutcome, match="may have been carried out or not"):
            await producer.commit_transaction()
        with pytest.raises(UnknownOutcome):
            await producer.abort_transaction()
    settle(bootstrap, partition)
    assert values(read(bootstrap, partition)) == [b"0"]


# --- offsets in transactions ---------------------------------------------------------------------------------------


def test_positions_commit_and_abort_with_the_output(bootstrap: str, name: NameFactory) -> None:
    source, sink, group = name("source"), name("sink"), name("group")
    (partition,), (output,) = create(bootstrap, source), create(bootstrap, sink)
    with Producer(bootstrap_servers=bootstrap) as plain:
        for value in texts(0, 10):
            plain.send(source, value)
    config: dict[str, Any] = {
        "bootstrap_servers": bootstrap,
        "group_id": group,
        "auto_offset_reset": "earliest",
        "enable_auto_commit": False,
    }
    with Producer(bootstrap_servers=bootstrap, transactional_id=name("id")) as producer:
        for fails in (True, False, True):
            with Consumer(**config) as consumer:
                consumer.subscribe([source])
                records = poll_some(consumer, 5)
                try:
                    with producer.transaction() as transaction:
                        for record in records:
                            transaction.send(sink, record.value)
                        transaction.send_offsets({partition: records[-1].offset + 1}, consumer.group_metadata())
                        if fails:
                            raise ValueError
                except ValueError:
                    pass
        with Consumer(**config) as consumer:
            assert consumer.committed(partition)[partition].offset == 5  # type: ignore[union-attr]
    settle(bootstrap, output)
    assert values(read(bootstrap, output)) == texts(0, 5)


def poll_some(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    """Exactly so many records."""
    records: list[ConsumerRecord] = []
    deadline = time.monotonic() + PATIENCE_S
    while len(records) < count:
        assert time.monotonic() < deadline, f"only {len(records)} records came"
        records += consumer.poll(200, max_records=count - len(records))
    return records


def test_a_member_that_was_replaced_cannot_commit_its_positions(bootstrap: str, name: NameFactory) -> None:
    source, group = name("source"), name("group")
    (partition,) = create(bootstrap, source)
    with Producer(bootstrap_servers=bootstrap) as plain:
        plain.send(source, b"0")
    config: dict[str, Any] = {"bootstrap_servers": bootstrap, "group_id": group, "enable_auto_commit": False}
    with (
        Producer(bootstrap_servers=bootstrap, transactional_id=name("id")) as producer,
        Consumer(**config, auto_offset_reset="earliest") as consumer,
    ):
        consumer.subscribe([source])
        poll_some(consumer, 1)
        member = consumer.group_metadata()
        stale = GroupMetadata(group, member.generation_id - 1, member.member_id)
        with pytest.raises(CommitFailed, match="ILLEGAL_GENERATION"), producer.transaction() as transaction:
            transaction.send_offsets({partition: 1}, stale)
        stranger = GroupMetadata(group, member.generation_id, "somebody else")
        with pytest.raises(CommitFailed, match="UNKNOWN_MEMBER_ID"), producer.transaction() as transaction:
            transaction.send_offsets({partition: 1}, stranger)
        with producer.transaction() as transaction:
            transaction.send_offsets({partition: 1}, member)
        assert consumer.committed(partition)[partition].offset == 1  # type: ignore[union-attr]


# --- consumers ------------------------------------------------------------------------------------------------------


def test_a_consumer_owns_its_position(bootstrap: str, name: NameFactory) -> None:
    topic = name("seek")
    first, second = create(bootstrap, topic, 2)
    with Producer(bootstrap_servers=bootstrap) as producer:
        for index in range(100):
            producer.send(topic, b"%d" % index, partition=0, timestamp=1_000 + index * 10)
    with Consumer(bootstrap_servers=bootstrap, auto_offset_reset="latest") as consumer:
        consumer.assign([first, second])
        assert (consumer.position(first), consumer.position(second)) == (100, 0)
        consumer.seek(first, 42)
        assert values(poll_some(consumer, 3)) == texts(42, 45)
        consumer.seek_to_beginning(first)
        assert values(poll_some(consumer, 2)) == texts(0, 2)
        assert consumer.beginning_offsets(first, second) == {first: 0, second: 0}
        assert consumer.end_offsets(first, second) == {first: 100, second: 0}
        for no_time in (-1, -2, 2**63, 1_495.0):
            with pytest.raises(LocalError, match=re.escape(repr(no_time))):
                consumer.offsets_for_times({first: no_time})  # type: ignore[dict-item]
        times = consumer.offsets_for_times({first: 1_495, second: 0})
        assert times[first] is not None
        assert (times[first].offset, times[first].timestamp, times[second]) == (50, 1_500, None)  # type: ignore[union-attr]
        consumer.pause(first)
        assert consumer.poll(100) == []
        consumer.resume(first)
        assert values(poll_some(consumer, 1)) == texts(2, 3)
        assert consumer.lag(first) == 97


def test_without_a_reset_a_missing_or_wrong_position_is_an_error(bootstrap: str, name: NameFactory) -> None:
    (partition,) = create(bootstrap, name("none"))
    settings: dict[str, Any] = {"bootstrap_servers": bootstrap, "auto_offset_reset": "none", "group_id": name("group")}
    with Consumer(**settings, enable_auto_commit=False) as consumer:
        consumer.assign([partition])
        with pytest.raises(NoOffset):
            consumer.poll(120_000)
        consumer.seek(partition, 99)
        with pytest.raises(OffsetOutOfRange, match="OFFSET_OUT_OF_RANGE"):
            poll_some(consumer, 1)


@pytest.mark.parametrize("strategy", ["range", "roundrobin", "cooperative-sticky"])
def test_a_group_divides_its_partitions_and_hands_them_over(bootstrap: str, name: NameFactory, strategy: str) -> None:
    topic, group = name("shared"), name("group")
    partitions = create(bootstrap, topic, 4)
    with Producer(bootstrap_servers=bootstrap) as producer:
        for index in range(400):
            producer.send(topic, b"%d" % index, partition=index % 4)
    settings: dict[str, Any] = {
        "bootstrap_servers": bootstrap,
        "group_id": group,
        "auto_offset_reset": "earliest",
        "partition_assignment_strategy": strategy,
        "heartbeat_interval_ms": 100,
        "enable_auto_commit": False,
    }
    seen: list[ConsumerRecord] = []
    with Consumer(**settings) as stays:
        stays.subscribe([topic], on_revoked=lambda _: stays.commit())
        seen += poll_some(stays, 200)
        assert stays.assignment() == partitions
        with Consumer(**settings) as comes:
            comes.subscribe([topic], on_revoked=lambda _: comes.commit())
            deadline = time.monotonic() + PATIENCE_S
            while sorted([*stays.assignment(), *comes.assignment()]) != partitions or not comes.assignment():
                assert time.monotonic() < deadline, "the group found no balance"
                seen += stays.poll(100)
                seen += comes.poll(100)
            assert len(stays.assignment()) == 2
            comes.commit()
            stays.commit()
        while len(stays.assignment()) != 4 or len(seen) < 400:
            assert time.monotonic() < deadline, "what was left was not taken over"
            seen += stays.poll(100)
    assert sorted(int(value or b"") for value in values(seen)) == list(range(400))


def test_automatic_commits_let_the_next_member_resume(bootstrap: str, name: NameFactory) -> None:
    topic, group = name("auto-commit"), name("group")
    create(bootstrap, topic)
    with Producer(bootstrap_servers=bootstrap) as producer:
        for value in texts(0, 20):
            producer.send(topic, value)
    settings: dict[str, Any] = {"bootstrap_servers": bootstrap, "group_id": group, "auto_offset_reset": "earliest"}
    for start in (0, 10):
        with Consumer(**settings) as consumer:
            consumer.subscribe([topic])
            assert values(poll_some(consumer, 10)) == texts(start, start + 10)


def test_a_restarted_broker_does_not_disturb_a_reader(own_node: Node, name: NameFactory) -> None:
    topic = name("restart")
    (partition,) = create(own_node.bootstrap, topic)
    with (
        Producer(bootstrap_servers=own_node.bootstrap, retry_backoff_ms=20) as producer,
        Consumer(bootstrap_servers=own_node.bootstrap, auto_offset_reset="earliest") as consumer,
    ):
        consumer.assign([partition])
        for value in texts(0, 10):
            producer.send(topic, value)
        producer.flush()
        assert values(poll_some(consumer, 5)) == texts(0, 5)
        own_node.stop()
        own_node.start()
        for value in texts(10, 20):
            producer.send(topic, value)
        assert values(poll_some(consumer, 15)) == texts(5, 20)


# --- admin ----------------------------------------------------------------------------------------------------------


def test_topics_are_made_described_changed_and_deleted(bootstrap: str, name: NameFactory) -> None:
    topic = name("admin")
    with Admin(bootstrap_servers=bootstrap) as admin:
        cluster = admin.describe_cluster()
        assert cluster.cluster_id
        assert [f"{broker.host}:{broker.port}" for broker in cluster.brokers] == [bootstrap]
        admin.create_topics([NewTopic(topic, 2, 1, {"cleanup.policy": "compact"})])
        with pytest.raises(TopicAlreadyExists):
            admin.create_topics([topic])
        admin.create_topics([topic], if_not_exists=True)
        eventually(lambda: topic in admin.list_topics())
        admin.create_partitions({topic: 3})
        eventually(lambda: list(admin.describe_topics([topic])[topic].partitions) == [0, 1, 2])
        with pytest.raises(RequestRefused, match="INVALID_PARTITIONS"):
            admin.create_partitions({topic: 1})
        policy = admin.describe_configs([topic])[topic]["cleanup.policy"]
        assert (policy.value, policy.is_default) == ("compact", False)
        admin.alter_configs(topic, {"retention.ms": "1234"})
        eventually(lambda: admin.describe_configs([topic])[topic]["retention.ms"].value == "1234")
        admin.alter_configs(topic, {"retention.ms": None})
        eventually(lambda: admin.describe_configs([topic])[topic]["retention.ms"].is_default)
        admin.delete_topics([topic])
        with pytest.raises(UnknownTopic):
            admin.delete_topics([topic])
        with pytest.raises(RequestRefused, match="INVALID_TOPIC"):
            admin.create_topics(["no/good"])


def test_records_below_an_offset_are_deleted(bootstrap: str, name: NameFactory) -> None:
    topic = name("deleted")
    (partition,) = create(bootstrap, topic)
    with Producer(bootstrap_servers=bootstrap) as producer, Admin(bootstrap_servers=bootstrap) as admin:
        for value in texts(0, 10):
            producer.send(topic, value)
        producer.flush()
        assert admin.delete_records({partition: 4}) == {partition: 4}
        assert admin.list_offsets({partition: EARLIEST})[partition].offset == 4
    assert values(read(bootstrap, partition)) == texts(4, 10)


def test_an_open_transaction_is_found_and_our_broker_does_not_let_a_marker_tear_it(
    node: Node, name: NameFactory
) -> None:
    bootstrap, topic, transactional_id = node.bootstrap, name("open"), name("id")
    (partition,) = create(bootstrap, topic)
    with (
        Producer(bootstrap_servers=bootstrap, transactional_id=transactional_id) as producer,
        Admin(bootstrap_servers=bootstrap) as admin,
    ):
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"0").result(PATIENCE_S)
        described = admin.describe_transactions([transactional_id])[transactional_id]
        assert (described.state, described.partitions, described.timeout_ms) == ("Ongoing", (partition,), 60_000)
        assert described.start_time > 0
        ongoing = admin.list_transactions(states=["Ongoing"])
        assert transactional_id in [each.transactional_id for each in ongoing]
        (holder,) = [
            each for each in admin.describe_producers([partition]) if each.current_transaction_start_offset >= 0
        ]
        assert (holder.producer_id, holder.producer_epoch) == (described.producer_id, described.producer_epoch)
        marker = partial(admin.abort_transaction, partition, holder.producer_id, holder.producer_epoch)
        if isinstance(node, EinmalBroker):
            with pytest.raises(KafkaError, match="INVALID_TXN_STATE"):
                marker()
        else:
            marker()
        freed = 0 if isinstance(node, EinmalBroker) else 2
        stable = admin.list_offsets({partition: LATEST}, isolation=IsolationLevel.READ_COMMITTED)
        assert stable[partition].offset == freed
        producer.abort_transaction()
        deadline = time.monotonic() + PATIENCE_S
        while (idle := admin.describe_transactions([transactional_id])[transactional_id]).state == "PrepareAbort":
            assert time.monotonic() < deadline
        assert idle.state in ("Empty", "CompleteAbort")
        with pytest.raises(RequestRefused, match="TRANSACTIONAL_ID_NOT_FOUND"):
            admin.describe_transactions([name("never")])


def test_groups_are_listed_described_and_deleted(bootstrap: str, name: NameFactory) -> None:
    topic, group = name("grouped"), name("group")
    (partition,) = create(bootstrap, topic)
    with Admin(bootstrap_servers=bootstrap) as admin:
        with Consumer(bootstrap_servers=bootstrap, group_id=group, auto_offset_reset="earliest") as consumer:
            consumer.subscribe([topic])
            deadline = time.monotonic() + PATIENCE_S
            while not consumer.assignment():
                assert time.monotonic() < deadline
                consumer.poll(100)
            described = admin.describe_groups([group])[group]
            assert (described.state, described.protocol) == ("Stable", "range")
            assert [member.partitions for member in described.members] == [(partition,)]
            with pytest.raises(RequestRefused, match="NON_EMPTY_GROUP"):
                admin.delete_groups([group])
            consumer.commit({partition: 0})
        assert group in [each.group_id for each in admin.list_groups()]
        assert admin.list_group_offsets(group)[partition].offset == 0
        admin.delete_groups([group])
        assert group not in [each.group_id for each in admin.list_groups()]


# --- raw: one identity, many writers --------------------------------------------------------------------------------


def batch_of(identity: ProducerIdAndEpoch, base_sequence: int, batch_values: list[bytes]) -> bytes:
    return encode_batch(
        [NewRecord(None, value, 1_000) for value in batch_values],
        producer_id=identity.producer_id,
        producer_epoch=identity.producer_epoch,
        base_sequence=base_sequence,
        transactional=True,
    )


def test_writers_under_one_identity_commit_as_one(bootstrap: str, name: NameFactory) -> None:
    topic, transactional_id, group = name("raw"), name("id"), name("group")
    partitions = create(bootstrap, topic, 3)
    expected: list[bytes] = []
    with TransactionDriver(bootstrap_servers=bootstrap, transactional_id=transactional_id) as driver:
        identity = driver.init_producer_id()
        for attempt, committed in enumerate((True, False, True)):
            version = driver.transaction_version
            driver.add_partitions(identity, partitions)
            for partition in partitions:
                with PartitionWriter({"bootstrap.servers": bootstrap}, identity, transactional_id, version) as writer:
                    for index in range(8):
                        writer.append(partition, batch_of(identity, index * 2, [b"%d" % attempt] * 2))
                    written = writer.flush()[partition]
                    assert (written.last_offset - written.first_offset, written.batches) == (15, 8)
            driver.txn_offset_commit(identity, group, {partitions[0]: attempt + 1})
            following = driver.end_txn(identity, committed=committed)
            identity = following or driver.init_producer_id(identity)
            expected += [b"%d" % attempt] * 16 if committed else []
    settle(bootstrap, partitions[0])
    with RangeReader(bootstrap_servers=bootstrap) as reader:
        batches = list(reader.read({partitions[0]: OffsetRange(0, 51)}))
        assert [record.value for batch in batches for record in batch.records()] == expected
        inner = OffsetRange(3, 5)
        (first, second) = reader.read({partitions[0]: inner})
        offsets = [record.offset for batch in (first, second) for record in batch.records(inner)]
        assert offsets == [3, 4]
    with Admin(bootstrap_servers=bootstrap) as admin:
        assert admin.list_group_offsets(group)[partitions[0]].offset == 3


def test_one_writer_writes_transaction_after_transaction(bootstrap: str, name: NameFactory) -> None:
    topic, transactional_id = name("raw"), name("id")
    partitions = create(bootstrap, topic, 2)
    with (
        TransactionDriver(bootstrap_servers=bootstrap, transactional_id=transactional_id) as driver,
        PartitionWriter({"bootstrap.servers": bootstrap}) as writer,
    ):
        identity = driver.init_producer_id()
        for attempt, committed in enumerate((True, False, True)):
            version = driver.transaction_version
            driver.add_partitions(identity, partitions)
            writer.begin(identity, transactional_id, version)
            writer.append_all((each, batch_of(identity, 0, [b"%d" % attempt] * 2)) for each in partitions)
            assert {each: written.batches for each, written in writer.flush().items()} == dict.fromkeys(partitions, 1)
            identity = driver.end_txn(identity, committed=committed) or driver.init_producer_id(identity)
        writer.begin(None, None, version)
        writer.append(partitions[0], encode_batch([NewRecord(None, b"plain", 1_000)]))
        writer.flush()
    settle(bootstrap, partitions[0])
    assert values(read(bootstrap, partitions[0])) == [b"0", b"0", b"2", b"2", b"plain"]


def test_a_writer_that_has_failed_or_waits_for_answers_begins_nothing_else(bootstrap: str, name: NameFactory) -> None:
    topic, transactional_id = name("raw"), name("id")
    (partition,) = create(bootstrap, topic)
    with TransactionDriver(bootstrap_servers=bootstrap, transactional_id=transactional_id) as driver:
        identity = driver.init_producer_id()
        version = driver.transaction_version
        driver.add_partitions(identity, [partition])
        with PartitionWriter({"bootstrap.servers": bootstrap}) as writer:
            writer.begin(identity, transactional_id, version)
            writer.append_all([(partition, batch_of(identity, each, [b""])) for each in range(50)])
            with pytest.raises(InvalidState, match="without an answer"):
                writer.begin(identity, transactional_id, version)
            writer.flush()
            writer.append(partition, batch_of(identity, 77, [b"out of order"]))
            with pytest.raises(KafkaError):
                writer.flush()
            with pytest.raises(InvalidState, match="has failed"):
                writer.begin(identity, transactional_id, version)
        driver.end_txn(identity, committed=False)


def test_a_writer_of_a_former_epoch_is_refused(bootstrap: str, name: NameFactory) -> None:
    topic, transactional_id = name("zombie"), name("id")
    (partition,) = create(bootstrap, topic)
    with TransactionDriver(bootstrap_servers=bootstrap, transactional_id=transactional_id) as driver:
        identity = driver.init_producer_id()
        version = driver.transaction_version
        driver.add_partitions(identity, [partition])
        with PartitionWriter({"bootstrap.servers": bootstrap}, identity, transactional_id, version) as writer:
            writer.append(partition, batch_of(identity, 0, [b"aborted"]))
            writer.flush()
            following = driver.end_txn(identity, committed=False)
            following = following or driver.init_producer_id(identity)
            # Until its marker is written the partition still takes the old epoch.
            settle(bootstrap, partition)
            writer.append(partition, batch_of(identity, 1, [b"zombie"]))
            with pytest.raises(AbortableError) as caught:
                writer.flush()
            assert caught.value.code is ErrorCode.invalid_producer_epoch
        # Under TV_2 the coordinator takes it for a retry of the abort that now wants the opposite.
        with pytest.raises((ProducerFenced, AbortableError)):
            driver.end_txn(identity, committed=True)
    settle(bootstrap, partition)
    assert values(read(bootstrap, partition)) == []


def test_a_range_that_is_not_there_is_an_error(bootstrap: str, name: NameFactory) -> None:
    (partition,) = create(bootstrap, name("range"))
    with (
        RangeReader(bootstrap_servers=bootstrap) as reader,
        pytest.raises(OffsetOutOfRange),
    ):
        list(reader.read({partition: OffsetRange(5, 9)}))


@pytest.mark.parametrize("version", [12, 13], ids=["topic names", "topic ids"])
def test_a_kept_reader_reads_no_other_topic_under_the_same_name(
    bootstrap: str, name: NameFactory, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    monkeypatch.setattr(apis, "SPOKEN", {**apis.SPOKEN, ApiKey.FETCH: (4, version)})
    # The one broker knows each topic before it is read.
    monkeypatch.setattr(raw, "KNOWN_MS", 1_000)
    topic = name("again")
    (partition,) = create(bootstrap, topic)
    with (
        Admin(bootstrap_servers=bootstrap) as admin,
        RangeReader(bootstrap_servers=bootstrap) as reader,
    ):
        old = send_values(bootstrap, admin, topic, [b"old"] * 3)
        assert values_of(reader, partition, old) == [b"old"] * 3
        admin.delete_topics([topic])
        eventually(lambda: topic not in admin.list_topics())
        create(bootstrap, topic)
        new = send_values(bootstrap, admin, topic, [b"new"] * 3)
        with pytest.raises(UnknownTopic):
            values_of(reader, partition, old)
        assert values_of(reader, partition, new) == [b"new"] * 3


def test_a_topic_that_was_created_again_is_read_from_its_first_record(bootstrap: str, name: NameFactory) -> None:
    """The position in the old topic is valid in the new one, which has more records."""
    topic, other = name("again"), name("other")
    create(bootstrap, topic)
    create(bootstrap, other)
    with (
        Admin(bootstrap_servers=bootstrap) as admin,
        Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest") as consumer,
    ):
        send_values(bootstrap, admin, topic, [b"old 0", b"old 1"])
        consumer.assign([TopicPartition(topic, 0), TopicPartition(other, 0)])
        assert values(poll_some(consumer, 2)) == [b"old 0", b"old 1"]
        admin.delete_topics([topic])
        eventually(lambda: topic not in admin.list_topics())
        create(bootstrap, topic)
        send_values(bootstrap, admin, topic, [b"new 0", b"new 1", b"new 2"])
        send_values(bootstrap, admin, other, [b"other"])
        found = poll_some(consumer, 4)
    assert [each.value for each in found if each.topic == topic] == [b"new 0", b"new 1", b"new 2"]
    assert [each.value for each in found if each.topic == other] == [b"other"]


def send_values(bootstrap: str, admin: Admin, topic: str, given: list[bytes]) -> UUID:
    """The id of the topic that has them."""
    with Producer(bootstrap_servers=bootstrap) as producer:
        for each in given:
            producer.send(topic, each)
    return admin.describe_topics([topic])[topic].topic_id


def values_of(reader: RangeReader, partition: TopicPartition, topic_id: UUID) -> list[bytes | None]:
    batches = reader.read({partition: OffsetRange(0, 3)}, topic_ids={partition.topic: topic_id})
    return [record.value for batch in batches for record in batch.records()]


def test_running_queries_find_new_partitions(bootstrap: str, name: NameFactory) -> None:
    topic, group = name("grown"), name("group")
    create(bootstrap, topic)
    settings: dict[str, Any] = {"bootstrap_servers": bootstrap, "metadata_max_age_ms": 100}
    with (
        Admin(bootstrap_servers=bootstrap) as admin,
        Producer(**settings) as producer,
        Consumer(**settings, group_id=group, auto_offset_reset="earliest") as consumer,
    ):
        consumer.subscribe([topic])
        producer.send(topic, b"0").result(PATIENCE_S)
        assert values(poll_some(consumer, 1)) == [b"0"]
        admin.create_partitions({topic: 2})
        deadline = time.monotonic() + PATIENCE_S
        while producer.send(topic, b"x", key=b"%d" % time.monotonic_ns()).result(PATIENCE_S).partition == 0:
            assert time.monotonic() < deadline, "the producer did not notice"
        while len(consumer.assignment()) < 2:
            assert time.monotonic() < deadline, "the consumer did not notice"
            consumer.poll(50)
