"""The HTTP server of the monitoring pages: what it answers, and what it does to those who hold it up."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

from einmal.broker.monitoring import http_listener
from einmal.broker.monitoring.http_listener import CONNECTIONS_MAX, HEAD_BYTES_MAX, HttpAnswer, HttpServer
from einmal.seams import TcpNetwork
from tests.suite.patience import patient

LARGE = 4 * 1024 * 1024


async def _page() -> HttpAnswer:
    return HttpAnswer(200, "text/plain", (b"two ", b"parts"))


async def _large() -> HttpAnswer:
    return HttpAnswer(200, "text/plain", [b"x" * LARGE])


@asynccontextmanager
async def _serving(**pages: Callable[[], Awaitable[HttpAnswer]]) -> AsyncIterator[int]:
    server = HttpServer({"/page": _page, "/large": _large} | {f"/{name}": page for name, page in pages.items()})
    listener = await TcpNetwork().listen(server.connection, "127.0.0.1", 0)
    try:
        yield listener.port
    finally:
        listener.close()
        server.stop()


async def _exchange(port: int, *sent: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for piece in sent:
            writer.write(piece)
            await asyncio.sleep(0)
        return await asyncio.wait_for(reader.read(), patient(20))
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /page HTTP/1.1\r\n\r\n", b"200 OK"),
        (b"GET /page?name[]=up HTTP/1.0\r\n\r\n", b"200 OK"),
        (b"GET /other HTTP/1.1\r\n\r\n", b"404 Not Found"),
        (b"POST /page HTTP/1.1\r\n\r\n", b"405 Method Not Allowed"),
        (b"\xff\x00\x80 \r\n\r\n", b"400 Bad Request"),
        (b"GET /page SPDY/3\r\n\r\n", b"400 Bad Request"),
        (b"\r\n\r\n", b"400 Bad Request"),
        (b"GET /page HTTP/1.1\r\nX: " + b"x" * HEAD_BYTES_MAX, b"431 Request Header Fields Too Large"),
        (b"GET /page HTTP/1.1\r\nX: " + b"x" * HEAD_BYTES_MAX + b"\r\n\r\n", b"431 Request Header Fields Too Large"),
    ],
)
async def test_each_request_gets_one_answer_and_the_connection_ends(sent: bytes, status: bytes) -> None:
    async with _serving() as port:
        answer = await _exchange(port, sent)
    assert answer.startswith(b"HTTP/1.1 " + status + b"\r\n")
    assert b"\r\nConnection: close\r\n" in answer


async def test_a_page_comes_whole_and_its_head_alone() -> None:
    async with _serving() as port:
        whole = await _exchange(port, b"GET /pa", b"ge HTTP/1.1\r\n", b"\r\n")
        head = await _exchange(port, b"HEAD /page HTTP/1.1\r\n\r\n")
        large = await _exchange(port, b"GET /large HTTP/1.1\r\n\r\n")
    assert whole.endswith(b"Content-Length: 9\r\nConnection: close\r\n\r\ntwo parts")
    assert head.endswith(b"Content-Length: 9\r\nConnection: close\r\n\r\n")
    assert large.endswith(b"x" * LARGE)


async def test_requests_that_do_not_end_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_listener, "HEAD_SECONDS", 0.05)
    async with _serving() as port:
        assert await _exchange(port, b"GET /page HTTP/1.1\r\nX: y") == b""


async def test_who_does_not_take_an_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_listener, "ANSWER_SECONDS", 0.2)
    ended = asyncio.Event()

    class Watched(HttpServer):
        def forget(self, connection: object) -> None:
            ended.set()

    async def huge() -> HttpAnswer:
        return HttpAnswer(200, "text/plain", [b"x" * (8 * LARGE)])

    server = Watched({"/huge": huge})
    listener = await TcpNetwork().listen(server.connection, "127.0.0.1", 0)
    _reader, writer = await asyncio.open_connection("127.0.0.1", listener.port, limit=1)
    writer.write(b"GET /huge HTTP/1.1\r\n\r\n")
    await asyncio.wait_for(ended.wait(), patient(20))
    writer.close()
    listener.close()


async def test_silent_connections_keep_nobody_out() -> None:
    async with _serving() as port:
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3 * CONNECTIONS_MAX)]
        answer = await _exchange(port, b"GET /page HTTP/1.1\r\n\r\n")
        for _reader, writer in silent:
            writer.close()
    assert answer.endswith(b"two parts")


async def test_where_all_wait_for_their_answers_a_new_connection_is_refused() -> None:
    begun, may_end = 0, asyncio.Event()

    async def slow() -> HttpAnswer:
        nonlocal begun
        begun += 1
        await may_end.wait()
        return await _page()

    async with _serving(slow=slow) as port:
        waiting = [
            asyncio.ensure_future(_exchange(port, b"GET /slow HTTP/1.1\r\n\r\n")) for _ in range(CONNECTIONS_MAX)
        ]
        async with asyncio.timeout(patient(20)):
            while begun < CONNECTIONS_MAX:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert await _exchange(port, b"GET /page HTTP/1.1\r\n\r\n") == b""
        may_end.set()
        assert all(answer.endswith(b"two parts") for answer in await asyncio.gather(*waiting))
        assert (await _exchange(port, b"GET /page HTTP/1.1\r\n\r\n")).endswith(b"two parts")


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("host", ["", "::"])
async def test_every_address_is_those_of_both_versions_of_ip_at_one_port(host: str) -> None:
    server = HttpServer({"/page": _page})
    listener = await TcpNetwork().listen(server.connection, host, 0)
    for address in ("127.0.0.1", "::1"):
        _reader, writer = await asyncio.open_connection(address, listener.port)
        writer.close()
    listener.close()
    server.stop()
