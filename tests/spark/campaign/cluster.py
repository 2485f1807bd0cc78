"""The processes of the campaign: three brokers, a Spark cluster, and drivers, each of which can be found and killed.

A driver is launched before it is needed, so that the next one has its JVM when the present one dies; it begins when it
is ordered to.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from einmal.clusters.kafka_cluster import KafkaCluster
from einmal.pipeline.commit_record import COMMIT_TOPIC
from einmal.sinks.kafka.commit_log import PARTITIONS, TOPIC_CONFIG
from einmal.spark.environment import class_archive
from einmal.wire.murmur2 import partition_for_key
from tests.interop.cluster import GROUP, TRANSACTION, Cluster
from tests.spark.campaign.pipelines import SOURCES, output_topic
from tests.spark.standalone import StandaloneCluster, die_with_parent, executor_of, executors_of, holder_of, session_of
from tests.spark.standalone import kill as kill_pids

INPUT_PARTITIONS: Final = 2
OUTPUT_PARTITIONS: Final = 2
_READY_S: Final = 120.0
_GONE_S: Final = 20.0
_REPOSITORY: Final = Path(__file__).parents[3]
_PARENT: Final = 1
"""In /proc/PID/stat, after the name of the program."""


class DriverDied(Exception):
    """A driver ended that nobody had killed; the text has the end of its log."""


class Driver:
    """A process that runs ``driver``, by itself or as an application of a Spark cluster."""

    def __init__(self, directory: Path, settings: dict[str, Any], spark: StandaloneCluster | None) -> None:
        directory.mkdir(parents=True)
        settings_path = directory / "settings.json"
        settings_path.write_text(json.dumps(settings))
        self._spark = spark
        self._log = directory / "driver.log"
        self._heard = threading.Condition()
        self._is_over = False
        self._jvm = 0
        self._application = ""
        self.reached: dict[str, Any] | None = None
        self.commits: Counter[str] = Counter()
        self.ends: list[dict[str, Any]] = []
        self.restarts: list[str] = []
        self.state: dict[str, Any] | None = None
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.campaign.driver", str(settings_path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=_REPOSITORY,
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - one system call, no lock
            )
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    @property
    def is_local(self) -> bool:
        """Its executor is in its own JVM."""
        return self._spark is None

    # --- messages -------------------------------------------------------------------------------------------------

    def wait_until_ready(self) -> None:
        """Its session is there. Raises DriverDied."""
        self.wait(lambda: self._jvm > 0, _READY_S)

    def begin(self) -> None:
        """Let it start its queries."""
        self._tell(begin=True)

    def hold(self, moment: str, pipeline: str | None) -> None:
        self.reached = None
        self._tell(hold=moment, pipeline=pipeline)

    def let_go(self) -> None:
        """Hold nowhere any more."""
        self._tell(hold="", pipeline=None)
        self._tell(go=True)

    def stop(self) -> None:
        """Let the queries end, and read their state. Raises DriverDied."""
        self._tell(stop=True)
        self.wait(lambda: self.state is not None, _READY_S)

    def wait(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Whether it has come in time. Raises DriverDied."""
        with self._heard:
            is_there = self._heard.wait_for(lambda: condition() or self._is_over, timeout_s)
            if self._is_over and not condition():
                raise DriverDied(self._log.read_text(errors="replace")[-4000:])
        return is_there

    def _tell(self, **line: Any) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(line) + "\n")
            self._process.stdin.flush()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.startswith("{"):
                # The JVM writes its own warnings to the output that it shares with the driver.
                with self._log.open("a") as log:
                    log.write(line)
                continue
            with self._heard:
                self._hear(json.loads(line))
                self._heard.notify_all()
        with self._heard:
            self._is_over = True
            self._heard.notify_all()

    def _hear(self, said: dict[str, Any]) -> None:
        if "ready" in said:
            self._jvm, self._application = said["ready"], said["application"]
        elif "reached" in said:
            self.reached = said
        elif "ended" in said:
            self.ends.append(said)
        elif "restarted" in said:
            self.restarts.append(f"{said['restarted']}: {said['why']}")
        elif "state" in said:
            self.state = said["state"]
        elif said.get("committed"):
            self.commits[said["pipeline"]] += 1

    # --- killing --------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """The driver: its JVM, and the program that started it. What they have started finds out by itself."""
        kill_pids(self._jvm, self._process.pid)
        self._process.wait(_GONE_S)
        self._reader.join(_GONE_S)

    def sweep(self) -> None:
        """End its remaining processes."""
        self.kill()
        for pid in session_of(self._process.pid):
            kill_pids(pid)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()

    def python_worker(self, chance: random.Random, port: int | None) -> int | None:
        """The one whose connection comes from ``port``, else any; None: there is none just now."""
        holder = None if port is None else self._holder(port)
        if holder is not None:
            return holder
        return _any(chance, [pid for leader in self._leaders() for pid in session_of(leader) if self._is_worker(pid)])

    def executor(self, chance: random.Random, port: int | None) -> int | None:
        """A JVM of its own: the one that runs the writer whose connection comes from ``port``, else any."""
        holder = None if port is None else self._holder(port)
        if holder is not None:
            with contextlib.suppress(OSError):
                return executor_of(holder)
        every = [pid for leader in self._leaders() for pid in executors_of(leader)]
        return _any(chance, [pid for pid in every if self._application in _command(pid)])

    def _leaders(self) -> list[int]:
        if self._spark is None:
            return [self._process.pid]
        return [pid for name, pid in self._spark.pids.items() if name != "master"]

    def _holder(self, port: int) -> int | None:
        try:
            return holder_of(port, self._leaders())
        except (AssertionError, ValueError):
            # It has ended meanwhile.
            return None

    def _is_worker(self, pid: int) -> bool:
        """Below a daemon of Python workers, which is below a JVM."""
        parent = _parent(pid)
        return "python" in _command(pid) and "python" in _command(parent) and "java" in _command(_parent(parent))


