"""Clients that authenticate at our broker: confluent-kafka, aiokafka, kafka-python, the Java client and its tools."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import aiokafka
import aiokafka.abc
import aiokafka.errors
import confluent_kafka
import kafka
import kafka.errors
import kafka.net.sasl.oauth
import pytest
from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)

from einmal.client import Admin, Producer
from einmal.client.errors import SaslAuthenticationFailed
from tests.interop.admin import PATIENCE_S
from tests.interop.apache_kafka import KafkaUnavailable
from tests.interop.apache_tools import ApacheTools
from tests.interop.einmal_broker import EinmalBroker
from tests.ports import loopback_ports
from tests.security.identity_provider import AUDIENCE, ISSUER, provider, published, signed_token
from tests.security.secure_kafka import unsecured_token

pytestmark = pytest.mark.interop

PASSWORD: Final = 'canary-3e81 password, with "quotes"'
MECHANISMS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")
PROVIDER: Final = provider()
_MODULES: Final = "org.apache.kafka.common.security"
_ESCAPED: Final = PASSWORD.replace("\\", "\\\\").replace('"', '\\"')
MODULES: Final = {
    "PLAIN": f"{_MODULES}.plain.PlainLoginModule",
    "SCRAM-SHA-256": f"{_MODULES}.scram.ScramLoginModule",
    "SCRAM-SHA-512": f"{_MODULES}.scram.ScramLoginModule",
}


class SaslBroker(EinmalBroker):
    """Ours, whose clients authenticate by any mechanism. Secrets come from files, not from arguments."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        (port,) = loopback_ports(1)
        (directory / "keys.json").write_bytes(published(PROVIDER))
        (directory / "jaas").write_text(f'{MODULES["PLAIN"]} required user_alice="{_ESCAPED}";')
        (directory / "users").write_text(
            f'SCRAM-SHA-256=[name=alice,password="{_ESCAPED}"]\nSCRAM-SHA-512=[name=alice,password="{_ESCAPED}"]\n'
        )
        settings = {
            "listeners": f"CLIENTS://127.0.0.1:{port}",
            "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT",
            "listener.name.clients.sasl.enabled.mechanisms": ",".join(MECHANISMS),
            "listener.name.clients.plain.sasl.jaas.config": f"${{file:{directory}/jaas:}}",
            "einmal.bootstrap.scram.credentials": f"${{file:{directory}/users:}}",
            "sasl.oauthbearer.jwks.endpoint.url": f"file://{directory}/keys.json",
            "sasl.oauthbearer.expected.audience": AUDIENCE,
            "sasl.oauthbearer.expected.issuer": ISSUER,
        }
        super().__init__(directory / "node", settings)

    @property
    def log(self) -> str:
        return (self.directory / "node" / "einmal.log").read_text()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SaslBroker]:
    node = SaslBroker(tmp_path_factory.mktemp("sasl"))
    node.start()
    yield node
    node.stop()
    assert "canary" not in node.log


def tokens(is_valid: bool) -> str:
    return signed_token(PROVIDER, exp=int(time.time()) + 3_600) if is_valid else unsecured_token()


# --- one record through each client; ``is_right``: with the right password or token ------------------------------


def through_confluent(bootstrap: str, topic: str, mechanism: str, is_right: bool) -> bytes:
    errors: list[Any] = []
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": mechanism,
        "error_cb": errors.append,
        "logger": None,
    }
    settings.pop("logger")
    if mechanism == "OAUTHBEARER":
        settings["oauth_cb"] = lambda _config: (tokens(is_right), time.time() + 3_600)
    else:
        settings |= {"sasl.username": "alice", "sasl.password": PASSWORD if is_right else "a guess"}
    producer = confluent_kafka.Producer(settings)
    producer.produce(topic, b"confluent")
    deadline = time.monotonic() + PATIENCE_S
    while producer.flush(0.2) and time.monotonic() < deadline:
        if any(error.code() == confluent_kafka.KafkaError._AUTHENTICATION for error in errors):
            producer.purge()
            raise PermissionError(str(errors[0]))
    consumer = confluent_kafka.Consumer(settings | {"group.id": topic, "auto.offset.reset": "earliest"})
    try:
        consumer.subscribe([topic])
        message = consumer.poll(PATIENCE_S)
        assert message is not None and message.error() is None
        return message.value() or b""
    finally:
        consumer.close()


class _AioTokens(aiokafka.abc.AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, is_valid: bool) -> None:
        self._is_valid = is_valid

    async def token(self) -> str:
        return tokens(self._is_valid)


