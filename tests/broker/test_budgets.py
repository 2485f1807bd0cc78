"""What one client asks for, sends half, or does not take, costs the others nothing: time and memory are bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from einmal.broker.config import ConfigError
from einmal.broker.front.connections import server as server_module
from einmal.broker.front.connections.server import HELD_BYTES_MAX
from einmal.types import ErrorCode
from einmal.wire import fetch, produce
from tests.broker.good_client import LATENCY_SECONDS_MAX, Good, resident_bytes
from tests.broker.nodes import Client, batch, half_sent, new_node, running_node, until
from tests.wire.mapped import encode_request

PRODUCE, FETCH, LIST_OFFSETS, OFFSET_FETCH, CREATE_TOPICS = 0, 1, 2, 9, 19
WRITE_TXN_MARKERS, DESCRIBE_CONFIGS, DESCRIBE_PRODUCERS, FIND_COORDINATOR = 27, 32, 61, 10
METADATA, DESCRIBE_GROUPS, DELETE_RECORDS, LEADER_EPOCH, API_VERSIONS = 3, 15, 21, 23, 18
LARGE = 1_000_000
SECONDS_MAX = 120

pytestmark = pytest.mark.time_limit(SECONDS_MAX)

_MARKER = {"producer_id": 1, "producer_epoch": 0, "transaction_result": True, "coordinator_epoch": 0}


def _list_offsets(count: int) -> dict[str, Any]:
    partitions = [{"partition_index": 0, "timestamp": number % 3} for number in range(count)]
    return {"replica_id": -1, "topics": [{"name": "t", "partitions": partitions}]}


WIDE: Mapping[str, tuple[int, int, Mapping[str, Any]]] = {
    "CreateTopics, the same names": (
        CREATE_TOPICS,
        7,
        {"topics": [{"name": f"n{number % 7}", "num_partitions": 1} for number in range(40_000)]},
    ),
    "CreateTopics, validated only": (
        CREATE_TOPICS,
        7,
        {
            "topics": [
                {"name": f"n_{number}", "num_partitions": 1, "replication_factor": 1} for number in range(9_000)
            ],
            "validate_only": True,
        },
    ),
    "DescribeConfigs, one topic": (
        DESCRIBE_CONFIGS,
        4,
        {"resources": [{"resource_type": 2, "resource_name": "t", "configuration_keys": None}] * 45_000},
    ),
    "DescribeConfigs, many keys": (
        DESCRIBE_CONFIGS,
        4,
        {"resources": [{"resource_type": 4, "resource_name": "1", "configuration_keys": ["a"] * 45_000}]},
    ),
    "OffsetFetch, one group": (
        OFFSET_FETCH,
        8,
        {"groups": [{"group_id": "g", "topics": [{"name": "t", "partition_indexes": list(range(45_000))}]}]},
    ),
    "OffsetFetch, many groups": (
        OFFSET_FETCH,
        8,
        {"groups": [{"group_id": f"g{number}", "topics": None} for number in range(45_000)]},
    ),
    "ListOffsets": (LIST_OFFSETS, 7, _list_offsets(45_000)),
    "WriteTxnMarkers": (
        WRITE_TXN_MARKERS,
        1,
        {"markers": [{**_MARKER, "topics": [{"name": "t", "partition_indexes": [0] * 45_000}]}]},
    ),
    "DescribeProducers": (
        DESCRIBE_PRODUCERS,
        0,
        {"topics": [{"name": "t", "partition_indexes": [0] * 45_000}]},
    ),
    "FindCoordinator": (FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": [str(key) for key in range(45_000)]}),
    "Metadata": (
        METADATA,
        9,
        {"topics": [{"name": f"n{name}"} for name in range(45_000)], "allow_auto_topic_creation": False},
    ),
    "DescribeGroups": (DESCRIBE_GROUPS, 5, {"groups": [str(group) for group in range(45_000)]}),
    "DeleteRecords": (
        DELETE_RECORDS,
        2,
        {"topics": [{"name": "t", "partitions": [{"partition_index": 0, "offset": 0}] * 45_000}]},
    ),
    "OffsetForLeaderEpoch": (
        LEADER_EPOCH,
        4,
        {"replica_id": -2, "topics": [{"topic": "t", "partitions": [{"partition": 0}] * 45_000}]},
    ),
}

WIDE_AND_SHORT = ("CreateTopics, the same names", "DescribeConfigs, one topic", "OffsetFetch, one group", "Metadata")
"""Some of each kind: that every handler gives others their turn, test_wide_requests shows element by element."""


# --- time --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in WIDE_AND_SHORT else pytest.mark.long) for name in WIDE],
)
async def test_a_wide_request_holds_up_no_other_client(tmp_path: Path, name: str) -> None:
    api_key, version, fields = WIDE[name]
    async with running_node(tmp_path) as node, Client.connect(node) as wide:
        await wide.create_topic("t")
        await wide.produce("t", batch(b"a", b"b"))
        body = encode_request(api_key, version, fields)
        good = Good(node)
        async with good.working():
            for _ in range(2):
                wide.send(api_key, version, body)
                await asyncio.wait_for(wide.receive(), SECONDS_MAX)
        assert good.slowest < LATENCY_SECONDS_MAX


@pytest.mark.long
@pytest.mark.slow
async def test_many_clients_with_wide_requests_hold_up_no_other_client(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as first:
        await first.create_topic("t")
        body = encode_request(LIST_OFFSETS, 7, _list_offsets(22_000))
        good = Good(node)

        async def attack() -> None:
            async with Client.connect(node) as client:
                client.send(LIST_OFFSETS, 7, body)
                await client.receive()

        async with good.working():
            await asyncio.gather(*(attack() for _ in range(8)))
        assert good.slowest < LATENCY_SECONDS_MAX


@pytest.mark.parametrize("api_key, version", [(PRODUCE, 9), (FETCH, 12)])
async def test_a_request_with_too_many_partitions_closes_its_connection(
    tmp_path: Path, api_key: int, version: int
) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as wide:
        if api_key == PRODUCE:
            asked: Any = [("t", [(0, None)] * LARGE)]
            body = b"".join(produce.encode_produce_request(9, produce.ProduceRequest(None, 1, 1, asked)))
        else:
            asked = [("t", [fetch.FetchPartition(0, 0, 1)] * (LARGE // 10))]
            body = fetch.encode_fetch_request(12, fetch.FetchRequest(0, 0, 1, 0, asked))
        good = Good(node)
        async with good.working():
            wide.send(api_key, version, body)
            with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
                await wide.receive()
        assert good.slowest < LATENCY_SECONDS_MAX


async def test_a_produce_of_many_partitions_holds_up_no_other_client(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as wide:
        await wide.create_topic("t")
        asked: Any = [("t", [(0, batch(b"x"))] * 30_000)]
        body = b"".join(produce.encode_produce_request(9, produce.ProduceRequest(None, 1, 1000, asked)))
        good = Good(node)
        async with good.working():
            wide.send(PRODUCE, 9, body)
            await wide.receive()
        assert good.slowest < LATENCY_SECONDS_MAX


@pytest.mark.slow
@pytest.mark.parametrize("count", [3_000, pytest.param(10_000, marks=pytest.mark.long)])
async def test_thousands_of_partitions_at_once_hold_up_no_other_client(tmp_path: Path, count: int) -> None:
    """To open 3,000 without a break takes longer than anyone may wait."""
    async with running_node(tmp_path) as node, Client.connect(node) as creator:
        good = Good(node)
        async with good.working():
            await creator.create_topic("many", partitions=count)
            await until(lambda: len(node.partitions) >= count, SECONDS_MAX)
        assert good.slowest < LATENCY_SECONDS_MAX


# --- memory ------------------------------------------------------------------------------------------------------


async def _fill(client: Client, count: int) -> None:
    await client.create_topic("full")
    await client.create_topic("empty")
    for _ in range(count):
        await client.produce("full", batch(bytes(1_000_000)))


def _fetch(topic: str, *, max_wait_ms: int = 0) -> bytes:
    asked: Any = [(topic, [fetch.FetchPartition(0, 0, 2**26)])]
    request = fetch.FetchRequest(max_wait_ms, 1, 2**26, 0, asked)
    return fetch.encode_fetch_request(12, request)


@pytest.mark.slow
async def test_answers_behind_a_parked_one_are_bounded(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as good, Client.connect(node) as bad:
        await _fill(good, 10)
        before = resident_bytes()
        bad.send(FETCH, 12, _fetch("empty", max_wait_ms=60_000))
        # Each asks for ten megabytes: all together far more than may be held.
        for _ in range(30):
            bad.send(FETCH, 12, _fetch("full"))
        await until(
            lambda: any(not connection._is_reading for connection in node.servers["PLAINTEXT"].connections.all())
        )
        most = 0
        for _ in range(50):
            assert await good.answers()
            most = max(most, node.response_memory.held)
        assert most <= HELD_BYTES_MAX + 11_000_000
        assert resident_bytes() - before < 60_000_000
        # All of them are answered nevertheless, once the first one can be.
        await good.produce("empty", batch(b"x"))
        for _ in range(31):
            await bad.receive()


def _give_up_after(milliseconds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long while a test fills the memory, at whatever speed; short once it is full."""
    monkeypatch.setattr(server_module, "STALLED_MS_MAX", milliseconds)
    monkeypatch.setattr(server_module, "STALLED_SHORT_MS_MAX", milliseconds)


