"""Apache Kafka itself, as processes of the tests: KRaft nodes (broker and controller) on free loopback ports.

The jars come from Maven Central (``kafka/pom.xml`` lists them) and are kept in ``build/kafka``. Data lives in a
directory of the caller's. Of einmal it uses what starts Apache Kafka for users: it is the reference implementation in
tests of both brokers.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Final

import pytest

from einmal.local.apache_kafka import CLUSTER_ID, QUICK_JVM, SMALL_JVM, KafkaJars, KafkaNode, write_kafka_properties
from einmal.local.layout import BrokerPlan
from tests.ports import loopback_ports
from tests.suite.shared import Shareable, Unavailable

_HERE: Final = Path(__file__).parent
_JARS: Final = _HERE.parent.parent / "build" / "kafka"
_POM: Final = _HERE / "kafka" / "pom.xml"

JVM: Final = QUICK_JVM
OF_A_WHOLE_RUN: Final = {
    "broker.session.timeout.ms": "60000",
    "broker.heartbeat.interval.ms": "2000",
    "metadata.max.idle.interval.ms": "30000",
}
"""Settings of a node that nobody kills: it may stand still for long and is still the same broker. Heartbeats five times
a second, and an empty metadata record twice a second, are half of what it uses while nobody asks it anything."""
_QUICK: Final = {
    "num.partitions": "4",
    "offsets.topic.num.partitions": "3",
    "transaction.state.log.num.partitions": "3",
    "group.initial.rebalance.delay.ms": "0",
    # A killed node may register again only when the session of its former life has ended.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "200",
    # The sweep that aborts overdue transactions; by default every 10 s.
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "200",
    "log.cleaner.backoff.ms": "1000",
}
_COMPILE_S: Final = 300.0
_MAVEN_S: Final = 900.0


class KafkaUnavailable(Unavailable):
    """Apache Kafka cannot be run on this machine; the text names what is missing."""


class ApacheKafka(Shareable):
    """A node that can be killed and started again on the same ports and data.

    ``transaction_version`` is the finalized level of the feature ``transaction.version`` (0, 1 or 2), fixed when the
    storage is formatted. ``controller_ports`` names the nodes of the cluster, this one among them, by their ids.
    ``settings``: broker settings beside those that all tests have. ``listeners``: more listeners for clients, by name,
    with their security protocols; ``ports`` has their ports. ``users``: SCRAM credentials that the storage is formatted
    with, as ``kafka-storage.sh format --add-scram`` takes them.
    """

    options: ClassVar[tuple[str, ...]] = SMALL_JVM

    def __init__(
        self,
        directory: Path,
        *,
        transaction_version: int = 2,
        node_id: int = 1,
        controller_ports: Mapping[int, int] | None = None,
        settings: Mapping[str, str] | None = None,
        listeners: Mapping[str, str] | None = None,
        users: Sequence[str] = (),
        cluster_id: str = CLUSTER_ID,
    ) -> None:
        self.transaction_version = transaction_version
        self.node_id = node_id
        self.host = "127.0.0.1"
        self.port, *ports = loopback_ports(1 + len(listeners or {}))
        self.ports = dict(zip(listeners or {}, ports, strict=True))
        controllers = controller_ports or {node_id: loopback_ports(1)[0]}
        plans = {
            each: BrokerPlan(each, self.host, self.port, internal_port=0, controller_port=port, folder=directory)
            for each, port in controllers.items()
        }
        plan = plans[node_id]
        self.log_directory = plan.data
        directory.mkdir(parents=True, exist_ok=True)
        more = _with_listeners(plan, self.ports, listeners) if listeners else {}
        write_kafka_properties(plan, list(plans.values()), _QUICK | more | dict(settings or {}))
        options = ["--feature", f"transaction.version={transaction_version}"]
        options += [part for user in users for part in ("--add-scram", user)]
        jars = KafkaJars.locate(Path(classpath("broker")).parent)
        self._process = KafkaNode(
            plan, jars, Path(java()), format_options=options, jvm=self.options, cluster_id=cluster_id
        )

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    def start(self) -> None:
        """Start, and return once the node answers on its port. Raises BrokerFailed."""
        self.launch()
        self.wait_until_ready()

    def launch(self) -> None:
        """Start, and do not wait: the nodes of a cluster wait for one another. Raises BrokerFailed."""
        assert not self._process.is_running, "already running"
        self._process.start()

    def wait_until_ready(self) -> None:
        """Raises BrokerFailed."""
        self._process.wait_until_ready()

    def kill(self) -> None:
        """kill -9, and wait until the process is gone."""
        self._process.kill()

    def stop(self) -> None:
        """A clean stop; kill -9 where that takes too long."""
        self._process.stop()

    @property
    def pid(self) -> int:
        found: int = self._process.pid
        return found


def _with_listeners(plan: BrokerPlan, ports: Mapping[str, int], protocols: Mapping[str, str]) -> dict[str, str]:
    """Settings of a node with more listeners for clients."""
    own = {"PLAINTEXT": plan.bootstrap_server, **{name: f"{plan.host}:{port}" for name, port in ports.items()}}
    clients = ",".join(f"{name}://{address}" for name, address in own.items())
    mapped = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", **protocols}
    return {
        "listeners": f"{clients},CONTROLLER://{plan.controller_address}",
        "advertised.listeners": clients,
        "listener.security.protocol.map": ",".join(f"{name}:{each}" for name, each in mapped.items()),
    }


def java() -> str:
    """The system's Java. Raises KafkaUnavailable."""
    return _required("java")


