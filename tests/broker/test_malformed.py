"""Whatever bytes come: an answer or a closed connection; the node lives, and nobody else notices, by the clock too."""

import asyncio
import dataclasses
import random
import struct
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from einmal.broker.front.apis import Entry, On, entries_on
from einmal.types import BrokerId, ErrorCode
from einmal.wire.frames import frame
from einmal.wire.messages import encode_request_header, request_type
from einmal.wire.schemas import unwrap
from tests.broker.good_client import LATENCY_SECONDS_MAX, Good, resident_bytes
from tests.broker.nodes import Client, batch, running_node
from tests.ports import loopback_ports
from tests.suite.patience import patient

ANSWER_SECONDS_MAX = 0.15
"""A request that waits longer than this is waiting rightly (a join, a long poll): its connection is dropped."""
ROUNDS = 3
MEMORY_BYTES_MAX = 100_000_000
"""By which the process may grow: the requests are small, and what they ask for is bounded."""

_NAMES = ("t", "t", "unknown", "", "x" * 300, "__consumer_offsets", "näme", "group", "id")
_INTS = (0, 0, 1, 1, 2, -1, -2, 5, 100, 2**15 - 1)


def _random_message(schema: Any, source: random.Random) -> Any:
    values: dict[str, Any] = {}
    for field in dataclasses.fields(schema):
        inner, is_nullable, is_array = unwrap(field.type)
        if is_nullable and source.random() < 0.2:
            values[field.name] = None
        elif is_array:
            values[field.name] = tuple(_random_value(inner, field, source) for _ in range(source.randint(0, 2)))
        else:
            values[field.name] = _random_value(inner, field, source)
    return schema(**values)


def _random_value(inner: Any, field: Any, source: random.Random) -> Any:
    if dataclasses.is_dataclass(inner):
        return _random_message(inner, source)
    kind = field.metadata["kafka_type"]
    number = source.choice(_INTS)
    if kind == "string":
        return source.choice(_NAMES)
    if kind in ("bytes", "records"):
        return source.choice((b"", b"x", batch(b"a"), batch(b"a")[:40], source.randbytes(100)))
    if kind == "bool":
        return source.random() < 0.5
    if kind == "uuid":
        return source.choice((UUID(int=0), UUID(int=1), UUID(int=source.getrandbits(128))))
    if kind == "error_code":
        return source.choice(list(ErrorCode))
    if kind.startswith("timedelta"):
        return timedelta(milliseconds=source.choice((0, 1, 50)))
    if kind.startswith("datetime"):
        return datetime(2025, 1, 1, tzinfo=UTC)
    if kind == "float64":
        return float(number)
    if kind == "int8":
        return max(-128, min(number, 127))
    if kind.startswith("uint"):
        return max(0, number)
    return number


def _mutate(data: bytes, source: random.Random) -> bytes:
    mutated = bytearray(data)
    for _ in range(source.randint(1, 3)):
        how = source.randrange(4)
        place = source.randrange(len(mutated)) if mutated else 0
        if how == 0 and mutated:
            mutated[place] = source.choice((0, 1, 0x7F, 0x80, 0xFF, source.randrange(256)))
        elif how == 1:
            del mutated[place:]
        elif how == 2:
            mutated[place:place] = source.choice((b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x00", b"\xff" * 9))
        elif mutated:
            del mutated[place : place + source.randint(1, 4)]
    return bytes(mutated)


def _requests(entries: Sequence[Entry], seed: int, *, broken: bool) -> Iterator[bytes]:
    """Request frames of every supported API and version."""
    import io

    from kio.serial import entity_writer

    source = random.Random(seed)
    for _ in range(ROUNDS):
        for entry in entries:
            for version in range(entry.versions.min, entry.versions.max + 1):
                schema = request_type(entry.key, version)
                buffer = io.BytesIO()
                entity_writer(schema)(buffer, _random_message(schema, source))
                body = buffer.getvalue()
                if broken:
                    body = _mutate(body, source)
                yield frame(encode_request_header(entry.key, version, 1, "fuzz"), body)


async def _answered_or_closed(port: int, data: bytes) -> None:
    async with Client.connect_to(port) as client:
        client.writer.write(data)
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                (size,) = struct.unpack(">i", await client.reader.readexactly(4))
                answer = await client.reader.readexactly(size)
                assert struct.unpack_from(">i", answer) == (1,), "an answer to another request"
        except (asyncio.IncompleteReadError, ConnectionError, TimeoutError):
            pass


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
@pytest.mark.parametrize("broken", [False, True], ids=["absurd but well-formed", "broken"])
async def test_no_request_disturbs_the_node_or_other_clients(tmp_path: Path, seed: int, broken: bool) -> None:
    settings = {"group.initial.rebalance.delay.ms": 0, "transaction.two.phase.commit.enable": "true"}
    async with running_node(tmp_path, settings) as node, Client.connect(node) as good:
        await good.create_topic("t")
        await good.produce("t", batch(b"kept"))
        kept = bytes((await good.fetch("t", 0)).records)
        topic = node.metadata.image.topics["t"]
        other, before = Good(node), resident_bytes()
        async with other.working():
            for data in _requests(entries_on(On.BROKERS, has_two_phase_commit=True), seed, broken=broken):
                await _answered_or_closed(node.port, data)
        assert other.slowest < LATENCY_SECONDS_MAX
        assert resident_bytes() - before < MEMORY_BYTES_MAX
        again = await good.fetch("t", 0)
        is_same = node.metadata.image.topics.get("t") == topic and again.log_start_offset == 0
        assert not is_same or bytes(again.records)[: len(kept)] == kept
        await good.create_topic("after")


@pytest.mark.parametrize("broken", [False, True], ids=["absurd but well-formed", "broken"])
async def test_no_request_disturbs_a_controller(tmp_path: Path, broken: bool) -> None:
    (port,) = loopback_ports(1)
    settings = {"listeners": f"PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:{port}"}
    async with running_node(tmp_path, settings) as node, Client.connect(node) as good:
        await good.create_topic("t")
        for data in _requests(entries_on(On.CONTROLLERS), 3, broken=broken):
            await _answered_or_closed(port, data)
        brokers = node.metadata.image.brokers
        # A heartbeat in its name may have asked that it be fenced: its own next one ends that.
        assert await node.metadata.until(lambda: brokers[BrokerId(1)].is_active, patient(5))
        await good.create_topic("after")


async def test_garbage_is_no_request(tmp_path: Path) -> None:
    source = random.Random(7)
    async with running_node(tmp_path) as node:
        for _ in range(200):
            async with Client.connect(node) as client:
                size = source.randint(1, 200)
                client.writer.write(struct.pack(">i", size) + source.randbytes(size))
        async with Client.connect(node) as good:
            await good.create_topic("t")
