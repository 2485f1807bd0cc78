"""Claims about our client on Apache Kafka's secured listeners: every mechanism works, and every mistake has an answer.

One node has SASL_SSL with PLAIN, SCRAM and OAUTHBEARER, SSL with client certificates, and PLAINTEXT.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from einmal.client import Admin, Consumer, KafkaError, NewTopic, PartitionWriter, Producer, RangeReader, aio
from einmal.client.errors import FatalError, NoBrokerReachable, SaslAuthenticationFailed, SslHandshakeFailed
from einmal.rpc.connection import Connection
from tests.security.certificates import Authority, Certificate
from tests.security.secure_kafka import (
    CANARY,
    ODD_PASSWORD,
    ODD_USER,
    PASSWORD,
    USER,
    SecureKafka,
    unsecured_token,
)
from tests.security.token_endpoint import Endpoint, running
from tests.suite.patience import patient
from tests.suite.shared import unique

pytestmark = [pytest.mark.interop, pytest.mark.slow]

WAYS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER", "mTLS")


def new_topic(node: SecureKafka, partitions: int = 1) -> str:
    """A topic that every later request finds."""
    name = unique("secured")
    with Admin(node.settings("SCRAM-SHA-256")) as admin:
        admin.create_topics([NewTopic(name, partitions)])
    return name


def values(settings: dict[str, Any], topic: str, count: int) -> list[bytes | None]:
    found: list[bytes | None] = []
    with Consumer(settings, group_id=f"g-{topic}", auto_offset_reset="earliest") as consumer:
        consumer.subscribe([topic])
        deadline = time.monotonic() + patient(60)
        while len(found) < count and time.monotonic() < deadline:
            found += [record.value for record in consumer.poll(500)]
    return found


@pytest.mark.representatives(2)
@pytest.mark.parametrize("way", WAYS)
def test_records_are_produced_transactionally_and_consumed(secure_kafka: SecureKafka, way: str) -> None:
    settings = secure_kafka.settings(way)
    topic = new_topic(secure_kafka)
    with Producer(settings, transactional_id=f"id-{topic}") as producer:
        with producer.transaction():
            producer.send(topic, b"committed")
        with contextlib.suppress(ZeroDivisionError), producer.transaction():
            producer.send(topic, b"aborted")
            raise ZeroDivisionError
        with producer.transaction():
            producer.send(topic, b"later")
    assert values(settings, topic, 2) == [b"committed", b"later"]


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512"])
def test_a_password_that_saslprep_would_change_is_kafkas(secure_kafka: SecureKafka, mechanism: str) -> None:
    settings = secure_kafka.settings(mechanism) | {"sasl.username": ODD_USER, "sasl.password": ODD_PASSWORD}
    with Admin(settings) as admin:
        assert admin.describe_cluster().brokers


def test_javas_settings_work_as_they_are(secure_kafka: SecureKafka) -> None:
    common = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(secure_kafka.ca)}
    sasl = {
        "bootstrap.servers": secure_kafka.at("SASL_SSL", "localhost"),
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.jaas.config": "org.apache.kafka.common.security.scram.ScramLoginModule required "
        f'username="{USER}" password="{PASSWORD}";',
    }
    mutual = {
        "bootstrap.servers": secure_kafka.at("SSL"),
        "security.protocol": "SSL",
        "ssl.keystore.type": "PEM",
        "ssl.keystore.certificate.chain": secure_kafka.client_certificate.certificate_pem,
        "ssl.keystore.key": secure_kafka.client_certificate.key_pem,
        "ssl.key.password": f"{CANARY}-key",
    }
    for given in (sasl, mutual):
        with Admin(common | given) as admin:
            assert admin.describe_cluster().brokers


def test_a_token_may_come_from_a_function(secure_kafka: SecureKafka) -> None:
    settings: dict[str, Any] = secure_kafka.settings("OAUTHBEARER")
    del settings["sasl.oauthbearer.token.endpoint.url"]
    with Admin(settings, sasl_oauthbearer_token_provider=unsecured_token) as admin:
        assert admin.describe_cluster().brokers


@pytest.mark.parametrize("protocol", ["SASL_SSL", "SASL_PLAINTEXT"])
def test_a_token_may_come_from_an_endpoint_of_a_private_authority(
    secure_kafka: SecureKafka, tmp_path: Path, protocol: str
) -> None:
    with running(Endpoint(tmp_path)) as endpoint:
        endpoint.body = {"access_token": unsecured_token(), "expires_in": 3_600}
        both = tmp_path / "both.pem"
        both.write_text(endpoint.ca.read_text() + secure_kafka.ca.read_text())
        settings = {
            "bootstrap.servers": secure_kafka.at(protocol),
            "security.protocol": protocol,
            "ssl.ca.location": str(both),
            "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.token.endpoint.url": endpoint.url,
            "sasl.oauthbearer.client.id": "me",
            "sasl.oauthbearer.client.secret": f"{CANARY}-secret",
        }
        with Admin(settings) as admin:
            assert admin.describe_cluster().brokers
        assert len(endpoint.requests) == 1
        foreign = failure(settings | {"ssl.ca.location": str(secure_kafka.ca)})
        assert isinstance(foreign, SslHandshakeFailed | SaslAuthenticationFailed)
        assert "CERTIFICATE_VERIFY_FAILED" in str(foreign)
        assert len(endpoint.requests) == 1


async def test_partition_writers_and_range_readers_authenticate(secure_kafka: SecureKafka) -> None:
    settings = secure_kafka.settings("SCRAM-SHA-256")
    for client in (PartitionWriter(settings), RangeReader(settings)):
        client.close()
    async with aio.TransactionDriver(settings, transactional_id=unique("driver")) as driver:
        identity = await driver.init_producer_id()
        assert identity.producer_id >= 0


@pytest.mark.time_limit(180)
async def test_sessions_are_renewed_in_use_and_no_request_is_lost(secure_kafka: SecureKafka) -> None:
    """Kafka ends a connection whose session has ended, at its next request (KIP-368)."""
    settings = secure_kafka.settings("PLAIN")
    topic = new_topic(secure_kafka)
    async with aio.Producer(settings, linger_ms=0) as producer:
        connections = producer._cluster._connections
        renewals = 0
        authenticate = connections._secured.authenticate

        async def counted(connection: Any, timeout_ms: int) -> int:
            nonlocal renewals
            renewals += connection in connections._open.values()
            return await authenticate(connection, timeout_ms)

        connections._secured.authenticate = counted  # type: ignore[method-assign]
        sent = 0
        first: list[Connection] = []
        turns_s: deque[float] = deque(maxlen=2)
        """Of the last ones: when a session was to be renewed, and when the connection was found closed."""
        before = time.monotonic()
        while renewals < 2:
            await asyncio.gather(*(producer.send(topic, f"{sent + each}") for each in range(5)))
            sent += 5
            first = first or list(connections._open.values())
            now = time.monotonic()
            turns_s.append(now - before)
            before = now
            if not all(each.is_open for each in first):
                assert max(turns_s) > 0.5, "the connections of the beginning are still in use"
                # One that stands still when it is to renew a session cannot keep its connection.
                first, renewals = [], 0
            # Often enough to be in use all the time.
            await asyncio.sleep(0.05)
        assert first
    assert values(settings, topic, sent) == [str(each).encode() for each in range(sent)]


# --- mistakes ---------------------------------------------------------------------------------------------------


def failure(settings: dict[str, Any]) -> KafkaError:
    """The error of a client with these settings; it must come long before the call's own deadline."""
    began = time.monotonic()
    with pytest.raises(KafkaError) as caught, Admin({"default.api.timeout.ms": "600000"} | settings) as admin:
        admin.describe_cluster()
    assert time.monotonic() - began < 300
    assert CANARY not in f"{caught.value} {caught.value!r}"
    return caught.value


