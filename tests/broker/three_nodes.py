"""Three whole nodes on virtual time, network and disk, and how to run code inside the process of one of them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from pathlib import PurePosixPath
from typing import Any

from einmal.broker.config import BrokerConfig
from einmal.broker.node import Node
from einmal.simulation.clock import SimulatedClock
from einmal.simulation.disk import SimulatedDisk
from einmal.simulation.loop import Host
from einmal.simulation.network import SimulatedNetwork
from einmal.simulation.trace import Trace
from einmal.types import ErrorCode, TopicPartition
from tests.virtual_time import running_loop

IDS = (1, 2, 3)
_SECRET_FILE = PurePosixPath("/cluster.secret")


class ThreeNodes:
    def __init__(self, seed: int = 1, *, secret: bytes | None = None, **settings: Any) -> None:
        """``secret``: nodes authenticate by it, on listeners of their own."""
        self.secret = secret
        self.loop = running_loop()
        self.disks = {node_id: SimulatedDisk(self.loop, random.Random(f"{seed}/{node_id}"), Trace()) for node_id in IDS}
        self.network = SimulatedNetwork(self.loop, random.Random(seed), Trace())
        self.clock = SimulatedClock(self.loop)
        self.seed = seed
        self.settings = {
            "transaction_state_log_num_partitions": 3,
            "transaction_state_log_replication_factor": 3,
            "transaction_state_log_min_isr": 2,
            "offsets_topic_num_partitions": 3,
            "offsets_topic_replication_factor": 3,
            "default_replication_factor": 3,
            "min_insync_replicas": 2,
            "auto_leader_rebalance_enable": False,
            "broker_session_timeout_ms": 3_000,
            "group_initial_rebalance_delay_ms": 100,
            **settings,
        }
        self.hosts: dict[int, Host] = {}
        self.nodes: dict[int, Node] = {}
        self.starts = 0

    # --- processes -------------------------------------------------------------------------------------------------

    async def start(self, *ids: int) -> None:
        await asyncio.gather(*(self._start(node_id) for node_id in ids or IDS))

    async def _start(self, node_id: int) -> None:
        self.starts += 1
        host = self.hosts[node_id] = Host(f"b{node_id}")
        self.network.light(host.name)
        listeners = [f"PLAINTEXT://b{node_id}:9092", f"CONTROLLER://b{node_id}:9093"]
        security: dict[str, Any] = {}
        if self.secret is not None:
            listeners.append(f"INTERNAL://b{node_id}:9094")
            self.disks[node_id].view(host).write_file(_SECRET_FILE, self.secret)
            security = {
                "inter_broker_listener_name": "INTERNAL",
                "listener_security_protocol_map": "INTERNAL:SASL_PLAINTEXT,CONTROLLER:SASL_PLAINTEXT",
                "einmal_cluster_secret_file": str(_SECRET_FILE),
            }
        node = self.nodes[node_id] = Node(
            BrokerConfig(
                node_id=node_id,
                listeners=",".join(listeners),
                controller_quorum_voters=",".join(f"{each}@b{each}:9093" for each in IDS),
                log_dirs="/data",
                **security,
                **self.settings,
            ),
            clock=self.clock,
            network=self.network.of(host),
            disk=self.disks[node_id].view(host),
            random=random.Random(f"{self.seed}/{node_id}/{self.starts}"),
        )
        await self.on(node_id, node.start())

    def on(self, node_id: int, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run it in the process of a node."""
        return self.loop.create_task(work, context=self.hosts[node_id].context.copy())

    def crash(self, node_id: int) -> None:
        self.loop.kill(self.hosts[node_id])
        self.network.lose(self.hosts[node_id])
        del self.nodes[node_id]

    def cut_power(self, node_id: int) -> None:
        """Its machine is off, and nobody notices at once."""
        self.loop.kill(self.hosts[node_id])
        self.network.lose(self.hosts[node_id], silently=True)
        self.disks[node_id].cut_power()
        del self.nodes[node_id]

    def pause(self, node_id: int) -> None:
        self.loop.pause(self.hosts[node_id])

    def resume(self, node_id: int) -> None:
        self.loop.resume(self.hosts[node_id])

    # --- the cluster -----------------------------------------------------------------------------------------------

    async def until(self, claim: Callable[[], bool], seconds: float = 20.0) -> float:
        """Wait until it is true; how long that took."""
        since = self.loop.time()
        while not claim():
            assert self.loop.time() - since < seconds, "it did not come true"
            await asyncio.sleep(0.005)
        return self.loop.time() - since

    def leader(self, topic_partition: TopicPartition) -> int:
        """Who leads, by what those who are alive think; 0: they do not agree, or nobody does."""
        leaders = []
        for node_id, node in self.nodes.items():
            topic = node.metadata.image.topics.get(topic_partition.topic)
            if self.hosts[node_id].is_paused:
                continue
            leaders.append(-1 if topic is None else topic.partitions[topic_partition.partition].leader)
        agreed = leaders[0] if leaders and leaders == leaders[:1] * len(leaders) else -1
        return agreed if agreed in self.nodes else 0

    async def led(self, topic_partition: TopicPartition) -> int:
        await self.until(lambda: self.leader(topic_partition) > 0)
        return self.leader(topic_partition)

    async def make_topic(self, name: str) -> None:
        node_id = next(iter(self.nodes))
        for _ in range(20):
            error = await self.on(node_id, self.nodes[node_id].topic_creation.ensure(name))
            if error is ErrorCode.none:
                break
        assert error is ErrorCode.none
        await self.until(lambda: all(name in node.metadata.image.topics for node in self.nodes.values()))