class Theatre:
    """Everything that outlives drivers. ``spark``: None where drivers run by themselves only."""

    def __init__(self, directory: Path, brokers: Cluster, spark: StandaloneCluster | None) -> None:
        self._directory = directory
        self.brokers = brokers
        self.spark = spark
        self._drivers = 0
        self.workers = () if spark is None else tuple(name for name in spark.pids if name != "master")

    def prepare(self) -> None:
        """The topics, and the one of commit records, which the first exactly-once pipeline would make."""
        topics = {topic: INPUT_PARTITIONS for topics in SOURCES.values() for topic in topics}
        for topic, partitions in (topics | {output_topic(name): OUTPUT_PARTITIONS for name in SOURCES}).items():
            self.brokers.create_topic(topic, partitions)
        cluster = KafkaCluster({"bootstrap.servers": self.brokers.bootstrap})
        try:
            cluster.create_topic(COMMIT_TOPIC, PARTITIONS, TOPIC_CONFIG)
        finally:
            cluster.close()

    def launch(self, place: dict[str, Any], *, local: bool) -> Driver:
        self._drivers += 1
        directory = self._directory / f"driver-{self._drivers}"
        quick = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData"
        config = {
            "spark.local.dir": str(directory / "local"),
            "spark.sql.warehouse.dir": str(directory / "warehouse"),
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.session.timeZone": "UTC",
            # Four queries at once; one that is held in a task keeps its slot.
            "spark.scheduler.mode": "FAIR",
            # Versions of state files are looked for in every batch: few of them.
            "spark.sql.streaming.minBatchesToRetain": "10",
        }
        if local or self.spark is None:
            return Driver(directory, {"master": "local[6]", "config": config, "place": place}, None)
        config |= {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.extraJavaOptions": " ".join([quick, *class_archive.options()]),
            "spark.executor.memory": "512m",
            "spark.executor.cores": "3",
            "spark.cores.max": "6",
            "spark.executor.extraJavaOptions": " ".join([quick, *class_archive.options()]),
            "spark.executorEnv.PYTHONPATH": os.pathsep.join([str(_REPOSITORY / "src"), str(_REPOSITORY)]),
            "spark.ui.enabled": "false",
            "spark.ui.showConsoleProgress": "false",
            # An executor that was killed is asked three times more for its shuffle files.
            "spark.shuffle.io.retryWait": "200ms",
        }
        return Driver(directory, {"master": self.spark.master, "config": config, "place": place}, self.spark)

    # --- brokers by their part ------------------------------------------------------------------------------------

    def broker(self, part: str, pipeline: str, chance: random.Random) -> int:
        """The id of a node that serves."""
        match part:
            case "leader of output":
                return self.brokers.leader(output_topic(pipeline), chance.randrange(OUTPUT_PARTITIONS))
            case "leader of input":
                return self.brokers.leader(chance.choice(SOURCES[pipeline]), chance.randrange(INPUT_PARTITIONS))
            case "leader of commit record":
                return self.brokers.leader(COMMIT_TOPIC, partition_for_key(pipeline.encode(), PARTITIONS))
            case "transaction coordinator":
                return self.brokers.coordinator(TRANSACTION, pipeline)
            case "group coordinator":
                return self.brokers.coordinator(GROUP, pipeline)
        raise AssertionError(part)

    def spark_worker(self, chance: random.Random) -> str:
        assert self.spark is not None
        return chance.choice([name for name in self.spark.pids if name in self.workers])


def _any(chance: random.Random, pids: list[int]) -> int | None:
    return chance.choice(pids) if pids else None


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[_PARENT])
    except OSError:
        return 0