@pytest.mark.representatives(2)
@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"])
@pytest.mark.parametrize("wrong", [{"sasl.password": f"{CANARY}-wrong"}, {"sasl.username": "nobody"}])
def test_wrong_credentials_fail_at_once_in_kafkas_words(
    secure_kafka: SecureKafka, mechanism: str, wrong: dict[str, str]
) -> None:
    error = failure(secure_kafka.settings(mechanism) | wrong)
    assert isinstance(error, SaslAuthenticationFailed)
    assert str(error).startswith("SASL_AUTHENTICATION_FAILED (58): the broker rejects the credentials")
    assert "Correct sasl.username" in str(error)


def test_every_client_reports_a_wrong_password(secure_kafka: SecureKafka) -> None:
    settings = secure_kafka.settings("SCRAM-SHA-256") | {"sasl.password": "wrong"}
    with Producer(settings) as producer, pytest.raises(SaslAuthenticationFailed):
        producer.send("any", b"").result(300)
    with Producer(settings, transactional_id="any") as producer, pytest.raises(SaslAuthenticationFailed):
        producer.init_transactions()
    with Consumer(settings, group_id="any") as consumer, pytest.raises(SaslAuthenticationFailed):
        consumer.subscribe(["any"])
        consumer.poll(300_000)


def test_an_expired_token_is_rejected_before_it_is_sent(secure_kafka: SecureKafka) -> None:
    settings: dict[str, Any] = secure_kafka.settings("OAUTHBEARER")
    del settings["sasl.oauthbearer.token.endpoint.url"]
    expired = failure(settings | {"sasl.oauthbearer.token.provider": lambda: unsecured_token(lifetime_s=-60)})
    assert "the token has expired" in str(expired)
    foreign = failure(settings | {"sasl.oauthbearer.token.provider": lambda: "no.jws"})
    assert isinstance(foreign, SaslAuthenticationFailed)
    assert "invalid_token" in str(foreign)


