"""A client that speaks as a replica, a voter, a coordinator or a broker is refused, and nothing durable changes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from einmal.broker.node import Node
from einmal.broker.rpc.authentication import authenticate_node
from einmal.metadata.image import METADATA_TOPIC_ID
from einmal.rpc.connection import Connection, NoAnswer
from einmal.security.secret import Secret
from einmal.types import ErrorCode, TopicPartition
from einmal.wire import fetch
from tests.broker.cluster import Cluster
from tests.broker.nodes import Client, batch, running_node
from tests.broker.three_nodes import ThreeNodes
from tests.virtual_time import virtual_time

SECRET = "the secret of this cluster"
FETCH, CREATE_TOPICS, VOTE, ALLOCATE = 1, 19, 52, 67
T0 = TopicPartition("t", 0)


@asynccontextmanager
async def three_brokers(directory: Path, secret: str | None = SECRET) -> AsyncIterator[Cluster]:
    cluster = Cluster(directory, secret=secret)
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.stop()


async def create(cluster: Cluster, name: str = "t") -> Node:
    """A topic of three replicas; its leader."""
    node = cluster.nodes[1]
    assert await node.topic_creation.ensure(name) is ErrorCode.none
    leader = await cluster.until(lambda: cluster.leader(name))
    await cluster.until(lambda: cluster.isr(name) == {1, 2, 3})
    return cluster.nodes[leader]


def replica_fetch(node: Node, replica: Node, offset: int) -> fetch.FetchRequest:
    """What a follower sends that has everything before ``offset``."""
    topic_id = node.metadata.image.topics["t"].topic_id
    epoch = node.metadata.image.topics["t"].partitions[0].leader_epoch
    wanted = fetch.FetchPartition(0, offset, 2**20, epoch, epoch, 0)
    return fetch.FetchRequest(
        0,
        1,
        2**24,
        0,
        [(topic_id, [wanted])],
        session_epoch=0,
        replica_id=replica.config.node_id,
        replica_epoch=replica.identity.broker_epoch,
    )


async def send_fetch(client: Client, request: fetch.FetchRequest, version: int = 17) -> fetch.FetchResponse:
    client.send(FETCH, version, fetch.encode_fetch_request(version, request))
    answer = await client.receive()
    return fetch.decode_fetch_response(version, answer, 5)


def vote_fields(cluster_id: str, epoch: int, candidate: int = 2) -> dict[str, Any]:
    asked = {
        "partition_index": 0,
        "replica_epoch": epoch,
        "replica_id": candidate,
        "last_offset_epoch": epoch,
        "last_offset": 2**60,
        "pre_vote": False,
    }
    topics = [{"topic_name": "__cluster_metadata", "partitions": [asked]}]
    return {"cluster_id": cluster_id, "voter_id": 1, "topics": topics}


async def test_brokers_with_a_secret_form_a_cluster_and_replicate(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        leader = await create(cluster)
        async with Client.connect(leader) as client:
            assert (await client.produce("t", batch(b"x"))).error_code is ErrorCode.none
        ports = {node.port for node in cluster.nodes.values()}
        async with Client.connect(leader) as client:
            metadata = await client.call(3, 9, {"topics": None})
            assert {broker.port for broker in metadata.brokers} == ports


async def test_a_replica_fetch_on_the_clients_listener_is_refused(tmp_path: Path) -> None:
    async with three_brokers(tmp_path) as cluster:
        leader = await create(cluster)
        follower = next(node for node in cluster.nodes.values() if node is not leader)
        partition = leader.partitions.get(T0)
        assert partition is not None
        async with Client.connect(leader) as client:
            answer = await send_fetch(client, replica_fetch(leader, follower, 0))
            assert answer.error_code is ErrorCode.cluster_authorization_failed
            assert not answer.topics


async def test_a_replica_fetch_at_a_broker_that_is_alone_is_refused(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        await client.create_topic("t")
        answer = await send_fetch(client, replica_fetch(node, node, 0))
        assert answer.error_code is ErrorCode.cluster_authorization_failed


async def test_a_forged_replica_fetch_on_a_shared_listener_does_not_move_the_high_watermark(tmp_path: Path) -> None:
    """Its sender does not know the directory.id of the broker that it claims to be."""
    async with three_brokers(tmp_path, secret=None) as cluster:
        leader = await create(cluster)
        followers = [node for node in cluster.nodes.values() if node is not leader]
        for follower in followers:
            await follower.fetchers.stop()
        partition = leader.partitions.get(T0)
        assert partition is not None and partition.replication is not None
        async with Client.connect(leader) as producer, Client.connect(leader) as client:
            produced = asyncio.ensure_future(producer.produce("t", batch(b"x"), acks=-1))
            await cluster.until(lambda: partition.log_end_offset == 1)
            for follower in followers:
                answer = await send_fetch(client, replica_fetch(leader, follower, 1))
                assert answer.error_code is ErrorCode.cluster_authorization_failed
            assert partition.high_watermark == 0
            assert not produced.done()
            produced.cancel()


@pytest.mark.parametrize("secret", [SECRET, None])
async def test_the_metadata_log_is_not_fetched_on_the_clients_listener(tmp_path: Path, secret: str | None) -> None:
    async with three_brokers(tmp_path, secret) as cluster:
        await create(cluster)
        active = cluster.nodes[cluster.active_controller()]
        partition = active.quorum.partition
        end = partition.log_end_offset
        wanted = fetch.FetchPartition(0, end, 2**20, active.quorum.leader_epoch, active.quorum.leader_epoch, 0)
        request = fetch.FetchRequest(0, 1, 2**24, 0, [(METADATA_TOPIC_ID, [wanted])], replica_id=2, replica_epoch=-1)
        async with Client.connect(active) as client:
            answer = await send_fetch(client, request)
            assert answer.topics[0][1][0].error_code is ErrorCode.unknown_topic_or_partition


@pytest.mark.parametrize("api_key", [FETCH, VOTE, ALLOCATE, CREATE_TOPICS])
async def test_a_controller_answers_no_unauthenticated_client(tmp_path: Path, api_key: int) -> None:
    async with three_brokers(tmp_path) as cluster, Client.connect_to(cluster.ports[1]) as client:
        client.send(18, 0, b"")
        await client.receive()
        client.send(api_key, {FETCH: 17, VOTE: 2, ALLOCATE: 0, CREATE_TOPICS: 7}[api_key], b"")
        with pytest.raises(asyncio.IncompleteReadError):
            await client.receive()


@pytest.mark.parametrize(("secret", "is_let_in"), [(SECRET, True), ("another secret, guessed", False)])
async def test_only_clients_with_the_secret_are_authenticated(tmp_path: Path, secret: str, is_let_in: bool) -> None:
    async with three_brokers(tmp_path) as cluster:
        loop = asyncio.get_running_loop()
        _transport, connection = await loop.create_connection(
            lambda: Connection("test", "test"), "127.0.0.1", cluster.ports[1]
        )
        try:
            if is_let_in:
                await authenticate_node(connection, "test", Secret(secret), "nonceofmine", 5_000)
            else:
                with pytest.raises(NoAnswer, match="authentication failed"):
                    await authenticate_node(connection, "test", Secret(secret), "nonceofmine", 5_000)
        finally:
            connection.close()


async def test_a_broker_with_another_secret_does_not_join(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        cluster = Cluster(tmp_path, brokers=(1, 2), controllers=(1,), secret=SECRET)
        try:
            await cluster.start(1)
            cluster.secret = "the secret of another cluster"
            starting = asyncio.ensure_future(cluster.start(2))
            await cluster.until(lambda: caplog.text.count("authentication failed") >= 3)
            assert not starting.done()
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            assert list(cluster.nodes[1].metadata.image.brokers) == [1]
        finally:
            await cluster.stop()


async def test_a_leaders_verification_is_refused_to_clients(tmp_path: Path) -> None:
    async with running_node(tmp_path) as node, Client.connect(node) as client:
        answer = await client.call(24, 5, {"transactions": []})
        assert answer.error_code is ErrorCode.cluster_authorization_failed


@virtual_time
async def test_nodes_that_authenticate_fail_over_on_virtual_time_too() -> None:
    world = ThreeNodes(secret=SECRET.encode())
    await world.start()
    await world.make_topic("t")
    world.crash(await world.led(T0))
    await world.led(T0)
