"""A broker with few file descriptors, and clients that make it open many files and connections."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

import pytest

from einmal.cli.start.file_descriptors import Shares, shares
from einmal.client.aio import Producer
from einmal.types import ErrorCode
from einmal.wire import produce
from einmal.wire.messages import response_body_position
from einmal.wire.record_batch import decode_records, iter_headers
from tests.broker.nodes import Client, batch
from tests.cli.broker_process import BrokerProcess

LIMIT: Final = 256
SEGMENTS: Final = 2_000
PARTITIONS: Final = 300


def test_connections_have_at_most_half_of_what_there_is() -> None:
    assert shares(1_000_064, [10_000]) == Shares(990_000, (10_000,))
    assert shares(1_064, [10_000]) == Shares(500, (500,))
    assert shares(1_064, [10_000, 3]) == Shares(747, (250, 3))
    assert shares(0, [10_000, 10_000]) == Shares(16, (8, 8))


def in_use(broker: BrokerProcess) -> int:
    return len(os.listdir(f"/proc/{broker.process.pid}/fd"))


async def write_segments(client: Client) -> None:
    """As many segments as batches."""
    await client.create_topic("small", internal_segment_bytes="100", retention_ms="-1")
    for number in range(SEGMENTS):
        request = produce.ProduceRequest(None, 1, 600_000, [("small", [(0, batch(b"%d" % number))])])
        client.send(0, 9, b"".join(produce.encode_produce_request(9, request)))
        if number % 100 == 99:
            for _ in range(100):
                answer = await client.receive()
                position = response_body_position(0, 9, answer)
                produced = produce.decode_produce_response(9, answer, position).topics[0][1][0]
                assert produced.error_code is ErrorCode.none


async def values_of(client: Client, topic: str) -> list[bytes]:
    values: list[bytes] = []
    while records := bytes((await client.fetch(topic, len(values))).records or b""):
        for position, header in iter_headers(records):
            values += [record.value or b"" for record in decode_records(records, position, header)]
    return values


async def check_service(broker: BrokerProcess, name: str) -> None:
    """New topics, more partitions than descriptors, transactions, and new clients."""
    async with Client.connect_to(broker.port) as client:
        await client.create_topic(name, PARTITIONS)
        for partition in range(PARTITIONS):
            produced = await client.produce(name, batch(b"v"), partition=partition)
            assert produced.error_code is ErrorCode.none
    async with Producer(bootstrap_servers=broker.bootstrap, transactional_id=name) as producer, producer.transaction():
        for partition in range(PARTITIONS):
            producer.send(name, b"in a transaction", partition=partition)
    for _ in range(LIMIT):
        async with Client.connect_to(broker.port) as client:
            assert (await client.produce(name, batch(b"v"))).error_code is ErrorCode.none
            assert in_use(broker) <= LIMIT


@pytest.mark.long
@pytest.mark.time_limit(180)
async def test_segments_without_number_leave_descriptors_for_everything_else(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, open_files=LIMIT) as broker:
        broker.wait_until_ready()
        async with Client.connect_to(broker.port) as client:
            await write_segments(client)
            await check_service(broker, "before")
        broker.process.kill()
    with BrokerProcess(tmp_path, open_files=LIMIT) as broker:
        broker.wait_until_ready()
        await check_service(broker, "after")
        async with Client.connect_to(broker.port) as client:
            assert await values_of(client, "small") == [b"%d" % number for number in range(SEGMENTS)]
        status, errors = broker.stop()
    assert status == 0, errors
    assert '"level": "error"' not in errors
    assert f"{LIMIT} file descriptors: up to 96 for files of logs, 96 for connections" in errors


@pytest.mark.system
@pytest.mark.time_limit(90)
async def test_connections_without_number_leave_descriptors_for_files(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, "-X", "max.connections=5000", open_files=LIMIT) as broker:
        broker.wait_until_ready()
        writers = []
        for _ in range(2 * LIMIT):
            with suppress(OSError):
                writers.append((await asyncio.open_connection("127.0.0.1", broker.port))[1])
        is_served = False
        while not is_served:
            # Connections are replaced once they have been idle for a second.
            with suppress(OSError, asyncio.IncompleteReadError):
                async with Client.connect_to(broker.port) as client:
                    await client.create_topic("t", PARTITIONS)
                    for partition in range(PARTITIONS):
                        assert (await client.produce("t", batch(b"v"), partition=partition)).error_code == 0
                    is_served = True
        assert in_use(broker) <= LIMIT
        for writer in writers:
            writer.close()
        status, errors = broker.stop()
    assert status == 0, errors
    assert '"level": "error"' not in errors
    assert (
        "listener PLAINTEXT has up to 96 connections, not max.connections=5000: the limit of file descriptors" in errors
    )