async def test_answers_that_are_not_taken_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _give_up_after(600_000, monkeypatch)
    async with running_node(tmp_path) as node, Client.connect(node) as good:
        await _fill(good, 10)
        sockets = []
        for _ in range(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", node.port, limit=1)
            client = Client(reader, writer)
            for _ in range(3):
                client.send(FETCH, 12, _fetch("full"))
            sockets.append(writer)
        await until(lambda: node.response_memory.held > 30_000_000)
        assert node.response_memory.held < node.response_memory.limit + 20 * 1_100_000
        _give_up_after(500, monkeypatch)
        await until(lambda: node.response_memory.held == 0)
        assert (await good.fetch("full", 0)).error_code == ErrorCode.none
        for writer in sockets:
            writer.transport.abort()


async def test_frames_that_are_half_sent_are_bounded_and_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _give_up_after(600_000, monkeypatch)
    settings = {"queued.max.request.bytes": 4_000_000, "socket.request.max.bytes": 4_000_000}
    async with running_node(tmp_path, settings) as node, Client.connect(node) as good:
        await good.create_topic("t")
        before = resident_bytes()
        writers = await half_sent(node.port, 100, 4_000_000)
        memory = node.servers["PLAINTEXT"].request_memory
        await until(lambda: memory.is_exhausted)
        assert resident_bytes() - before < 60_000_000
        # Small requests are served, and large ones once the others are given up.
        assert (await good.produce("t", batch(b"x"))).error_code == ErrorCode.none
        _give_up_after(500, monkeypatch)
        assert (await good.produce("t", batch(bytes(900_000)))).error_code == ErrorCode.none
        await until(lambda: memory.held == 0)
        for writer in writers:
            writer.transport.abort()


# --- connections -------------------------------------------------------------------------------------------------


async def test_idle_connections_make_room_for_new_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("einmal.broker.front.connections.connection_table.IDLE_MS_MIN", 0)
    async with (
        running_node(tmp_path, {"max.connections": 3}) as node,
        Client.connect(node) as used,
        Client.connect(node) as silent,
        Client.connect(node) as recent,
    ):
        assert await used.answers()
        assert await recent.answers()
        async with Client.connect(node) as fourth:
            assert await fourth.answers()
            assert await silent.is_closed(), "one that never sent a request goes first"
            assert await recent.answers()
            async with Client.connect(node) as fifth:
                assert await fifth.answers()
                assert await used.is_closed(), "then the one that was idle for longest"
                assert await recent.answers()


async def test_connections_of_one_address_are_bounded(tmp_path: Path) -> None:
    settings = {"max.connections.per.ip": 2}
    async with running_node(tmp_path, settings) as node, Client.connect(node) as first:
        assert await first.answers()
        async with Client.connect(node) as second, Client.connect(node) as third:
            assert await second.answers()
            assert await third.is_closed()
        await until(lambda: len(node.servers["PLAINTEXT"].connections) == 1)
        async with Client.connect(node) as again:
            assert await again.answers()


@pytest.mark.parametrize("wrong", ["localhost:2", "127.0.0.1", "127.0.0.1:-1", "300.0.0.1:2"])
def test_a_limit_of_what_is_no_address_prevents_the_start(tmp_path: Path, wrong: str) -> None:
    """Kafka resolves names, once."""
    with pytest.raises(ConfigError, match=r"max\.connections\.per\.ip\.overrides"):
        new_node(tmp_path, {"max.connections.per.ip.overrides": wrong})


async def test_an_address_may_have_a_limit_of_its_own(tmp_path: Path) -> None:
    settings = {"max.connections.per.ip": 1, "max.connections.per.ip.overrides": "127.0.0.1:2, [::1]:5"}
    async with (
        running_node(tmp_path, settings) as node,
        Client.connect(node) as first,
        Client.connect(node) as second,
        Client.connect(node) as third,
    ):
        assert await first.answers()
        assert await second.answers()
        assert await third.is_closed()