@cache
def classpath(profile: str, pom: Path = _POM) -> str:
    """The jars of a profile of a pom, fetched with Maven when the pom has changed. Raises KafkaUnavailable."""
    maven = _required("mvn")
    _required("java")
    directory = _JARS / profile
    _JARS.mkdir(parents=True, exist_ok=True)
    # Tests run in several processes: one fetches, the others wait.
    with (_JARS / f"{profile}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # The copied pom is written last: it proves that this set of jars is whole and is that pom's.
        proof = directory / "pom.xml"
        if not (proof.exists() and proof.read_bytes() == pom.read_bytes()):
            _fetch(maven, profile, pom, directory)
            shutil.copyfile(pom, proof)
    return str(directory / "*")


@cache
def java_program(name: str) -> list[str]:
    """Java's arguments to run one of ``kafka/*.java``, compiled when they have changed. Raises KafkaUnavailable."""
    jars = classpath("tools")
    compiler = _required("javac")
    sources = sorted((_HERE / "kafka").glob("*.java"))
    content = hashlib.sha256(b"".join(source.read_bytes() for source in (*sources, _POM)))
    classes = _JARS / "programs" / content.hexdigest()[:16]
    with (_JARS / "programs.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not classes.exists():
            part = classes.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)
            part.mkdir(parents=True)
            command = [compiler, *(f"-J{option}" for option in JVM), "-nowarn", "-cp", jars, "-d", str(part)]
            result = subprocess.run([*command, *map(str, sources)], capture_output=True, text=True, timeout=_COMPILE_S)
            assert result.returncode == 0, result.stderr
            part.rename(classes)
    return ["-cp", f"{jars}{os.pathsep}{classes}", name]


def _fetch(maven: str, profile: str, pom: Path, directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    arguments = ["-q", "-B", "-f", str(pom), f"-P{profile}", f"-DoutputDirectory={directory}"]
    try:
        result = subprocess.run(
            [maven, *arguments, "dependency:copy-dependencies"], capture_output=True, timeout=_MAVEN_S, text=True
        )
    except subprocess.TimeoutExpired as error:
        raise KafkaUnavailable("Maven took too long to fetch Apache Kafka's jars") from error
    if result.returncode:
        raise KafkaUnavailable(f"Maven could not fetch Apache Kafka's jars: {result.stdout[-1000:]}")


def _required(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise KafkaUnavailable(f"Apache Kafka needs {program}, which is not installed")
    return path


def in_the_long_run(kind: str, *values: str) -> Any:
    """A test's parameters that begin with the kind of broker; Apache Kafka is left to ``make test-long``."""
    return pytest.param(kind, *values, marks=[pytest.mark.long] if kind.startswith("apache") else [])
