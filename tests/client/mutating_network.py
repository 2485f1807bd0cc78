"""The real network, with answers that lie: each may be changed on its way, by a seed."""

from __future__ import annotations

import asyncio
import random
import ssl
import struct
from typing import Any, Final, cast

from einmal.seams import ProtocolFactory, TcpNetwork
from einmal.wire.frames import FrameSplitter, frame

_EXTREMES: Final = (-(2**31), -2, -1, 0, 1, 127, 2**15, 2**24, 2**31 - 1)


def mutated(answer: bytes, source: random.Random) -> bytes:
    """An answer without its length, with one to three changes."""
    changed = bytearray(answer)
    for _ in range(source.randint(1, 3)):
        at = source.randrange(len(changed) or 1)
        match source.randrange(6):
            case 0 if changed:
                changed[at] ^= 1 << source.randrange(8)
            case 1 if changed:
                changed[at] = source.choice((0, 1, 0x7F, 0x80, 0xFF))
            case 2 if len(changed) >= at + 4:
                changed[at : at + 4] = struct.pack(">i", source.choice(_EXTREMES))
            case 3:
                del changed[at:]
            case 4:
                del changed[at : at + source.randint(1, 8)]
            case _:
                changed[at:at] = source.randbytes(source.randint(1, 8))
    return bytes(changed)


class MutatingNetwork:
    """``share`` of the answers are changed. Correlation ids mostly stay, so that the changes get deep."""

    def __init__(self, seed: int, share: float = 0.3) -> None:
        self.source = random.Random(seed)
        self.share = share
        self.changed = 0
        self._network = TcpNetwork()

    async def listen(self, factory: ProtocolFactory, host: str, port: int) -> Any:
        raise NotImplementedError("a client does not listen")

    async def connect(
        self, factory: ProtocolFactory, host: str, port: int, *, tls: ssl.SSLContext | None = None
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        if host != "127.0.0.1":
            raise OSError(f"{host!r} is not asked: it may be somebody's")
        inner = factory()
        transport, _protocol = await self._network.connect(lambda: _Mutating(self, inner), host, port, tls=tls)
        return transport, inner


class _Mutating(asyncio.Protocol):
    def __init__(self, network: MutatingNetwork, inner: asyncio.Protocol) -> None:
        self._network = network
        self._inner = inner
        self._splitter = FrameSplitter(1 << 30)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._inner.connection_made(cast(asyncio.Transport, transport))

    def data_received(self, data: bytes) -> None:
        for answer in self._splitter.feed(data):
            self._inner.data_received(self._passed_on(answer))

    def _passed_on(self, answer: bytes) -> bytes:
        network, source = self._network, self._network.source
        if source.random() > network.share:
            return frame(answer)
        network.changed += 1
        head = answer[:4] if source.random() < 0.95 else mutated(answer[:4], source)
        whole = frame(head, mutated(answer[4:], source))
        # Now and then the length lies as well.
        return whole if source.random() < 0.98 else struct.pack(">i", source.choice(_EXTREMES)) + whole[4:]

    def connection_lost(self, error: Exception | None) -> None:
        self._inner.connection_lost(error)
