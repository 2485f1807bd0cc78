"""Apache Kafka itself, as processes of the tests: KRaft nodes (broker and controller) on free loopback ports.

The jars come from Maven Central (``kafka/pom.xml`` lists them) and are kept in ``build/kafka``. Data lives in a
directory of the caller's. Knows nothing of einmal: it is the reference implementation in tests of
both brokers.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any, ClassVar, Final

import pytest

from tests.ports import loopback_ports
from tests.suite.shared import Shareable, Unavailable

_HERE: Final = Path(__file__).parent
_JARS: Final = _HERE.parent.parent / "build" / "kafka"
_POM: Final = _HERE / "kafka" / "pom.xml"

# Short-lived and beside other processes: a quick start counts, peak speed does not.
JVM: Final = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")
OF_A_WHOLE_RUN: Final = {"broker.session.timeout.ms": "60000", "broker.heartbeat.interval.ms": "2000"}
"""Settings of a node that nobody kills: it may stand still for long and is still the same broker, and a heartbeat five
times a second takes a fifth of what it uses while nobody asks it anything."""
_LOGGING: Final = ("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true")
_CLUSTER_ID: Final = "ZWlubWFsLWludGVyb3AtMQ"
_START_S: Final = 300.0
_STOP_S: Final = 120.0
_MAVEN_S: Final = 900.0


class KafkaUnavailable(Unavailable):
    """Apache Kafka cannot be run on this machine; the text names what is missing."""


class KafkaDied(Exception):
    """The process ended, or never answered; the text has the end of its log."""


class ApacheKafka(Shareable):
    """A node that can be killed and started again on the same ports and data.

    ``transaction_version`` is the finalized level of the feature ``transaction.version`` (0, 1 or 2), fixed when the
    storage is formatted. ``controller_ports`` names the nodes of the cluster, this one among them, by their ids.
    ``settings``: broker settings beside those that all tests have. ``listeners``: more listeners for clients, by name,
    with their security protocols; ``ports`` has their ports. ``users``: SCRAM credentials that the storage is formatted
    with, as ``kafka-storage.sh format --add-scram`` takes them.
    """

    options: ClassVar[tuple[str, ...]] = ("-Xmx256m", *JVM)

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
        cluster_id: str = _CLUSTER_ID,
    ) -> None:
        self._classpath = classpath("broker")
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self.transaction_version = transaction_version
        self.node_id = node_id
        self.host = "127.0.0.1"
        self._controller_ports = controller_ports or {node_id: loopback_ports(1)[0]}
        self.port, *ports = loopback_ports(1 + len(listeners or {}))
        self.protocols = dict(listeners or {})
        self.ports = dict(zip(self.protocols, ports, strict=True))
        self._users = users
        self._cluster_id = cluster_id
        self.log_directory = directory / "data"
        directory.mkdir(parents=True, exist_ok=True)
        self._properties = directory / "server.properties"
        more = "".join(f"{name}={value}\n" for name, value in (settings or {}).items())
        self._properties.write_text(f"{self._settings()}\n{more}")
        self._format()

    @property
    def bootstrap(self) -> str:
        return f"{self.host}:{self.port}"

    def start(self) -> None:
        """Start, and return once the node answers on its port. Raises KafkaDied."""
        self.launch()
        self.wait_until_ready()

    def launch(self) -> None:
        """Start, and do not wait: the nodes of a cluster wait for one another."""
        assert self._process is None, "already running"
        with self._log_file() as log:
            self._process = subprocess.Popen(
                [java(), *self.options, *_LOGGING, "-cp", self._classpath, "kafka.Kafka", str(self._properties)],
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def wait_until_ready(self) -> None:
        """Raises KafkaDied."""
        assert self._process is not None
        deadline = time.monotonic() + _START_S
        # A node in KRaft mode listens on its data port only once it may serve.
        while not _accepts(self.host, self.port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise KafkaDied(self.log_tail())
            time.sleep(0.02)

    def kill(self) -> None:
        """kill -9, and wait until the process is gone."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """A clean stop; kill -9 where that takes too long."""
        self._end(signal.SIGTERM)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def log_tail(self, characters: int = 4000) -> str:
        return (self._directory / "kafka.log").read_text(errors="replace")[-characters:]

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

    def _log_file(self) -> IO[bytes]:
        return (self._directory / "kafka.log").open("ab")

    def _format(self) -> None:
        arguments = ["format", "-c", str(self._properties), "-t", self._cluster_id]
        arguments += ["--feature", f"transaction.version={self.transaction_version}"]
        arguments += [part for user in self._users for part in ("--add-scram", user)]
        with self._log_file() as log:
            command = [java(), *JVM, *_LOGGING, "-cp", self._classpath, "kafka.tools.StorageTool", *arguments]
            # Java decodes its arguments by the locale.
            locale = {**os.environ, "LC_ALL": "C.UTF-8"}
            if subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, timeout=_START_S, env=locale).returncode:
                raise KafkaDied(self.log_tail())

    def _settings(self) -> str:
        replicas = min(3, len(self._controller_ports))
        quorate = max(1, replicas - 1)
        voters = ",".join(f"{node_id}@{self.host}:{port}" for node_id, port in self._controller_ports.items())
        listener = f"{self.host}:{self._controller_ports[self.node_id]}"
        clients = [f"PLAINTEXT://{self.host}:{self.port}"]
        clients += [f"{name}://{self.host}:{port}" for name, port in self.ports.items()]
        protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT", **self.protocols}
        return "\n".join(
            f"{name}={value}"
            for name, value in {
                "process.roles": "broker,controller",
                "node.id": self.node_id,
                "controller.quorum.voters": voters,
                "controller.listener.names": "CONTROLLER",
                "listeners": ",".join([*clients, f"CONTROLLER://{listener}"]),
                "advertised.listeners": ",".join(clients),
                "listener.security.protocol.map": ",".join(f"{name}:{each}" for name, each in protocols.items()),
                "inter.broker.listener.name": "PLAINTEXT",
                "log.dirs": self.log_directory,
                "num.partitions": 4,
                "default.replication.factor": replicas,
                "min.insync.replicas": quorate,
                "offsets.topic.num.partitions": 3,
                "offsets.topic.replication.factor": replicas,
                "transaction.state.log.num.partitions": 3,
                "transaction.state.log.replication.factor": replicas,
                "transaction.state.log.min.isr": quorate,
                "share.coordinator.state.topic.replication.factor": replicas,
                "share.coordinator.state.topic.min.isr": quorate,
                "group.initial.rebalance.delay.ms": 0,
                # A killed node may register again only when the session of its former life has ended.
                "broker.session.timeout.ms": 3000,
                "broker.heartbeat.interval.ms": 200,
                # The sweep that aborts overdue transactions; by default every 10 s.
                "transaction.abort.timed.out.transaction.cleanup.interval.ms": 200,
                "log.cleaner.dedupe.buffer.size": 2 * 1024 * 1024,
                "log.cleaner.backoff.ms": 1000,
            }.items()
        )


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
            result = subprocess.run([*command, *map(str, sources)], capture_output=True, text=True, timeout=_START_S)
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


def _accepts(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False


def in_the_long_run(kind: str, *values: str) -> Any:
    """A test's parameters that begin with the kind of broker; Apache Kafka is left to ``make test-long``."""
    return pytest.param(kind, *values, marks=[pytest.mark.long] if kind.startswith("apache") else [])
