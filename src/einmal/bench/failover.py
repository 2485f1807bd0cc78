"""How long clients wait when a broker of three is killed with SIGKILL, by its part.

A trial: kill the broker, and time the first call after it; then start the broker again, and wait until every replica is
in sync. In a third of the trials the victim is the active controller too: then two elections follow one another.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from einmal.bench.cases import Figure
from einmal.bench.load import BenchRefused, Connection
from einmal.bench.server import FreshBrokers
from einmal.bench.topics import BenchTopics
from einmal.client import Producer
from einmal.local.processes import LocalCluster
from einmal.types import ErrorCode
from einmal.wire.api.describe_quorum import API as DESCRIBE_QUORUM
from einmal.wire.api.describe_quorum import DescribeQuorumRequest, RequestPartitionData, RequestTopicData
from einmal.wire.api.find_coordinator import API as FIND_COORDINATOR
from einmal.wire.api.find_coordinator import FindCoordinatorRequest
from einmal.wire.api.metadata import API as METADATA
from einmal.wire.api.metadata import MetadataRequest

TRIALS: Final = 100
BROKERS: Final = 3
_PARTITIONS: Final = 3
_TRANSACTION: Final = 1
_CALL_S: Final = 60.0
_PAUSE_S: Final = 0.02
_SETTINGS: Final = ("transaction.state.log.num.partitions=3", "offsets.topic.num.partitions=3")

T = TypeVar("T")


class Trial(NamedTuple):
    """``seconds`` from the kill; ``of_controller``: the victim was the active controller too."""

    seconds: float
    of_controller: bool


class Victims:
    """A cluster, and who plays which part in it."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster

    def leader(self, topic: str, partition: int) -> int:
        """Once every replica of every partition is in sync."""

        def ask(connection: Connection) -> int | None:
            response = connection.call(METADATA, 12, MetadataRequest(allow_auto_topic_creation=False))
            partitions = [
                (metadata.name, partition) for metadata in response.topics for partition in metadata.partitions
            ]
            if any(sorted(partition.isr_nodes) != sorted(partition.replica_nodes) for _name, partition in partitions):
                return None
            leaders = [
                metadata.leader_id
                for name, metadata in partitions
                if (name, metadata.partition_index) == (topic, partition)
            ]
            return leaders[0] if leaders and leaders[0] >= 0 else None

        return self._ask(ask)

    def coordinator(self, transactional_id: str) -> int:
        def ask(connection: Connection) -> int | None:
            response = connection.call(FIND_COORDINATOR, 3, FindCoordinatorRequest(_TRANSACTION, key=transactional_id))
            return response.node_id if response.error_code is ErrorCode.none else None

        return self._ask(ask)

    def controller(self) -> int:
        def ask(connection: Connection) -> int | None:
            topic = RequestTopicData("__cluster_metadata", (RequestPartitionData(0),))
            response = connection.call(DESCRIBE_QUORUM, 1, DescribeQuorumRequest((topic,)))
            return response.topics[0].partitions[0].leader_id if response.error_code is ErrorCode.none else None

        return self._ask(ask)

    def _ask(self, question: Callable[[Connection], T | None]) -> T:
        """Put a question to one broker after the other until one knows."""
        deadline = time.monotonic() + _CALL_S
        while time.monotonic() < deadline:
            for broker in self._cluster.brokers.values():
                with suppress(OSError):
                    connection = Connection(broker.plan.bootstrap_server)
                    try:
                        answer = question(connection)
                    finally:
                        connection.close()
                    if answer is not None:
                        return answer
            time.sleep(_PAUSE_S)
        raise BenchRefused(f"the cluster is not whole after {_CALL_S:.0f} s")

    def time(self, victim: int, call: Callable[[], Any]) -> Trial:
        """Kill the broker, time the call, and bring the broker back."""
        of_controller = victim == self.controller()
        broker = self._cluster.brokers[victim]
        began = time.perf_counter()
        broker.kill()
        call()
        seconds = time.perf_counter() - began
        broker.start()
        broker.wait_until_ready()
        return Trial(seconds, of_controller)


def failover(scale: float, properties: Sequence[str], say: Callable[[str], None]) -> Iterator[Figure]:
    """Figures of ``TRIALS`` kills of each part, times ``scale``."""
    count = max(1, int(TRIALS * scale))
    with FreshBrokers([*_SETTINGS, *properties], BROKERS).running() as cluster:
        # Not deleted: the cluster ends with the measurement.
        topic = BenchTopics(cluster.bootstrap_servers).create("failover", _PARTITIONS)
        victims = Victims(cluster)
        say(f"{count} kills of a partition's leader")
        yield from _figures(
            "leader kill to the next acknowledged write", 0.5, 1.5, _writes(cluster, victims, topic, count)
        )
        say(f"{count} kills of the transaction coordinator")
        yield from _figures(
            "coordinator kill to the commit's answer", None, 2.0, _commits(cluster, victims, topic, count)
        )


def _writes(cluster: LocalCluster, victims: Victims, topic: str, count: int) -> Iterator[Trial]:
    with Producer(bootstrap_servers=cluster.bootstrap_servers, linger_ms=0) as producer:
        for number in range(count):
            partition = number % _PARTITIONS
            leader = victims.leader(topic, partition)
            _write(producer, topic, partition)
            yield victims.time(leader, partial(_write, producer, topic, partition))


def _write(producer: Producer, topic: str, partition: int) -> None:
    try:
        producer.send(topic, b"x", partition=partition).result(_CALL_S)
    except TimeoutError as error:
        raise BenchRefused(f"no acknowledgement of {topic}-{partition} within {_CALL_S:.0f} s") from error


def _commits(cluster: LocalCluster, victims: Victims, topic: str, count: int) -> Iterator[Trial]:
    name = "bench-failover"
    with Producer(bootstrap_servers=cluster.bootstrap_servers, transactional_id=name) as producer:
        producer.init_transactions()
        for number in range(count):
            victims.leader(topic, 0)
            producer.begin_transaction()
            producer.send(topic, b"x", partition=number % _PARTITIONS)
            producer.flush()
            yield victims.time(victims.coordinator(name), producer.commit_transaction)


def _figures(name: str, median: float | None, late: float, trials: Iterator[Trial]) -> Iterator[Figure]:
    all_trials = list(trials)
    times = sorted(trial.seconds for trial in all_trials)
    yield Figure(f"{name}, median", statistics.median(times), "s", median, at_most=True)
    yield Figure(f"{name}, p99", times[min(len(times) - 1, int(len(times) * 0.99))], "s", late, at_most=True)
    yield Figure(f"{name}, longest of {len(times)}", times[-1], "s")
    for is_controller, who in ((True, "the controller too"), (False, "not the controller")):
        some = [trial.seconds for trial in all_trials if trial.of_controller is is_controller]
        if some:
            yield Figure(f"  {who} ({len(some)}), median", statistics.median(some), "s")
