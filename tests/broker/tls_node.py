"""A node with listeners that are encrypted, its certificates, and contexts of clients. Nobody trusts them elsewhere."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from einmal.broker.node import Node
from tests.broker.nodes import running_node
from tests.security.certificates import Authority, Certificate

LISTENERS = "PLAINTEXT://127.0.0.1:0,SSL://127.0.0.1:0"


class Tls:
    """An authority, and the certificate of a broker."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory = directory
        self.authority = Authority()
        self.ca = self.authority.write(directory / "ca.pem")
        self.broker = self.authority.issue(directory, "broker")

    @property
    def settings(self) -> dict[str, Any]:
        """Of a broker whose listeners use the certificate."""
        return {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": self.broker.store,
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": self.ca,
        }

    def client(self, certificate: Certificate | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.ca))
        if certificate is not None:
            context.load_cert_chain(certificate.store)
        return context

    @asynccontextmanager
    async def node(self, **settings: Any) -> AsyncIterator[Node]:
        named = {key.replace("_", "."): value for key, value in settings.items()}
        values = {"listeners": LISTENERS, **self.settings, **named}
        async with running_node(self.directory / "data", values) as node:
            yield node


def port_of(node: Node, listener: str) -> int:
    return next(node.listening.port_of(each) for each in node.config.named_listeners.all if each.name == listener)