def test_a_foreign_authority_is_answered_with_the_setting_to_set(secure_kafka: SecureKafka, tmp_path: Path) -> None:
    settings = secure_kafka.settings("PLAIN")
    del settings["ssl.ca.location"]
    for given in (settings, settings | {"ssl.ca.location": str(Authority("other").write(tmp_path / "other.pem"))}):
        error = failure(given)
        assert isinstance(error, SslHandshakeFailed)
        assert "SSL handshake failed" in str(error)
        assert "Set ssl.ca.location" in str(error)


def test_a_missing_foreign_or_expired_client_certificate_is_named(secure_kafka: SecureKafka, tmp_path: Path) -> None:
    settings = secure_kafka.settings("mTLS")
    without = {name: value for name, value in settings.items() if not name.startswith(("ssl.cert", "ssl.key"))}
    foreign = Authority("other").issue(tmp_path, "foreign")
    expired = secure_kafka.authority.issue(tmp_path, "expired", days=-1)
    for given in (without, without | files(foreign), without | files(expired)):
        error = failure(given)
        assert isinstance(error, SslHandshakeFailed), error
        assert "certificate" in str(error)


def files(certificate: Certificate) -> dict[str, str]:
    return {"ssl.certificate.location": str(certificate.certificate), "ssl.key.location": str(certificate.key)}


def test_a_plaintext_client_of_a_tls_port_learns_to_set_the_protocol(
    secure_kafka: SecureKafka, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        error = failure({"bootstrap.servers": secure_kafka.at("SASL_SSL"), "bootstrap.timeout.ms": "3000"})
    assert isinstance(error, NoBrokerReachable)
    assert "security.protocol to SSL or SASL_SSL" in str(error)
    assert [each.getMessage().count("security.protocol to SSL or SASL_SSL") for each in caplog.records] == [1]


def test_a_tls_client_of_a_plaintext_port_learns_to_check_the_protocol(
    secure_kafka: SecureKafka, caplog: pytest.LogCaptureFixture
) -> None:
    given = {"bootstrap.servers": secure_kafka.at("PLAINTEXT"), "bootstrap.timeout.ms": "3000"}
    with caplog.at_level(logging.WARNING):
        error = failure(secure_kafka.settings("PLAIN") | given)
    assert "SSL handshake failed" in str(error)
    assert "check security.protocol and the port" in str(error)
    assert [each.getMessage().count("check security.protocol and the port") for each in caplog.records] == [1]


def test_sasl_on_a_listener_without_it_is_named(secure_kafka: SecureKafka) -> None:
    settings = secure_kafka.settings("PLAIN") | {"security.protocol": "SASL_PLAINTEXT"}
    error = failure(settings | {"bootstrap.servers": secure_kafka.at("PLAINTEXT")})
    assert isinstance(error, FatalError)
    assert "the listener does not use SASL" in str(error)


@pytest.mark.parametrize("protocol", ["SASL_SSL", "SASL_PLAINTEXT"])
def test_a_client_without_sasl_on_a_sasl_listener_learns_at_once_what_to_set(
    secure_kafka: SecureKafka, protocol: str
) -> None:
    plain = {"security.protocol": protocol.removeprefix("SASL_"), "bootstrap.servers": secure_kafka.at(protocol)}
    given = plain | ({"ssl.ca.location": str(secure_kafka.ca)} if protocol == "SASL_SSL" else {})
    error = failure(given)
    assert isinstance(error, SaslAuthenticationFailed)
    assert str(error).startswith("ILLEGAL_SASL_STATE (34): the listener requires SASL")
    assert f"Set security.protocol={protocol}" in str(error)
    assert "OAUTHBEARER" in str(error)
    with Producer(given) as producer, pytest.raises(SaslAuthenticationFailed):
        producer.send("any", b"").result(300)
    with Consumer(given, group_id="any") as consumer, pytest.raises(SaslAuthenticationFailed):
        consumer.subscribe(["any"])
        consumer.poll(300_000)


def test_no_secret_is_logged(secure_kafka: SecureKafka, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        for way in WAYS:
            with Admin(secure_kafka.settings(way)) as admin:
                admin.describe_cluster()
        failure(secure_kafka.settings("PLAIN") | {"sasl.password": f"{CANARY}-wrong"})
    assert CANARY not in caplog.text
