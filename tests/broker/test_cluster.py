"""Three nodes on real files and sockets: they find each other, and no stop of one of them is noticed for long."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from einmal.broker.config import ConfigError
from einmal.broker.front.apis import On, entries_on
from einmal.types import ErrorCode
from tests.broker.cluster import Cluster, running_cluster
from tests.broker.nodes import Client, batch
from tests.suite.patience import patient

_NEVER_MS = 600_000
"""Where nothing may wait until the session of a node has ended."""

TOPIC_FIELDS = {"num_partitions": 3, "replication_factor": 3, "configs": []}


async def create(client: Client, *names: str) -> list[Any]:
    topics = [{"name": name, **TOPIC_FIELDS} for name in names]
    answer = await client.call(19, 7, {"topics": topics, "timeout": 60_000, "validate_only": False})
    return [topic.error_code for topic in answer.topics]


async def test_a_topic_can_be_made_through_any_broker_and_all_see_the_same_cluster(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        controller = cluster.active_controller()
        for node_id, node in cluster.nodes.items():
            async with Client.connect(node) as client:
                assert await create(client, f"t{node_id}") == [ErrorCode.none]
                assert await create(client, f"t{node_id}") == [ErrorCode.topic_already_exists]
        await cluster.until(lambda: all(cluster.leader(f"t{each}", 2) for each in (1, 2, 3)))
        told = []
        for node in cluster.nodes.values():
            async with Client.connect(node) as client:
                answer = await client.call(3, 12, {"topics": None})
                assert answer.controller_id == controller
                assert sorted(broker.node_id for broker in answer.brokers) == [1, 2, 3]
                told.append(answer.topics)
        assert told[0] == told[1] == told[2]
        leaders = [partition.leader_id for topic in told[0] for partition in topic.partitions]
        assert sorted(set(leaders)) == [1, 2, 3]


async def test_acknowledged_records_survive_their_leader_and_writing_resumes(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        async with Client.connect(cluster.nodes[1]) as client:
            await create(client, "t")
        assert await cluster.produce("t", b"one") == 0
        first = cluster.leader("t")
        await cluster.stop(first)
        assert await cluster.produce("t", b"two") == 1
        assert first not in cluster.isr("t")
        await cluster.start(first)
        await cluster.until(lambda: cluster.isr("t") == {1, 2, 3})
        second = cluster.leader("t")
        assert second != first
        await cluster.stop(second)
        assert await cluster.produce("t", b"three") == 2
        assert await cluster.read("t") == [b"one", b"two", b"three"]


async def test_without_its_active_controller_the_cluster_has_another_one(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        first = cluster.active_controller()
        await cluster.stop(first)
        second = await cluster.until(cluster.active_controller)
        assert second != first
        other = next(node for node_id, node in cluster.nodes.items() if node_id != second)
        async with Client.connect(other) as client:
            topic = {"name": "t", "num_partitions": 1, "replication_factor": 2, "configs": []}
            answer = await client.call(19, 7, {"topics": [topic], "timeout": 60_000, "validate_only": False})
            assert answer.topics[0].error_code is ErrorCode.none
        assert await cluster.produce("t", b"one") == 0


async def test_all_stop_together_and_come_back_with_what_they_had(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, broker_session_timeout_ms=_NEVER_MS)
    await cluster.start()
    async with Client.connect(cluster.nodes[1]) as client:
        await create(client, "t")
    for partition in range(3):
        await cluster.produce("t", b"one", partition)
    async with asyncio.timeout(patient(4)):
        await cluster.stop()
    await cluster.start()
    for partition in range(3):
        await cluster.produce("t", b"two", partition)
        assert await cluster.read("t", partition) == [b"one", b"two"]
    async with asyncio.timeout(patient(4)):
        await cluster.stop()


async def test_controllers_of_their_own_serve_brokers_that_are_none(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, brokers=(1, 2, 3), controllers=(11, 12, 13)) as cluster:
        assert cluster.active_controller() in (11, 12, 13)
        async with Client.connect(cluster.nodes[2]) as client:
            assert await create(client, "t") == [ErrorCode.none]
            answer = await client.call(60, 1, {"include_cluster_authorized_operations": False, "endpoint_type": 1})
            assert sorted(broker.broker_id for broker in answer.brokers) == [1, 2, 3]
            versions = await client.call(18, 3, {"client_software_name": "t", "client_software_version": "1"})
            assert [each.api_key for each in versions.api_keys] == [each.key for each in entries_on(On.BROKERS)]
        assert await cluster.produce("t", b"one") == 0
        await cluster.stop(cluster.active_controller(), cluster.leader("t"))
        assert await cluster.produce("t", b"two") == 1
        assert await cluster.read("t") == [b"one", b"two"]
        port = cluster.ports[cluster.active_controller()]
        async with Client.connect_to(port) as client:
            answer = await client.call(60, 1, {"include_cluster_authorized_operations": False, "endpoint_type": 2})
            assert answer.controller_id == cluster.active_controller()
            assert sorted(broker.broker_id for broker in answer.brokers) == [11, 12, 13]
            versions = await client.call(18, 3, {"client_software_name": "t", "client_software_version": "1"})
            assert [each.api_key for each in versions.api_keys] == [each.key for each in entries_on(On.CONTROLLERS)]
            with pytest.raises(asyncio.IncompleteReadError):
                await client.produce("t", batch(b"not here"))


async def test_a_broker_logs_that_it_waits_for_its_controllers(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Cluster(tmp_path, brokers=(1, 2), controllers=(11, 12, 13), default_replication_factor=2)
    waiting = asyncio.gather(cluster.start(1), cluster.start(2), cluster.start(11))
    with caplog.at_level(logging.WARNING, "einmal.broker.control.broker_lifecycle"):
        await cluster.until(lambda: "waits for an active controller" in caplog.text)
    assert not waiting.done()
    await cluster.start(12)
    await waiting
    async with Client.connect(cluster.nodes[1]) as client:
        topic = {"name": "t", "num_partitions": 1, "replication_factor": 2, "configs": []}
        await client.call(19, 7, {"topics": [topic], "timeout": 60_000, "validate_only": False})
    assert await cluster.produce("t", b"one") == 0
    await cluster.stop()


async def test_a_start_that_waits_can_be_given_up(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, broker_session_timeout_ms=_NEVER_MS)
    starting = asyncio.ensure_future(cluster.start(1))
    await cluster.until(lambda: 1 in cluster.nodes and cluster.nodes[1].lifecycle._task is not None)
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    async with asyncio.timeout(patient(2)):
        await cluster.stop(1)
    await cluster.start()
    await cluster.stop()


async def test_a_broker_of_another_cluster_is_refused_loudly(tmp_path: Path) -> None:
    other = Cluster(tmp_path, brokers=(4,), controllers=(4,), min_insync_replicas=1)
    await other.start()
    foreign_offset = other.nodes[4].metadata.next_offset
    await other.stop()
    async with running_cluster(tmp_path, controllers=(11,)) as cluster:
        cluster.brokers = (1, 2, 3, 4)
        with pytest.raises(ConfigError, match="INCONSISTENT_CLUSTER_ID"):
            await cluster.start(4)
        # It has taken nothing of this cluster's metadata for its own.
        assert cluster.nodes[4].metadata.next_offset <= foreign_offset
        assert 4 not in cluster.nodes[1].metadata.image.brokers
