"""Broker processes of a test session, in a temporary directory: started at once, awaited when they are needed."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from einmal.chaos.cluster_faults import ClusterFaults
from einmal.local.processes import BrokerFailed, LocalCluster, tail

START_S: Final = 120.0
"""Limit of a start, which takes some seconds, and longer on a busy machine."""
_LOOK_S: Final = 0.1
_QUICK: Final = {
    # The first member of a group need not wait for others, and a killed broker is noticed soon.
    "group.initial.rebalance.delay.ms": "0",
    "broker.session.timeout.ms": "3000",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
}


class _BoundedStart:
    """Kills the brokers of a cluster when one of them has ended, or after ``limit_s``: what waits for them then fails,
    and leaving it raises BrokerFailed with the reason."""

    def __init__(self, cluster: LocalCluster, limit_s: float) -> None:
        self._cluster = cluster
        self._limit_s = limit_s
        self._reason: str | None = None
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="einmal-start", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, _type: object, error: BaseException | None, _traceback: object) -> None:
        self._is_over.set()
        self._thread.join()
        if self._reason is not None and (error is None or isinstance(error, BrokerFailed)):
            raise BrokerFailed(self._reason) from error

    def _watch(self) -> None:
        deadline = time.monotonic() + self._limit_s
        while self._reason is None and not self._is_over.wait(_LOOK_S):
            ended = next((broker for broker in self._cluster.brokers.values() if not broker.is_running), None)
            if ended is not None:
                plan = ended.plan
                self._reason = f"broker {plan.node_id} has ended; the end of {plan.log}:\n{tail(plan.log)}"
            elif time.monotonic() > deadline:
                self._reason = f"the brokers do not serve within {self._limit_s:g} s"
        if self._reason is not None:
            for broker in self._cluster.brokers.values():
                broker.signal(signal.SIGKILL)


class OwnBrokers:
    """``count`` brokers, which end with this process at the latest. ``settings``: under Kafka's names."""

    def __init__(self, count: int, settings: Mapping[str, str] | None = None) -> None:
        self._directory = TemporaryDirectory(prefix="einmal-")
        directory = Path(self._directory.name)
        self.cluster = LocalCluster.on_loopback(directory, count, {**_QUICK, **(settings or {})})
        self.faults = ClusterFaults(self.cluster)
        for broker in self.cluster.brokers.values():
            broker.start()

    def wait_until_ready(self, limit_s: float = START_S) -> ClusterFaults:
        """Return the running cluster once all brokers serve. Raises BrokerFailed, also where one of them has ended, for
        which the others would wait, or where they do not serve within the limit."""
        try:
            with _BoundedStart(self.cluster, limit_s):
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
