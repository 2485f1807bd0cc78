"""Our own broker, as a process of the tests: ``einmal start`` on a free loopback port, its modules loaded.

Has the same methods as ``ApacheKafka``, so that a test can use either.
"""

from __future__ import annotations

import re
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from tests.ports import loopback_ports
from tests.suite.shared import Shareable
from tests.suite.warm import WarmProcess

_READY: Final = re.compile(r"is ready: (bootstrap\.servers=|controller )(?P<host>[\d.]+):(?P<port>\d+)")
_STOP_S: Final = 120.0
_LOGGED_S: Final = 120.0


class EinmalDied(Exception):
    """The process ended before it was ready; the text has its log."""


class EinmalBroker(Shareable):
    """A broker that can be killed and started again on the same ports and data.

    ``settings``: broker settings under Kafka's names. ``controller_ports`` names the nodes of the cluster, this one
    among them, by their ids.
    """

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, str] | None = None,
        *,
        node_id: int = 1,
        controller_ports: Mapping[int, int] | None = None,
    ) -> None:
        self._directory = directory
        self._process: WarmProcess | None = None
        self.node_id = node_id
        self.host = "127.0.0.1"
        (self.port,) = loopback_ports(1)
        self.transaction_version = 2
        # As the Apache Kafka of these tests: a group's first member need not wait for others.
        self._settings = {"group.initial.rebalance.delay.ms": "0"}
        if controller_ports is not None:
            self._settings |= _of_a_cluster(self.host, self.port, node_id, controller_ports)
        self._settings |= settings or {}
        self.log_directory = directory / "data"
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start, and return once the broker reports that it is ready. Raises EinmalDied."""
        self.launch()
        self.wait_until_ready()

    def launch(self) -> None:
        """Start, and do not wait: the nodes of a cluster wait for one another."""
        assert self._process is None, "already running"
        command = ["einmal", "start", "--data-dir", str(self.log_directory)]
        if "listeners" not in self._settings:
            command += ["--port", str(self.port)]
        for key, value in self._settings.items():
            command += ["-X", f"{key}={value}"]
        with (self._directory / "einmal.log").open("a") as log:
            self._process = WarmProcess(command, errors=log.fileno())

    def wait_until_ready(self) -> None:
        """Raises EinmalDied."""
        assert self._process is not None and self._process.stdout is not None
        for line in self._process.stdout:
            if ready := _READY.search(line):
                self.host, self.port = ready["host"], int(ready["port"])
                return
        self.kill()
        raise EinmalDied(self.log_tail())

    def wait_until_logged(self, text: str) -> None:
        """A client may know of its refusal before the broker has written why."""
        deadline = time.monotonic() + _LOGGED_S
        while text not in self.log_tail(1_000_000):
            assert time.monotonic() < deadline, f"never logged: {text!r}, but {self.log_tail()}"
            time.sleep(0.02)

    def log_tail(self, characters: int = 4000) -> str:
        return (self._directory / "einmal.log").read_text(errors="replace")[-characters:]

    def kill(self) -> None:
        """kill -9, and wait until the process is gone."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """A clean stop; kill -9 where that takes too long."""
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        process = self._process
        if process is None:
            return
        process.send_signal(how)
        self._process = None
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_STOP_S)
        assert process.stdout is not None
        process.stdout.close()


def _of_a_cluster(host: str, port: int, node_id: int, controller_ports: Mapping[int, int]) -> dict[str, str]:
    replicas = min(3, len(controller_ports))
    quorate = max(1, replicas - 1)
    return {
        "node.id": str(node_id),
        "process.roles": "broker,controller",
        "controller.quorum.voters": ",".join(f"{each}@{host}:{place}" for each, place in controller_ports.items()),
        "controller.listener.names": "CONTROLLER",
        "listeners": f"PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_ports[node_id]}",
        "default.replication.factor": str(replicas),
        "min.insync.replicas": str(quorate),
        "broker.session.timeout.ms": "3000",
        "offsets.topic.num.partitions": "3",
        "offsets.topic.replication.factor": str(replicas),
        "transaction.state.log.num.partitions": "3",
        "transaction.state.log.replication.factor": str(replicas),
        "transaction.state.log.min.isr": str(quorate),
    }
