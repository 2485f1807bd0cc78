"""Records that a producer gives up are counted in the log: nobody has to ask their futures."""

from __future__ import annotations

import asyncio
import gc

import pytest

from einmal.client.aio import Producer
from einmal.client.aio.producing.unwritten import UnwrittenRecords
from einmal.client.apis import ApiKey
from einmal.client.errors import ClientClosed, RecordTooLarge
from einmal.types import Instant
from tests.client.aio.test_strange_answers import StrangeBroker
from tests.suite.patience import patient

HEAD = "Records without an acknowledgement: "


class SetClock:
    monotonic_ms = 0

    def now(self) -> Instant:
        return Instant(0, self.monotonic_ms)


def lines(log: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in log.records]


@pytest.mark.parametrize("flush", [True, False], ids=["flushed", "closed at once"])
async def test_records_whose_futures_nobody_asks_are_counted(flush: bool, caplog: pytest.LogCaptureFixture) -> None:
    # It has no producer id to give, so no record can be sent.
    broker = StrangeBroker({})
    broker.without = ApiKey.INIT_PRODUCER_ID
    async with asyncio.timeout(patient(20)), broker:
        producer = Producer(bootstrap_servers=broker.bootstrap, delivery_timeout_ms=60_000)
        for _ in range(3):
            producer.send("t", b"v")
        await producer.close(flush=flush)
    gc.collect()
    expected = f"{HEAD}3 of topic t. The first error: {'UNSUPPORTED_VERSION' if flush else 'ClientClosed'}"
    assert [each[: len(expected)] for each in lines(caplog)] == [expected]


async def test_records_of_a_topic_that_cannot_be_looked_up_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    async with asyncio.timeout(patient(20)), StrangeBroker({ApiKey.METADATA: {}}) as broker:
        producer = Producer(bootstrap_servers=broker.bootstrap, max_block_ms=300)
        producer.send("nowhere", b"v")
        producer.send("nowhere", b"v")
        await producer.close()
    assert [each.startswith(f"{HEAD}2 of topic nowhere. ") for each in lines(caplog)] == [True]


def test_the_first_records_are_logged_at_once_and_later_ones_together(caplog: pytest.LogCaptureFixture) -> None:
    clock = SetClock()
    unwritten = UnwrittenRecords(clock)
    unwritten.add("a", 2, ClientClosed())
    assert len(lines(caplog)) == 1
    clock.monotonic_ms = 59_999
    for topic in "abcdefg":
        unwritten.add(topic, 1, RecordTooLarge())
        unwritten.add("z", 1_000, ClientClosed())
    assert len(lines(caplog)) == 1
    clock.monotonic_ms = 60_000
    unwritten.add("a", 1, ClientClosed())
    assert len(lines(caplog)) == 2
    told = lines(caplog)[1]
    assert told.startswith(f"{HEAD}7,000 of topic z, 2 of topic a, ")
    assert "3 of 3 other topics" in told
    assert "first error: RecordTooLarge" in told
    unwritten.log()
    assert len(lines(caplog)) == 2
