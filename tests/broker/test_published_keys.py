"""Claims about OAUTHBEARER at a broker: tokens, the provider's keys, and how often these are fetched."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from einmal.broker.front.authentication.published_keys import UNKNOWN_KEY_MS, PublishedKeys
from einmal.log.disk import OsDisk
from einmal.security.errors import TokenError
from einmal.security.principal import Principal
from einmal.security.sasl.mechanisms import OAUTHBEARER, OAuthBearerExchange
from einmal.security.secret import Secret
from einmal.security.server_settings import JwtSettings
from einmal.types import ErrorCode
from tests.broker.nodes import Client, until
from tests.broker.sasl_client import AUTHENTICATE, authenticate, handshake, sasl_node
from tests.security.identity_provider import AUDIENCE, ISSUER, Provider, provider, published, signed_token
from tests.wire.mapped import encode_request

ONE, TWO = provider(), provider(key_id="two")
OK, FAILED = ErrorCode.none, ErrorCode.sasl_authentication_failed


@asynccontextmanager
async def bearer_node(tmp_path: Path, **changes: Any) -> AsyncIterator[Any]:
    keys = tmp_path / "keys.json"
    keys.write_bytes(published(ONE))
    settings = {
        "sasl.enabled.mechanisms": OAUTHBEARER,
        "sasl.oauthbearer.jwks.endpoint.url": f"file://{keys}",
        "sasl.oauthbearer.expected.audience": AUDIENCE,
        "sasl.oauthbearer.expected.issuer": ISSUER,
        "listener.name.clients.plain.sasl.jaas.config": "",
        **changes,
    }
    async with sasl_node(tmp_path / "data", settings) as node:
        yield node


def bearer(token: str) -> OAuthBearerExchange:
    return OAuthBearerExchange(Secret(token), {})


async def test_a_valid_token_authenticates_its_user_until_it_ends(tmp_path: Path) -> None:
    async with bearer_node(tmp_path) as node, Client.connect(node) as client:
        token = signed_token(ONE, exp=int(time.time()) + 3_600)
        error, _message, lifetime_ms = await authenticate(client, OAUTHBEARER, bearer(token))
        assert error is OK and 3_000_000 < lifetime_ms <= 3_600_000
        (connection,) = node.servers["CLIENTS"].connections.all()
        assert connection.authentication.principal == Principal("User", "alice")


@pytest.mark.parametrize("end", [10**17, 10**300])
async def test_a_token_that_never_ends_authenticates_for_the_longest_time_there_is(tmp_path: Path, end: int) -> None:
    async with bearer_node(tmp_path) as node, Client.connect(node) as client:
        await handshake(client, OAUTHBEARER)
        token = bearer(signed_token(ONE, exp=end)).first()
        client.send(AUTHENTICATE, 2, encode_request(AUTHENTICATE, 2, {"auth_bytes": token}))
        assert (await client.receive()).endswith((2**63 - 1).to_bytes(8, "big") + b"\0")


async def test_connections_max_reauth_ms_shortens_the_session_of_a_token(tmp_path: Path) -> None:
    async with bearer_node(tmp_path, **{"connections.max.reauth.ms": 5_000}) as node, Client.connect(node) as client:
        assert await authenticate(client, OAUTHBEARER, bearer(signed_token(ONE))) == (OK, "", 5_000)


@pytest.mark.parametrize(
    ("new", "reason"),
    [
        (lambda: signed_token(ONE, exp=int(time.time()) - 600), "the token has expired"),
        (lambda: signed_token(ONE, aud="another"), "the token is for another audience"),
        (lambda: signed_token(ONE.changed(key=TWO.key)), "the token's signature is wrong"),
        (lambda: signed_token(TWO), "the identity provider does not publish"),
        (lambda: "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbGljZSJ9.", "algorithm is not an asymmetric one"),
    ],
)
async def test_a_token_that_is_not_valid_is_refused_with_a_reason(
    tmp_path: Path, new: Callable[[], str], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    token = new()
    async with bearer_node(tmp_path) as node:
        await until(lambda: _loaded(node))
        async with Client.connect(node) as client:
            exchange = bearer(token)
            error, message, _lifetime = await authenticate(client, OAUTHBEARER, exchange)
            assert error is FAILED and reason in message and "issuer and audience" in message
            assert exchange.refusal == "status=invalid_token"
            assert await client.is_closed()
    assert sum("authentication failed" in each.getMessage() for each in caplog.records) == 1
    assert token not in caplog.text


def _loaded(node: Any) -> bool:
    return node.sasl._published[0]._keys is not None


async def test_a_rotated_key_is_fetched_when_a_token_names_it_and_not_too_often(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_bytes(published(ONE))
    fetched: list[int] = []

    class Disk(OsDisk):
        def read_file(self, path: Any) -> bytes:
            fetched.append(1)
            return super().read_file(path)

    keys = PublishedKeys(JwtSettings(f"file://{path}"), Disk())
    keys.start()
    try:
        await keys.verify(Secret(signed_token(ONE)))
        assert len(fetched) == 1
        path.write_bytes(published(ONE, TWO))
        with pytest.raises(TokenError):
            await keys.verify(Secret(signed_token(TWO)))
        assert len(fetched) == 1
        keys._refreshed_s -= UNKNOWN_KEY_MS / 1000
        assert (await keys.verify(Secret(signed_token(TWO)))).user == "alice"
        for number in range(20):
            with pytest.raises(TokenError):
                await keys.verify(Secret(signed_token(_named(number))))
        assert len(fetched) == 2
    finally:
        keys.stop()


def _named(number: int) -> Provider:
    return ONE.changed(published={**ONE.published, "kid": f"invented-{number}"})


@pytest.mark.parametrize("content", [None, b"no keys", b" " * 2_000_000])
async def test_keys_that_cannot_be_fetched_are_fetched_again(
    tmp_path: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys.json"
    if content is not None:
        path.write_bytes(content)
    keys = PublishedKeys(JwtSettings(f"file://{path}", retry_backoff_ms=5, retry_backoff_max_ms=20), OsDisk())
    keys.start()
    try:
        with pytest.raises(TokenError, match="not known yet"):
            await keys.verify(Secret(signed_token(ONE)))
        await until(lambda: caplog.text.count("trying again in 20 ms") >= 2)
        path.write_bytes(published(ONE))
        await until(lambda: keys._keys is not None)
        assert (await keys.verify(Secret(signed_token(ONE)))).user == "alice"
    finally:
        keys.stop()
