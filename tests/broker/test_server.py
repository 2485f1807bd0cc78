import asyncio
import importlib
import pkgutil
import struct
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from einmal.broker.front import handlers
from einmal.broker.front.apis import APIS
from einmal.types import ErrorCode
from einmal.wire.fetch import FetchPartition, FetchRequest, encode_fetch_request
from einmal.wire.messages import is_flexible
from tests.broker.nodes import Client, batch, new_node, running_node, until, until_watched
from tests.broker.virtual_node import VirtualMachine
from tests.virtual_time import virtual_time
from tests.wire.mapped import decode_response

API_VERSIONS = 18
METADATA = 3


async def test_pipelined_requests_are_answered_in_their_order(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        sent = [client.send(API_VERSIONS, 0, b"") for _ in range(100)]
        received = [struct.unpack_from(">i", await client.receive())[0] for _ in sent]
        assert received == sent


async def test_an_answer_that_waits_is_not_overtaken(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client, Client.connect(node) as other:
        await client.create_topic("t")
        waiting = asyncio.create_task(client.fetch("t", 0, max_wait_ms=10_000))
        await asyncio.sleep(0)
        second = client.send(API_VERSIONS, 0, b"")
        await other.produce("t", batch(b"a"))
        assert (await waiting).error_code == ErrorCode.none
        assert struct.unpack_from(">i", await client.receive())[0] == second


async def test_api_versions_of_the_future_gets_version_0_and_the_list(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        header = struct.pack(">hhih", API_VERSIONS, 99, 7, -1)
        client.writer.write(struct.pack(">i", len(header) + 20) + header + bytes(20))
        answer = await client.receive()
        assert struct.unpack_from(">i", answer) == (7,)
        message = decode_response(API_VERSIONS, 0, answer, 4)
        assert message.error_code == ErrorCode.unsupported_version
        assert {key.api_key for key in message.api_keys} >= {0, 1, 3, 18}
        assert await client.answers()


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">i", -1),
        struct.pack(">i", 2**31 - 1),
        struct.pack(">i", 3) + b"abc",
        struct.pack(">ihhih", 10, 999, 0, 1, -1),
        struct.pack(">ihhih", 10, METADATA, 99, 1, -1),
        struct.pack(">ihhih", 10, METADATA, -5, 1, -1),
        struct.pack(">ihhih", 10, METADATA, 1, 1, 500),
        struct.pack(">ihhih", 10, 0, 2, 1, -1),
        struct.pack(">ihhihi", 14, METADATA, 1, 1, -1, 2**31 - 1),
    ],
    ids=[
        "negative length",
        "length over the limit",
        "no header",
        "unknown api",
        "version of the future",
        "negative version",
        "client id past the end",
        "produce of before 0.11",
        "array of two thousand million",
    ],
)
async def test_broken_input_closes_its_connection_and_no_other(tmp_path: Path, data: bytes) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as good, Client.connect(node) as bad:
        assert await good.answers()
        bad.writer.write(data)
        assert await bad.is_closed()
        assert await good.answers()


