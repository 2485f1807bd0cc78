"""Bad input to SASL gets from our broker what it gets from Apache Kafka: the same codes, and the same ends."""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from einmal.security.sasl.mechanisms import PlainExchange, SaslExchange
from einmal.security.sasl.scram import ScramExchange
from einmal.security.secret import Secret
from einmal.types import ErrorCode
from tests.broker.nodes import Client
from tests.broker.sasl_client import AUTHENTICATE, HANDSHAKE, METADATA, authenticate, handshake, sasl_node
from tests.security.secure_kafka import PASSWORD, USER, SecureKafka
from tests.suite.patience import patient

pytestmark = [pytest.mark.interop, pytest.mark.slow]

MODULE = f'org.apache.kafka.common.security.plain.PlainLoginModule required user_{USER}="{PASSWORD}";'
USERS = ",".join(
    f'{mechanism}=[name={name},password="{PASSWORD}"]'
    for mechanism in ("SCRAM-SHA-256", "SCRAM-SHA-512")
    for name in (USER, "carol")
)
Connect = Callable[[], Any]


@pytest.fixture
def apache(secure_kafka: SecureKafka) -> Connect:
    @asynccontextmanager
    async def connect() -> AsyncIterator[Client]:
        context = ssl.create_default_context(cafile=secure_kafka.ca)
        port = secure_kafka.ports["SASL_SSL"]
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
        try:
            yield Client(reader, writer)
        finally:
            writer.close()

    return connect


def plain(message: bytes) -> SaslExchange:
    class Raw(PlainExchange):
        def first(self) -> bytes:
            return message

    return Raw("", Secret(""))


def scram(user: str, password: str, extension: str = "") -> SaslExchange:
    return ScramExchange("SCRAM-SHA-256", user, Secret(password), "a-nonce-of-the-client", extension)


async def unknown_mechanism(client: Client) -> Any:
    answer = await handshake(client, "GSSAPI")
    return answer.error_code, sorted(answer.mechanisms), await client.is_closed()


async def early_request(client: Client) -> Any:
    client.send(METADATA, 9, bytes(8))
    return await client.is_closed()


async def early_request_within(client: Client) -> Any:
    await handshake(client, "PLAIN")
    client.send(19, 7, bytes(8))
    with suppress(asyncio.IncompleteReadError):
        await asyncio.wait_for(client.receive(), patient(5))
    return await client.is_closed()


async def late_authentication(client: Client) -> Any:
    """SaslAuthenticate, and at once SaslHandshake, on an authenticated connection."""
    outcome = await authenticate(client, "SCRAM-SHA-256", scram(USER, PASSWORD))
    again = await client.call(AUTHENTICATE, 2, {"auth_bytes": b"x"})
    once_more = await handshake(client, "SCRAM-SHA-256")
    return (
        outcome.error,
        again.error_code,
        once_more.error_code,
        bool((await client.call(METADATA, 9, {"topics": None})).brokers),
    )


def bare(password: str) -> Callable[[Client], Any]:
    """After SaslHandshake v0: a message without a header, and what it is answered."""

    async def run(client: Client) -> Any:
        assert (await client.call(HANDSHAKE, 0, {"mechanism": "PLAIN"})).error_code is ErrorCode.none
        message = f"\0{USER}\0{password}".encode()
        client.writer.write(struct.pack(">i", len(message)) + message)
        try:
            answer = await asyncio.wait_for(client.reader.readexactly(4), patient(5))
        except asyncio.IncompleteReadError as error:
            return error.partial
        return answer, bool((await client.call(METADATA, 9, {"topics": None})).brokers)

    return run


def refused(mechanism: str, new: Callable[[], SaslExchange]) -> Callable[[Client], Any]:
    async def run(client: Client) -> Any:
        return (await authenticate(client, mechanism, new())).error, await client.is_closed()

    return run


CASES: dict[str, Callable[[Client], Any]] = {
    "unknown mechanism": unknown_mechanism,
    "request before authentication": early_request,
    "request within authentication": early_request_within,
    "authentication after authentication": late_authentication,
    "SCRAM, wrong password": refused("SCRAM-SHA-256", lambda: scram(USER, "a guess")),
    "SCRAM, unknown user": refused("SCRAM-SHA-256", lambda: scram("nobody", "a guess")),
    "SCRAM, token": refused("SCRAM-SHA-256", lambda: scram(USER, PASSWORD, "tokenauth=true")),
    "PLAIN, wrong password": refused("PLAIN", lambda: plain(f"\0{USER}\0a guess".encode())),
    "PLAIN, unknown user": refused("PLAIN", lambda: plain(b"\0nobody\0a guess")),
    "PLAIN, another authorization id": refused("PLAIN", lambda: plain(f"bob\0{USER}\0{PASSWORD}".encode())),
    "PLAIN, own authorization id": lambda client: authenticate(
        client, "PLAIN", plain(f"{USER}\0{USER}\0{PASSWORD}".encode())
    ),
    "PLAIN, two parts": refused("PLAIN", lambda: plain(b"\0alice")),
    "PLAIN, no password": refused("PLAIN", lambda: plain(b"\0alice\0")),
    "PLAIN without headers": bare(PASSWORD),
    "PLAIN without headers, wrong password": bare("a guess"),
    "PLAIN, nothing": refused("PLAIN", lambda: plain(b"")),
}


@pytest.mark.representatives(6)
@pytest.mark.parametrize("name", CASES)
async def test_bad_input_has_the_same_outcome_as_on_apache_kafka(name: str, apache: Connect, tmp_path: Path) -> None:
    settings = {
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "sasl.oauthbearer.jwks.endpoint.url": f"file://{tmp_path}/keys",
        "listener.name.clients.plain.sasl.jaas.config": MODULE,
        "einmal.bootstrap.scram.credentials": USERS,
    }
    async with apache() as client:
        await client.answers()
        theirs = await CASES[name](client)
    async with sasl_node(tmp_path / "data", settings) as node, Client.connect(node) as client:
        await client.answers()
        ours = await CASES[name](client)
    if name == "PLAIN, own authorization id":
        assert ours.error is theirs.error is ErrorCode.none
    else:
        assert ours == theirs
