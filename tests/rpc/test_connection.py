"""Claims about one connection: order, loss, and answers that cannot be."""

from __future__ import annotations

import asyncio
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop

from einmal.client.apis import ApiKey
from einmal.rpc.connection import Connection, NoAnswer
from einmal.wire.messages import RequestHeader
from tests.client.aio.scripted_broker import Answer, ScriptedBroker, Session
from tests.security.certificates import Authority
from tests.suite.patience import patient
from tests.wire.mapped import decode_response, encode_request

HEARTBEAT = (ApiKey.HEARTBEAT, 3)
BODY = encode_request(*HEARTBEAT, {"group_id": "g"})


@asynccontextmanager
async def connection_to(answer: Answer) -> AsyncIterator[tuple[Connection, ScriptedBroker]]:
    async with asyncio.timeout(patient(20)), ScriptedBroker(answer) as broker:
        host, port = broker.bootstrap.split(":")
        _transport, connection = await asyncio.get_running_loop().create_connection(
            lambda: Connection("broker", "me"), host, int(port)
        )
        yield connection, broker
        connection.close()


def send(connection: Connection, timeout_ms: int = 10_000) -> asyncio.Future:  # type: ignore[type-arg]
    return connection.send(*HEARTBEAT, (BODY,), timeout_ms)


async def test_responses_are_matched_to_requests_in_order() -> None:
    def answer(session: Session, header: RequestHeader, _request: bytes) -> None:
        session.answer(header, {"throttle_time": header.correlation_id})

    async with connection_to(answer) as (connection, broker):
        futures = [send(connection) for _ in range(5)]
        assert connection.in_flight == 5
        throttled = [
            decode_response(*HEARTBEAT, (await each).frame, (await each).position).throttle_time for each in futures
        ]
        assert [each.microseconds for each in throttled] == [0, 1_000, 2_000, 3_000, 4_000]
        assert [each.client_id for each in broker.requests] == ["me"] * 5


async def test_a_request_without_an_answer_in_time_loses_the_connection_and_all_behind_it() -> None:
    async with connection_to(lambda *_: None) as (connection, _broker):
        first, second = send(connection, timeout_ms=50), send(connection)
        for future in (first, second):
            with pytest.raises(NoAnswer, match="no answer within 50 ms") as caught:
                await future
            assert caught.value.was_sent
        assert not connection.is_open
        with pytest.raises(NoAnswer) as caught:
            await send(connection)
        assert not caught.value.was_sent


async def test_a_closed_connection_fails_its_pending_requests() -> None:
    async with connection_to(lambda session, *_: session.transport.close()) as (connection, _broker):
        with pytest.raises(NoAnswer, match="closed by the broker"):
            await send(connection)


@pytest.mark.parametrize(
    "nonsense",
    [
        struct.pack(">ii", 4, 77),
        struct.pack(">i", -1),
        struct.pack(">i", 2**31 - 1),
        struct.pack(">iH", 2, 1),
    ],
    ids=["another correlation id", "negative length", "enormous length", "no correlation id"],
)
async def test_a_broken_answer_loses_the_connection(nonsense: bytes) -> None:
    async with connection_to(lambda session, *_: session.transport.write(nonsense)) as (connection, _broker):
        with pytest.raises(NoAnswer):
            await send(connection)
        assert not connection.is_open


async def test_a_cancelled_request_does_not_disturb_those_behind_it() -> None:
    async with connection_to(lambda session, header, _request: session.answer(header, {})) as (connection, _broker):
        first, second = send(connection), send(connection)
        first.cancel()
        assert (await second).frame


def throttled(session: Session, header: RequestHeader, _request: bytes) -> None:
    session.answer(header, {"throttle_time": 0})


async def test_requests_are_held_back_during_an_authentication_and_keep_their_order() -> None:
    async with connection_to(throttled) as (connection, broker):
        connection.hold()
        held = [send(connection) for _ in range(3)]
        await connection.send(*HEARTBEAT, (BODY,), 10_000, is_authentication=True)
        assert len(broker.requests) == 1
        assert connection.in_flight == 3
        assert not any(each.done() for each in held)
        held[1].cancel()
        connection.release()
        await asyncio.gather(held[0], held[2])
        assert len(broker.requests) == 3, "a request that nobody waits for any more is not sent"
        await send(connection)


async def test_a_request_that_was_held_back_when_the_connection_was_lost_has_not_been_sent() -> None:
    async with connection_to(throttled) as (connection, broker):
        connection.hold()
        held = send(connection)
        assert connection.send_unanswered(*HEARTBEAT, (BODY,))
        connection.abort("the authentication failed")
        with pytest.raises(NoAnswer, match="the authentication failed") as caught:
            await held
        assert not caught.value.was_sent
        assert broker.requests == []


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_closing_an_encrypted_connection_cuts_off_no_request_that_has_no_answer(
    new_loop: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path
) -> None:
    """As a producer with acks=0 does; the broker reads slowly."""
    authority = Authority()
    certificate = authority.issue(tmp_path, "broker")
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(certificate.certificate, certificate.key)
    client = ssl.create_default_context(cadata=authority.pem)
    request = encode_request(*HEARTBEAT, {"group_id": "g" * 10_000})

    async def main() -> None:
        begun, arrived = asyncio.Event(), asyncio.Event()

        def answer(session: Session, header: RequestHeader, _request: bytes) -> None:
            if header.correlation_id == 0:
                session.transport.pause_reading()
                begun.set()
            if header.correlation_id == 5:
                arrived.set()

        async with asyncio.timeout(patient(20)), ScriptedBroker(answer, tls=server) as broker:
            # More than both kernel buffers take, and less than makes a transport ask for a pause.
            broker.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
            host, port = broker.bootstrap.split(":")
            transport, connection = await asyncio.get_running_loop().create_connection(
                lambda: Connection("broker", "me"), host, int(port), ssl=client
            )
            transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4_096)
            connection.send_unanswered(*HEARTBEAT, (BODY,))
            await begun.wait()
            for _ in range(5):
                connection.send_unanswered(*HEARTBEAT, (request,))
            connection.close()
            asyncio.get_running_loop().call_later(0.05, broker.sessions[0].transport.resume_reading)
            await arrived.wait()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(main())
