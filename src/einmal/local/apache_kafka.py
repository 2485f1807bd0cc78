"""Apache Kafka on this machine: nodes in KRaft mode, as processes, from the jars of its distribution.

A cluster has the layout of ours. Clients, brokers and controllers connect on loopback listeners without security.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Self

from einmal.local.layout import BrokerPlan, plan_cluster, plan_hosts, settings_of_node, write_private_properties
from einmal.local.processes import BrokerFailed, Inside, NodeProcess, ProcessCluster, directly, tail

QUICK_JVM: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
"""For processes that are killed and started often: a quick start counts, peak speed does not."""
SMALL_JVM: Final = ("-Xmx256m", *QUICK_JVM)
_LOGGING: Final = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true")
_BROKER_JAR: Final = re.compile(r"kafka_2\.\d+-(\d[\w.-]*)\.jar")
_CLIENTS_JAR: Final = re.compile(r"kafka-clients-(\d[\w.]*)\.jar")
CLUSTER_ID: Final = "ZWlubWFsLWludGVyb3AtMQ"
_START_S: Final = 300.0
_LOOK_S: Final = 0.02


class KafkaMissing(Exception):
    """There is no Apache Kafka in a folder. ``str()`` names what to do."""


@dataclass(frozen=True, slots=True)
class KafkaJars:
    """``folder``: the jars of a distribution, its ``libs``, or Maven's."""

    folder: Path
    version: str

    @classmethod
    def locate(cls, home: Path, *, of_clients: bool = False) -> Self:
        """Find the jars of its brokers, or its clients, in a distribution, or in a folder of jars. Raises
        KafkaMissing."""
        wanted, name = (_CLIENTS_JAR, "kafka-clients-*.jar") if of_clients else (_BROKER_JAR, "kafka_2.13-*.jar")
        for folder in (home / "libs", home):
            for jar in sorted(folder.glob("kafka*.jar")):
                if (match := wanted.fullmatch(jar.name)) is not None:
                    return cls(folder, match[1])
        raise KafkaMissing(
            f"no {name} in {home / 'libs'} or {home}\nhint: name the folder of a downloaded Apache Kafka 4 "
            "(https://kafka.apache.org/downloads)"
        )


class KafkaNode(NodeProcess):
    """A node of Apache Kafka. ``format_options``: of ``kafka-storage.sh format``. ``jvm``: options of its JVM."""

    # Leaders move, and the log is flushed.
    stop_s: ClassVar = 120.0

    def __init__(
        self,
        plan: BrokerPlan,
        jars: KafkaJars,
        java: Path,
        *,
        cluster_id: str = CLUSTER_ID,
        format_options: Sequence[str] = (),
        jvm: Sequence[str] = SMALL_JVM,
        inside: Sequence[str] = (),
    ) -> None:
        super().__init__(plan, inside)
        self._jars = jars
        self._java = java
        self._format_options = ("-t", cluster_id, *format_options)
        self._jvm = jvm
        self._guard: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """As every node; the first time, format its storage before. Raises BrokerFailed."""
        if not (self.plan.data / "meta.properties").exists():
            self._format()
        with self.plan.log.open("ab") as log:
            self._child = subprocess.Popen(
                [*self.inside, *self._command(self._jvm, "kafka.Kafka", str(self.plan.properties))],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                text=True,
            )
        # It does not end with its standard input: somebody must kill it who does, and holds nothing else of ours open.
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", f"read _; kill -9 {self.pid}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def wait_until_ready(self) -> Mapping[str, Any]:
        """Return once it listens for clients, as it does only when it may serve. Raises BrokerFailed."""
        deadline = time.monotonic() + _START_S
        while not _accepts(self.plan.host, self.plan.port):
            if not self.is_running or time.monotonic() > deadline:
                raise self._failure()
            time.sleep(_LOOK_S)
        return {}

    def _format(self) -> None:
        """Raises BrokerFailed."""
        arguments = ("format", "-c", str(self.plan.properties), *self._format_options)
        command = self._command(QUICK_JVM, "kafka.tools.StorageTool", *arguments)
        # Java decodes its arguments by the locale.
        locale = {**os.environ, "LC_ALL": "C.UTF-8"}
        with self.plan.log.open("ab") as log:
            result = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, env=locale, check=False)
        if result.returncode:
            file = self.plan.log
            raise BrokerFailed(f"kafka-storage.sh format has failed; the end of {file}:\n{tail(file)}")

    def _command(self, options: Sequence[str], *arguments: str) -> list[str]:
        """``options``: of the JVM. ``arguments``: the main class and its own."""
        return [str(self._java), *options, *_LOGGING, "-cp", str(self._jars.folder / "*"), *arguments]

    def _reap(self) -> None:
        super()._reap()
        if self._guard is not None:
            self._guard.kill()
            self._guard.communicate()
            self._guard = None


class ApacheCluster(ProcessCluster[KafkaNode]):
    """Nodes of Apache Kafka."""

    @classmethod
    def on_loopback(cls, folder: Path, count: int, jars: KafkaJars, java: Path, inside: Inside = directly) -> Self:
        """Nodes on free ports of this machine, with their data in ``folder``."""
        return cls._of(plan_cluster(folder, count, host="127.0.0.1", first_port=0), jars, java, inside)

    @classmethod
    def on_hosts(cls, folder: Path, hosts: Sequence[str], jars: KafkaJars, java: Path, inside: Inside) -> Self:
        """A node on each host, with its data in ``folder``."""
        return cls._of(plan_hosts(folder, hosts), jars, java, inside)

    @classmethod
    def _of(cls, plans: Sequence[BrokerPlan], jars: KafkaJars, java: Path, inside: Inside) -> Self:
        for plan in plans:
            write_kafka_properties(plan, plans, {})
        return cls({plan.node_id: KafkaNode(plan, jars, java, inside=inside(plan.node_id)) for plan in plans})


def write_kafka_properties(plan: BrokerPlan, plans: Sequence[BrokerPlan], settings: Mapping[str, str]) -> None:
    """Write a node's settings. ``plans``: of all nodes. ``settings`` override. Raises OSError."""
    clients = f"PLAINTEXT://{plan.bootstrap_server}"
    controller = plan.controller_address
    common = settings_of_node(plan, plans)
    values = {
        **common,
        "listeners": clients if controller is None else f"{clients},CONTROLLER://{controller}",
        "advertised.listeners": clients,
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "inter.broker.listener.name": "PLAINTEXT",
        "share.coordinator.state.topic.replication.factor": common["default.replication.factor"],
        "share.coordinator.state.topic.min.isr": common["min.insync.replicas"],
        # The default is a minute, which three nodes on a busy machine may take to find each other.
        "initial.broker.registration.timeout.ms": str(int(_START_S * 1000)),
        # The default is half of the heap.
        "log.cleaner.dedupe.buffer.size": str(2 * 1024 * 1024),
        **settings,
    }
    write_private_properties(plan.properties, values)


def _accepts(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False
