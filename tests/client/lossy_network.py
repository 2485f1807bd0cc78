"""The real network, with answers that get lost: the broker carries a request out, and its answer never arrives."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any, cast

from einmal.client.apis import ApiKey
from einmal.seams import ProtocolFactory, TcpNetwork


class LossyNetwork:
    """``lose`` answers: for each API so many times the connection breaks when the answer arrives."""

    def __init__(self) -> None:
        self.to_lose: dict[ApiKey, int] = {}
        self.lost: list[ApiKey] = []
        self._network = TcpNetwork()

    def lose(self, api_key: ApiKey, times: int = 1) -> None:
        self.to_lose[api_key] = times

    async def listen(self, factory: ProtocolFactory, host: str, port: int) -> Any:
        raise NotImplementedError("a client does not listen")

    async def connect(
        self, factory: ProtocolFactory, host: str, port: int, *, tls: ssl.SSLContext | None = None
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        inner = factory()
        transport, _protocol = await self._network.connect(lambda: _Losing(self, inner), host, port, tls=tls)
        return transport, inner


class _Losing(asyncio.Protocol):
    """Stands between a connection and its transport, and watches what is asked for."""

    def __init__(self, network: LossyNetwork, inner: asyncio.Protocol) -> None:
        self._network = network
        self._inner = inner
        self._loses: ApiKey | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._inner.connection_made(self)  # type: ignore[arg-type]

    def write(self, data: bytes) -> None:
        assert self._transport is not None
        number = int.from_bytes(data[4:6], "big")
        if self._network.to_lose.get(number, 0) > 0:  # type: ignore[call-overload]  # an ApiKey is its number
            self._loses = ApiKey(number)
            self._network.to_lose[self._loses] -= 1
        self._transport.write(data)

    def data_received(self, data: bytes) -> None:
        if self._loses is not None:
            self._network.lost.append(self._loses)
            self.abort()
            return
        self._inner.data_received(data)

    def connection_lost(self, error: Exception | None) -> None:
        self._inner.connection_lost(error)

    def get_extra_info(self, name: str) -> Any:
        assert self._transport is not None
        return self._transport.get_extra_info(name)

    def is_closing(self) -> bool:
        assert self._transport is not None
        return self._transport.is_closing()

    def abort(self) -> None:
        assert self._transport is not None
        self._transport.abort()

    def close(self) -> None:
        assert self._transport is not None
        self._transport.close()
