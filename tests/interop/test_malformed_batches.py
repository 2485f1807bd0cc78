"""The malformed batches of ``tests/log/malformed.py``: what Apache Kafka answers to them, and who can read the rest."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Final

import aiokafka
import confluent_kafka
import kafka
import pytest

from einmal.client import Consumer
from einmal.types import ErrorCode, TopicPartition
from einmal.wire.compression import Compression
from einmal.wire.record_batch import read_header
from tests.interop import raw
from tests.interop.conftest import Node, NodeFactory
from tests.interop.java_reader import JavaReader
from tests.interop.raw import Connection
from tests.interop.topics import Broker, create_topic, wait_for_leaders
from tests.log.malformed import MALFORMED, good, mutated
from tests.suite.shared import unique

pytestmark = pytest.mark.interop

TOPIC: Final = "accepted"
PLAIN: Final = "accepted-plain"
"""With what kafka-python reads without further packages."""
MUTATED: Final = 1_500
PATIENCE_S: Final = 180
STRICTER: Final = {
    # Apache Kafka cuts off what follows the first batch without a word; a record that was in it is lost.
    "a byte after the batch": "bytes would vanish",
    "half a batch after the batch": "bytes would vanish",
    # Its broker looks at none of these; its readers, or others', stumble over them.
    "a producer without an epoch": "the broker's producer state has no such epoch",
    "a delete horizon": "tombstones of the batch could go at once",
    "key size -2": "only -1 is null to other readers",
    "value size -2": "only -1 is null to other readers",
    "a header with value size -2": "only -1 is null to other readers",
    "a header key that is not UTF-8": "readers in Python fail",
    "record attributes of 128": "aiokafka reads them as a varint",
    "offset deltas from 1": "offsets past the batch's end",
    "offset deltas with a gap": "offsets past the batch's end",
    "offset deltas that repeat": "two records of one offset",
    "offset deltas that fall": "offsets out of order",
    "a negative offset delta": "an offset before the batch",
    "LogAppendTime of a producer": "the header's time would count for every record, unchecked",
    "GZIP: bytes after it": "librdkafka does not read it",
    "GZIP: two members": "librdkafka reads the first only",
    "SNAPPY: framing of version 2": "aiokafka does not read it",
    "LZ4: bytes after it": "librdkafka does not read it",
    "ZSTD: a skippable frame before it": "librdkafka does not read it",
    # Apache Kafka has no bound: it streams, but its readers do not.
    "GZIP: 70 MB of zeroes": "readers unpack a batch in memory",
    "LZ4: 70 MB of zeroes": "readers unpack a batch in memory",
    "ZSTD: 70 MB of zeroes": "readers unpack a batch in memory",
}
"""What Apache Kafka accepts and we do not, and why."""


@pytest.fixture(scope="module")
def einmal(node_of: NodeFactory) -> Node:
    return node_of("einmal", 2)


def _answers(node: Node) -> dict[str, ErrorCode | None]:
    """The code of each malformed batch, under its name; None: the connection was closed."""
    broker = Broker(node.host, node.port)
    create_topic(broker, "ready", 1)
    topics: dict[str, str] = {}
    answers: dict[str, ErrorCode | None] = {}
    for malformed in MALFORMED:
        key = repr(sorted(malformed.configs.items()))
        with broker.connect() as connection:
            if key not in topics:
                topics[key] = unique("malformed")
                _create_topic(connection, topics[key], malformed.configs)
            answers[malformed.name] = _produce(connection, topics[key], malformed.make(int(time.time() * 1000)))
    return answers


def _create_topic(connection: Connection, name: str, configs: Mapping[str, str]) -> None:
    settings = [{"name": key, "value": value} for key, value in configs.items()]
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "configs": settings}
    answer = connection.call(raw.CREATE_TOPICS, 7, topics=[topic], timeout=60_000)
    assert answer.topics[0].error_code == ErrorCode.none, answer
    wait_for_leaders(connection, name)


def _produce(connection: Connection, topic: str, records: bytes) -> ErrorCode | None:
    partitions = [{"index": 0, "records": records}]
    topics = [{"name": topic, "partition_data": partitions}]
    try:
        answer = connection.call(raw.PRODUCE, 9, transactional_id=None, acks=-1, timeout=60_000, topic_data=topics)
    except ConnectionError:
        return None
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


def test_our_broker_refuses_what_apache_kafka_refuses(apache_kafka: Node, einmal: Node) -> None:
    theirs, ours = _answers(apache_kafka), _answers(einmal)
    # Nobody opens a transaction for them: both brokers reject them before they look at the batch.
    unverified = dict.fromkeys(
        ("a transactional control batch", "transactional without a producer"),
        ErrorCode.transactional_id_authorization_failed,
    )
    assert ours == {malformed.name: malformed.verdict for malformed in MALFORMED} | unverified
    laxer = [name for name, error in ours.items() if error is ErrorCode.none and theirs[name] is not ErrorCode.none]
    assert not laxer
    stricter = {name for name, error in ours.items() if error is not ErrorCode.none and theirs[name] is ErrorCode.none}
    assert stricter == set(STRICTER)


def test_every_accepted_batch_is_readable(einmal: Node) -> None:
    broker = Broker(einmal.host, einmal.port)
    create_topic(broker, TOPIC, 1)
    create_topic(broker, PLAIN, 1)
    now = int(time.time() * 1000)
    batches = [malformed.make(now) for malformed in MALFORMED if not malformed.configs]
    batches += [*mutated(7, MUTATED, now), good(1, now)]
    ends = {TOPIC: 0, PLAIN: 0}
    with broker.connect() as connection:
        for batch in batches:
            if _produce(connection, TOPIC, batch) is not ErrorCode.none:
                continue
            header = read_header(batch)
            ends[TOPIC] += header.record_count
            if header.compression in (Compression.NONE, Compression.GZIP):
                assert _produce(connection, PLAIN, batch) is ErrorCode.none
                ends[PLAIN] += header.record_count
    end = ends[TOPIC]
    assert end > MUTATED // 10, "too few were accepted to show anything"
    assert _read_by_confluent(einmal.bootstrap) == end
    assert asyncio.run(_read_by_aiokafka(einmal.bootstrap)) == end
    assert _read_by_kafka_python(einmal.bootstrap) == ends[PLAIN]
    assert _read_by_us(einmal.bootstrap) == end
    assert JavaReader(einmal.bootstrap, [TOPIC]).finish(PATIENCE_S).at_the_end == end


def _read_by_confluent(bootstrap: str) -> int:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "c", "enable.partition.eof": True})
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
    count = 0
    try:
        while (message := consumer.poll(PATIENCE_S)) is not None:
            if (error := message.error()) is None:
                count += 1
            elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                return count
            else:
                raise AssertionError(error)
    finally:
        consumer.close()
    raise AssertionError(f"nothing more after {count} records")


async def _read_by_aiokafka(bootstrap: str) -> int:
    consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap)
    await consumer.start()
    try:
        partition = aiokafka.TopicPartition(TOPIC, 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning()
        end = (await consumer.end_offsets([partition]))[partition]
        count = 0
        while await consumer.position(partition) < end:
            found = await asyncio.wait_for(consumer.getmany(timeout_ms=1000), PATIENCE_S)
            count += sum(map(len, found.values()))
        return count
    finally:
        await consumer.stop()


def _read_by_kafka_python(bootstrap: str) -> int:
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, consumer_timeout_ms=PATIENCE_S * 1000)
    try:
        partition = kafka.TopicPartition(PLAIN, 0)
        consumer.assign([partition])
        consumer.seek_to_beginning()
        end = consumer.end_offsets([partition])[partition]
        count = 0
        for message in consumer:
            count += 1
            if message.offset == end - 1:
                break
        return count
    finally:
        consumer.close()


def _read_by_us(bootstrap: str) -> int:
    with Consumer({"bootstrap.servers": bootstrap, "auto.offset.reset": "earliest"}) as consumer:
        partition = TopicPartition(TOPIC, 0)
        consumer.assign([partition])
        end = consumer.end_offsets(partition)[partition]
        count = 0
        while consumer.position(partition) < end:
            count += len(consumer.poll())
        return count
