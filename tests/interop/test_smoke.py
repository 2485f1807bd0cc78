"""Other people's clients, as their tutorials use them: produce, consume, groups, topics made on the way."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

import aiokafka
import confluent_kafka
import confluent_kafka.admin
import kafka
import kafka.admin
import pytest

from tests.interop.einmal_broker import EinmalBroker
from tests.suite.shared import unique

pytestmark = [pytest.mark.interop, pytest.mark.system]

COUNT = 500
SECONDS_MAX = 120.0
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
VALUES = [f"value {number} ".encode() * 5 for number in range(COUNT)]


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    node = EinmalBroker(tmp_path_factory.mktemp("smoke"))
    node.start()
    yield node.bootstrap
    node.stop()


@pytest.fixture
def topic() -> str:
    """A name that no topic has yet."""
    return unique("smoke")


def consume_with_confluent(bootstrap: str, topic: str, count: int = COUNT, **settings: object) -> list[bytes]:
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": f"{topic}-group", "auto.offset.reset": "earliest", **settings}
    )
    consumer.subscribe([topic])
    values: list[bytes] = []
    deadline = time.monotonic() + SECONDS_MAX
    while len(values) < count and time.monotonic() < deadline:
        for message in consumer.consume(count - len(values), 1.0):
            value = message.value()
            assert message.error() is None and value is not None
            values.append(value)
    consumer.close()
    return values


def produce_with_confluent(bootstrap: str, topic: str, **settings: object) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap, **settings})
    errors: list[object] = []
    for value in VALUES:
        producer.produce(topic, value, key=b"k", on_delivery=lambda error, _message: errors.append(error))
    assert producer.flush(SECONDS_MAX) == 0
    assert errors == [None] * len(VALUES)


@pytest.mark.parametrize("codec", CODECS)
def test_confluent_kafka_gets_back_what_it_wrote(bootstrap: str, topic: str, codec: str) -> None:
    produce_with_confluent(bootstrap, topic, **{"compression.type": codec, "enable.idempotence": True})
    assert consume_with_confluent(bootstrap, topic) == VALUES


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_confluent_kafka_writes_with_every_acks(bootstrap: str, topic: str, acks: str) -> None:
    produce_with_confluent(bootstrap, topic, acks=acks)
    assert consume_with_confluent(bootstrap, topic) == VALUES


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
async def test_aiokafka_gets_back_what_it_wrote(bootstrap: str, topic: str, codec: str | None) -> None:
    producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, compression_type=codec, enable_idempotence=True)
    await producer.start()
    for value in VALUES:
        await producer.send(topic, value, key=b"k")
    await producer.stop()
    consumer = aiokafka.AIOKafkaConsumer(
        topic, bootstrap_servers=bootstrap, group_id=f"{topic}-group", auto_offset_reset="earliest"
    )
    await consumer.start()
    values: list[bytes] = []
    while len(values) < COUNT:
        batches = await consumer.getmany(timeout_ms=1_000)
        values += [record.value for records in batches.values() for record in records]
    await consumer.commit()
    await consumer.stop()
    assert values == VALUES


@pytest.mark.parametrize("codec", [None, "gzip"])
def test_kafka_python_gets_back_what_it_wrote(bootstrap: str, topic: str, codec: str | None) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, compression_type=codec)
    for value in VALUES:
        producer.send(topic, value, key=b"k")
    producer.flush(SECONDS_MAX)
    producer.close()
    consumer = kafka.KafkaConsumer(
        topic,
        bootstrap_servers=bootstrap,
        group_id=f"{topic}-group",
        auto_offset_reset="earliest",
        consumer_timeout_ms=120_000,
    )
    values = [record.value for record in itertools.islice(consumer, COUNT)]
    consumer.close()
    assert values == VALUES


def test_what_one_client_writes_the_others_read(bootstrap: str, topic: str) -> None:
    produce_with_confluent(bootstrap, topic, **{"compression.type": "gzip"})
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap, auto_offset_reset="earliest", consumer_timeout_ms=120_000, group_id=None
    )
    consumer.assign([kafka.TopicPartition(topic, 0)])
    assert [record.value for record in itertools.islice(consumer, COUNT)] == VALUES
    consumer.close()


def test_a_group_resumes_where_it_stopped(bootstrap: str, topic: str) -> None:
    produce_with_confluent(bootstrap, topic)
    first = consume_with_confluent(bootstrap, topic, 200)
    rest = consume_with_confluent(bootstrap, topic, COUNT - 200)
    assert first + rest == VALUES


def test_the_admin_clients_see_and_change_topics(bootstrap: str, topic: str) -> None:
    confluent = confluent_kafka.admin.AdminClient({"bootstrap.servers": bootstrap})
    new = confluent_kafka.admin.NewTopic(topic, num_partitions=3, config={"retention.ms": "12345"})
    confluent.create_topics([new])[topic].result(SECONDS_MAX)
    assert len(confluent.list_topics(topic, timeout=SECONDS_MAX).topics[topic].partitions) == 3
    resource = confluent_kafka.admin.ConfigResource(confluent_kafka.admin.ResourceType.TOPIC, topic)
    described = confluent.describe_configs([resource])[resource].result(SECONDS_MAX)
    assert described["retention.ms"].value == "12345"
    python = kafka.admin.KafkaAdminClient(bootstrap_servers=bootstrap)
    assert topic in python.list_topics()
    python.close()
    confluent.create_partitions([confluent_kafka.admin.NewPartitions(topic, 5)])[topic].result(SECONDS_MAX)
    confluent.delete_topics([topic])[topic].result(SECONDS_MAX)
    assert topic not in confluent.list_topics(timeout=SECONDS_MAX).topics
