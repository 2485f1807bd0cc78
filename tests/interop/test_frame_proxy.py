"""Clients behind the proxy, in front of both brokers: a lost answer to EndTxn commits exactly once."""

from __future__ import annotations

import itertools
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest

import einmal.client
from einmal.chaos.proxy.server import KafkaProxy
from tests.broker.tls_node import Tls
from tests.interop.apache_kafka import JVM, KafkaUnavailable, java, java_program
from tests.interop.conftest import Node
from tests.interop.topics import Broker, create_topic
from tests.interop.transactional_clients import AiokafkaWriter, ConfluentWriter, KafkaPythonWriter, Writer
from tests.suite.patience import patient
from tests.suite.shared import unique

pytestmark = pytest.mark.interop

WRITERS = (ConfluentWriter, KafkaPythonWriter, AiokafkaWriter)


@pytest.fixture
def proxy(broker: Node) -> Iterator[KafkaProxy]:
    with KafkaProxy(broker.bootstrap) as proxy:
        yield proxy


@pytest.fixture
def topic(broker: Node) -> str:
    name = unique("proxied")
    create_topic(Broker(broker.host, broker.port), name, 1)
    return name


def committed(bootstrap: str, topic: str) -> list[str]:
    """Every committed record, read past the proxy."""
    return [each.value for each in ConfluentWriter.read_committed(bootstrap, topic, 0)]


@pytest.mark.parametrize("writer_class", WRITERS)
def test_a_lost_answer_to_end_txn_commits_exactly_once(
    broker: Node, proxy: KafkaProxy, topic: str, writer_class: type[Writer]
) -> None:
    with writer_class(proxy.bootstrap_servers, topic) as writer:
        lost = proxy.on("EndTxn", transactional_id=topic).disconnect(after=True).once()
        for value in ("first", "second"):
            writer.begin()
            writer.send(topic, 0, value)
            writer.commit()
    assert lost.fired == 1
    assert committed(broker.bootstrap, topic) == ["first", "second"]


def test_a_dropped_answer_to_end_txn_is_asked_for_again_after_the_timeout(
    broker: Node, proxy: KafkaProxy, topic: str
) -> None:
    settings = {"bootstrap.servers": proxy.bootstrap_servers, "transactional.id": topic, "socket.timeout.ms": 1000}
    producer = confluent_kafka.Producer(settings)
    producer.init_transactions(patient(30))
    dropped = proxy.on("EndTxn").drop_answer().once()
    for value in ("first", "second"):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.commit_transaction(patient(60))
    assert dropped.fired == 1
    assert [each.what for each in proxy.faults] == ["answer dropped"]
    assert committed(broker.bootstrap, topic) == ["first", "second"]


def test_a_client_with_tls_uses_a_broker_without(broker: Node, topic: str, tmp_path: Path) -> None:
    tls = Tls(tmp_path)
    accepting = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    accepting.load_cert_chain(tls.broker.store)
    with KafkaProxy(broker.bootstrap, tls=accepting) as proxy:
        secured = {"security.protocol": "SSL", "ssl.ca.location": str(tls.ca)}
        producer = confluent_kafka.Producer({"bootstrap.servers": proxy.bootstrap_servers, **secured})
        producer.produce(topic, "encrypted")
        assert producer.flush(patient(30)) == 0
    assert committed(broker.bootstrap, topic) == ["encrypted"]


@pytest.mark.parametrize("code", ["NOT_COORDINATOR", "COORDINATOR_LOAD_IN_PROGRESS", "CONCURRENT_TRANSACTIONS"])
def test_clients_try_again_after_errors_that_the_proxy_makes(
    broker: Node, proxy: KafkaProxy, topic: str, code: str
) -> None:
    for writer_class in WRITERS:
        for api in ("InitProducerId", "AddPartitionsToTxn", "EndTxn"):
            proxy.on(api).error(code).once()
        with writer_class(proxy.bootstrap_servers, topic) as writer:
            writer.begin()
            writer.send(topic, 0, writer_class.__name__)
            writer.commit()
        assert {each.api for each in proxy.faults} >= {"InitProducerId", "EndTxn"}
        proxy.clear()
    assert committed(broker.bootstrap, topic) == [each.__name__ for each in WRITERS]


def test_a_repeated_batch_is_written_once(broker: Node, proxy: KafkaProxy, topic: str) -> None:
    with einmal.client.Producer(bootstrap_servers=proxy.bootstrap_servers) as producer:
        proxy.on("Produce").duplicate().times(5)
        proxy.on("Produce").disconnect(after=True).times(5)
        proxy.on("Produce").error("NOT_LEADER_OR_FOLLOWER").times(2)
        for number in range(30):
            producer.send(topic, str(number).encode(), partition=0).result(patient(30))
    assert len(proxy.faults) == 12
    assert committed(broker.bootstrap, topic) == [str(number) for number in range(30)]


def test_our_consumer_reads_committed_records_through_faults_of_fetches(
    broker: Node, proxy: KafkaProxy, topic: str
) -> None:
    with einmal.client.Producer(bootstrap_servers=broker.bootstrap) as producer:
        for number in range(20):
            producer.send(topic, str(number).encode(), partition=0)
    proxy.on("Fetch").error("NOT_LEADER_OR_FOLLOWER").once()
    proxy.on("Fetch").disconnect(after=True).once()
    with einmal.client.Consumer(
        bootstrap_servers=proxy.bootstrap_servers, group_id=topic, auto_offset_reset="earliest"
    ) as consumer:
        consumer.subscribe([topic])
        read = [record.value for record in itertools.islice(consumer, 20)]
    assert read == [str(number).encode() for number in range(20)]
    assert [each.api for each in proxy.faults] == ["Fetch", "Fetch"]


def test_the_java_client_commits_exactly_once_when_every_third_answer_is_lost(
    broker: Node, proxy: KafkaProxy, topic: str
) -> None:
    try:
        program = [java(), "-Xmx256m", *JVM, *java_program("Transactions")]
    except KafkaUnavailable as error:
        pytest.skip(str(error))
    lost = proxy.on("EndTxn").disconnect(after=True).probability(1 / 3, seed=1)
    command = [*program, proxy.bootstrap_servers, topic, "1", topic, "15"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patient(120))
    assert done.returncode == 0, done.stderr[-3000:]
    assert lost.fired > 2
    assert committed(broker.bootstrap, topic) == ["x"] * 15
