"""Claims about a client that no broker has answered yet: it soon raises an error with the reason."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import pytest

from einmal.client.aio import Admin, Consumer, Producer
from einmal.client.errors import KafkaError, NoBrokerReachable
from einmal.types import TopicPartition
from einmal.wire.messages import RequestHeader
from tests.client.aio.scripted_broker import ScriptedBroker, Session
from tests.ports import loopback_ports


@contextlib.asynccontextmanager
async def stranger(says: bytes, *, hangs_up: bool = True) -> AsyncIterator[str]:
    """Something that listens, and is no Kafka broker."""

    open_writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        open_writers.append(writer)
        await reader.read(1)
        writer.write(says)
        if hangs_up:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        host, port = server.sockets[0].getsockname()[:2]
        yield f"{host}:{port}"
    finally:
        server.close()
        for writer in open_writers:
            writer.transport.abort()
        # A transport that is not closed in its own loop warns from its finalizer.
        await asyncio.sleep(0)


def closed_port() -> str:
    (port,) = loopback_ports(1)
    return f"127.0.0.1:{port}"


LONG_MS: Final = 1_000_000


async def list_topics(bootstrap: str) -> None:
    async with Admin(bootstrap_servers=bootstrap, default_api_timeout_ms=LONG_MS) as admin:
        await admin.list_topics()


async def send(bootstrap: str) -> None:
    async with Producer(bootstrap_servers=bootstrap, max_block_ms=LONG_MS, delivery_timeout_ms=LONG_MS) as producer:
        await producer.send("t", b"v")


async def begin(bootstrap: str) -> None:
    settings: dict[str, Any] = {"transactional_id": "x", "max_block_ms": LONG_MS}
    async with Producer(bootstrap_servers=bootstrap, **settings) as producer, producer.transaction():
        pass


async def poll_in_group(bootstrap: str) -> None:
    async with Consumer(bootstrap_servers=bootstrap, group_id="g", default_api_timeout_ms=LONG_MS) as consumer:
        consumer.subscribe(["t"])
        async for _ in consumer:
            pass


async def poll_assigned(bootstrap: str) -> None:
    async with Consumer(bootstrap_servers=bootstrap, default_api_timeout_ms=LONG_MS) as consumer:
        consumer.assign([TopicPartition("t", 0)])
        async for _ in consumer:
            pass


USES = [list_topics, send, begin, poll_in_group, poll_assigned]


@pytest.mark.parametrize("use", USES)
async def test_no_broker_reachable_is_reported_soon(use: Callable[[str], Awaitable[None]]) -> None:
    """Long before what a call may take, which is longer than this test may."""
    bootstrap = f"{closed_port()},{closed_port()}"
    with pytest.raises(NoBrokerReachable, match="einmal start") as caught:
        await use(bootstrap)
    assert all(f"{each}: connection refused" in str(caught.value) for each in bootstrap.split(","))


@pytest.mark.parametrize(
    ("says", "expected"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "the answer is HTTP"),
        (b"\x15\x03\x03\x00\x02\x02\x46", "set security.protocol to SSL or SASL_SSL"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "begins with 'SSH-2.0-'"),
        (b"", "gave no answer to ApiVersions"),
        (b"\x00\x00\x00\x04\xff\xff\xff\xff", "came where 0 was due"),
        (b"\x00\x00\x00\x0a\x00\x00\x00\x00\x00\x00\x7f\xff\xff\xff", "Truncated|Malformed|array|length"),
    ],
)
async def test_what_listens_on_a_port_that_is_not_kafkas_is_named(says: bytes, expected: str) -> None:
    async with stranger(says) as bootstrap:
        with pytest.raises(NoBrokerReachable, match=expected):
            await list_topics(bootstrap)


async def test_a_port_that_never_answers_is_reported() -> None:
    async with (
        stranger(b"", hangs_up=False) as bootstrap,
        Admin(bootstrap_servers=bootstrap, request_timeout_ms=200, bootstrap_timeout_ms=300) as admin,
    ):
        with pytest.raises(NoBrokerReachable, match="no answer within 200 ms; it gave no answer to ApiVersions"):
            await admin.list_topics()


async def test_a_consumer_that_waits_for_the_first_answer_names_the_address() -> None:
    """Its poll does not wait for the attempt, which lasts longer than bootstrap.timeout.ms."""
    async with (
        stranger(b"", hangs_up=False) as bootstrap,
        Consumer(bootstrap_servers=bootstrap, group_id="g", bootstrap_timeout_ms=300) as consumer,
    ):
        consumer.subscribe(["t"])
        with pytest.raises(NoBrokerReachable, match="no answer yet; it gave no answer to ApiVersions") as caught:
            while True:
                await consumer.poll(100)
        assert bootstrap in str(caught.value)


async def test_a_host_that_no_dns_knows_is_named() -> None:
    with pytest.raises(NoBrokerReachable, match=r"no-such-host.invalid:9092: the host's name is not known"):
        await list_topics("no-such-host.invalid:9092")


async def test_a_client_that_has_met_a_broker_keeps_trying_when_all_are_gone() -> None:
    async with ScriptedBroker(lambda session, header, _: session.answer(header, broker.metadata())) as broker:
        admin = Admin(bootstrap_servers=broker.bootstrap, bootstrap_timeout_ms=0, default_api_timeout_ms=700)
        has_met_one = False
        while not has_met_one:
            # A busy machine may not answer in so short a time.
            with contextlib.suppress(KafkaError):
                await admin.list_topics()
                has_met_one = True
    start = time.monotonic()
    with pytest.raises(KafkaError) as caught:
        await admin.list_topics()
    assert not isinstance(caught.value, NoBrokerReachable)
    assert time.monotonic() - start >= 0.6
    await admin.close()


def broker_that_advertises(address: str) -> ScriptedBroker:
    """Its metadata name another broker, at ``address``, as the leader of the topic."""

    def answer(session: Session, header: RequestHeader, _request: bytes) -> None:
        host, port = address.split(":")
        partition = {"partition_index": 0, "leader_id": 7, "replica_nodes": [7], "isr_nodes": [7]}
        brokers = [{"node_id": 7, "host": host, "port": int(port)}]
        session.answer(header, {"brokers": brokers, "topics": [{"name": "t", "partitions": [partition]}]})

    return ScriptedBroker(answer)


async def test_an_advertised_address_that_cannot_be_reached_is_named_with_the_setting() -> None:
    wrong = closed_port()
    async with (
        broker_that_advertises(wrong) as broker,
        Admin(bootstrap_servers=broker.bootstrap, default_api_timeout_ms=500) as admin,
    ):
        told = ""
        while "advertises" not in told:
            # In so short a time a busy machine may not have tried.
            with pytest.raises(KafkaError) as caught:
                await admin.list_offsets({TopicPartition("t", 0): -1})
            told = str(caught.value)
        assert f"broker 7 advertises {wrong}: connection refused" in told
        assert "advertised.listeners" in told


async def test_a_consumer_warns_once_of_an_advertised_address_that_cannot_be_reached(
    caplog: pytest.LogCaptureFixture,
) -> None:
    wrong = closed_port()
    async with broker_that_advertises(wrong) as broker, Consumer(bootstrap_servers=broker.bootstrap) as consumer:
        consumer.assign([("t", 0)])
        consumer.seek(TopicPartition("t", 0), 0)
        while not caplog.records:
            assert await consumer.poll(100) == []
        # It tries again meanwhile.
        assert await consumer.poll(1_000) == []
    (line,) = [each.getMessage() for each in caplog.records]
    assert line.startswith(f"broker 7 advertises {wrong}: connection refused; check advertised.listeners")
