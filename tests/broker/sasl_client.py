"""A raw client that authenticates, and a broker whose clients must."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from einmal.broker.node import Node
from einmal.security.sasl.mechanisms import PlainExchange, SaslExchange
from einmal.security.sasl.scram import ScramExchange
from einmal.security.secret import Secret
from einmal.types import ErrorCode
from tests.broker.nodes import Client, running_node

HANDSHAKE, AUTHENTICATE, METADATA = 17, 36, 3
SHA_256, SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
FIRST_USERS = (
    'SCRAM-SHA-256=[name=admin,password="admin\'s password"],SCRAM-SHA-512=[name=alice,password="alice\'s password"],'
    "SCRAM-SHA-512=[name=bob,password=bobs-password]"
)
PLAIN_MODULE = 'org.apache.kafka.common.security.plain.PlainLoginModule required user_carol="carols-password";'


@asynccontextmanager
async def sasl_node(directory: Path, settings: Mapping[str, Any] | None = None) -> AsyncIterator[Node]:
    values: dict[str, Any] = {
        "listeners": "CLIENTS://127.0.0.1:0",
        "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        "listener.name.clients.plain.sasl.jaas.config": PLAIN_MODULE,
        "einmal.bootstrap.scram.credentials": FIRST_USERS,
        "connection.failed.authentication.delay.ms": 0,
        **(settings or {}),
    }
    async with running_node(directory, values) as node:
        yield node


def scram(user: str, password: str, mechanism: str = SHA_512, extension: str = "") -> SaslExchange:
    return ScramExchange(mechanism, user, Secret(password), "a nonce of the client".replace(" ", "-"), extension)


def plain(user: str, password: str) -> SaslExchange:
    return PlainExchange(user, Secret(password))


class Authenticated(NamedTuple):
    error: ErrorCode
    message: str
    lifetime_ms: int = 0


async def handshake(client: Client, mechanism: str) -> Any:
    return await client.call(HANDSHAKE, 1, {"mechanism": mechanism})


async def authenticate(client: Client, mechanism: str, exchange: SaslExchange) -> Authenticated:
    """The outcome of an authentication, also of one that is refused."""
    shaken = await handshake(client, mechanism)
    if shaken.error_code is not ErrorCode.none:
        return Authenticated(shaken.error_code, ", ".join(shaken.mechanisms))
    message: bytes | None = exchange.first()
    lifetime_ms = 0
    while message is not None:
        answer = await client.call(AUTHENTICATE, 2, {"auth_bytes": message})
        if answer.error_code is not ErrorCode.none:
            return Authenticated(answer.error_code, answer.error_message)
        lifetime_ms = int(answer.session_lifetime.total_seconds() * 1000)
        message = exchange.next(bytes(answer.auth_bytes))
    return Authenticated(ErrorCode.none, "", lifetime_ms)
