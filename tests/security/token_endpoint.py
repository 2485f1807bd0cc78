"""An identity provider's endpoints over HTTPS, for the tests of OAUTHBEARER: for tokens (POST) and for keys (GET)."""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, Final

from einmal.security.secret import Secret
from einmal.security.settings import ClientCredentials, Pem, TlsSettings
from einmal.security.tls import tls_context
from einmal.security.tokens import Tokens
from tests.ports import loopback_ports
from tests.security.certificates import Authority

CANARY: Final = "canary-4"
"""The client's secret."""


class Endpoint(HTTPServer):
    """Answers with ``status`` and ``body``, and keeps what it was sent. ``days``: until its certificate ends."""

    def __init__(
        self,
        directory: Path,
        hosts: Sequence[str] = ("localhost", "127.0.0.1"),
        *,
        authority: Authority | None = None,
        days: int = 3,
        port: int = 0,
    ) -> None:
        # One that stays free while this is down.
        super().__init__(("127.0.0.1", port or loopback_ports(1)[0]), _Handler)
        authority = authority or Authority("token endpoint")
        self.ca = authority.write(directory / "ca.pem")
        certificate = authority.issue(directory, "endpoint", hosts, days=days)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate.certificate, certificate.key)
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.status = 200
        self.body: Any = {}
        self.location = ""
        self.raw: Iterable[bytes] | None = None
        """Sent as it is instead of an answer, piece by piece."""
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

    def do_GET(self) -> None:
        self.server.requests.append(("GET", self.path))
        self._answer()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.server.requests.append((self.headers["Authorization"], body))
        self._answer()

    def _answer(self) -> None:
        if self.server.raw is not None:
            with contextlib.suppress(OSError):
                for piece in self.server.raw:
                    self.wfile.write(piece)
            return
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


@contextmanager
def running(server: Endpoint) -> Iterator[Endpoint]:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
