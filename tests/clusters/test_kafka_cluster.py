"""What a source asks of its cluster, where the cluster is not quite there. Against our broker; needs no Spark."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from einmal.client import Admin, Producer
from einmal.client.errors import RetriableError, UnknownTopic
from einmal.clusters.kafka_cluster import KafkaCluster
from einmal.types import TopicPartition
from tests.client.aio.consuming.test_unreadable_partitions import BAD, FAULTS, GOOD, two_topics
from tests.interop.einmal_broker import EinmalBroker
from tests.spark.topics import create
from tests.suite.shared import unique

pytestmark = pytest.mark.system


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[EinmalBroker]:
    broker = EinmalBroker(tmp_path)
    broker.start()
    yield broker
    broker.stop()


def test_a_broker_that_restarts_does_not_end_a_source(broker: EinmalBroker) -> None:
    topic = unique("restart")
    create(broker.bootstrap, topic, partitions=1)
    cluster = KafkaCluster({"bootstrap.servers": broker.bootstrap})
    try:
        assert cluster.partitions([topic])
        broker.kill()
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(cluster.partitions, [topic])
            broker.start()
            assert asked.result(timeout=300) == [TopicPartition(topic, 0)]
    finally:
        cluster.close()


def test_a_topic_that_is_deleted_between_two_questions_is_not_waited_for(broker: EinmalBroker) -> None:
    topic = unique("deleted")
    create(broker.bootstrap, topic, partitions=1)
    cluster = KafkaCluster({"bootstrap.servers": broker.bootstrap, "default.api.timeout.ms": "120000"})
    try:
        partitions = cluster.partitions([topic])
        with Admin({"bootstrap.servers": broker.bootstrap}) as admin:
            admin.delete_topics([topic])
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(cluster.latest, partitions, committed=True)
            with pytest.raises(UnknownTopic):
                asked.result(timeout=300)
    finally:
        cluster.close()


def test_a_time_is_never_found_behind_the_last_stable_offset(broker: EinmalBroker) -> None:
    topic = unique("open")
    create(broker.bootstrap, topic, partitions=1)
    partition = TopicPartition(topic, 0)
    cluster = KafkaCluster({"bootstrap.servers": broker.bootstrap})
    settings = {"bootstrap.servers": broker.bootstrap, "transactional.id": topic}
    try:
        with Producer(settings) as producer:
            producer.init_transactions()
            producer.begin_transaction()
            producer.send(topic, b"old", timestamp=1_000)
            producer.send(topic, b"young", timestamp=2_000).result(timeout=300)
            assert cluster.latest([partition], committed=False) == {partition: 2}
            assert cluster.at_times({partition: 2_000}, committed=True) == {partition: 0}
            assert cluster.at_times({partition: 2_000}, committed=False) == {partition: 1}
            producer.abort_transaction()
    finally:
        cluster.close()


@pytest.mark.parametrize("fault", ["leader that is down", "no end: not available"])
async def test_a_partition_without_an_answer_keeps_a_batch_from_no_other(fault: str) -> None:
    async with two_topics(FAULTS[fault]) as broker:
        cluster = KafkaCluster({"bootstrap.servers": broker.bootstrap, "default.api.timeout.ms": "300"})
        latest = partial(cluster.latest, [GOOD, BAD], committed=True)
        try:
            assert await asyncio.to_thread(latest, may_lack=True) == {GOOD: 0}
            # The start of a query needs all of them.
            with pytest.raises(RetriableError, match="bad-0"):
                await asyncio.to_thread(latest)
        finally:
            await asyncio.to_thread(cluster.close)
