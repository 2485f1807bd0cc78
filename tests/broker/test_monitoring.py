"""What a node exports: the figures of what was done to it, under the names that dashboards expect."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from einmal.broker.config import ConfigError, broker_config
from einmal.broker.monitoring import monitoring
from einmal.broker.monitoring.families import FAMILIES
from einmal.broker.monitoring.groups import Ends, _add_offsets
from einmal.broker.monitoring.health import why_not_ready
from einmal.broker.monitoring.page import Page
from einmal.broker.node import Node
from einmal.types import ErrorCode, ProducerEpoch, ProducerId, ProducerIdAndEpoch, TopicPartition
from einmal.wire.frames import frame
from tests.broker.cluster import Cluster, running_cluster
from tests.broker.nodes import Client, batch, new_node, running_node, until
from tests.broker.scraped import Samples, get, ready

ON = {"metrics.listeners": "0"}
SMALL = {**ON, "transaction.state.log.num.partitions": 3, "offsets.topic.num.partitions": 3}
GROUP = "g\"'\\ 1"
"""A name with every character that has to be escaped."""
TP = {"topic": "t", "partition": 0}
OFFSET_COMMIT, FIND_COORDINATOR, INIT, END = 8, 10, 22, 26


async def test_traffic_is_counted_by_topic_and_in_all(tmp_path: Path) -> None:
    async with running_node(tmp_path, ON) as node, Client.connect(node) as client:
        await client.create_topic("t")
        await client.create_topic("gone")
        sent = batch(b"one", b"two")
        await client.produce("t", sent)
        await client.produce("gone", sent)
        fetched = await client.fetch("t", 0)
        await client.call(20, 3, {"topic_names": ["gone"], "timeout": 600_000})
        await until(lambda: "gone" not in dict(node.partitions.topics))
        samples = await Samples.of(node)
    own = "kafka_server_brokertopicmetrics"
    assert samples.value(f"{own}_messagesin_total", topic="t") == 2
    assert samples.value(f"{own}_bytesin_total", topic="t") == len(sent)
    assert samples.value(f"{own}_bytesout_total", topic="t") == len(fetched.records)
    assert samples.value(f"{own}_messagesin_total", topic="gone") is None
    # A counter never falls, also where a topic is deleted.
    assert samples.value(f"{own}_messagesin_total") == 4
    assert samples.value("kafka_log_log_logendoffset", **TP) == 2
    assert samples.value("kafka_topic_partition_current_offset", **TP) == 2
    assert samples.value("kafka_server_replicamanager_leadercount") == 1
    assert samples.value("kafka_controller_kafkacontroller_activecontrollercount") == 1
    assert samples.value("kafka_server_raftmetrics_current_state", current_state="leader") == 1
    assert samples.value("kafka_network_requestmetrics_requests_total", request="Produce", version=9) == 2
    assert samples.value("kafka_network_requestmetrics_totaltimems_count", request="Fetch") == 1
    median = samples.value("kafka_network_requestmetrics_totaltimems", request="Produce", quantile=0.5)
    assert median is not None and 0 < median < 30_000


async def test_versions_that_a_client_makes_up_get_no_series(tmp_path: Path) -> None:
    async with running_node(tmp_path, ON) as node:
        for version in range(100, 110):
            async with Client.connect(node) as client:
                client.writer.write(frame(struct.pack(">hhih", 18, version, 1, -1), b""))
                await client.receive()
        samples = await Samples.of(node)
    assert "kafka_network_requestmetrics_requests_total" not in samples.names


async def test_duplicates_gaps_and_fenced_batches_are_counted(tmp_path: Path) -> None:
    first = ProducerIdAndEpoch(ProducerId(7), ProducerEpoch(0))
    later = ProducerIdAndEpoch(ProducerId(7), ProducerEpoch(1))
    async with running_node(tmp_path, ON) as node, Client.connect(node) as client:
        await client.create_topic("t")
        for _ in range(3):
            await client.produce("t", batch(b"a", producer=first, sequence=0))
        gap = await client.produce("t", batch(b"a", producer=first, sequence=5))
        await client.produce("t", batch(b"a", producer=later, sequence=0))
        zombie = await client.produce("t", batch(b"a", producer=first, sequence=1))
        samples = await Samples.of(node)
    assert (gap.error_code, zombie.error_code) == (
        ErrorCode.out_of_order_sequence_number,
        ErrorCode.invalid_producer_epoch,
    )
    assert samples.value("einmal_dedup_hits_total", topic="t") == 2
    assert samples.value("einmal_out_of_order_sequence_total", topic="t") == 1
    assert samples.value("einmal_producer_fenced_total", cause="partition") == 1
    assert samples.value("kafka_server_brokertopicmetrics_failedproducerequests_total", topic="t") == 2


async def _begin(client: Client, name: str) -> ProducerIdAndEpoch:
    await client.call(FIND_COORDINATOR, 3, {"key": name, "key_type": 1})
    identity: dict[str, Any] = {"transactional_id": name, "transaction_timeout": 60_000}
    while True:
        answer = await client.call(INIT, 5, {**identity, "producer_id": -1, "producer_epoch": -1})
        if answer.error_code is ErrorCode.none:
            return ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)
        await asyncio.sleep(0.005)


async def _end(client: Client, name: str, who: ProducerIdAndEpoch, *, committed: bool) -> ErrorCode:
    values = {"transactional_id": name, "producer_id": who.producer_id, "producer_epoch": who.producer_epoch}
    answer = await client.call(END, 5, {**values, "committed": committed})
    return ErrorCode(answer.error_code)


async def test_an_open_transaction_and_its_end_are_seen(tmp_path: Path) -> None:
    async with running_node(tmp_path, SMALL) as node, Client.connect(node) as client:
        await client.create_topic("t")
        who = await _begin(client, "orders")
        sent = batch(b"a", b"b", producer=who, sequence=0, transactional=True)
        produced = await client.produce("t", sent, version=12, name="orders")
        assert produced.error_code is ErrorCode.none
        during = await Samples.of(node)
        assert await _end(client, "orders", who, committed=True) is ErrorCode.none
        phases = node.transactions.counts.phases
        await until(lambda: sum(phases["complete"].counts) == 1)
        await _begin(client, "orders")
        stale = await _end(client, "orders", who, committed=False)
        assert stale in (ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch)
        await until(lambda: _is_stale(node))
        after = await Samples.of(node)
    assert during.value("einmal_txn_open", **TP) == 1
    assert during.value("einmal_txn_lso_lag", **TP) == 2
    assert during.value("einmal_txn_partitions_held_back") == 1
    assert during.value("kafka_cluster_partition_laststableoffsetlag", **TP) == 2
    assert during.value("einmal_txn_open_by_age", age="under 10 s") == 1
    assert during.value("einmal_txn_ids", state="ongoing") == 1
    assert after.value("einmal_txn_open", **TP) is None
    assert after.value("einmal_txn_partitions_held_back") == 0
    assert after.value("kafka_cluster_partition_laststableoffsetlag", **TP) == 0
    assert after.value("einmal_txn_total", result="commit") == 1
    assert after.value("einmal_control_records_total", topic="t") == 1
    assert after.value("einmal_producer_fenced_total", cause="coordinator") == 1
    for phase in phases:
        assert after.value("einmal_txn_phase_seconds_count", phase=phase) == 1


def _is_stale(node: Any) -> bool:
    """Whether the next page is made anew."""
    return bool(node.turns.now_ms() - node.monitoring._made_ms >= 1_000)


async def test_a_transaction_is_counted_by_who_has_ended_it(tmp_path: Path) -> None:
    async with running_node(tmp_path, SMALL) as node, Client.connect(node) as client:
        await client.create_topic("t")
        results = node.transactions.counts.results
        for name, committed in (("aborted", False), ("taken over", None)):
            who = await _begin(client, name)
            sent = batch(b"a", producer=who, sequence=0, transactional=True)
            assert (await client.produce("t", sent, version=12, name=name)).error_code is ErrorCode.none
            if committed is None:
                await _begin(client, name)
            else:
                await _end(client, name, who, committed=committed)
        await until(lambda: results == {"commit": 0, "abort": 1, "timeout": 0, "fenced": 1})


async def test_lag_is_exported_by_the_coordinator_also_for_partitions_that_others_lead(tmp_path: Path) -> None:
    options: dict[str, Any] = {"metrics_listeners": "0", "secret": "between us, and nobody else"}
    async with running_cluster(tmp_path, **options) as cluster:
        node = next(iter(cluster.nodes.values()))
        async with Client.connect(node) as client:
            topic = {"name": "t", "num_partitions": 3, "replication_factor": 3, "configs": []}
            await client.call(19, 7, {"topics": [topic], "timeout": 60_000, "validate_only": False})
            await client.call(FIND_COORDINATOR, 3, {"key": GROUP, "key_type": 0})
        for partition in range(3):
            await cluster.produce("t", b"v", partition)
        coordinator = await cluster.until(lambda: _coordinator_of(cluster, GROUP))
        async with Client.connect(coordinator) as client:
            await _commit(client, GROUP, range(3))
        samples = await Samples.of(coordinator)
        every = [await Samples.of(each) for each in cluster.nodes.values()]
    of_group = {"consumergroup": GROUP, "topic": "t"}
    lags = [samples.value("kafka_consumergroup_lag", **of_group, partition=each) for each in range(3)]
    assert lags == [1, 1, 1]
    assert samples.value("kafka_consumergroup_lag_sum", **of_group) == 3
    assert samples.value("kafka_consumergroup_current_offset", **of_group, partition=2) == 0
    # Scraped together, the brokers count nothing twice.
    assert sum(each.value("kafka_topic_partitions", topic="t") or 0 for each in every) == 3
    ends = [each.value("kafka_topic_partition_current_offset", topic="t", partition=2) for each in every]
    assert sorted(ends, key=str) == [1.0, None, None]
    active = [each.value("kafka_controller_kafkacontroller_activecontrollercount") for each in every]
    assert sorted(active, key=str) == [0, 0, 1]
    assert [each.value("kafka_brokers") for each in every] == [3, 3, 3]


@pytest.mark.parametrize("nowhere", [-(2**63), -1, 6])
def test_a_position_before_or_after_the_log_has_no_lag(nowhere: int) -> None:
    page = Page()
    offsets = {TopicPartition("t", 0): nowhere, TopicPartition("t", 1): 2, TopicPartition("t", 2): 5}
    for _ in _add_offsets(page, GROUP, offsets, dict.fromkeys(offsets, Ends(5, 5))):
        pass
    samples = Samples(b"".join(page.parts()))
    of_group = {"consumergroup": GROUP, "topic": "t"}
    lags = [samples.value("kafka_consumergroup_lag", **of_group, partition=each) for each in range(3)]
    assert (lags, samples.value("kafka_consumergroup_lag_sum", **of_group)) == ([None, 3, 0], None)
    assert samples.value("kafka_consumergroup_current_offset", **of_group, partition=0) == nowhere


@pytest.mark.parametrize(("known", "lag_sum"), [((0, 1), 5.0), ((0,), None), ((), None)])
def test_the_lag_of_a_topic_is_left_out_where_a_leader_does_not_answer(
    known: tuple[int, ...], lag_sum: float | None
) -> None:
    page = Page()
    offsets = {TopicPartition("t", 0): 3, TopicPartition("t", 1): 2}
    ends = {TopicPartition("t", index): Ends(5, 5) for index in known}
    for _ in _add_offsets(page, GROUP, offsets, ends):
        pass
    lines = b"".join(page.parts()).decode().splitlines()
    sums = [float(line.rpartition(" ")[2]) for line in lines if line.startswith("kafka_consumergroup_lag_sum{")]
    assert sums == ([] if lag_sum is None else [lag_sum])


async def _commit(client: Client, group: str, partitions: Iterable[int]) -> None:
    """Offset 0 of these partitions of topic ``t``."""
    offsets = [
        {"partition_index": index, "committed_offset": 0, "committed_leader_epoch": -1, "committed_metadata": ""}
        for index in partitions
    ]
    answer = await client.call(
        OFFSET_COMMIT,
        8,
        {
            "group_id": group,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [{"name": "t", "partitions": offsets}],
        },
    )
    assert {partition.error_code for partition in answer.topics[0].partitions} == {ErrorCode.none}


def _coordinator_of(cluster: Any, group: str) -> Any:
    """The node that coordinates a group."""
    return next((node for node in cluster.nodes.values() if _is_loaded(node, group)), None)


def _is_loaded(node: Any, group: str) -> bool:
    runtime = node.groups.runtime_of(group)
    return not isinstance(runtime, ErrorCode) and runtime.is_loaded


async def test_a_node_is_ready_when_it_takes_part_and_reports_why_it_is_not(tmp_path: Path) -> None:
    async with running_node(tmp_path, ON) as node:
        assert await get(node, "/health/live") == (200, b'{"live": true}\n')
        assert await ready(node) == (200, {"ready": True, "reasons": []})
        node.lifecycle.is_unfenced = False
        assert await ready(node) == (503, {"ready": False, "reasons": ["broker 1 is fenced"]})
        node.lifecycle.is_unfenced = True


async def test_scrapers_and_probes_made_for_redpanda_get_the_same_pages(tmp_path: Path) -> None:
    async with running_node(tmp_path, ON) as node:
        status, page = await get(node, "/public_metrics")
        assert (status, b"kafka_server_replicamanager_leadercount" in page) == (200, True)
        assert await get(node, "/v1/status/ready") == await get(node, "/health/ready")


async def test_a_node_that_waits_for_the_others_answers_and_is_not_ready(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, brokers=(1,), controllers=(11,), metrics_listeners="0", min_insync_replicas=1)
    broker = cluster.make(1)
    starting = asyncio.ensure_future(broker.start())
    try:
        await until(lambda: broker.quorum.is_loaded)
        status, body = await ready(broker)
        assert (status, body["ready"]) == (503, False)
        assert "broker 1 is not registered" in body["reasons"]
        assert (await Samples.of(broker)).value("kafka_brokers") is None
        await cluster.start(11)
        await starting
        await until(lambda: not _reasons(broker))
        controller = cluster.nodes[11]
        samples = await Samples.of(controller)
        assert samples.value("kafka_controller_kafkacontroller_activecontrollercount") == 1
        assert samples.value("kafka_controller_kafkacontroller_activebrokercount") == 1
        assert samples.value("kafka_server_replicamanager_leadercount") is None
        assert (await ready(controller))[0] == 200
    finally:
        starting.cancel()
        await cluster.stop()


async def test_pages_can_be_read_at_every_moment_from_a_start_to_the_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitoring, "_FRESH_MS", 0)
    for turn in range(2):
        broker = new_node(tmp_path, SMALL)
        assert broker.monitoring is not None
        starting, pages = asyncio.ensure_future(broker.start()), 0
        while not starting.done():
            pages += 1
            Samples(b"".join(await broker.monitoring.page()))
            _reasons(broker)
            await asyncio.sleep(0)
        await starting
        if not turn:
            async with Client.connect(broker) as client:
                await client.create_topic("t")
                await client.produce("t", batch(b"a"))
        stopping = asyncio.ensure_future(broker.stop())
        while not stopping.done():
            pages += 1
            await broker.monitoring.page()
            _reasons(broker)
            await asyncio.sleep(0)
        await stopping
        assert pages > 5


async def test_a_page_that_the_stop_ends_has_nothing_and_is_no_error(tmp_path: Path) -> None:
    broker = new_node(tmp_path, SMALL)
    assert broker.monitoring is not None
    await broker.start()
    page = asyncio.ensure_future(broker.monitoring.page())
    # It has begun, and its task has not.
    await asyncio.sleep(0)
    await broker.monitoring.stop()
    assert await page == []
    await broker.stop()


def _reasons(node: Node) -> list[str]:
    assert node.monitoring is not None
    return why_not_ready(node.monitoring._node)


async def test_nothing_listens_unless_it_is_asked_for(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node:
        assert node.monitoring is None


@pytest.mark.parametrize("text", ["9404x", "localhost:http", "host:70000"])
def test_an_address_without_a_port_is_refused(text: str) -> None:
    config, _unknown = broker_config({"metrics.listeners": text})
    with pytest.raises(ConfigError, match=r"metrics\.listeners: .* does not end in a port"):
        config.check_roles()


def test_a_port_alone_is_of_the_loopback_address() -> None:
    config, _unknown = broker_config({"metrics.listeners": "9404"})
    assert config.metrics_endpoint == ("127.0.0.1", 9404)


async def test_every_family_has_a_sample_where_there_is_something_to_measure(tmp_path: Path) -> None:
    async with running_node(tmp_path, SMALL) as node, Client.connect(node) as client:
        await client.create_topic("t")
        await client.call(FIND_COORDINATOR, 3, {"key": GROUP, "key_type": 0})
        who = await _begin(client, "ended")
        sent = batch(b"a", producer=who, sequence=0, transactional=True)
        await client.produce("t", sent, version=12, name="ended")
        await _end(client, "ended", who, committed=True)
        await until(lambda: sum(node.transactions.counts.phases["complete"].counts) == 1)
        who = await _begin(client, "open")
        sent = batch(b"a", producer=who, sequence=0, transactional=True)
        await client.produce("t", sent, version=12, name="open")
        await until(lambda: _is_loaded(node, GROUP))
        await _commit(client, GROUP, (0,))
        samples = await Samples.of(node)
    names = samples.names | {name.removesuffix("_count") for name in samples.names}
    assert [family.name for family in FAMILIES if family.name not in names] == []


def test_each_family_is_there_once() -> None:
    names = [family.name for family in FAMILIES]
    assert len(names) == len(set(names))
