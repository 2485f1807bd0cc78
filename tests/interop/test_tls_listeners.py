"""Other people's clients on listeners of our broker with TLS: the broker's certificate only, and mutual TLS."""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiokafka
import confluent_kafka
import kafka
import pytest

from tests.interop.apache_kafka import KafkaUnavailable
from tests.interop.apache_tools import ApacheTools
from tests.interop.einmal_broker import EinmalBroker
from tests.ports import loopback_ports
from tests.security.certificates import Authority, Certificate
from tests.suite.shared import unique

pytestmark = [pytest.mark.interop, pytest.mark.system]

COUNT = 200
SECONDS_MAX = 120.0
VALUES = [b"value %d " % number * 50 for number in range(COUNT)]
LISTENERS = ("SSL", "MUTUAL")


class Tls:
    """A broker with both listeners, and the certificate of a client."""

    def __init__(self, directory: Path) -> None:
        authority = Authority()
        self.ca = authority.write(directory / "ca.pem")
        broker = authority.issue(directory, "broker")
        self.certificate: Certificate = authority.issue(directory, "alice")
        plain, *ports = loopback_ports(3)
        self.ports = dict(zip(LISTENERS, ports, strict=True))
        self.broker = EinmalBroker(
            directory / "broker",
            {
                "listeners": f"PLAINTEXT://127.0.0.1:{plain},SSL://127.0.0.1:{ports[0]},MUTUAL://127.0.0.1:{ports[1]}",
                "listener.security.protocol.map": "MUTUAL:SSL",
                "ssl.keystore.type": "PEM",
                "ssl.keystore.location": str(broker.store),
                "ssl.truststore.type": "PEM",
                "ssl.truststore.location": str(self.ca),
                "listener.name.mutual.ssl.client.auth": "required",
            },
        )

    def at(self, listener: str) -> str:
        return f"127.0.0.1:{self.ports[listener]}"

    def librdkafka(self, listener: str) -> dict[str, Any]:
        settings = {"bootstrap.servers": self.at(listener), "security.protocol": "SSL", "ssl.ca.location": str(self.ca)}
        if listener == "MUTUAL":
            settings["ssl.certificate.location"] = str(self.certificate.certificate)
            settings["ssl.key.location"] = str(self.certificate.key)
        return settings

    def context(self, listener: str) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.ca))
        if listener == "MUTUAL":
            context.load_cert_chain(self.certificate.store)
        return context

    def java(self, directory: Path, listener: str) -> Path:
        lines = ["security.protocol=SSL", "ssl.truststore.type=PEM", f"ssl.truststore.location={self.ca}"]
        if listener == "MUTUAL":
            lines += ["ssl.keystore.type=PEM", f"ssl.keystore.location={self.certificate.store}"]
        path = directory / "client.properties"
        path.write_text("\n".join(lines) + "\n")
        return path


@pytest.fixture(scope="module")
def tls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tls]:
    tls = Tls(tmp_path_factory.mktemp("tls"))
    tls.broker.start()
    yield tls
    tls.broker.stop()


@pytest.fixture
def topic() -> str:
    return unique("tls")


@pytest.mark.parametrize("listener", LISTENERS)
def test_confluent_kafka_writes_and_reads(tls: Tls, topic: str, listener: str) -> None:
    settings = tls.librdkafka(listener)
    producer = confluent_kafka.Producer(settings | {"enable.idempotence": True})
    for value in VALUES:
        producer.produce(topic, value)
    assert producer.flush(SECONDS_MAX) == 0
    consumer = confluent_kafka.Consumer(settings | {"group.id": topic, "auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found: list[bytes | None] = []
    deadline = time.monotonic() + SECONDS_MAX
    while len(found) < COUNT and time.monotonic() < deadline:
        found += [message.value() for message in consumer.consume(COUNT, 1.0) if message.error() is None]
    consumer.close()
    assert found == VALUES


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.time_limit(180)
async def test_aiokafka_writes_and_reads(tls: Tls, topic: str, listener: str) -> None:
    settings = {
        "bootstrap_servers": tls.at(listener),
        "security_protocol": "SSL",
        "ssl_context": tls.context(listener),
    }
    async with aiokafka.AIOKafkaProducer(**settings) as producer:
        for value in VALUES:
            await producer.send(topic, value)
        await producer.flush()
    consumer = aiokafka.AIOKafkaConsumer(topic, **settings, group_id=topic, auto_offset_reset="earliest")
    async with consumer, asyncio.timeout(SECONDS_MAX):
        assert [(await consumer.getone()).value for _ in VALUES] == VALUES


@pytest.mark.parametrize("listener", LISTENERS)
def test_kafka_python_writes_and_reads(tls: Tls, topic: str, listener: str) -> None:
    settings = {
        "bootstrap_servers": tls.at(listener),
        "security_protocol": "SSL",
        "ssl_context": tls.context(listener),
    }
    producer = kafka.KafkaProducer(**settings)
    for value in VALUES:
        producer.send(topic, value)
    producer.flush(SECONDS_MAX)
    producer.close()
    consumer = kafka.KafkaConsumer(topic, **settings, group_id=topic, auto_offset_reset="earliest")
    found = [message.value for _number, message in zip(range(COUNT), consumer, strict=False)]
    consumer.close()
    assert found == VALUES


@pytest.mark.parametrize("listener", LISTENERS)
@pytest.mark.representatives(1)
def test_the_java_client_writes_and_reads(tls: Tls, topic: str, listener: str, tmp_path: Path) -> None:
    try:
        tools = ApacheTools(tls.at(listener))
    except KafkaUnavailable as error:
        pytest.skip(str(error))
    config = str(tls.java(tmp_path, listener))
    lines = tmp_path / "lines"
    lines.write_text("".join(f"{value.decode()}\n" for value in VALUES))
    try:
        tools("ConsoleProducer", "--topic", topic, "--command-config", config, reads=lines)
        told = tools(
            "consumer.ConsoleConsumer",
            "--topic",
            topic,
            "--from-beginning",
            "--command-config",
            config,
            "--max-messages",
            str(COUNT),
            "--timeout-ms",
            "120000",
        )
    finally:
        tools.close()
    assert all(value.decode() in told for value in VALUES)


def test_without_a_certificate_mutual_tls_refuses_a_client(tls: Tls) -> None:
    errors: list[confluent_kafka.KafkaError] = []
    settings = tls.librdkafka("SSL") | {"bootstrap.servers": tls.at("MUTUAL"), "error_cb": errors.append}
    producer = confluent_kafka.Producer(settings)
    deadline = time.monotonic() + SECONDS_MAX
    while not errors and time.monotonic() < deadline:
        producer.poll(0.2)
    assert errors
    tls.broker.wait_until_logged("the client sends no certificate")
