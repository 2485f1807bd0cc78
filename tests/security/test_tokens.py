"""Claims about tokens: where they come from, when a new one is fetched, and what goes wrong."""

from __future__ import annotations

import base64
import itertools
import json
import socket
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from einmal.security.errors import TokenError
from einmal.security.settings import TokenFile
from einmal.security.tokens import Tokens
from tests.security.token_endpoint import CANARY, Endpoint, running
from tests.suite.patience import patient


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Endpoint]:
    with running(Endpoint(tmp_path)) as server:
        yield server


def jwt(expires_at: float) -> str:
    claims = base64.urlsafe_b64encode(json.dumps({"exp": expires_at}).encode()).decode().rstrip("=")
    return f"e30.{claims}.sig"


async def test_client_credentials_are_exchanged_for_a_token_that_is_used_again(endpoint: Endpoint) -> None:
    endpoint.body = {"access_token": "tok", "expires_in": 300}
    tokens = endpoint.tokens()
    assert [(await tokens.get()).reveal() for _ in range(3)] == ["tok"] * 3
    ((authorization, body),) = endpoint.requests
    assert base64.b64decode(authorization.removeprefix("Basic ")).decode() == f"me:{CANARY}"
    assert body == "grant_type=client_credentials&scope=kafka"


async def test_a_token_near_its_end_is_replaced(endpoint: Endpoint) -> None:
    endpoint.body = {"access_token": jwt(time.time() + 0.001 + 5), "expires_in": 0.001}
    tokens = endpoint.tokens()
    await tokens.get()
    while len(endpoint.requests) < 2:
        await tokens.get()


@pytest.mark.parametrize(
    ("status", "body", "told", "may_pass"),
    [
        (401, {"error": "invalid_client", "error_description": CANARY}, "answers 401: invalid_client", False),
        (400, CANARY.encode(), "answers 400", False),
        (503, {}, "answers 503", True),
        (200, {"token": CANARY}, "without an access_token", False),
        (200, b"not json " + CANARY.encode(), "without an access_token", False),
        (200, {"access_token": 7}, "without an access_token", False),
        (200, b"x" * 70_000, "more than 65536 bytes", False),
        (200, {"access_token": "a", "expires_in": -5}, "has expired", False),
    ],
)
async def test_a_wrong_answer_is_an_error_without_secrets(
    endpoint: Endpoint, status: int, body: Any, told: str, may_pass: bool
) -> None:
    endpoint.status, endpoint.body = status, body
    with pytest.raises(TokenError) as caught:
        await endpoint.tokens().get()
    assert told in str(caught.value)
    assert caught.value.may_pass is may_pass
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_no_redirect_is_followed_neither_to_https_nor_to_http(endpoint: Endpoint, status: int) -> None:
    endpoint.status = status
    with socket.create_server(("127.0.0.1", 0)) as elsewhere:
        elsewhere.settimeout(0)
        for location in (endpoint.url, f"http://127.0.0.1:{elsewhere.getsockname()[1]}/token"):
            endpoint.location = location
            with pytest.raises(TokenError, match=f"answers {status}"):
                await endpoint.tokens().get()
        with pytest.raises(BlockingIOError):
            elsewhere.accept()
    assert len(endpoint.requests) == 2


async def test_an_endpoint_with_another_hosts_certificate_gets_no_secret(tmp_path: Path) -> None:
    with running(Endpoint(tmp_path, hosts=["other.example"])) as endpoint:
        with pytest.raises(TokenError, match="IP address mismatch") as caught:
            await endpoint.tokens().get()
        assert not caught.value.may_pass
        assert endpoint.requests == []


