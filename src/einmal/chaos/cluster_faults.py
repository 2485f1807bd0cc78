"""Faults of the broker processes of a cluster on this machine: kill -9, pauses, restarts, and damaged files."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Final, Self

from einmal.chaos.damage import FileDamage, flip_bit, newest_log, truncate
from einmal.chaos.waiting import wait_until
from einmal.client import Admin
from einmal.client.cores.metadata_cache import PartitionMetadata
from einmal.client.errors import KafkaError
from einmal.local.processes import NodeProcess, ProcessCluster

_RECOVERY_S: Final = 60.0
_START_S: Final = 300.0
"""A broker that does not serve by then never will; on its own it waits for other brokers without a bound."""


class ClusterFaults:
    """Takes faults to a running cluster; ``restore`` ends all of them but damage. Brokers are named by node id."""

    def __init__(self, cluster: ProcessCluster[NodeProcess]) -> None:
        self.cluster = cluster
        self._paused: set[int] = set()
        self._damaged: set[tuple[int, str, int]] = set()
        self._admin: Admin | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections of this object; the cluster keeps running, paused brokers run again."""
        for node_id in list(self._paused):
            self.resume(node_id)
        if self._admin is not None:
            self._admin.close()
            self._admin = None

    @property
    def bootstrap_servers(self) -> str:
        return self.cluster.bootstrap_servers

    @property
    def serving(self) -> list[int]:
        """The brokers that run and are not paused."""
        brokers = self.cluster.brokers
        return [node_id for node_id, broker in brokers.items() if broker.is_running and node_id not in self._paused]

    # --- processes ----------------------------------------------------------------------------------------------------

    def kill(self, node_id: int) -> None:
        """SIGKILL, and wait until the process is gone."""
        self.cluster.brokers[node_id].kill()
        self._paused.discard(node_id)

    def stop(self, node_id: int) -> None:
        """SIGTERM, and wait until the process is gone."""
        self.resume(node_id)
        self.cluster.brokers[node_id].stop()

    def start(self, *node_ids: int) -> None:
        """Start killed or stopped brokers, and wait until they serve. Raises BrokerFailed."""
        brokers = [self.cluster.brokers[node_id] for node_id in node_ids]
        # All of them before the first wait: one alone may lack the others' votes.
        for broker in brokers:
            broker.start()
        for broker in brokers:
            _wait_until_ready(broker)

    def pause(self, node_id: int) -> None:
        """SIGSTOP: the broker stands still, and its connections stay open."""
        self.cluster.brokers[node_id].signal(signal.SIGSTOP)
        self._paused.add(node_id)

    def resume(self, node_id: int) -> None:
        """SIGCONT, for a paused broker; another one is left alone."""
        if node_id in self._paused:
            self.cluster.brokers[node_id].signal(signal.SIGCONT)
            self._paused.discard(node_id)

    def restart(self, node_id: int) -> None:
        """Stop the broker cleanly, start it, and wait until every replica is in sync. Raises Stalled, BrokerFailed."""
        self.stop(node_id)
        self.start(node_id)
        self.wait_until_in_sync()

    def rolling_restart(self) -> None:
        """Restart one broker after another. Raises Stalled, BrokerFailed."""
        for node_id in self.cluster.brokers:
            self.restart(node_id)

    def restore(self) -> None:
        """Resume and start all brokers, and wait until every replica is in sync. Raises Stalled, BrokerFailed."""
        brokers = self.cluster.brokers
        for node_id in brokers:
            self.resume(node_id)
        self.start(*(node_id for node_id, broker in brokers.items() if not broker.is_running))
        self.wait_until_in_sync()

    # --- by part ------------------------------------------------------------------------------------------------------

    def leader(self, topic: str, partition: int = 0) -> int:
        """The leader of a partition, once it is one that serves. Raises Stalled."""
        leaders: list[int] = []

        def is_led() -> bool:
            leaders[:] = [
                metadata.leader for _, metadata in self._partitions(topic) or () if metadata.partition == partition
            ]
            return bool(leaders) and leaders[0] in self.serving

        wait_until(is_led, _RECOVERY_S, lambda: f"{topic}-{partition} has the leader {leaders}, {self.serving} serve")
        return leaders[0]

    def kill_leader(self, topic: str, partition: int = 0) -> int:
        """Kill the leader of a partition with -9, and return its node id. Raises Stalled."""
        node_id = self.leader(topic, partition)
        self.kill(node_id)
        return node_id

    def wait_until_in_sync(self) -> None:
        """Wait until each partition has a leader and all its replicas in its ISR, but those that were damaged.

        Raises Stalled.
        """
        behind: list[str] = []

        def is_in_sync() -> bool:
            partitions = self._partitions()
            behind[:] = [
                f"{topic}: {partition}" for topic, partition in partitions or () if self._lags(topic, partition)
            ]
            return partitions is not None and not behind

        wait_until(is_in_sync, _RECOVERY_S, lambda: ", ".join(behind))

    # --- damaged files ------------------------------------------------------------------------------------------------

    def flip_bit(self, node_id: int, topic: str, partition: int = 0, *, seed: int = 0) -> FileDamage:
        """Flip one bit of a record batch in a stopped broker's newest segment with records. Raises NothingToDamage."""
        return flip_bit(self._log_to_damage(node_id, topic, partition), seed)

    def truncate(self, node_id: int, topic: str, partition: int = 0, *, seed: int = 0) -> FileDamage:
        """Cut a stopped broker's newest segment with records within a batch. Raises NothingToDamage."""
        return truncate(self._log_to_damage(node_id, topic, partition), seed)

    def _log_to_damage(self, node_id: int, topic: str, partition: int) -> Path:
        broker = self.cluster.brokers[node_id]
        if broker.is_running:
            raise ValueError(f"broker {node_id} runs; kill or stop it before its files are damaged")
        file = newest_log(broker.plan.data, topic, partition)
        self._damaged.add((node_id, topic, partition))
        return file

    def _lags(self, topic: str, partition: PartitionMetadata) -> bool:
        missing = {*partition.replicas} - {*partition.isr}
        return partition.leader < 0 or any(
            (node_id, topic, partition.partition) not in self._damaged for node_id in missing
        )

    def _partitions(self, topic: str | None = None) -> list[tuple[str, PartitionMetadata]] | None:
        """Each with its topic; of all topics where none is named. None: no broker has answered."""
        if self._admin is None:
            self._admin = Admin({"bootstrap.servers": self.bootstrap_servers})
        try:
            names = self._admin.list_topics(include_internal=True) if topic is None else [topic]
            topics = self._admin.describe_topics(names)
        except KafkaError:
            return None
        return [(name, partition) for name in names for partition in topics[name].partitions.values()]


def _wait_until_ready(broker: NodeProcess) -> None:
    """Raises BrokerFailed."""
    # The wait ends with the broker.
    watchdog = threading.Timer(_START_S, broker.signal, [signal.SIGKILL])
    watchdog.start()
    try:
        broker.wait_until_ready()
    finally:
        watchdog.cancel()
