"""Several listeners of a broker: each is answered with the addresses of its own, and only nodes act as nodes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from einmal.types import ErrorCode
from tests.broker.cluster import Cluster
from tests.broker.nodes import Client, batch, running_node, until
from tests.broker.tls_node import Tls, port_of

METADATA, FIND_COORDINATOR, CREATE_TOPICS, DESCRIBE_CLUSTER, ADD_PARTITIONS = 3, 10, 19, 60, 24
SECRET = "between the nodes of this test only"

pytestmark = pytest.mark.time_limit(60)


async def addresses(client: Client) -> list[list[tuple[str, int]]]:
    """The addresses of brokers in the answers of three APIs."""
    metadata = await client.call(METADATA, 12, {"topics": [], "allow_auto_topic_creation": False})
    described = await client.call(DESCRIBE_CLUSTER, 0, {})
    found = await client.call(FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": ["g"]})
    return [
        sorted((each.host, each.port) for each in metadata.brokers),
        sorted((each.host, each.port) for each in described.brokers),
        [(each.host, each.port) for each in found.coordinators],
    ]


async def test_every_listener_answers_with_its_own_addresses(tmp_path: Path) -> None:
    settings = {
        "listeners": "PLAINTEXT://127.0.0.1:0,INSIDE://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
        "listener.security.protocol.map": "INSIDE:PLAINTEXT,OUTSIDE:PLAINTEXT",
        "advertised.listeners": "PLAINTEXT://localhost:1,INSIDE://inside.test:2,OUTSIDE://outside.test:3",
    }
    async with running_node(tmp_path, settings) as node:
        for name, address in (
            ("PLAINTEXT", ("localhost", 1)),
            ("INSIDE", ("inside.test", 2)),
            ("OUTSIDE", ("outside.test", 3)),
        ):
            async with Client.connect_to(port_of(node, name)) as client:
                assert await addresses(client) == [[address], [address], [address]], name


async def test_brokers_without_the_listener_are_left_out_and_their_partitions_have_no_leader(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, brokers=(1, 2), controllers=(1,), min_insync_replicas=1)
    node = cluster.make(1)
    await node.start()
    cluster.settings |= {
        "listeners": "PLAINTEXT://127.0.0.1:0,OUTSIDE://127.0.0.1:0",
        "listener_security_protocol_map": "OUTSIDE:PLAINTEXT",
    }
    try:
        await cluster.start(2)
        other = cluster.nodes[2]
        await until(lambda: all(len(each.metadata.image.brokers) == 2 for each in (node, other)))
        async with Client.connect_to(port_of(other, "OUTSIDE")) as client:
            await client.call(
                CREATE_TOPICS, 7, {"topics": [{"name": "t", "num_partitions": 4, "replication_factor": 1}]}
            )
            await until(lambda: "t" in other.metadata.image.topics)
            question = {"topics": [{"name": "t"}], "allow_auto_topic_creation": False}
            answer = await client.call(METADATA, 12, question)
            old = await client.call(METADATA, 5, question)
        led = {each.leader for each in other.metadata.image.topics["t"].partitions}
        assert [each.node_id for each in answer.brokers] == [2]
        partitions = answer.topics[0].partitions
        assert {each.leader_id for each in partitions} <= {2, -1}
        if 1 in led:
            assert ErrorCode.listener_not_found in {each.error_code for each in partitions}
            assert ErrorCode.leader_not_available in {each.error_code for each in old.topics[0].partitions}
            assert [1] in [list(each.offline_replicas) for each in partitions]
    finally:
        await cluster.stop()


TOPIC = {"topics": [{"name": "t", "num_partitions": 1, "replication_factor": 3}]}


def sasl_ssl(directory: Path, tls: Tls, protocols: str, **settings: str) -> Cluster:
    cluster = Cluster(directory, secret=SECRET)
    cluster.settings = {
        **{key.replace(".", "_"): value for key, value in tls.settings.items()},
        "listener_security_protocol_map": protocols,
        **settings,
    }
    return cluster


async def test_three_nodes_with_sasl_ssl_replicate_and_survive_their_leader(tmp_path: Path) -> None:
    tls = Tls(tmp_path / "tls")
    cluster = sasl_ssl(tmp_path / "nodes", tls, "INTERNAL:SASL_SSL,CONTROLLER:SASL_SSL")
    await cluster.start()
    try:
        async with Client.connect(cluster.nodes[1]) as client:
            await client.call(CREATE_TOPICS, 7, TOPIC)
        await cluster.until(lambda: cluster.leader("t"))
        assert await cluster.produce("t", b"x") == 0
        leader = cluster.leader("t")
        await cluster.stop(leader)
        await cluster.until(lambda: cluster.leader("t") not in (0, leader))
        assert await cluster.produce("t", b"y") == 1
    finally:
        await cluster.stop()


async def test_on_a_listener_that_nodes_share_with_clients_nobody_is_a_node_without_the_secret(tmp_path: Path) -> None:
    tls = Tls(tmp_path / "tls")
    protocols = "PLAINTEXT:SASL_SSL,INTERNAL:PLAINTEXT,CONTROLLER:SASL_SSL"
    cluster = sasl_ssl(tmp_path / "nodes", tls, protocols, inter_broker_listener_name="PLAINTEXT")
    await cluster.start()
    try:
        # The listener INTERNAL is one for clients here.
        node = cluster.nodes[1]
        async with Client.connect_to(port_of(node, "INTERNAL")) as client:
            await client.call(CREATE_TOPICS, 7, TOPIC)
            answer = await client.call(ADD_PARTITIONS, 5, {"transactions": []})
            assert answer.error_code is ErrorCode.cluster_authorization_failed
        leader = await cluster.until(lambda: cluster.leader("t"))
        async with Client.connect_to(port_of(cluster.nodes[leader], "INTERNAL")) as client:
            # It is acknowledged by all replicas, whose leader the others have authenticated to.
            assert (await client.produce("t", batch(b"x"))).error_code == ErrorCode.none
        async with Client.connect_to(port_of(node, "PLAINTEXT"), tls.client()) as client:
            client.send(ADD_PARTITIONS, 5, b"")
            assert await client.is_closed()
    finally:
        await cluster.stop()


async def test_a_node_with_a_certificate_of_another_authority_is_not_connected_to(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tls, foreign = Tls(tmp_path / "tls"), Tls(tmp_path / "foreign")
    cluster = Cluster(tmp_path / "nodes", brokers=(1, 2), controllers=(1,), secret=SECRET, min_insync_replicas=1)
    cluster.settings["listener_security_protocol_map"] = "INTERNAL:SASL_SSL,CONTROLLER:SASL_SSL"
    settings = dict(cluster.settings)
    cluster.settings = settings | {key.replace(".", "_"): value for key, value in tls.settings.items()}
    await cluster.start(1)
    cluster.settings = settings | {key.replace(".", "_"): value for key, value in foreign.settings.items()}
    stranger = cluster.make(2)
    starting = asyncio.ensure_future(stranger.start())
    try:
        await until(
            lambda: any("TLS handshake with another node failed" in each.getMessage() for each in caplog.records)
        )
        assert 2 not in cluster.nodes[1].metadata.image.brokers
    finally:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await cluster.stop()
