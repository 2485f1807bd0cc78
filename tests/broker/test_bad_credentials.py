"""Bad input to secured listeners: the client gets Kafka's error and a hint, the broker logs one line with the address,
and another client does not wait. 10,000 half-open handshakes are in ``test_half_open_handshakes``."""

from __future__ import annotations

import logging
import struct
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from einmal.broker.node import Node
from einmal.client.aio import Admin
from einmal.client.errors import KafkaError, NoBrokerReachable, SaslAuthenticationFailed, SslHandshakeFailed
from einmal.event_log import fields_of
from einmal.types import ErrorCode
from tests.broker.good_client import LATENCY_SECONDS_MAX, Good
from tests.broker.nodes import Client, running_node, until
from tests.broker.sasl_client import AUTHENTICATE, FIRST_USERS, PLAIN_MODULE, authenticate, handshake, plain
from tests.broker.tls_node import Tls, port_of
from tests.security.certificates import Authority, Certificate
from tests.security.identity_provider import Provider, provider, published, signed_token
from tests.wire.mapped import encode_request

FAILED: Final = ErrorCode.sasl_authentication_failed
PROVIDER: Final = provider()
MECHANISMS: Final = "PLAIN,SCRAM-SHA-512,OAUTHBEARER"
PROTOCOLS: Final = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")


@pytest.fixture
def tls(tmp_path: Path) -> Tls:
    return Tls(tmp_path)


@asynccontextmanager
async def secured_node(tls: Tls) -> AsyncIterator[Node]:
    """With a listener of each protocol; SSL requires certificates of clients."""
    keys = tls.directory / "keys.json"
    keys.write_bytes(published(PROVIDER))
    settings: dict[str, Any] = {
        "listeners": ",".join(f"{each}://127.0.0.1:0" for each in PROTOCOLS),
        "listener.name.ssl.ssl.client.auth": "required",
        "sasl.oauthbearer.jwks.endpoint.url": f"file://{keys}",
        "einmal.bootstrap.scram.credentials": FIRST_USERS,
        "connection.failed.authentication.delay.ms": 50,
        **tls.settings,
    }
    for name in ("sasl_plaintext", "sasl_ssl"):
        settings[f"listener.name.{name}.sasl.enabled.mechanisms"] = MECHANISMS
        settings[f"listener.name.{name}.plain.sasl.jaas.config"] = f'{PLAIN_MODULE[:-1]} user_dave="daves-password";'
    async with running_node(tls.directory / "data", settings) as node:
        yield node


@asynccontextmanager
async def undisturbed(
    node: Node, caplog: pytest.LogCaptureFixture, listener: str, *reasons: str
) -> AsyncIterator[None]:
    """Asserts that another client works meanwhile, and that the broker logs a line about each bad connection."""
    good = Good(node)
    async with good.working():
        caplog.clear()
        yield
        await until(lambda: len(lines(caplog)) >= len(reasons))
        # A second line of the same connection would come before the end of the next one.
        async with Client.connect(node) as client:
            assert await client.answers()
    for line, reason in zip(lines(caplog), reasons, strict=True):
        assert reason in line.getMessage()
        assert fields_of(line)["client"] == "127.0.0.1"
        assert fields_of(line).get("listener", listener) == listener
    assert good.slowest < LATENCY_SECONDS_MAX


