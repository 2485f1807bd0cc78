"""A mirror whose records are copied by the tasks of a Spark application, and tasks that are killed in the middle."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import pytest

from einmal.client import Admin, Consumer, NewTopic, PartitionWriter, Producer, TransactionDriver
from einmal.client.errors import KafkaError
from einmal.commit_protocol.claims import Output
from einmal.mirror_protocol.effects import CopyRecords, ScanHeaders
from einmal.mirroring.spark_copier import _Copy, split
from einmal.sinks.kafka.claim_client import Turn
from einmal.sinks.kafka.claim_messages import Claim
from einmal.sinks.kafka.open_transaction import WriteAs
from einmal.spark.environment import python_worker
from einmal.types import TopicPartition
from tests.interop.einmal_broker import EinmalBroker
from tests.suite.patience import patient

PARTITIONS = 3
TRANSACTIONS = 32
RECORDS = 30
"""Of one transaction."""
SLOW = 30_000.0
"""Bytes per second that the target lets producers write, after a burst of ten seconds' worth: a copy takes seconds
then, and a kill in the middle of it is no matter of luck."""
COPY_S = 90.0


def test_the_parts_of_a_scan_have_whole_partitions_and_about_the_same_size() -> None:
    sizes = [100, 10, 60, 50, 0, 30]
    ranges = {TopicPartition("orders", index): (7, 7 + size) for index, size in enumerate(sizes)}
    parts = split(ScanHeaders(ranges, {"orders": "id"}), 2)
    assert {place: bounds for part in parts for place, bounds in part.ranges.items()} == ranges
    assert [sum(end - start for start, end in part.ranges.values()) for part in parts] == [130, 120]
    assert all(part.topic_ids == {"orders": "id"} for part in parts)
    assert [len(part.ranges) for part in split(ScanHeaders(ranges, {}), 100)] == [1] * 6


class FreeClaims:
    """What a task asks the driver, without one: everything is granted."""

    def claims(self) -> FreeClaims:
        return self

    def __enter__(self) -> FreeClaims:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def topic(self, _name: str) -> tuple[int, int]:
        return 0, PARTITIONS

    def claim(self, numbers: list[int]) -> list[Claim]:
        return [Claim(number, TopicPartition("A.orders", number), 0) for number in numbers]

    def report(self, outputs: list[Output]) -> None:
        pass


@pytest.mark.system
def test_a_task_writes_over_the_connections_of_the_task_before(
    brokers: tuple[EinmalBroker, EinmalBroker], monkeypatch: pytest.MonkeyPatch
) -> None:
    writers: list[PartitionWriter] = []

    class Counted(PartitionWriter):
        def __init__(self, *arguments: Any, **keywords: Any) -> None:
            writers.append(self)
            super().__init__(*arguments, **keywords)

    monkeypatch.setattr(python_worker, "PartitionWriter", Counted)
    source, target = (each.bootstrap for each in brokers)
    fill(source)
    with Admin({"bootstrap.servers": target}) as admin:
        admin.create_topics([NewTopic("A.orders", num_partitions=PARTITIONS)])
    targets = {TopicPartition("orders", index): TopicPartition("A.orders", index) for index in range(PARTITIONS)}
    all_ends = ends(source, "orders", "read_committed")
    with TransactionDriver({"bootstrap.servers": target}, transactional_id="mirror") as driver:
        identity = driver.init_producer_id()
        for half in range(2):
            ranges = {
                each: (half * end // 2, (half + 1) * end // 2) for each, end in zip(targets, all_ends, strict=True)
            }
            version = driver.transaction_version
            copy = _Copy(
                cast("Turn", FreeClaims()),
                {"bootstrap.servers": source},
                {"bootstrap.servers": target},
                WriteAs("mirror", identity, version),
            )
            copied = copy(CopyRecords(identity, ranges, {}, targets))
            assert sum(each.output.count for each in copied) > 0
            identity = driver.end_txn(identity, committed=True) or driver.init_producer_id(identity)
    assert len(writers) == 1
    assert read(target, "A.orders") == read(source, "orders")


def fill(servers: str) -> None:
    """Transactions over all partitions, each fourth of them aborted; a group has read and committed half of them."""
    with Admin({"bootstrap.servers": servers}) as admin:
        admin.create_topics([NewTopic("orders", num_partitions=PARTITIONS)])
    with Producer({"bootstrap.servers": servers, "transactional.id": "orders"}) as producer:
        producer.init_transactions()
        for number in range(TRANSACTIONS):
            producer.begin_transaction()
            for index in range(RECORDS):
                producer.send("orders", f"{number}.{index}." + "x" * 1_000, partition=index % PARTITIONS)
            if number % 4 == 3:
                producer.abort_transaction()
            else:
                producer.commit_transaction()
    places = [TopicPartition("orders", index) for index in range(PARTITIONS)]
    with Consumer({"bootstrap.servers": servers, "group.id": "billing"}) as consumer:
        consumer.assign(places)
        consumer.commit({each: end // 2 for each, end in consumer.end_offsets(*places).items()})


def mirror(directory: Path) -> subprocess.Popen[str]:
    with (directory / "mirror.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "einmal", "mirror", "run", "A->B", "--available-now", "--spark", "local[2,4]"],
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )


def ends(servers: str, topic: str, isolation_level: str) -> list[int]:
    """None of a topic that does not exist yet."""
    places = [TopicPartition(topic, index) for index in range(PARTITIONS)]
    try:
        with Consumer({"bootstrap.servers": servers, "isolation.level": isolation_level}) as consumer:
            return list(consumer.end_offsets(*places).values())
    except KafkaError:
        return [0] * PARTITIONS


def read(servers: str, topic: str, starts: list[int] | None = None) -> list[list[bytes | None]]:
    """Committed values, by partition."""
    places = [TopicPartition(topic, index) for index in range(PARTITIONS)]
    found: dict[TopicPartition, list[bytes | None]] = {each: [] for each in places}
    with Consumer({"bootstrap.servers": servers, "isolation.level": "read_committed"}) as consumer:
        consumer.assign(places)
        for each, start in zip(places, starts or [0] * PARTITIONS, strict=True):
            consumer.seek(each, start)
        last = consumer.end_offsets(*places)
        while any(consumer.position(each) < last[each] for each in places):
            for record in consumer.poll(100):
                found[TopicPartition(record.topic, record.partition)].append(record.value)
    return list(found.values())


def committed(servers: str, topic: str) -> list[int]:
    places = [TopicPartition(topic, index) for index in range(PARTITIONS)]
    with Consumer({"bootstrap.servers": servers, "group.id": "billing"}) as consumer:
        found = consumer.committed(*places)
    offsets = [found[each] for each in places]
    return [each.offset for each in offsets if each is not None]


def python_workers(of: int) -> list[int]:
    """Spark's Python workers below a process: children of their daemon."""
    parents, commands = {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                commands[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
            except OSError:
                continue
    daemons = {pid for pid, command in commands.items() if ".daemon pyspark" in command and _is_below(pid, of, parents)}
    return [pid for pid in daemons if parents[pid] in daemons]


def _is_below(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while pid in parents:
        if pid == ancestor:
            return True
        pid = parents[pid]
    return False


@pytest.mark.spark
@pytest.mark.long
def test_tasks_that_are_killed_in_the_middle_of_a_copy_lose_repeat_and_tear_nothing(
    brokers: tuple[EinmalBroker, EinmalBroker], tmp_path: Path
) -> None:
    source, target = (each.bootstrap for each in brokers)
    fill(source)
    limit_producers(target, SLOW)
    process = mirror(tmp_path)
    try:
        kill_workers_in_a_copy(process, target)
        assert process.wait(patient(COPY_S)) == 0, (tmp_path / "mirror.log").read_text()
    finally:
        process.kill()
        process.communicate()
    copied = read(target, "A.orders")
    assert copied == read(source, "orders")
    # What the killed attempt has written is there, and aborted.
    offsets = sum(ends(target, "A.orders", "read_committed"))
    assert offsets > sum(map(len, copied)) + 2 * PARTITIONS, (tmp_path / "mirror.log").read_text()
    # The group resumes at the same record.
    assert read(target, "A.orders", committed(target, "A.orders")) == read(
        source, "orders", committed(source, "orders")
    )


def limit_producers(servers: str, bytes_per_s: float | None) -> None:
    with Admin({"bootstrap.servers": servers}) as admin:
        admin.alter_client_quotas({"client-id": None}, {"producer_byte_rate": bytes_per_s})


def kill_workers_in_a_copy(process: subprocess.Popen[str], target: str) -> None:
    deadline = time.monotonic() + patient(COPY_S)
    while not any(ends(target, "A.orders", "read_uncommitted")):
        assert process.poll() is None and time.monotonic() < deadline, "nothing was written"
        time.sleep(0.01)
    assert not any(ends(target, "A.orders", "read_committed")), "the copy was over before it was noticed"
    # Idle ones are among them.
    for pid in python_workers(process.pid):
        os.kill(pid, signal.SIGKILL)
    limit_producers(target, None)
