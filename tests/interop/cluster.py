"""Several nodes of one kind, Apache Kafka's or ours, as one cluster; who plays which part in it is asked of itself.

A node is killed, paused and started again by its id, and found by its part: leader, controller, coordinator.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from einmal.types import ErrorCode
from tests.interop import raw
from tests.interop.apache_kafka import ApacheKafka
from tests.interop.einmal_broker import EinmalBroker
from tests.interop.raw import Connection
from tests.ports import loopback_ports

GROUP: Final = 0
TRANSACTION: Final = 1
_METADATA_LOG: Final = "__cluster_metadata"
_PATIENCE_S: Final = 180.0
_PAUSE_S: Final = 0.02

T = TypeVar("T")


class Cluster:
    """``nodes`` by id. Every question is put to whatever node answers, until one does."""

    def __init__(self, nodes: Mapping[int, ApacheKafka | EinmalBroker]) -> None:
        self.nodes = dict(nodes)
        self.dead: dict[int, None] = {}
        self.paused: dict[int, None] = {}

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes.values())

    # --- life and death -------------------------------------------------------------------------------------------

    def start(self) -> None:
        for node in self.nodes.values():
            node.launch()
        for node in self.nodes.values():
            node.wait_until_ready()

    def stop(self) -> None:
        for node_id in list(self.paused):
            self.resume(node_id)
        for node_id, node in self.nodes.items():
            # Two of three cannot shut down cleanly: the last ones have no majority to ask.
            node.kill() if self.dead else node.stop()
            self.dead[node_id] = None

    def kill(self, node_id: int) -> None:
        """kill -9."""
        self.nodes[node_id].kill()
        self.dead[node_id] = None
        self.paused.pop(node_id, None)

    def stop_node(self, node_id: int) -> None:
        """SIGTERM, and wait until it is gone."""
        self.nodes[node_id].stop()
        self.dead[node_id] = None

    def start_node(self, node_id: int) -> None:
        """Start again what was killed, and wait until it serves."""
        self.nodes[node_id].start()
        self.dead.pop(node_id)

    def pause(self, node_id: int) -> None:
        """SIGSTOP."""
        os.kill(self.nodes[node_id].pid, signal.SIGSTOP)
        self.paused[node_id] = None

    def resume(self, node_id: int) -> None:
        os.kill(self.nodes[node_id].pid, signal.SIGCONT)
        del self.paused[node_id]

    @property
    def serving(self) -> list[int]:
        return [node_id for node_id in self.nodes if node_id not in self.dead and node_id not in self.paused]

    # --- who is who -----------------------------------------------------------------------------------------------

    def ask(self, question: Callable[[Connection], T | None]) -> T:
        """Put a question to each serving node in turn, until the answer is not None."""
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            for node_id in self.serving:
                node = self.nodes[node_id]
                try:
                    with Connection(node.host, node.port) as connection:
                        answer = question(connection)
                except OSError:
                    continue
                if answer is not None:
                    return answer
            assert time.monotonic() < deadline, "no node knows"
            time.sleep(_PAUSE_S)

    def partition(self, topic: str, partition: int = 0) -> Any:
        """Its metadata, once it has a leader that serves."""

        def led(connection: Connection) -> Any:
            topics = [{"topic_id": None, "name": topic}]
            told = connection.call(raw.METADATA, 12, topics=topics, allow_auto_topic_creation=False).topics[0]
            found = next((each for each in told.partitions if each.partition_index == partition), None)
            return found if found is not None and found.leader_id in self.serving else None

        return self.ask(led)

    def leader(self, topic: str, partition: int = 0) -> int:
        return int(self.partition(topic, partition).leader_id)

    def followers(self, topic: str, partition: int = 0) -> list[int]:
        told = self.partition(topic, partition)
        return [each for each in told.replica_nodes if each != told.leader_id and each in self.serving]

    def coordinator(self, kind: int, key: str) -> int:
        def found(connection: Connection) -> int | None:
            told = connection.call(raw.FIND_COORDINATOR, 3, key=key, key_type=kind)
            is_there = told.error_code is ErrorCode.none and told.node_id in self.serving
            return int(told.node_id) if is_there else None

        return self.ask(found)

    def controller(self) -> int:
        """The active one: the leader of the metadata quorum."""

        def active(connection: Connection) -> int | None:
            topics = [{"topic_name": _METADATA_LOG, "partitions": [{"partition_index": 0}]}]
            told = connection.call(raw.DESCRIBE_QUORUM, 1, topics=topics)
            if told.error_code is not ErrorCode.none:
                return None
            leader = told.topics[0].partitions[0].leader_id
            return int(leader) if leader in self.serving else None

        return self.ask(active)

    # --- topics ---------------------------------------------------------------------------------------------------

    def create_topic(
        self, name: str, partitions: int = 1, *, replicas: int = -1, configs: Mapping[str, str] | None = None
    ) -> None:
        """Create it unless it exists, and wait until all its replicas are in sync."""
        given = [{"name": key, "value": value} for key, value in (configs or {}).items()]
        topic = {"name": name, "num_partitions": partitions, "replication_factor": replicas, "configs": given}

        def create(connection: Connection) -> bool | None:
            code = connection.call(raw.CREATE_TOPICS, 7, topics=[topic], timeout=60_000).topics[0].error_code
            return True if code in (ErrorCode.none, ErrorCode.topic_already_exists) else None

        self.ask(create)
        self.wait_until_in_sync(name, range(partitions))

    def wait_until_in_sync(self, topic: str, partitions: Iterable[int] = (0,)) -> None:
        """Every replica of these partitions is in the ISR."""
        deadline = time.monotonic() + _PATIENCE_S
        for each in partitions:
            while True:
                told = self.partition(topic, each)
                if len(told.isr_nodes) == len(told.replica_nodes):
                    break
                assert time.monotonic() < deadline, f"{topic}-{each}: {told.isr_nodes} of {told.replica_nodes}"
                time.sleep(_PAUSE_S)


def apache_cluster(directory: Path, count: int = 3, *, transaction_version: int = 2, **settings: Any) -> Cluster:
    """Not started. ``settings``: of each node, as ``ApacheKafka`` takes them. Raises KafkaUnavailable."""
    ports = dict(enumerate(loopback_ports(count), start=1))
    return Cluster(
        {
            node_id: ApacheKafka(
                directory / str(node_id),
                transaction_version=transaction_version,
                node_id=node_id,
                controller_ports=ports,
                **settings,
            )
            for node_id in ports
        }
    )


def einmal_cluster(directory: Path, count: int = 3, settings: Mapping[str, str] | None = None) -> Cluster:
    """Not started."""
    ports = dict(enumerate(loopback_ports(count), start=1))
    return Cluster(
        {
            node_id: EinmalBroker(directory / str(node_id), settings, node_id=node_id, controller_ports=ports)
            for node_id in ports
        }
    )
