"""Handshakes that nobody ends, 2,500 of them or 10,000 (``long``): they cost neither memory, nor descriptors, nor the
time of other clients."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
from pathlib import Path

import pytest

from einmal.event_log import fields_of
from tests.broker.good_client import Good, resident_bytes
from tests.broker.nodes import Client, until
from tests.broker.test_tls_listeners import hello
from tests.broker.tls_node import Tls, port_of

_LATENCY_SECONDS_MAX = 1.5
"""The handshakes of a step may all be answered in one round of the loop, each with a signature."""
_STEP = 250
_KEPT = 1_500
"""Sockets that this side keeps open: the rest are closed by the node already."""
_GROWTH_MAX = 150 * 1024 * 1024


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.slow
@pytest.mark.time_limit(240)
@pytest.mark.parametrize(
    ("count", "bytes_sent"),
    [(2_500, 10_000), *(pytest.param(10_000, sent, marks=pytest.mark.long) for sent in (0, 100, 10_000))],
)
async def test_half_open_handshakes_cost_others_nothing(
    tmp_path: Path, count: int, bytes_sent: int, caplog: pytest.LogCaptureFixture
) -> None:
    """0: nothing is sent; 100: a part of a ClientHello; 10,000: all of it, which the node answers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8_192), hard))
    tls = Tls(tmp_path)
    data = hello()[:bytes_sent]
    kept: list[socket.socket] = []
    try:
        async with tls.node() as node:
            port, good = port_of(node, "SSL"), Good(node)
            before, most = resident_bytes(), 0
            async with good.working():
                for _ in range(count // _STEP):
                    kept += [await opened(port, data) for _ in range(_STEP)]
                    while len(kept) > _KEPT:
                        kept.pop(0).close()
                    most = max(most, descriptors())
                async with Client.connect_to(port, tls.client()) as client:
                    assert await client.answers()
            assert len(node.servers["SSL"].connections) <= 1_001
            while kept:
                kept.pop().close()
            await until(lambda: len(node.servers["SSL"].connections) == 0)
            growth = resident_bytes() - before
            figures = {"bytes_sent": len(data), "latency_s_max": round(good.slowest, 3), "descriptors_max": most}
            print(json.dumps({**figures, "growth_mb": round(growth / 1e6, 1)}))
            assert good.slowest < _LATENCY_SECONDS_MAX
            assert growth < _GROWTH_MAX
            assert most < 4_096
            lines = [each for each in caplog.records if "connection closed: " in each.getMessage()]
            # One for each handshake that the node has ended, or the client after it has sent something.
            assert count - 1_000 <= len(lines) <= count
            assert {fields_of(each)["client"] for each in lines} == {"127.0.0.1"}
    finally:
        for each in kept:
            each.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def opened(port: int, data: bytes) -> socket.socket:
    loop = asyncio.get_running_loop()
    connection = socket.socket()
    connection.setblocking(False)
    await loop.sock_connect(connection, ("127.0.0.1", port))
    if data:
        await loop.sock_sendall(connection, data)
    return connection
