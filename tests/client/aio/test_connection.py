"""Claims about one connection: order, loss, and answers that cannot be."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable

import pytest

from einmal.client.aio.connection import Connection, Disconnected
from einmal.client.apis import ApiKey
from einmal.wire.messages import RequestHeader, decode_response, encode_request
from tests.client.aio.scripted_broker import Answer, ScriptedBroker, Session

HEARTBEAT = (ApiKey.HEARTBEAT, 3)
BODY = encode_request(*HEARTBEAT, {"group_id": "g"})


def with_connection(answer: Answer, body: Callable[[Connection, ScriptedBroker], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(20), ScriptedBroker(answer) as broker:
            host, port = broker.bootstrap.split(":")
            _transport, connection = await asyncio.get_running_loop().create_connection(
                lambda: Connection("broker", "me"), host, int(port)
            )
            await body(connection, broker)
            connection.close()

    asyncio.run(run())


def send(connection: Connection, timeout_ms: int = 10_000) -> asyncio.Future:  # type: ignore[type-arg]
    return connection.send(*HEARTBEAT, (BODY,), timeout_ms)


def test_answers_are_given_to_the_requests_in_order() -> None:
    def answer(session: Session, header: RequestHeader, _request: bytes) -> None:
        session.answer(header, {"throttle_time": header.correlation_id})

    async def body(connection: Connection, broker: ScriptedBroker) -> None:
        futures = [send(connection) for _ in range(5)]
        assert connection.in_flight == 5
        throttled = [
            decode_response(*HEARTBEAT, (await each).frame, (await each).position).throttle_time for each in futures
        ]
        assert [each.microseconds for each in throttled] == [0, 1_000, 2_000, 3_000, 4_000]
        assert [each.client_id for each in broker.requests] == ["me"] * 5

    with_connection(answer, body)


def test_a_request_without_an_answer_in_time_loses_the_connection_and_all_behind_it() -> None:
    async def body(connection: Connection, _broker: ScriptedBroker) -> None:
        first, second = send(connection, timeout_ms=50), send(connection)
        for future in (first, second):
            with pytest.raises(Disconnected, match="no answer within 50 ms") as caught:
                await future
            assert caught.value.was_sent
        assert not connection.is_open
        with pytest.raises(Disconnected) as caught:
            await send(connection)
        assert not caught.value.was_sent

    with_connection(lambda *_: None, body)


def test_a_broker_that_hangs_up_fails_what_was_asked() -> None:
    async def body(connection: Connection, _broker: ScriptedBroker) -> None:
        with pytest.raises(Disconnected, match="closed by the broker"):
            await send(connection)

    with_connection(lambda session, *_: session.transport.close(), body)


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
def test_a_broken_answer_loses_the_connection(nonsense: bytes) -> None:
    async def body(connection: Connection, _broker: ScriptedBroker) -> None:
        with pytest.raises(Disconnected):
            await send(connection)
        assert not connection.is_open

    with_connection(lambda session, *_: session.transport.write(nonsense), body)


def test_a_cancelled_request_does_not_disturb_those_behind_it() -> None:
    async def body(connection: Connection, _broker: ScriptedBroker) -> None:
        first, second = send(connection), send(connection)
        first.cancel()
        assert (await second).frame

    with_connection(lambda session, header, _request: session.answer(header, {}), body)
