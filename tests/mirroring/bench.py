"""MB/s of a mirror between two clusters: ours beside MirrorMaker 2 with exactly-once support, in turns.

    python -m tests.mirroring.bench --clusters einmal --megabytes 500

Each round copies the same committed topic of the source to an empty topic of the target, under another alias of the
source. A round ends when a ``read_committed`` reader can see every record; then the copy is counted. Two times:

    whole    from the start of the mirror's process: includes the start of an interpreter or a JVM, and what a mirror
             reads before it copies
    copying  from the first record that is written at the target, committed or not

``cpu_s``: processor time of the mirror's process, which other programs on the machine change little.

``--paced`` measures a mirror that keeps up instead: transactions of 300 records, ten in a second, and the processor
time of the mirror's process for them, without its start.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import ClassVar, Final

from confluent_kafka import Producer

from einmal.client import Admin, NewTopic, OffsetRange, RangeReader
from einmal.clusters.kafka_cluster import KafkaCluster
from einmal.types import TopicPartition
from tests.interop.cluster import Cluster, apache_cluster, einmal_cluster
from tests.mirroring.campaign.mirrors import MirrorMaker, OurMirror

_TOPIC: Final = "events"
_TRANSACTION: Final = 10_000
"""Records of one source transaction."""
_POLL_S: Final = 0.02
_ROUND_S: Final = 600.0
_PACED_S: Final = 0.1
_PACED_TRANSACTIONS: Final = 150
_PACED_TRANSACTION: Final = 300
"""Records."""


class QuickMirrorMaker(MirrorMaker):
    """With the compilers of a long-lived JVM, and with larger transactions: one per poll."""

    options = ("-Xmx1g",)
    more: ClassVar[Mapping[str, str]] = {
        "{alias}.consumer.max.poll.records": "20000",
        "{alias}.consumer.max.partition.fetch.bytes": "4194304",
        "B.producer.batch.size": "262144",
        "B.producer.linger.ms": "5",
        "B.producer.buffer.memory": "134217728",
    }


@dataclass(frozen=True, slots=True)
class Round:
    """``whole_s``, ``copying_s``: see the head of this module."""

    mirror: str
    whole_s: float
    copying_s: float
    cpu_s: float


@dataclass(frozen=True, slots=True)
class Paced:
    """``cpu_s``: processor time of the mirror's process."""

    megabytes: float
    cpu_s: float


