"""Claims about an identity provider's keys that a broker fetches over HTTPS: from whom, when, and what failures cost.

The provider is a live server with a certificate of a private authority, which ``SSL_CERT_FILE`` names.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from einmal.broker.front.authentication import published_keys
from einmal.broker.node import Node
from einmal.client import aio
from einmal.client.errors import SaslAuthenticationFailed
from einmal.security import https
from einmal.security.sasl.mechanisms import OAUTHBEARER
from tests.broker.good_client import LATENCY_SECONDS_MAX, Good
from tests.broker.nodes import until
from tests.broker.test_published_keys import bearer_node
from tests.security.certificates import Authority
from tests.security.identity_provider import Provider, provider, published, signed_token
from tests.security.token_endpoint import Endpoint, running

ONE, TWO = provider(), provider(key_id="two")
RETRIES = {
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms": 20,
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms": 50,
}


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Authority:
    """The only one that the broker trusts."""
    trusted = Authority("provider")
    monkeypatch.setenv("SSL_CERT_FILE", str(trusted.write(tmp_path / "trusted.pem")))
    return trusted


@pytest.fixture
def endpoint(tmp_path: Path, authority: Authority) -> Iterator[Endpoint]:
    with running(Endpoint(tmp_path, authority=authority)) as server:
        server.body = published(ONE)
        yield server


@asynccontextmanager
async def https_node(tmp_path: Path, url: str, **changes: Any) -> AsyncIterator[Node]:
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,CLIENTS://127.0.0.1:0",
        "listener.security.protocol.map": "CLIENTS:SASL_PLAINTEXT,PLAINTEXT:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.oauthbearer.jwks.endpoint.url": url,
        **RETRIES,
        **changes,
    }
    async with bearer_node(tmp_path, **settings) as node:
        yield node


async def authenticate(node: Node, by: Provider) -> None:
    """Our client, with a token that this provider has signed. Raises SaslAuthenticationFailed."""
    (listener,) = (each for each in node.config.named_listeners.all if each.name == "CLIENTS")
    settings: dict[str, Any] = {
        "bootstrap.servers": f"127.0.0.1:{node.listening.port_of(listener)}",
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": OAUTHBEARER,
        "sasl.oauthbearer.token.provider": lambda: signed_token(by),
    }
    async with aio.Admin(settings) as admin:
        assert (await admin.describe_cluster()).brokers


def known(node: Node) -> list[str | None]:
    """The ids of the keys that tokens are verified by."""
    (keys,) = node.sasl._published
    return [] if keys._keys is None else [each.key_id for each in keys._keys._keys]


async def refusal(node: Node, by: Provider) -> str:
    with pytest.raises(SaslAuthenticationFailed) as caught:
        await authenticate(node, by)
    return str(caught.value)


async def test_a_token_signed_by_a_served_key_authenticates(tmp_path: Path, endpoint: Endpoint) -> None:
    async with https_node(tmp_path, endpoint.url) as node:
        await authenticate(node, ONE)
        assert "does not publish" in await refusal(node, TWO)
    assert endpoint.requests == [("GET", "/token")]


async def test_a_key_that_is_served_later_is_fetched_when_a_token_names_it(
    tmp_path: Path, endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(published_keys, "UNKNOWN_KEY_MS", 0)
    async with https_node(tmp_path, endpoint.url) as node:
        await authenticate(node, ONE)
        endpoint.body = published(ONE, TWO)
        await authenticate(node, TWO)
        assert len(endpoint.requests) == 2


async def test_a_withdrawn_key_is_not_accepted_after_the_next_refresh(tmp_path: Path, endpoint: Endpoint) -> None:
    changes = {"sasl.oauthbearer.jwks.endpoint.refresh.ms": 1_000}
    async with https_node(tmp_path, endpoint.url, **changes) as node:
        await authenticate(node, ONE)
        endpoint.body = published(TWO)
        await until(lambda: known(node) == ["two"])
        assert "does not publish" in await refusal(node, ONE)
        await authenticate(node, TWO)


async def test_an_outage_ends_nothing_and_keys_are_fetched_again_after_it(
    tmp_path: Path, authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    changes = {"sasl.oauthbearer.jwks.endpoint.refresh.ms": 1_000}
    server = Endpoint(tmp_path, authority=authority)
    server.body = published(ONE)
    with ExitStack() as until_the_outage:
        until_the_outage.enter_context(running(server))
        async with https_node(tmp_path, server.url, **changes) as node:
            await authenticate(node, ONE)
            until_the_outage.close()
            await until(lambda: caplog.text.count("no keys: <urlopen error") >= 2)
            await authenticate(node, ONE)
            with running(Endpoint(tmp_path, authority=authority, port=server.server_port)) as again:
                again.body = published(TWO)
                await until(lambda: known(node) == ["two"])
                await authenticate(node, TWO)


async def test_a_broker_that_starts_during_an_outage_refuses_tokens_until_it_is_over(
    tmp_path: Path, authority: Authority
) -> None:
    server = Endpoint(tmp_path, authority=authority)
    server.server_close()
    async with https_node(tmp_path, server.url) as node:
        assert "the identity provider's keys are not known yet" in await refusal(node, ONE)
        with running(Endpoint(tmp_path, authority=authority, port=server.server_port)) as started:
            started.body = published(ONE)
            await until(lambda: known(node))
            await authenticate(node, ONE)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("expired", "certificate has expired"),
        ("foreign", "unable to get local issuer certificate"),
        ("another host's", "IP address mismatch"),
    ],
)
async def test_keys_of_a_server_that_is_not_verified_are_not_used(
    tmp_path: Path, authority: Authority, kind: str, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    signer = Authority("others") if kind == "foreign" else authority
    hosts = ["id.example.com"] if kind == "another host's" else ["127.0.0.1"]
    server = Endpoint(tmp_path, hosts, authority=signer, days=-1 if kind == "expired" else 3)
    server.body = published(ONE)
    with running(server):
        async with https_node(tmp_path, server.url) as node:
            assert "keys are not known yet" in await refusal(node, ONE)
        assert server.requests == []
    (line, *_) = [each.getMessage() for each in caplog.records if "jwks.endpoint.url: no keys" in each.getMessage()]
    assert "CERTIFICATE_VERIFY_FAILED" in line and reason in line and "trying again in" in line


def slowly() -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\n\r\n"
    for _ in range(200):
        time.sleep(0.05)
        yield b"x"


def endless() -> Iterator[bytes]:
    return itertools.chain([b"HTTP/1.1 200 OK\r\n\r\n"], itertools.repeat(b" " * 65_536))


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (slowly, "timed out"),
        (endless, "more than 1048576 bytes"),
        (lambda: [b"HTTP/1.1 200 OK\r\nContent-Length: 999\r\n\r\n", published(ONE)[:-1]], "not a JSON Web Key Set"),
        (lambda: [b"no HTTP\r\n\r\n"], "is not HTTP"),
        (lambda: [b"HTTP/1.1 200 OK\r\n\r\nno keys"], "not a JSON Web Key Set"),
        (lambda: [b"HTTP/1.1 200 OK\r\n\r\n" + published(ONE, kty="oct")], "no key in it is for signatures"),
        (lambda: [b"HTTP/1.1 302 Found\r\nLocation: https://127.0.0.1:1/\r\n\r\n"], "HTTP Error 302"),
        (lambda: [b"HTTP/1.1 503 No\r\n\r\n"], "HTTP Error 503"),
    ],
    ids=["slow", "endless", "cut off", "no HTTP", "no keys", "shared keys", "redirect", "unavailable"],
)
async def test_a_bad_answer_leaves_the_keys_as_they_were_and_stalls_nobody(
    tmp_path: Path,
    endpoint: Endpoint,
    answer: Any,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    changes = {"sasl.oauthbearer.jwks.endpoint.refresh.ms": 1_000}
    async with https_node(tmp_path, endpoint.url, **changes) as node:
        await authenticate(node, ONE)
        # A busy machine must not be too slow for the other answers.
        monkeypatch.setattr(https, "TIMEOUT_S", 0.5 if answer is slowly else 30.0)
        good = Good(node)
        async with good.working():
            answers: Iterable[bytes] = answer()
            endpoint.raw = answers
            await until(lambda: reason in caplog.text)
            await authenticate(node, ONE)
        assert good.slowest < LATENCY_SECONDS_MAX
        endpoint.raw, endpoint.body = None, published(TWO)
        await until(lambda: known(node) == ["two"])
        await authenticate(node, TWO)
