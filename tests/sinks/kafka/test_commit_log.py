"""Claims about reads of a driver: what must be known for certain is not from the past, whoever is asked.

Three whole nodes on loopback ports. One can be cut off from its peers, while clients still reach it: it keeps leading
what it led, and answers from the past.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from einmal.client import TransactionDriver
from einmal.clusters.kafka_cluster import KafkaCluster
from einmal.commit_protocol.commit_record import COMMIT_TOPIC, CommitRecord
from einmal.seams import ProtocolFactory, TcpNetwork
from einmal.sinks.kafka.commit_log import TOPIC_CONFIG, CommitLog
from einmal.types import Offset, TopicPartition
from tests.broker.cluster import Cluster

pytestmark = pytest.mark.system

NAME = "pipeline"


class Links:
    """Between the nodes of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._alone = 0
        self._its_ports: tuple[int, ...] = ()
        self._open: list[tuple[int, int, asyncio.Transport]] = []

    def cut(self, node_id: int) -> None:
        """From now on nobody but clients reaches it, and it reaches nobody."""
        self._alone = node_id
        self._its_ports = (self._cluster.nodes[node_id].port, self._cluster.ports[node_id])
        for sender, port, transport in self._open:
            if self.is_cut(sender, port):
                transport.abort()

    def heal(self) -> None:
        self._alone, self._its_ports = 0, ()

    def is_cut(self, sender: int, port: int) -> bool:
        return (sender == self._alone) != (port in self._its_ports)

    def opened(self, sender: int, port: int, transport: asyncio.Transport) -> None:
        self._open.append((sender, port, transport))


class LinkedNetwork(TcpNetwork):
    """As one node sees it."""

    def __init__(self, links: Links, node_id: int) -> None:
        self._links = links
        self._node_id = node_id

    async def connect(
        self, factory: ProtocolFactory, host: str, port: int, *, tls: ssl.SSLContext | None = None
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        if self._links.is_cut(self._node_id, port):
            raise ConnectionRefusedError(f"nobody reaches {port}")
        transport, protocol = await super().connect(factory, host, port, tls=tls)
        self._links.opened(self._node_id, port, transport)
        return transport, protocol


@contextmanager
def commit_log(servers: str) -> Iterator[CommitLog]:
    client = {"bootstrap.servers": servers}
    cluster = KafkaCluster(client)
    try:
        yield CommitLog(cluster, client, NAME)
    finally:
        cluster.close()


def make_topic(servers: str) -> None:
    cluster = KafkaCluster({"bootstrap.servers": servers})
    try:
        cluster.create_topic(COMMIT_TOPIC, 1, TOPIC_CONFIG)
    finally:
        cluster.close()


def record_of(batch_id: int) -> CommitRecord:
    return CommitRecord(transactional_id=NAME, query_id="q", checkpoint="c", batch_id=batch_id, end=(batch_id,))


def commit(servers: str, batch_id: int) -> None:
    with commit_log(servers) as log, TransactionDriver(bootstrap_servers=servers, transactional_id=NAME) as driver:
        identity = driver.init_producer_id()
        driver.add_partitions(identity, [log.partition])
        log.write(record_of(batch_id), identity, driver.transaction_version)
        driver.end_txn(identity, committed=True)


def look(servers: str) -> CommitRecord | None:
    with commit_log(servers) as log:
        return log.look()


def read(servers: str) -> CommitRecord | None:
    with commit_log(servers) as log, TransactionDriver(bootstrap_servers=servers, transactional_id=NAME) as driver:
        driver.init_producer_id()
        return log.read(120.0)


def servers_of(cluster: Cluster, wanted: Callable[[int], bool]) -> str:
    return ",".join(f"127.0.0.1:{node.port}" for node_id, node in cluster.nodes.items() if wanted(node_id))


async def test_what_is_read_for_certain_is_not_from_the_past_of_a_leader_that_was_replaced(tmp_path: Path) -> None:
    async with after_a_deposition(tmp_path) as (past, others):
        await asyncio.to_thread(commit, others, 2)
        assert await asyncio.to_thread(look, past) == record_of(1), "it has heard of its successor"
        assert await asyncio.to_thread(read, f"{past},{others}") == record_of(2)


async def test_that_a_log_is_shorter_than_it_was_is_not_believed_of_a_leader_that_was_replaced(tmp_path: Path) -> None:
    async with after_a_deposition(tmp_path) as (past, others):
        await asyncio.to_thread(commit, others, 2)
        reached = await asyncio.to_thread(latest, others, 0)
        assert await asyncio.to_thread(latest, f"{past},{others}", 0) < reached, "it has heard of its successor"
        assert await asyncio.to_thread(latest, f"{past},{others}", reached) == reached


def latest(servers: str, reached: int) -> int:
    cluster = KafkaCluster({"bootstrap.servers": servers})
    place = TopicPartition(COMMIT_TOPIC, 0)
    try:
        return cluster.latest([place], committed=False, reached={place: Offset(reached)})[place]
    finally:
        cluster.close()


@asynccontextmanager
async def after_a_deposition(directory: Path) -> AsyncIterator[tuple[str, str]]:
    """Batch 1 is committed, its leader is cut off and replaced: its address, and those of the others."""
    async with linked_cluster(directory) as (cluster, links):
        everybody = servers_of(cluster, lambda _: True)
        await asyncio.to_thread(commit, everybody, 1)
        assert await asyncio.to_thread(read, everybody) == record_of(1)
        old = await cluster.until(lambda: cluster.leader(COMMIT_TOPIC))
        links.cut(old)
        rest = [node.metadata for node_id, node in cluster.nodes.items() if node_id != old]
        await cluster.until(
            lambda: all(each.image.topics[COMMIT_TOPIC].partitions[0].leader not in (old, -1) for each in rest)
        )
        past = servers_of(cluster, lambda node_id: node_id == old)
        yield past, servers_of(cluster, lambda node_id: node_id != old)


@asynccontextmanager
async def linked_cluster(directory: Path) -> AsyncIterator[tuple[Cluster, Links]]:
    cluster = Cluster(directory)
    links = Links(cluster)
    cluster.networks = {node_id: LinkedNetwork(links, node_id) for node_id in cluster.brokers}
    await cluster.start()
    try:
        await asyncio.to_thread(make_topic, servers_of(cluster, lambda _: True))
        yield cluster, links
    finally:
        links.heal()
        await cluster.stop()