async def test_a_frame_that_never_comes_costs_no_memory(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        before = _resident_bytes()
        clients = [await asyncio.open_connection("127.0.0.1", node.port) for _ in range(50)]
        for _reader, writer in clients:
            writer.write(struct.pack(">i", 100_000_000) + b"x")
            await writer.drain()
        async with Client.connect(node) as client:
            assert await client.answers()
        assert _resident_bytes() - before < 30_000_000
        for _reader, writer in clients:
            writer.close()


async def test_connections_above_the_limit_are_closed(tmp_path: Path) -> None:
    async with (
        running_node(tmp_path, {"max.connections": 2}) as node,
        Client.connect(node) as first,
        Client.connect(node) as second,
    ):
        assert await first.answers()
        assert await second.answers()
        async with Client.connect(node) as third:
            assert await third.is_closed()
        assert await first.answers()


@virtual_time
async def test_an_idle_connection_is_closed_and_one_that_waits_is_not() -> None:
    machine = VirtualMachine()
    async with (
        machine.running({"connections.max.idle.ms": 1_000}),
        machine.client() as idle,
        machine.client() as waiting,
    ):
        await waiting.create_topic("t")
        fetched = asyncio.create_task(waiting.fetch("t", 0, max_wait_ms=3_000))
        assert await idle.is_closed()
        assert (await fetched).error_code == ErrorCode.none


async def test_a_stream_of_large_requests_does_not_starve_a_small_one(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as large, Client.connect(node) as small:
        await large.create_topic("t", segment_bytes="100000000", max_message_bytes="2000000")
        big = batch(bytes(1_000_000))

        async def flood() -> None:
            while True:
                await asyncio.gather(*(large.produce("t", big) for _ in range(1)))

        flooding = asyncio.create_task(flood())
        loop = asyncio.get_running_loop()
        worst = 0.0
        for _ in range(50):
            start = loop.time()
            await small.answers()
            worst = max(worst, loop.time() - start)
        flooding.cancel()
        assert worst < 1.0


async def test_requests_wait_while_the_node_starts(tmp_path: Path) -> None:
    node = new_node(tmp_path)
    node.servers["PLAINTEXT"].start, start = (lambda: None), node.servers["PLAINTEXT"].start  # type: ignore[method-assign]
    await node.start()
    async with Client.connect(node) as client:
        client.send(API_VERSIONS, 0, b"")
        # A request that was answered would not wait.
        await until(lambda: any(connection._frames for connection in node.servers["PLAINTEXT"].connections.all()))
        start()
        assert len(await client.receive()) > 4
    await node.stop()


async def test_stop_closes_connections_and_their_waiting_requests(tmp_path: Path) -> None:
    node = new_node(tmp_path)
    await node.start()
    async with Client.connect(node) as client:
        await client.create_topic("t")
        fetched = asyncio.create_task(client.fetch("t", 0, max_wait_ms=60_000))
        await until_watched(node, "t")
        await node.stop()
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await fetched


async def test_a_peer_that_does_not_read_stops_being_served(tmp_path: Path) -> None:
    """Back-pressure: its answers fill the write buffer, then its requests stay in its own socket."""
    async with running_node(tmp_path) as node, Client.connect(node) as deaf, Client.connect(node) as good:
        await good.create_topic("t", max_message_bytes="2000000")
        await good.produce("t", batch(bytes(1_000_000)))
        deaf.writer.transport.pause_reading()  # type: ignore[attr-defined]
        request = FetchRequest(0, 1, 2**24, 0, [("t", [FetchPartition(0, 0, 2**20)])])
        before = _resident_bytes()
        # Four hundred megabytes of answers, asked for in one piece.
        for _ in range(400):
            deaf.send(1, 12, encode_fetch_request(12, request))
        await until(
            lambda: any(not connection._can_write for connection in node.servers["PLAINTEXT"].connections.all())
        )
        for _ in range(10):
            assert await good.answers()
        assert _resident_bytes() - before < 60_000_000


def test_every_advertised_version_is_flexible_where_its_schema_is() -> None:
    for entry in APIS:
        for version in range(entry.versions.min, entry.versions.max + 1):
            assert is_flexible(entry.key, version) == (version >= entry.versions.flexible), entry.key


def test_the_table_of_apis_has_every_handler_in_the_order_of_the_keys() -> None:
    keys = [entry.key for entry in APIS]
    assert keys == sorted(set(keys))
    assert {handler.api.key for _module, handler in _handlers()} == set(keys)


def test_every_handler_names_its_key_and_versions_in_its_header() -> None:
    for module, handler in _handlers():
        text, api = module.__doc__ or "", handler.api
        low, high = api.versions.min, api.versions.max
        versions = str(low) if low == high else f"{low}-{high}"
        assert f"API: {api.key}. Versions: {versions}" in text, module.__name__
        assert "Behaviour:" in text


def test_no_handler_has_code_generated_at_start() -> None:
    """See ``handler``."""
    assert not [handler for _module, handler in _handlers() if hasattr(handler, "__dataclass_fields__")]


def _handlers() -> Iterator[tuple[ModuleType, Any]]:
    for found in pkgutil.iter_modules(handlers.__path__):
        module = importlib.import_module(f"{handlers.__name__}.{found.name}")
        (handler,) = [
            each
            for name, each in vars(module).items()
            if name.endswith("Handler") and each.__module__ == module.__name__
        ]
        yield module, handler


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096