@pytest.mark.parametrize(
    "raw",
    [
        itertools.repeat(b"H"),
        itertools.chain([b"HTTP/1.1 200 OK\r\n"], itertools.repeat(b"A: b\r\n")),
        itertools.repeat(b"HTTP/1.1 100 Continue\r\n\r\n"),
        itertools.chain([b"HTTP/1.1 200 OK\r\n\r\n"], itertools.repeat(b"x" * 1024)),
        itertools.chain(
            [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"],
            itertools.repeat(b"1;" + b"x" * 60 + b"\r\nx\r\n"),
        ),
        itertools.chain([b"HTTP/1.1 400 No\r\n\r\n"], itertools.repeat(b" " * 1024)),
        [f"{CANARY} is no HTTP\r\n\r\n".encode()],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 50000\r\n\r\n", b"[" * 50_000],
        [b"HTTP/1.1 400 No\r\nContent-Length: 50000\r\n\r\n", b"[" * 50_000],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"xyz\r\n", CANARY.encode()],
        [],
    ],
    ids=["line", "headers", "100", "body", "chunks", "refusal", "no http", "deep", "deep error", "no chunk", "nothing"],
)
async def test_an_endless_or_broken_answer_is_an_error_within_the_time_of_one_answer(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, raw: Iterable[bytes]
) -> None:
    monkeypatch.setattr("einmal.security.https.TIMEOUT_S", 2.0)
    endpoint.raw = raw
    began = time.monotonic()
    with pytest.raises(TokenError) as caught:
        await endpoint.tokens().get()
    assert time.monotonic() - began < patient(8)
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize("begin", [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\n\r\n"])
async def test_an_answer_that_arrives_byte_by_byte_ends_in_time(
    endpoint: Endpoint, monkeypatch: pytest.MonkeyPatch, begin: bytes
) -> None:
    monkeypatch.setattr("einmal.security.https.TIMEOUT_S", 0.5)

    def slowly() -> Iterator[bytes]:
        yield begin
        for _ in range(4_000):
            time.sleep(0.05)
            yield b"x"

    endpoint.raw = slowly()
    began = time.monotonic()
    with pytest.raises(TokenError) as caught:
        await endpoint.tokens().get()
    assert time.monotonic() - began < patient(5)
    assert caught.value.may_pass


async def test_an_endpoint_of_a_foreign_authority_gets_no_secret(endpoint: Endpoint) -> None:
    with pytest.raises(TokenError, match="CERTIFICATE_VERIFY_FAILED") as caught:
        await endpoint.tokens(trusted=False).get()
    assert not caught.value.may_pass
    assert endpoint.requests == []


async def test_a_token_file_is_read_again_when_its_token_has_no_end(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("one\n")
    tokens = Tokens(TokenFile(str(path)))
    assert (await tokens.get()).reveal() == "one"
    path.write_text("two\n")
    assert (await tokens.get()).reveal() == "two"


async def test_an_expired_token_and_a_missing_file_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "token"
    with pytest.raises(TokenError, match="cannot be read: No such file"):
        await Tokens(TokenFile(str(path))).get()
    path.write_text(jwt(time.time() - 5))
    with pytest.raises(TokenError, match="has expired"):
        await Tokens(TokenFile(str(path))).get()


async def test_a_token_whose_claims_nest_too_deeply_has_no_known_end(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(f"a.{base64.urlsafe_b64encode(b'[' * 3_000).decode()}.c")
    assert (await Tokens(TokenFile(str(path))).get()).reveal() == path.read_text()


async def test_a_provider_may_be_a_function_or_a_coroutine_function() -> None:
    async def later() -> tuple[str, float]:
        return "b", time.time() + 60

    assert (await Tokens(lambda: "a").get()).reveal() == "a"
    assert (await Tokens(later).get()).reveal() == "b"


async def test_a_providers_failure_is_an_error_without_its_text() -> None:
    def fails() -> str:
        raise RuntimeError(CANARY)

    def ends_its_tokens() -> str:
        return next(iter(()))

    for provider in (fails, ends_its_tokens, lambda: 7, lambda: ("a", "b")):
        with pytest.raises(TokenError) as caught:
            await Tokens(provider).get()
        assert CANARY not in str(caught.value)
