"""Claims about which topic a Fetch asks for, where the wanted one may have been deleted and created again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from uuid import UUID

import pytest

from einmal.client import apis
from einmal.client.aio.consuming.fetching import FetchLimits, fetch
from einmal.client.aio.network.cluster import Cluster
from einmal.client.apis import ApiKey
from einmal.client.config import ConsumerSettings, parse
from einmal.client.cores.metadata_cache import NO_TOPIC_ID
from einmal.seams import SystemClock, TcpNetwork
from einmal.types import ErrorCode, IsolationLevel, TopicPartition
from einmal.wire.fetch import FetchPartition
from einmal.wire.messages import RequestHeader
from tests.client.aio.scripted_broker import ScriptedBroker, Session
from tests.suite.patience import patient

T0 = TopicPartition("t", 0)
WANTED, OTHER = UUID(int=1), UUID(int=2)


class OneTopic(ScriptedBroker):
    """Has topic ``t`` under an id, and answers each Fetch of partition 0 with a high watermark."""

    def __init__(self, topic_id: UUID | None) -> None:
        super().__init__(self._answer_one)
        self.topic_id = topic_id
        """None: the topic is deleted."""

    def _answer_one(self, session: Session, header: RequestHeader, _request: bytes) -> None:
        if header.api_key == ApiKey.METADATA:
            session.answer(header, self.metadata() | {"topics": [self._topic()]})
        else:
            partition = {"partition_index": 0, "high_watermark": 7, "records": None}
            topic = {"topic": "t", "topic_id": self.topic_id or NO_TOPIC_ID, "partitions": [partition]}
            session.answer(header, {"responses": [topic]})

    def _topic(self) -> dict[str, Any]:
        if self.topic_id is None:
            return {"name": "t", "error_code": ErrorCode.unknown_topic_or_partition}
        partition = {"partition_index": 0, "leader_id": 1, "replica_nodes": [1], "isr_nodes": [1]}
        return {"name": "t", "topic_id": self.topic_id, "partitions": [partition]}


@asynccontextmanager
async def cluster_with(broker: OneTopic) -> AsyncIterator[Cluster]:
    async with asyncio.timeout(patient(20)), broker:
        settings = parse(ConsumerSettings, {"bootstrap.servers": broker.bootstrap}, {})
        cluster = Cluster(settings, network=TcpNetwork(), clock=SystemClock(), source=random.Random(1))
        try:
            await cluster.refresh_metadata(["t"])
            yield cluster
        finally:
            await cluster.close()


async def fetched(cluster: Cluster) -> list[TopicPartition]:
    asked = [(T0, FetchPartition(0, 0, 1_000))]
    answer = await fetch(cluster, 1, asked, FetchLimits(IsolationLevel.READ_COMMITTED), topic_ids={"t": WANTED})
    return [each for each, _partition in answer]


async def test_a_wanted_topic_that_was_forgotten_meanwhile_is_fetched_by_its_id() -> None:
    broker = OneTopic(WANTED)
    async with cluster_with(broker) as cluster:
        del cluster.metadata.topics["t"]
        assert await fetched(cluster) == [T0]
        assert broker.requests[-1].api_version >= 13


async def test_another_topic_that_the_metadata_has_is_not_fetched() -> None:
    async with cluster_with(OneTopic(OTHER)) as cluster:
        assert await fetched(cluster) == []


@pytest.mark.parametrize(
    ("then", "expected"),
    [(WANTED, [T0]), (OTHER, []), (None, []), (NO_TOPIC_ID, [T0])],
    ids=["the same", "created again", "deleted", "without ids"],
)
async def test_an_answer_by_name_counts_if_the_broker_has_the_wanted_topic_afterwards(
    monkeypatch: pytest.MonkeyPatch, then: UUID | None, expected: list[TopicPartition]
) -> None:
    monkeypatch.setattr(apis, "SPOKEN", {**apis.SPOKEN, ApiKey.FETCH: (4, 12)})
    broker = OneTopic(WANTED)
    async with cluster_with(broker) as cluster:
        broker.topic_id = then
        assert await fetched(cluster) == expected
        assert [each.api_key for each in broker.requests[-2:]] == [ApiKey.FETCH, ApiKey.METADATA]