def lines(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Of the broker, about a client."""
    return [each for each in caplog.records if "client" in fields_of(each)]


async def failure(settings: Mapping[str, Any]) -> KafkaError:
    """The error of our client, which connects once where it need not connect again."""
    once = {"bootstrap.timeout.ms": "1500", "reconnect.backoff.ms": "600000", "reconnect.backoff.max.ms": "600000"}
    async with Admin(once | dict(settings)) as admin:
        with pytest.raises(KafkaError) as caught:
            await admin.describe_cluster()
    return caught.value


# --- our client --------------------------------------------------------------------------------------------------


class Mistake(NamedTuple):
    """``reason``: in the broker's log."""

    listener: str
    settings: Callable[[Tls], dict[str, Any]]
    error: type[KafkaError]
    text: str
    hint: str
    reason: str


def sasl(mechanism: str, user: str = "", password: str = "") -> Callable[[Tls], dict[str, Any]]:
    named = {"sasl.mechanism": mechanism, "sasl.username": user, "sasl.password": password}
    return lambda _tls: {name: value for name, value in named.items() if value}


def certificate_of(new: Callable[[Tls], Certificate]) -> Callable[[Tls], dict[str, Any]]:
    def settings(tls: Tls) -> dict[str, Any]:
        found = new(tls)
        return {"ssl.certificate.location": str(found.certificate), "ssl.key.location": str(found.key)}

    return settings


def token(by: Provider, **claims: Any) -> Callable[[Tls], dict[str, Any]]:
    provide = {"sasl.oauthbearer.token.provider": lambda: signed_token(by, **claims)}
    return lambda _tls: {"sasl.mechanism": "OAUTHBEARER", **provide}


_REJECTED: Final = "SASL_AUTHENTICATION_FAILED (58): the broker rejects the credentials"
_PASSWORD: Final = "correct sasl.username (now 'alice') and sasl.password"
MISTAKES: Final = {
    "wrong password, SCRAM": Mistake(
        "SASL_SSL",
        sasl("SCRAM-SHA-512", "alice", "a guess"),
        SaslAuthenticationFailed,
        _REJECTED,
        _PASSWORD,
        "authentication failed: SASL_SSL: SCRAM-SHA-512: user 'alice'",
    ),
    "wrong password, PLAIN": Mistake(
        "SASL_PLAINTEXT",
        sasl("PLAIN", "alice", "a guess"),
        SaslAuthenticationFailed,
        _REJECTED,
        _PASSWORD,
        "authentication failed: SASL_PLAINTEXT: PLAIN: user 'alice'",
    ),
    "foreign token": Mistake(
        "SASL_SSL",
        token(provider()),
        SaslAuthenticationFailed,
        _REJECTED,
        "issuer and audience",
        "the token's signature is wrong",
    ),
    "unknown mechanism": Mistake(
        "SASL_SSL",
        sasl("SCRAM-SHA-256", "alice", "alice's password"),
        SaslAuthenticationFailed,
        "UNSUPPORTED_SASL_MECHANISM (33)",
        "set sasl.mechanism to one that it supports: PLAIN, SCRAM-SHA-512, OAUTHBEARER",
        "the listener has no such mechanism; it has PLAIN, SCRAM-SHA-512, OAUTHBEARER",
    ),
    "no certificate": Mistake(
        "SSL",
        lambda _tls: {},
        SslHandshakeFailed,
        "the broker requires a client certificate",
        "set ssl.certificate.location and ssl.key.location",
        "the client sends no certificate: ssl.client.auth=required",
    ),
    "expired certificate": Mistake(
        "SSL",
        certificate_of(lambda tls: tls.authority.issue(tls.directory, "old", days=-1)),
        SslHandshakeFailed,
        "the client certificate has expired",
        "renew the certificate",
        "certificate has expired",
    ),
    "foreign certificate": Mistake(
        "SSL",
        certificate_of(lambda tls: Authority("others").issue(tls.directory, "mallory")),
        SslHandshakeFailed,
        "does not trust the authority of the client certificate",
        "set ssl.certificate.location and ssl.key.location",
        "unable to get local issuer certificate",
    ),
}


def settings_for(node: Node, tls: Tls, listener: str) -> dict[str, Any]:
    settings = {"bootstrap.servers": f"127.0.0.1:{port_of(node, listener)}", "security.protocol": listener}
    return settings | ({"ssl.ca.location": str(tls.ca)} if listener.endswith("SSL") else {})


@pytest.mark.parametrize("name", MISTAKES)
async def test_a_mistake_has_an_error_with_a_hint_and_one_line_in_the_brokers_log(
    tls: Tls, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    mistake = MISTAKES[name]
    async with secured_node(tls) as node:
        async with undisturbed(node, caplog, mistake.listener, mistake.reason):
            error = await failure(settings_for(node, tls, mistake.listener) | mistake.settings(tls))
        assert isinstance(error, mistake.error)
        assert mistake.text in str(error) and mistake.hint in error.what_to_do
        assert "a guess" not in caplog.text + str(error)


@pytest.mark.parametrize(
    ("kind", "text", "hint"),
    [
        ("expired", "certificate has expired", "renew it"),
        ("foreign", "is not trusted", "set ssl.ca.location"),
        ("another host's", "its names: kafka.example.com", "use one of the certificate's names"),
    ],
)
async def test_a_broker_that_a_client_does_not_trust_logs_one_line(
    tls: Tls, kind: str, text: str, hint: str, caplog: pytest.LogCaptureFixture
) -> None:
    reason = "the client has ended the TLS handshake: it may not trust this broker's certificate"
    hosts = ["kafka.example.com"] if kind == "another host's" else ["127.0.0.1"]
    signer = Authority("others") if kind == "foreign" else tls.authority
    tls.broker = signer.issue(tls.directory, "broker", hosts, days=-1 if kind == "expired" else 3)
    settings = sasl("PLAIN", "carol", "carols-password")(tls)
    async with secured_node(tls) as node, undisturbed(node, caplog, "SASL_SSL", reason):
        error = await failure({**settings_for(node, tls, "SASL_SSL"), **settings})
    assert isinstance(error, SslHandshakeFailed)
    assert text in str(error) and hint in error.what_to_do


@pytest.mark.parametrize(
    ("protocol", "listener", "hint", "reason"),
    [
        ("PLAINTEXT", "SSL", "security.protocol to SSL or SASL_SSL", "does not speak TLS, and this listener is SSL"),
        ("PLAINTEXT", "SASL_SSL", "security.protocol to SSL or SASL_SSL", "and this listener is SASL_SSL"),
        ("SSL", "PLAINTEXT", "check security.protocol and the port", "speaks TLS, and this listener is PLAINTEXT"),
        ("SASL_SSL", "SASL_PLAINTEXT", "check security.protocol and the port", "and this listener is SASL_PLAINTEXT"),
    ],
)
async def test_tls_on_a_plaintext_port_and_the_reverse_are_named_by_both_sides(
    tls: Tls, protocol: str, listener: str, hint: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    settings = sasl("PLAIN", "carol", "carols-password")(tls) if protocol.startswith("SASL") else {}
    async with secured_node(tls) as node, undisturbed(node, caplog, listener, reason):
        port = port_of(node, listener)
        given = settings_for(node, tls, protocol) | {"bootstrap.servers": f"127.0.0.1:{port}"}
        error = await failure({**given, **settings})
    assert isinstance(error, NoBrokerReachable)
    assert hint in str(error)


async def test_a_client_without_credentials_on_a_listener_with_sasl_learns_what_to_set(
    tls: Tls, caplog: pytest.LogCaptureFixture
) -> None:
    """By a second connection, which asks for the mechanisms."""
    reasons = ("before SaslAuthenticate", "the listener has no such mechanism")
    async with secured_node(tls) as node, undisturbed(node, caplog, "SASL_PLAINTEXT", *reasons):
        given = settings_for(node, tls, "SASL_PLAINTEXT") | {"security.protocol": "PLAINTEXT"}
        error = await failure(given)
    assert isinstance(error, SaslAuthenticationFailed)
    assert str(error).startswith("ILLEGAL_SASL_STATE (34): the listener requires SASL")
    assert "set security.protocol=SASL_PLAINTEXT" in error.what_to_do


async def test_a_client_with_credentials_on_a_listener_without_sasl_learns_what_to_set(tls: Tls) -> None:
    async with secured_node(tls) as node:
        settings = sasl("PLAIN", "carol", "carols-password")(tls)
        given = settings_for(node, tls, "PLAINTEXT") | {"security.protocol": "SASL_PLAINTEXT"}
        error = await failure({**given, **settings})
    assert isinstance(error, SaslAuthenticationFailed)
    assert str(error).startswith("ILLEGAL_SASL_STATE (34): the listener does not use SASL")
    assert "set security.protocol to SSL or PLAINTEXT" in error.what_to_do


# --- frames that no client sends ---------------------------------------------------------------------------------


async def cut_off(client: Client) -> None:
    """The client announces 500 bytes, sends 20 and leaves."""
    client.writer.write(struct.pack(">i", 500) + bytes(20))
    await client.writer.drain()
    client.writer.close()


async def left_in_the_exchange(client: Client) -> None:
    await handshake(client, "SCRAM-SHA-512")
    client.writer.close()


async def shorter_than_its_fields(client: Client) -> None:
    await handshake(client, "PLAIN")
    body = encode_request(AUTHENTICATE, 2, {"auth_bytes": b"\0carol\0carols-password"})
    client.send(AUTHENTICATE, 2, body[:9])
    assert await client.is_closed()


async def half_a_message(client: Client) -> None:
    await handshake(client, "PLAIN")
    answer = await client.call(AUTHENTICATE, 2, {"auth_bytes": b"\0carol"})
    assert answer.error_code is FAILED and "Check user and password" in answer.error_message
    assert await client.is_closed()


async def half_a_message_without_header(client: Client) -> None:
    await client.call(17, 0, {"mechanism": "SCRAM-SHA-512"})
    client.writer.write(struct.pack(">i", 6) + b"n,,n=a")
    assert await client.is_closed()


@pytest.mark.parametrize(
    ("send", "reason"),
    [
        (cut_off, "the client has left in the middle of its authentication"),
        (left_in_the_exchange, "the client has left in the middle of its authentication"),
        (shorter_than_its_fields, "connection closed: Truncated"),
        (half_a_message, "authentication failed: SASL_PLAINTEXT: PLAIN"),
        (half_a_message_without_header, "authentication failed: SASL_PLAINTEXT: SCRAM-SHA-512"),
    ],
)
async def test_a_truncated_sasl_frame_is_one_line(
    tls: Tls, send: Callable[[Client], Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        secured_node(tls) as node,
        undisturbed(node, caplog, "SASL_PLAINTEXT", reason),
        Client.connect_to(port_of(node, "SASL_PLAINTEXT")) as client,
    ):
        await send(client)


async def test_a_second_authentication_under_another_name_is_one_line(
    tls: Tls, caplog: pytest.LogCaptureFixture
) -> None:
    reason = "dave instead of User:carol, to renew a session"
    async with (
        secured_node(tls) as node,
        undisturbed(node, caplog, "SASL_PLAINTEXT", reason),
        Client.connect_to(port_of(node, "SASL_PLAINTEXT")) as client,
    ):
        assert (await authenticate(client, "PLAIN", plain("carol", "carols-password"))).error is ErrorCode.none
        (connection,) = node.servers["SASL_PLAINTEXT"].connections.all()
        connection.authentication.done_ms -= 1_000
        error, message, _lifetime = await authenticate(client, "PLAIN", plain("dave", "daves-password"))
        assert error is FAILED
        assert "re-authentication failed" in message and "Check user and password" in message
        assert await client.is_closed()