def through_aiokafka(bootstrap: str, topic: str, mechanism: str, is_right: bool) -> bytes:
    async def run() -> bytes:
        settings: dict[str, Any] = {
            "bootstrap_servers": bootstrap,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": mechanism,
        }
        if mechanism == "OAUTHBEARER":
            settings["sasl_oauth_token_provider"] = _AioTokens(is_right)
        else:
            settings |= {"sasl_plain_username": "alice", "sasl_plain_password": PASSWORD if is_right else "a guess"}
        producer = aiokafka.AIOKafkaProducer(**settings)
        try:
            await producer.start()
            await producer.send_and_wait(topic, b"aiokafka")
        except aiokafka.errors.KafkaError as error:
            raise PermissionError(str(error)) from error
        finally:
            await producer.stop()
        consumer = aiokafka.AIOKafkaConsumer(topic, auto_offset_reset="earliest", **settings)
        await consumer.start()
        try:
            return bytes((await asyncio.wait_for(consumer.getone(), PATIENCE_S)).value)
        finally:
            await consumer.stop()

    return asyncio.run(run())


class _Tokens(kafka.net.sasl.oauth.AbstractTokenProvider):  # type: ignore[misc]
    def __init__(self, is_valid: bool) -> None:
        super().__init__()
        self._is_valid = is_valid

    def token(self) -> str:
        return tokens(self._is_valid)


def through_kafka_python(bootstrap: str, topic: str, mechanism: str, is_right: bool) -> bytes:
    settings: dict[str, Any] = {
        "bootstrap_servers": bootstrap,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": mechanism,
        # It tries a refused password again and again, for so long.
        "bootstrap_timeout_ms": int(PATIENCE_S * 1_000) if is_right else 1_000,
    }
    if mechanism == "OAUTHBEARER":
        settings["sasl_oauth_token_provider"] = _Tokens(is_right)
    else:
        settings |= {"sasl_plain_username": "alice", "sasl_plain_password": PASSWORD if is_right else "a guess"}
    try:
        producer = kafka.KafkaProducer(**settings)
        producer.send(topic, b"kafka-python").get(PATIENCE_S)
        producer.close()
    except kafka.errors.KafkaError as error:
        raise PermissionError(str(error)) from error
    consumer = kafka.KafkaConsumer(topic, auto_offset_reset="earliest", **settings)
    try:
        return bytes(next(consumer).value)
    finally:
        consumer.close()


Through = Callable[[str, str, str, bool], bytes]
CLIENTS: Final[dict[str, Through]] = {
    "confluent": through_confluent,
    "aiokafka": through_aiokafka,
    "kafka-python": through_kafka_python,
}


@pytest.mark.representatives(4)
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_authenticates_writes_and_reads(broker: SaslBroker, client: str, mechanism: str) -> None:
    assert CLIENTS[client](broker.bootstrap, f"{client}-{mechanism}", mechanism, True) == client.encode()


@pytest.mark.representatives(4)
@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_with_a_wrong_password_or_an_unsecured_token_is_refused(
    broker: SaslBroker, client: str, mechanism: str
) -> None:
    with pytest.raises(PermissionError):
        CLIENTS[client](broker.bootstrap, "refused", mechanism, False)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_our_own_client_authenticates_and_is_refused(broker: SaslBroker, mechanism: str, tmp_path: Path) -> None:
    def settings(is_right: bool) -> dict[str, Any]:
        common = {
            "bootstrap.servers": broker.bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
        }
        if mechanism != "OAUTHBEARER":
            return common | {"sasl.username": "alice", "sasl.password": PASSWORD if is_right else "a guess"}
        token = tmp_path / "token"
        token.write_text(tokens(is_right))
        return common | {"sasl.oauthbearer.token.endpoint.url": f"file://{token}"}

    with Producer(settings(True)) as producer:
        assert producer.send(f"ours-{mechanism}", "value").result().offset == 0
    with pytest.raises(SaslAuthenticationFailed) as caught, Admin(settings(False)) as admin:
        admin.list_topics()
    assert f"{mechanism} authentication failed" in str(caught.value)


def test_confluents_admin_manages_users(broker: SaslBroker) -> None:
    settings: dict[str, str | int | float | bool] = {
        "bootstrap.servers": broker.bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "SCRAM-SHA-512",
        "sasl.username": "alice",
        "sasl.password": PASSWORD,
    }
    admin = AdminClient(settings)
    info = ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 8_192)
    upsertion = UserScramCredentialUpsertion("frida", info, b"fridas password")
    for future in admin.alter_user_scram_credentials([upsertion]).values():
        future.result(PATIENCE_S)
    found = admin.describe_user_scram_credentials(["frida"])
    assert isinstance(found, dict)
    described = found["frida"].result(PATIENCE_S)
    assert [(each.mechanism, each.iterations) for each in described.scram_credential_infos] == [
        (ScramMechanism.SCRAM_SHA_256, 8_192)
    ]
    frida = {
        **settings,
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "frida",
        "sasl.password": "fridas password",
    }
    assert AdminClient(frida).list_topics(timeout=PATIENCE_S).brokers
    deletion = UserScramCredentialDeletion("frida", ScramMechanism.SCRAM_SHA_256)
    for future in admin.alter_user_scram_credentials([deletion]).values():
        future.result(PATIENCE_S)
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        admin.alter_user_scram_credentials([deletion])["frida"].result(PATIENCE_S)
    assert caught.value.args[0].code() == 91


