"""The processes of the campaign: three brokers, a Spark cluster, and drivers, each of which can be found and killed.

A driver is launched before it is needed, so that the next one has its JVM when the present one dies; it begins when it
is ordered to.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from pathlib import Path
from typing import Any, Final

from einmal.chaos.processes import command_of, parent_of, session_of
from einmal.clusters.kafka_cluster import KafkaCluster
from einmal.commit_protocol.commit_record import COMMIT_TOPIC
from einmal.sinks.kafka.commit_log import PARTITIONS, TOPIC_CONFIG
from einmal.wire.murmur2 import partition_for_key
from tests.campaigns.spark_driver import READY_S, SparkDriver, java_options, spark_config
from tests.interop.cluster import GROUP, TRANSACTION, Cluster
from tests.spark.campaign.pipelines import SOURCES, output_topic
from tests.spark.standalone import StandaloneCluster, executor_of, executors_of, holder_of

INPUT_PARTITIONS: Final = 2
OUTPUT_PARTITIONS: Final = 2


class Driver(SparkDriver):
    """A process that runs ``driver``, by itself or as an application of a Spark cluster."""

    def __init__(self, directory: Path, settings: dict[str, Any], spark: StandaloneCluster | None) -> None:
        self._spark = spark
        self._application = ""
        self.reached: dict[str, Any] | None = None
        self.commits: Counter[str] = Counter()
        self.ends: list[dict[str, Any]] = []
        self.restarts: list[str] = []
        self.state: dict[str, Any] | None = None
        super().__init__(directory, "tests.spark.campaign.driver", settings)

    @property
    def is_local(self) -> bool:
        """Its executor is in its own JVM."""
        return self._spark is None

    # --- messages -------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Let it start its queries."""
        self.order(begin=True)

    def hold(self, moment: str, pipeline: str | None) -> None:
        self.reached = None
        self.order(hold=moment, pipeline=pipeline)

    def let_go(self) -> None:
        """Hold nowhere any more."""
        self.order(hold="", pipeline=None)
        self.order(go=True)

    def stop(self) -> None:
        """Let the queries end, and read their state. Raises ProcessEnded."""
        self.order(stop=True)
        self.wait_for(lambda: self.state is not None, READY_S)

    def hear(self, message: dict[str, Any]) -> None:
        if "ready" in message:
            self.jvm, self._application = message["ready"], message["application"]
        elif "reached" in message:
            self.reached = message
        elif "ended" in message:
            self.ends.append(message)
        elif "restarted" in message:
            self.restarts.append(f"{message['restarted']}: {message['why']}")
        elif "state" in message:
            self.state = message["state"]
        elif message.get("committed"):
            self.commits[message["pipeline"]] += 1

    # --- killing --------------------------------------------------------------------------------------------------

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
        return _any(chance, [pid for pid in every if self._application in command_of(pid)])

    def _leaders(self) -> list[int]:
        if self._spark is None:
            return [self.process.pid]
        return [pid for name, pid in self._spark.pids.items() if name != "master"]

    def _holder(self, port: int) -> int | None:
        try:
            return holder_of(port, self._leaders())
        except (AssertionError, ValueError):
            # It has ended meanwhile.
            return None

    def _is_worker(self, pid: int) -> bool:
        """Below a daemon of Python workers, which is below a JVM."""
        parent = parent_of(pid)
        return (
            "python" in command_of(pid) and "python" in command_of(parent) and "java" in command_of(parent_of(parent))
        )


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
        spark = None if local else self.spark
        return Driver(directory, self.settings(directory, spark, place), spark)

    def settings(
        self, directory: Path, spark: StandaloneCluster | None, place: dict[str, Any], **others: str
    ) -> dict[str, Any]:
        """Of a driver with four queries. ``spark``: None where it runs by itself; ``others``: of its executors'
        environment."""
        config = spark_config(directory, spark, executor_cores=3) | {
            # Four queries at once; one that is held in a task keeps its slot.
            "spark.scheduler.mode": "FAIR",
            # Versions of state files are looked for in every batch: few of them.
            "spark.sql.streaming.minBatchesToRetain": "10",
        }
        if spark is not None:
            # An executor that was killed is asked three times more for its shuffle files.
            config |= {"spark.driver.extraJavaOptions": java_options(), "spark.shuffle.io.retryWait": "200ms"}
        config |= {f"spark.executorEnv.{name}": value for name, value in others.items()}
        return {"master": "local[6]" if spark is None else spark.master, "config": config, "place": place}

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
