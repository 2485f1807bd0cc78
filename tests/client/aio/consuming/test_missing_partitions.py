"""Assigned partitions that do not exist are reported, and read once they do, against our broker."""

from __future__ import annotations

import asyncio

import pytest

from einmal.client import NewTopic
from einmal.client.aio import Admin, Consumer, Producer
from einmal.types import TopicPartition
from tests.client.conftest import NameFactory
from tests.interop.conftest import NodeFactory
from tests.suite.patience import patient

pytestmark = pytest.mark.system


def reported(caplog: pytest.LogCaptureFixture) -> list[str]:
    events = [record for record in caplog.records if getattr(record, "event", "") == "assigned_partitions_missing"]
    assert all("UNKNOWN_TOPIC_OR_PARTITION" in record.getMessage() for record in events)
    return [record.fields["partitions"] for record in events]  # type: ignore[attr-defined]


async def test_missing_partitions_are_reported_once_and_read_when_they_are_created(
    node_of: NodeFactory, name: NameFactory, caplog: pytest.LogCaptureFixture
) -> None:
    bootstrap, narrow, missing = node_of("einmal", 2).bootstrap, name("narrow"), name("missing")
    settings = {"bootstrap_servers": bootstrap, "auto_offset_reset": "earliest", "metadata_max_age_ms": 10}
    async with (
        Admin(bootstrap_servers=bootstrap) as admin,
        Producer(bootstrap_servers=bootstrap) as producer,
        Consumer(settings, allow_auto_create_topics=False) as consumer,
        asyncio.timeout(patient(30)),
    ):
        await admin.create_topics([NewTopic(narrow, num_partitions=1)])
        await consumer.assign([TopicPartition(narrow, 0), TopicPartition(narrow, 7), TopicPartition(missing, 0)])
        while sum(line.count("client-") for line in reported(caplog)) < 2:
            assert await consumer.poll(10) == []
        for _ in range(5):
            assert await consumer.poll(20) == []
        lines = reported(caplog)
        assert sorted(", ".join(lines).split(", ")) == sorted([f"{missing}-0", f"{narrow}-7"])
        await admin.create_topics([NewTopic(missing, num_partitions=1)])
        await producer.send(missing, b"x")
        while not (records := await consumer.poll(100)):
            pass
        assert [record.value for record in records] == [b"x"]
        assert reported(caplog) == lines


async def test_missing_partitions_are_reported_while_others_have_records(
    node_of: NodeFactory, name: NameFactory, caplog: pytest.LogCaptureFixture
) -> None:
    bootstrap, busy = node_of("einmal", 2).bootstrap, name("busy")
    async with (
        Admin(bootstrap_servers=bootstrap) as admin,
        Producer(bootstrap_servers=bootstrap) as producer,
        Consumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest", metadata_max_age_ms=10) as consumer,
        asyncio.timeout(patient(30)),
    ):
        await admin.create_topics([NewTopic(busy, num_partitions=1)])
        for _ in range(200):
            producer.send(busy, b"x")
        await producer.flush()
        await consumer.assign([TopicPartition(busy, 0)])
        assert await consumer.poll(10_000, max_records=1)
        await consumer.assign([TopicPartition(busy, 0), TopicPartition(busy, 7)])
        before = consumer._cluster.refreshed_at_ms
        while consumer._cluster.refreshed_at_ms == before:
            await asyncio.sleep(0.02)
            assert await consumer.poll(10_000, max_records=1)
        assert await consumer.poll(10_000, max_records=1)
        assert reported(caplog) == [f"{busy}-7"]
