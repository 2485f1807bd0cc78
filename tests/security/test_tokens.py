"""Claims about tokens: where they come from, when a new one is fetched, and what goes wrong."""

from __future__ import annotations

import base64
import json
import ssl
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from einmal.security.errors import TokenError
from einmal.security.secret import Secret
from einmal.security.settings import ClientCredentials, Pem, TlsSettings, TokenFile
from einmal.security.tls import tls_context
from einmal.security.tokens import Tokens
from tests.security.certificates import Authority

CANARY = "canary-4"


class Endpoint(HTTPServer):
    """A token endpoint: answers with ``status`` and ``body``, and keeps what it was sent."""

    def __init__(self, directory: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        authority = Authority()
        self.ca = authority.write(directory / "ca.pem")
        certificate = authority.issue(directory, "endpoint")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate.certificate, certificate.key)
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.status = 200
        self.body: Any = {}
        self.location = ""
        self.requests: list[tuple[str, str]] = []

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.server_port}/token"

    def tokens(self, *, trusted: bool = True) -> Tokens:
        source = ClientCredentials(self.url, "me", Secret(CANARY), "kafka")
        authority = Pem("ssl.ca.location", str(self.ca)) if trusted else None
        return Tokens(source, tls_context(TlsSettings(authority=authority)))

    def handle_error(self, *_: Any) -> None:
        """A client that does not trust the certificate hangs up."""


class _Handler(BaseHTTPRequestHandler):
    server: Endpoint

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.requests.append((self.headers["Authorization"], body))
        told = self.server.body
        content = told if isinstance(told, bytes) else json.dumps(told).encode()
        self.send_response(self.server.status)
        if self.server.location:
            self.send_header("Location", self.server.location)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[Endpoint]:
    server = Endpoint(tmp_path)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


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


async def test_a_redirect_is_not_followed(endpoint: Endpoint) -> None:
    endpoint.status, endpoint.location = 307, endpoint.url
    with pytest.raises(TokenError, match="answers 307"):
        await endpoint.tokens().get()
    assert len(endpoint.requests) == 1


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


async def test_a_provider_may_be_a_function_or_a_coroutine_function() -> None:
    async def later() -> tuple[str, float]:
        return "b", time.time() + 60

    assert (await Tokens(lambda: "a").get()).reveal() == "a"
    assert (await Tokens(later).get()).reveal() == "b"


async def test_a_providers_failure_is_an_error_without_its_text() -> None:
    def fails() -> str:
        raise RuntimeError(CANARY)

    for provider in (fails, lambda: 7, lambda: ("a", "b")):
        with pytest.raises(TokenError) as caught:
            await Tokens(provider).get()
        assert CANARY not in str(caught.value)