class Bench:
    """One load between two running clusters."""

    def __init__(self, directory: Path, source: Cluster, target: Cluster, arguments: argparse.Namespace) -> None:
        self._directory = directory
        self._source, self._target = source.bootstrap, target.bootstrap
        self._partitions: int = arguments.partitions
        self._size: int = arguments.record_bytes
        self._count: int = arguments.megabytes * 1_000_000 // self._size
        self._compression: str = arguments.compression
        source.create_topic(_TOPIC, self._partitions)

    def fill(self) -> None:
        """The source's records, in transactions over all partitions."""
        producer = Producer(
            {
                "bootstrap.servers": self._source,
                "transactional.id": "bench",
                "compression.type": self._compression,
                "linger.ms": 5,
                # The Java client's; librdkafka's is a megabyte.
                "batch.size": 16_384,
            }
        )
        producer.init_transactions()
        value = os.urandom(self._size // 2).hex().encode()
        for first in range(0, self._count, _TRANSACTION):
            producer.begin_transaction()
            for number in range(first, min(first + _TRANSACTION, self._count)):
                while True:
                    try:
                        producer.produce(_TOPIC, value, f"{number:012}", partition=number % self._partitions)
                        break
                    except BufferError:
                        producer.poll(0.1)
            producer.commit_transaction()

    def copy(self, kind: type[OurMirror], number: int) -> Round:
        alias = f"{'O' if kind is OurMirror else 'M'}{number}"
        directory = self._directory / alias
        directory.mkdir()
        mirror = kind(directory, self._source, self._target, alias=alias, topic=_TOPIC)
        began = time.perf_counter()
        mirror.start()
        try:
            written, done = self._wait(mirror, f"{alias}.{_TOPIC}")
            cpu_s = _cpu_s(mirror.pid)
        finally:
            mirror.kill()
        found = self._counted(f"{alias}.{_TOPIC}")
        if found != self._count:
            raise SystemExit(f"{mirror.name}: {found} records of {self._count}")
        with Admin({"bootstrap.servers": self._target}) as admin:
            admin.delete_topics([f"{alias}.{_TOPIC}"])
        return Round(mirror.name, done - began, done - written, cpu_s)

    def follow(self, number: int) -> Paced:
        """What our mirror costs while it keeps up."""
        directory = self._directory / f"P{number}"
        directory.mkdir()
        topic = f"paced-{number}"
        with Admin({"bootstrap.servers": self._source}) as admin:
            admin.create_topics([NewTopic(topic, num_partitions=self._partitions)])
        mirror = OurMirror(directory, self._source, self._target, alias=f"P{number}", topic=topic)
        copy = f"P{number}.{topic}"
        mirror.start()
        try:
            self._write_paced(topic, 1)
            self._wait_for(mirror, copy, _PACED_TRANSACTION)
            cpu_s = _cpu_s(mirror.pid)
            self._write_paced(topic, _PACED_TRANSACTIONS)
            self._wait_for(mirror, copy, (_PACED_TRANSACTIONS + 1) * _PACED_TRANSACTION)
            cpu_s = _cpu_s(mirror.pid) - cpu_s
        finally:
            mirror.kill()
        return Paced(_PACED_TRANSACTIONS * _PACED_TRANSACTION * self._size / 1e6, round(cpu_s, 2))

    def _wait_for(self, mirror: OurMirror, copy: str, count: int) -> None:
        deadline = time.monotonic() + _ROUND_S
        cluster = KafkaCluster({"bootstrap.servers": self._target})
        try:
            while copy not in cluster.topics(copy):
                _check(mirror, deadline)
        finally:
            cluster.close()
        while self._counted(copy) < count:
            _check(mirror, deadline)

    def _write_paced(self, topic: str, transactions: int) -> None:
        producer = Producer({"bootstrap.servers": self._source, "transactional.id": "paced", "linger.ms": 5})
        producer.init_transactions()
        value = os.urandom(self._size // 2).hex().encode()
        began = time.monotonic()
        for number in range(transactions):
            producer.begin_transaction()
            for index in range(_PACED_TRANSACTION):
                producer.produce(topic, value, f"{index:012}", partition=index % self._partitions)
            producer.commit_transaction()
            time.sleep(max(0.0, began + (number + 1) * _PACED_S - time.monotonic()))

    def _wait(self, mirror: OurMirror, topic: str) -> tuple[float, float]:
        """When the first record was written, and when the last one was visible."""
        deadline = time.monotonic() + _ROUND_S
        places = [TopicPartition(topic, index) for index in range(self._partitions)]
        written = 0.0
        cluster = KafkaCluster({"bootstrap.servers": self._target})
        try:
            while topic not in cluster.topics(topic):
                _check(mirror, deadline)
            while True:
                _check(mirror, deadline)
                now = time.perf_counter()
                ends = cluster.latest(places, committed=False)
                written = written or (now if any(ends.values()) else 0.0)
                # Every record has an offset, and markers have some.
                is_visible = sum(ends.values()) > self._count and cluster.latest(places, committed=True) == ends
                if is_visible and self._counted(topic, tail=True) == self._partitions:
                    return written, now
        finally:
            cluster.close()

    def _counted(self, topic: str, *, tail: bool = False) -> int:
        """Committed records at the target; ``tail``: partitions whose last record is the source's."""
        cluster = KafkaCluster({"bootstrap.servers": self._target})
        try:
            ends = cluster.latest([TopicPartition(topic, index) for index in range(self._partitions)], committed=True)
        finally:
            cluster.close()
        starts = {each: max(0, end - _TAIL) if tail else 0 for each, end in ends.items()}
        found, last = 0, {}
        with RangeReader({"bootstrap.servers": self._target, "isolation.level": "read_committed"}) as reader:
            for batch in reader.read({each: OffsetRange(starts[each], end) for each, end in ends.items()}):
                if tail:
                    last[batch.topic_partition] = batch.records()[-1].key
                if not batch.header.is_transactional:
                    raise SystemExit(f"{topic} has records outside of transactions: exactly-once support is off")
                found += batch.header.record_count
        if not tail:
            return found
        return sum(key is not None and int(key) >= self._count - self._partitions for key in last.values())


_TAIL: Final = 100


def _cpu_s(pid: int) -> float:
    """Of a process that is alive, with all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _check(mirror: OurMirror, deadline: float) -> None:
    mirror.ensure()
    if time.monotonic() > deadline:
        raise SystemExit(f"{mirror.name}: not done in {_ROUND_S:.0f} s")
    time.sleep(_POLL_S)


def _measured(arguments: argparse.Namespace) -> dict[str, object]:
    with tempfile.TemporaryDirectory(prefix="einmal-bench-mirror-", ignore_cleanup_errors=True) as folder:
        directory = Path(folder)
        source, target = (_cluster(arguments.clusters, directory / name) for name in ("source", "target"))
        kinds = [OurMirror] if arguments.alone else [OurMirror, QuickMirrorMaker]
        try:
            source.start()
            target.start()
            bench = Bench(directory, source, target, arguments)
            if arguments.paced:
                paced = [bench.follow(number) for number in range(arguments.rounds)]
                return {"cpu_ms_per_mb": _ms_per_mb(paced), "rounds": [asdict(each) for each in paced]}
            bench.fill()
            rounds = []
            for number in range(arguments.rounds):
                for kind in kinds:
                    rounds.append(bench.copy(kind, number))
                    print(f"{number} {rounds[-1]}", file=sys.stderr, flush=True)
        finally:
            source.stop()
            target.stop()
    return {
        **{name: getattr(arguments, name) for name in ("clusters", "megabytes", "record_bytes", "compression")},
        "mb_per_s": {kind.name: _rates(arguments.megabytes, rounds, kind.name) for kind in kinds},
        "rounds": [asdict(each) for each in rounds],
    }


def _ms_per_mb(rounds: list[Paced]) -> float:
    return round(statistics.median(1000 * each.cpu_s / each.megabytes for each in rounds), 1)


def _rates(megabytes: int, rounds: list[Round], name: str) -> Mapping[str, float]:
    ours = [each for each in rounds if each.mirror == name]
    return {
        "whole": round(megabytes / statistics.median(each.whole_s for each in ours), 1),
        "copying": round(megabytes / statistics.median(each.copying_s for each in ours), 1),
        "per_cpu_s": round(megabytes / statistics.median(each.cpu_s for each in ours), 1),
    }


def _cluster(kind: str, directory: Path) -> Cluster:
    if kind == "apache":
        return apache_cluster(directory, 1, cluster_id=base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("="))
    return einmal_cluster(directory, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clusters", choices=("einmal", "apache"), default="einmal")
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--record-bytes", type=int, default=1000)
    parser.add_argument("--partitions", type=int, default=6)
    parser.add_argument("--compression", default="none")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--paced", action="store_true", help="our mirror while it keeps up with its source")
    parser.add_argument("--alone", action="store_true", help="without MirrorMaker 2")
    print(json.dumps(_measured(parser.parse_args())))


if __name__ == "__main__":
    main()
