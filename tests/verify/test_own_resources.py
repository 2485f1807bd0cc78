"""Claims about what a run makes for itself: brokers come back, and what somebody else has made stays."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from einmal.chaos.own_cluster import OwnCluster, Surroundings, mix_of
from einmal.client import NewTopic
from einmal.client.aio import Admin
from einmal.client.errors import TopicAlreadyExists
from einmal.local.processes import LocalCluster
from einmal.verify.scratch import Scratch
from tests.interop.einmal_broker import EinmalBroker
from tests.suite.shared import shared, unique

pytestmark = [pytest.mark.system, pytest.mark.slow]

_CLEAN_RESTART_SEED = 0


async def test_a_run_that_ends_while_a_broker_stops_brings_it_back(tmp_path: Path) -> None:
    own = OwnCluster(LocalCluster.on_loopback(tmp_path, 1), "einmal", mix_of(["brokers"]), Surroundings())
    own.start()
    try:
        noted: list[str] = []
        began = asyncio.Event()

        def note(text: str) -> None:
            noted.append(text)
            began.set()

        fault = asyncio.create_task(own.inject(random.Random(_CLEAN_RESTART_SEED), note))
        # The broker is asked to stop in the same step of the loop.
        await began.wait()
        fault.cancel()
        await asyncio.wait([fault])
        assert noted == ["clean restart of broker 1"]
        await own.calm()
        async with Admin({"bootstrap.servers": own.bootstrap_servers}) as admin:
            assert len((await admin.describe_cluster()).brokers) == 1
    finally:
        own.close()


async def test_a_topic_that_somebody_makes_in_between_is_not_removed() -> None:
    broker: EinmalBroker = shared("einmal")
    config = {"bootstrap.servers": broker.bootstrap}
    mine, theirs = unique("mine"), unique("theirs")
    scratch = Scratch(config, {mine: 1, theirs: 1}, [])
    await scratch.check()
    async with Admin(config) as admin:
        await admin.create_topics([NewTopic(theirs, num_partitions=1)])
        with pytest.raises(TopicAlreadyExists):
            await scratch.make()
        assert await scratch.remove() == []
        names = await admin.list_topics()
        assert theirs in names
        assert mine not in names
        await admin.delete_topics([theirs])
