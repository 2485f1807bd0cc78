"""Several whole nodes in this process, on real files and loopback ports: as brokers, as controllers, or as both."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from einmal.broker.node import Node
from einmal.seams import Network
from einmal.types import ErrorCode
from einmal.wire.fetch import FetchedPartition
from einmal.wire.record_batch import decode_records, iter_headers
from tests.broker.nodes import Client, batch, new_node
from tests.ports import loopback_ports
from tests.suite.patience import patient

SECONDS = 10.0
COME_AGAIN = (
    ErrorCode.not_leader_or_follower,
    ErrorCode.leader_not_available,
    ErrorCode.unknown_topic_or_partition,
    ErrorCode.not_enough_replicas,
    ErrorCode.not_enough_replicas_after_append,
)


class Cluster:
    """``brokers`` and ``controllers`` are node ids; who is in both has both roles."""

    def __init__(
        self,
        directory: Path,
        brokers: Sequence[int] = (1, 2, 3),
        controllers: Sequence[int] = (1, 2, 3),
        *,
        secret: str | None = None,
        **settings: Any,
    ) -> None:
        """``secret``: brokers and controllers authenticate by it, on listeners of their own."""
        self.secret = secret
        self.directory = directory
        self.brokers = tuple(brokers)
        self.controllers = tuple(controllers)
        self.settings = settings
        self.ports = dict(zip(controllers, loopback_ports(len(controllers)), strict=True))
        self.nodes: dict[int, Node] = {}
        self.networks: dict[int, Network] = {}
        """Of nodes that have not simply the real one."""

    def make(self, node_id: int) -> Node:
        roles, listeners = [], []
        if node_id in self.brokers:
            roles.append("broker")
            listeners.append("PLAINTEXT://127.0.0.1:0")
            if self.secret is not None:
                listeners.append("INTERNAL://127.0.0.1:0")
        if node_id in self.controllers:
            roles.append("controller")
            listeners.append(f"CONTROLLER://127.0.0.1:{self.ports[node_id]}")
        node = self.nodes[node_id] = new_node(
            self.directory / str(node_id),
            {
                "node.id": node_id,
                "process.roles": ",".join(roles),
                "listeners": ",".join(listeners),
                "controller.quorum.voters": ",".join(f"{each}@127.0.0.1:{port}" for each, port in self.ports.items()),
                "default.replication.factor": len(self.brokers),
                "min.insync.replicas": 2,
                "broker.session.timeout.ms": 30_000,
                "offsets.topic.replication.factor": len(self.brokers),
                "offsets.topic.num.partitions": 2,
                "transaction.state.log.replication.factor": len(self.brokers),
                "transaction.state.log.num.partitions": 2,
                **self._security(node_id),
                **{key.replace("_", "."): value for key, value in self.settings.items()},
            },
            self.networks.get(node_id),
        )
        return node

    def _security(self, node_id: int) -> dict[str, str]:
        if self.secret is None:
            return {}
        self.directory.mkdir(exist_ok=True)
        file = self.directory / f"secret-{node_id}"
        file.write_text(self.secret)
        settings = {
            "listener.security.protocol.map": "INTERNAL:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
            "einmal.cluster.secret.file": str(file),
        }
        return settings | ({"inter.broker.listener.name": "INTERNAL"} if node_id in self.brokers else {})

    async def start(self, *ids: int) -> None:
        wanted = ids or tuple(dict.fromkeys((*self.controllers, *self.brokers)))
        await asyncio.gather(*(self.make(node_id).start() for node_id in wanted))

    async def stop(self, *ids: int) -> None:
        stopped = [self.nodes.pop(node_id) for node_id in ids or tuple(self.nodes)]
        await asyncio.gather(*(node.stop() for node in stopped))

    # --- looking -----------------------------------------------------------------------------------------------------

    @property
    def running_brokers(self) -> list[Node]:
        return [node for node_id, node in self.nodes.items() if node_id in self.brokers]

    def active_controller(self) -> int:
        """0: there is none now."""
        return next((node_id for node_id, node in self.nodes.items() if node.controller.is_active), 0)

    def leader(self, topic: str, partition: int = 0) -> int:
        """Of whom all running brokers think the same; 0: they do not, or nobody leads."""
        told = []
        for node in self.running_brokers:
            image = node.metadata.image.topics.get(topic)
            told.append(0 if image is None else max(0, image.partitions[partition].leader))
        return told[0] if told.count(told[0]) == len(told) else 0

    def isr(self, topic: str, partition: int = 0) -> set[int]:
        node = self.running_brokers[0]
        return set(node.metadata.image.topics[topic].partitions[partition].isr)

    @staticmethod
    async def until(claim: Callable[[], Any], seconds: float = SECONDS) -> Any:
        """Wait until it is true; what it is then."""
        async with asyncio.timeout(patient(seconds)):
            while not (result := claim()):  # noqa: ASYNC110 - what nodes know has no event of its own.
                await asyncio.sleep(0.005)
        return result

    # --- clients -----------------------------------------------------------------------------------------------------

    async def produce(self, topic: str, value: bytes, partition: int = 0) -> int:
        """With acks=all, to whoever leads; the offset."""
        async with asyncio.timeout(patient(SECONDS)):
            while True:
                leader = await self.until(lambda: self.nodes.get(self.leader(topic, partition)))
                try:
                    async with Client.connect(leader) as client:
                        produced = await client.produce(topic, batch(value), partition=partition)
                except (OSError, asyncio.IncompleteReadError):
                    continue
                if produced.error_code is ErrorCode.none:
                    return produced.base_offset
                assert produced.error_code in COME_AGAIN, produced
                await asyncio.sleep(0.01)

    async def read(self, topic: str, partition: int = 0) -> list[bytes]:
        """All values that are committed."""
        leader = await self.until(lambda: self.nodes.get(self.leader(topic, partition)))
        async with Client.connect(leader) as client:
            return values_of(await client.fetch(topic, 0, partition=partition))


def values_of(fetched: FetchedPartition) -> list[bytes]:
    assert fetched.error_code is ErrorCode.none, fetched
    records = bytes(fetched.records)
    return [
        record.value or b""
        for position, header in iter_headers(records)
        for record in decode_records(records, position, header)
        if not header.is_control
    ]


@asynccontextmanager
async def running_cluster(directory: Path, **options: Any) -> AsyncIterator[Cluster]:
    cluster = Cluster(directory, **options)
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.stop()
