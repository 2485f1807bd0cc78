"""Broker processes of a test session, in a temporary directory: started at once, awaited when they are needed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from einmal.chaos.cluster_faults import ClusterFaults
from einmal.local.processes import LocalCluster

_QUICK: Final = {
    # The first member of a group need not wait for others, and a killed broker is noticed soon.
    "group.initial.rebalance.delay.ms": "0",
    "broker.session.timeout.ms": "3000",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
}


class OwnBrokers:
    """``count`` brokers, which end with this process at the latest. ``settings``: under Kafka's names."""

    def __init__(self, count: int, settings: Mapping[str, str] | None = None) -> None:
        self._directory = TemporaryDirectory(prefix="einmal-")
        directory = Path(self._directory.name)
        self.cluster = LocalCluster.on_loopback(directory, count, {**_QUICK, **(settings or {})})
        self.faults = ClusterFaults(self.cluster)
        for broker in self.cluster.brokers.values():
            broker.start()

    def wait_until_ready(self) -> ClusterFaults:
        """Return the running cluster once all brokers serve. Raises BrokerFailed."""
        try:
            for broker in self.cluster.brokers.values():
                broker.wait_until_ready()
        except BaseException:
            self.close()
            raise
        return self.faults

    def close(self) -> None:
        """End the brokers and remove their data."""
        self.faults.close()
        self.cluster.kill()
        self._directory.cleanup()
