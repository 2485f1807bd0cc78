"""A member of a group whose broker is away, against our broker."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from einmal.client.aio import Consumer, Producer
from einmal.client.errors import KafkaError
from tests.interop.einmal_broker import EinmalBroker
from tests.suite.patience import patient

pytestmark = [pytest.mark.system, pytest.mark.time_limit(60)]


async def test_heartbeats_resume_after_an_outage_longer_than_a_call_may_take(tmp_path: Path) -> None:
    broker = EinmalBroker(tmp_path)
    broker.start()
    try:
        async with Producer(bootstrap_servers=broker.bootstrap) as producer:
            await producer.send("t", b"x")
        settings: dict[str, Any] = {
            "heartbeat_interval_ms": 100,
            "default_api_timeout_ms": 300,
            "auto_offset_reset": "earliest",
        }
        async with Consumer(bootstrap_servers=broker.bootstrap, group_id="g", **settings) as consumer:
            consumer.subscribe(["t"])
            async with asyncio.timeout(patient(30)):
                has_read = False
                while not has_read:
                    with suppress(KafkaError):
                        has_read = bool(await consumer.poll(200))
                assert consumer._rebalancing is not None
                membership = consumer._rebalancing.membership
                assert membership._heart is not None
                broker.kill()
                with suppress(TimeoutError):
                    await asyncio.wait_for(asyncio.shield(membership._heart), 2)
                await asyncio.to_thread(broker.start)
                is_polled = False
                while not is_polled:
                    with suppress(KafkaError):
                        await consumer.poll(200)
                        is_polled = True
                assert not membership._heart.done() or membership.core.must_join
    finally:
        broker.stop()