# --- Java ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tools(broker: SaslBroker) -> Iterator[ApacheTools]:
    # The Java client reads tokens only from files that a system property allows.
    token = broker.directory / "token"
    allowed = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls=file://{token}"
    files = f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.files={token}"
    before = os.environ.get("JAVA_TOOL_OPTIONS")
    os.environ["JAVA_TOOL_OPTIONS"] = f"{allowed} {files}"
    try:
        started = ApacheTools(broker.bootstrap)
    except KafkaUnavailable as error:
        pytest.skip(str(error))
    finally:
        os.environ.pop("JAVA_TOOL_OPTIONS")
        if before is not None:
            os.environ["JAVA_TOOL_OPTIONS"] = before
    yield started
    started.close()


def java_properties(broker: SaslBroker, path: Path, mechanism: str, is_right: bool) -> str:
    lines = ["security.protocol=SASL_PLAINTEXT", f"sasl.mechanism={mechanism}"]
    if mechanism == "OAUTHBEARER":
        token = broker.directory / "token"
        # The Java client itself does not send an unsecured token.
        token.write_text(tokens(True) if is_right else signed_token(provider()))
        oauth = f"{_MODULES}.oauthbearer"
        lines += [
            f"sasl.jaas.config={oauth}.OAuthBearerLoginModule required;",
            f"sasl.login.callback.handler.class={oauth}.OAuthBearerLoginCallbackHandler",
            f"sasl.oauthbearer.jwt.retriever.class={oauth}.FileJwtRetriever",
            f"sasl.oauthbearer.token.endpoint.url=file://{token}",
        ]
    else:
        password = (_ESCAPED if is_right else "a guess").replace("\\", "\\\\")
        lines.append(f'sasl.jaas.config={MODULES[mechanism]} required username="alice" password="{password}";')
    path.write_text("\n".join(lines))
    return str(path)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_java_client_authenticates_writes_and_reads(
    broker: SaslBroker, tools: ApacheTools, mechanism: str, tmp_path: Path
) -> None:
    config = java_properties(broker, tmp_path / "client.properties", mechanism, True)
    record = tmp_path / "record"
    record.write_text("from Java\n")
    topic = f"java-{mechanism}"
    tools("ConsoleProducer", "--topic", topic, "--command-config", config, reads=record)
    arguments = ("--topic", topic, "--from-beginning", "--max-messages", "1", "--timeout-ms", "120000")
    assert "from Java" in tools("consumer.ConsoleConsumer", *arguments, "--command-config", config)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_the_java_client_with_a_wrong_password_or_a_foreign_token_is_refused(
    broker: SaslBroker, tools: ApacheTools, mechanism: str, tmp_path: Path
) -> None:
    config = java_properties(broker, tmp_path / "client.properties", mechanism, False)
    text = tools.refused("TopicCommand", "--list", "--command-config", config)
    assert f"{mechanism} authentication failed" in text


def test_kafka_configs_manages_users(broker: SaslBroker, tools: ApacheTools, tmp_path: Path) -> None:
    config = java_properties(broker, tmp_path / "client.properties", "SCRAM-SHA-512", True)
    user = ("--entity-type", "users", "--entity-name", "gina", "--command-config", config)
    command = "kafka.admin.ConfigCommand"
    tools(command, "--alter", "--add-config", "SCRAM-SHA-512=[iterations=8192,password=ginas-password]", *user)
    gina = tmp_path / "gina.properties"
    text = Path(config).read_text()
    gina.write_text(
        text[: text.index("sasl.jaas")] + f"sasl.jaas.config={MODULES['SCRAM-SHA-512']} required "
        'username="gina" password="ginas-password";'
    )
    tools("TopicCommand", "--list", "--command-config", str(gina))
    tools(command, "--alter", "--delete-config", "SCRAM-SHA-512", *user)
    assert "SCRAM-SHA-512 authentication failed" in tools.refused(
        "TopicCommand", "--list", "--command-config", str(gina)
    )


def test_java_tools_read_the_users_in_our_metadata_log(broker: SaslBroker, tools: ApacheTools) -> None:
    log = broker.directory / "node" / "data" / "__cluster_metadata-0" / "00000000000000000000.log"
    code, text = tools.run("DumpLogSegments", "--cluster-metadata-decoder", "--files", str(log))
    if code:
        code, text = tools.run("kafka.tools.DumpLogSegments", "--cluster-metadata-decoder", "--files", str(log))
    assert code == 0, text
    found = [line for line in text.splitlines() if "USER_SCRAM_CREDENTIAL_RECORD" in line]
    payloads = [json.loads(line[line.index("payload: ") + 9 :]) for line in found]
    names = {(each["data"]["name"], each["data"]["mechanism"]) for each in payloads if "salt" in each["data"]}
    assert {("alice", 1), ("alice", 2)} <= names
