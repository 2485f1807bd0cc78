"""Quotas as other clients meet them, on our broker and on Apache Kafka under the same quota.

Rates take many seconds to measure, on a machine without other work: the long run does that. Every run shows that a
client is asked to wait, and does.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Final

import pytest
from confluent_kafka import Consumer, Producer, ThrottleEvent, TopicPartition

from einmal.client import Admin
from tests.interop.apache_kafka import ApacheKafka, KafkaUnavailable
from tests.interop.apache_tools import ApacheTools
from tests.interop.conftest import Node, NodeFactory
from tests.interop.einmal_broker import EinmalBroker
from tests.suite.shared import unique

pytestmark = pytest.mark.interop

RATE: Final = 400_000
"""Bytes per second."""
RECORD: Final = bytes(5_000)
PATIENCE_S: Final = 120.0
_SETTLED_S: Final = 3.0
_MEASURED_S: Final = 8.0
_WINDOWS: Final = {"quota.window.num": "3"}
"""A rate is measured over two to three seconds, so that a test need not wait for the first burst to be paid back."""


@pytest.fixture(scope="module", params=["apache", "einmal"])
def node(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    directory = tmp_path_factory.mktemp(f"quotas-{request.param}")
    try:
        kind = ApacheKafka if request.param == "apache" else EinmalBroker
        node: Node = kind(directory, settings=_WINDOWS)
    except KafkaUnavailable as error:
        pytest.skip(str(error))
    node.start()
    yield node
    node.stop()


def limit(node: Node, client_id: str, **values: float) -> None:
    with Admin(bootstrap_servers=node.bootstrap) as admin:
        admin.create_topics([client_id], if_not_exists=True)
        admin.alter_client_quotas({"client-id": client_id}, values)
        while not admin.describe_client_quotas({"client-id": client_id}):
            time.sleep(0.05)


def told(node: Node, what: str, rate: float) -> None:
    print(f"{what} of {type(node).__name__} under a quota of {RATE:,} bytes/s: {rate:,.0f} ({rate / RATE:.0%})")


def measured(take: list[tuple[float, int]], begun: float) -> float:
    """The mean rate after the first burst."""
    first, last = begun + _SETTLED_S, begun + _SETTLED_S + _MEASURED_S
    return sum(size for at, size in take if first <= at < last) / _MEASURED_S


def test_librdkafka_is_asked_how_long_to_wait_and_sends_no_more_than_its_quota(node_of: NodeFactory) -> None:
    shared = node_of("einmal", 2)
    name = unique("throttled")
    limit(shared, name, producer_byte_rate=RATE)
    throttled: list[ThrottleEvent] = []
    settings = {"bootstrap.servers": shared.bootstrap, "client.id": name, "batch.size": 20_000, "acks": 1}
    producer = Producer({**settings, "throttle_cb": throttled.append})
    begun = time.monotonic()
    while not throttled:
        producer.produce(name, RECORD)
        producer.flush(PATIENCE_S)
        assert time.monotonic() - begun < PATIENCE_S, "never throttled"
    waits = len(throttled)
    count = 5 * RATE // len(RECORD)
    begun = time.monotonic()
    for _ in range(count):
        producer.produce(name, RECORD)
    assert producer.flush(PATIENCE_S) == 0
    # What is above the rate is paid back: no machine is too slow for that.
    assert time.monotonic() - begun > 0.5 * count * len(RECORD) / RATE
    assert len(throttled) > waits
    assert {each.broker_name for each in throttled} == {shared.bootstrap}


@pytest.mark.long
def test_a_producer_of_librdkafka_has_the_rate_of_its_quota(node: Node) -> None:
    limit(node, "rdkafka-producer", producer_byte_rate=RATE)
    producer = Producer(
        {
            "bootstrap.servers": node.bootstrap,
            "client.id": "rdkafka-producer",
            "batch.size": 20_000,
            "queue.buffering.max.messages": 100,
            "acks": 1,
        }
    )
    written: list[tuple[float, int]] = []
    begun = time.monotonic()
    while time.monotonic() < begun + _SETTLED_S + _MEASURED_S:
        try:
            producer.produce(
                "rdkafka-producer",
                RECORD,
                on_delivery=lambda error, _: None if error else written.append((time.monotonic(), len(RECORD))),
            )
        except BufferError:
            producer.poll(0.01)
        producer.poll(0)
    producer.purge()
    producer.flush(5)
    rate = measured(written, begun)
    told(node, "produced by librdkafka", rate)
    assert 0.6 * RATE < rate < 1.5 * RATE


@pytest.mark.long
def test_a_consumer_of_librdkafka_has_the_rate_of_its_quota(node: Node) -> None:
    topic = "rdkafka-consumer"
    limit(node, topic, consumer_byte_rate=RATE)
    producer = Producer({"bootstrap.servers": node.bootstrap, "batch.size": 20_000})
    for _ in range(2_000):
        producer.produce(topic, RECORD)
    assert producer.flush(300) == 0
    consumer = Consumer(
        {
            "bootstrap.servers": node.bootstrap,
            "client.id": topic,
            "group.id": topic,
            "fetch.message.max.bytes": 100_000,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    read: list[tuple[float, int]] = []
    begun = time.monotonic()
    while time.monotonic() < begun + _SETTLED_S + _MEASURED_S:
        message = consumer.poll(0.05)
        if message is not None and message.error() is None:
            read.append((time.monotonic(), len(RECORD)))
    consumer.close()
    rate = measured(read, begun)
    told(node, "consumed by librdkafka", rate)
    if isinstance(node, EinmalBroker):
        # With few windows Apache Kafka delivers the first burst, and then nothing for many seconds.
        assert 0.5 * RATE < rate < 1.5 * RATE


@pytest.mark.long
def test_javas_producer_has_the_rate_of_its_quota(node: Node) -> None:
    limit(node, "java-producer", producer_byte_rate=RATE)
    try:
        tools = ApacheTools(node.bootstrap)
    except KafkaUnavailable as error:
        pytest.skip(str(error))
    try:
        settings = (f"bootstrap.servers={node.bootstrap}", "client.id=java-producer", "buffer.memory=1000000")
        records = str(12 * RATE // len(RECORD))
        said = tools(
            "ProducerPerformance",
            *("--topic", "java-producer", "--num-records", records, "--record-size", str(len(RECORD))),
            *("--throughput", "-1", "--command-property", *settings),
        )
    finally:
        tools.close()
    *_, total = re.findall(rf"{records} records sent, .* \(([\d.]+) MB/sec\)", said) or [said]
    rate = float(total) * 2**20
    # With the first burst, of two seconds.
    told(node, "produced by Java's producer", rate)
    assert 0.6 * RATE < rate < 1.6 * RATE
