"""A broker on loopback whose responses a test scripts, one by one."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

from einmal.client.apis import SPOKEN, ApiKey
from einmal.wire.frames import FrameSplitter, frame
from einmal.wire.messages import RequestHeader, decode_request_header, encode_response_header
from tests.wire.mapped import encode_response

Answer = Callable[["Session", RequestHeader, bytes], Awaitable[None] | None]


class Session(asyncio.Protocol):
    """One connection of a client."""

    def __init__(self, broker: ScriptedBroker) -> None:
        self._broker = broker
        self._splitter = FrameSplitter(1_000_000)
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._broker.sessions.append(self)

    def data_received(self, data: bytes) -> None:
        for request in self._splitter.feed(data):
            header, _position = decode_request_header(request)
            self._broker.requests.append(header)
            if header.api_key == ApiKey.API_VERSIONS:
                self.answer_api_versions(header)
            else:
                self._broker.answer(self, header, request)

    def answer_api_versions(self, header: RequestHeader) -> None:
        spoken = [
            {"api_key": int(key), "min_version": low, "max_version": high}
            for key, (low, high) in SPOKEN.items()
            if key is not self._broker.without
        ]
        spoken += [{"api_key": key, "min_version": 0, "max_version": 1} for key in self._broker.also]
        self.answer(header, {"api_keys": spoken, **self._broker.features})

    def answer(self, header: RequestHeader, fields: dict[str, Any]) -> None:
        head = encode_response_header(header.api_key, header.api_version, header.correlation_id)
        self.transport.write(frame(head, encode_response(header.api_key, header.api_version, fields)))


class ScriptedBroker:
    """``answer`` is called for each request but ApiVersions. ``tls``: a server's context, for an encrypted listener."""

    def __init__(self, answer: Answer, tls: ssl.SSLContext | None = None) -> None:
        self.answer = answer
        self._tls = tls
        self.without: ApiKey | None = None
        """An API that this broker does not have."""
        self.also: tuple[int, ...] = ()
        """APIs that it has besides those that a client sends without SASL."""
        self.features: dict[str, Any] = {}
        """The fields of ApiVersions that name the cluster's features."""
        self.sessions: list[Session] = []
        self.requests: list[RequestHeader] = []
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> ScriptedBroker:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Session(self), "127.0.0.1", 0, ssl=self._tls)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for session in self.sessions:
            session.transport.abort()
        await self._server.wait_closed()

    @property
    def socket(self) -> Any:
        """On which it listens."""
        assert self._server is not None
        return self._server.sockets[0]

    @property
    def bootstrap(self) -> str:
        host, port = self.socket.getsockname()[:2]
        return f"{host}:{port}"

    def metadata(self) -> dict[str, Any]:
        """This broker as the whole cluster, without topics."""
        host, port = self.bootstrap.split(":")
        return {"brokers": [{"node_id": 1, "host": host, "port": int(port)}], "controller_id": 1, "topics": []}
