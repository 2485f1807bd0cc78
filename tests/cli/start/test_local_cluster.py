"""Claims about ``einmal start --brokers``: several real processes, started and stopped as one."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from pathlib import Path

import pytest

from einmal.client import Admin, Consumer, NewTopic, Producer
from einmal.client.cores.metadata_cache import PartitionMetadata
from einmal.client.errors import UnknownTopic
from tests.cli.broker_process import BrokerProcess

pytestmark = pytest.mark.system

_PATIENCE_S = 300.0


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def are_gone(pids: list[int]) -> bool:
    deadline = time.monotonic() + _PATIENCE_S
    while any(is_alive(pid) for pid in pids):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def described(admin: Admin, topic: str) -> PartitionMetadata:
    """A new topic's partition. One broker's answer to its creation does not mean that the others know of it."""
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            (partition,) = admin.describe_topics([topic])[topic].partitions.values()
            return partition
        except UnknownTopic:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_three_brokers_are_shown_as_a_table_and_one_bootstrap_line(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, "--brokers", "3").wait_until_ready() as cluster:
        head, columns, *rows, advice, ready = cluster.lines
        assert "3 brokers" in head
        assert columns.split() == ["broker", "address", "controller", "pid", "data"]
        assert [row.split()[0] for row in rows] == ["1", "2", "3"]
        bootstrap = ",".join(row.split()[1] for row in rows)
        assert advice.strip() == f"try  export KAFKA_BROKERS={bootstrap}"
        assert ready == f"einmal is ready: bootstrap.servers={bootstrap}"
        status, errors = cluster.stop()
        assert (status, errors) == (0, "")
    assert are_gone([int(row.split()[3]) for row in rows])


def test_what_is_written_to_three_brokers_has_three_replicas_and_survives_one(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, "--brokers", "3", "--format", "json").wait_until_ready() as cluster:
        ready = json.loads(cluster.lines[-1])
        config = {"bootstrap.servers": ready["bootstrap_servers"]}
        with Admin(config) as admin:
            admin.create_topics([NewTopic("t", 1)])
            partition = described(admin, "t")
        assert sorted(partition.replicas) == [1, 2, 3]
        victim = next(each for each in ready["brokers"] if each["node_id"] == partition.leader)
        with Producer(config) as producer:
            producer.send("t", b"before").result(_PATIENCE_S)
            os.kill(victim["pid"], signal.SIGKILL)
            producer.send("t", b"after").result(_PATIENCE_S)
        assert cluster.process.stdout is not None
        ended = json.loads(cluster.process.stdout.readline())
        assert ended == {
            "event": "broker_ended",
            "node_id": victim["node_id"],
            "pid": victim["pid"],
            "status": -9,
            "start_again": f"einmal start --config {victim['config']}",
        }
        with Consumer(config | {"auto.offset.reset": "earliest"}) as consumer:
            consumer.assign([("t", 0)])
            found: list[bytes | None] = []
            deadline = time.monotonic() + _PATIENCE_S
            while len(found) < 2 and time.monotonic() < deadline:
                found += [record.value for record in consumer.poll(1_000)]
        assert found == [b"before", b"after"]
        assert cluster.stop()[0] == 0


def test_no_broker_outlives_its_parent_process(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, "--brokers", "3", "--format", "json").wait_until_ready() as cluster:
        pids = [each["pid"] for each in json.loads(cluster.lines[-1])["brokers"]]
        cluster.process.kill()
        assert are_gone(pids)


def test_a_data_directory_of_another_cluster_is_reported_with_a_hint(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / f"broker-{number}").mkdir()
    with BrokerProcess(tmp_path, "--brokers", "3") as cluster:
        _output, errors = cluster.process.communicate(timeout=180)
    assert cluster.process.returncode == 1
    assert errors.splitlines() == [
        f"error: {tmp_path} has the data of 2 brokers, not of 3",
        "hint: start as many as there are, or choose another folder with --data-dir",
    ]


def test_a_second_start_leaves_a_running_cluster_as_it_is(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path, "--brokers", "2").wait_until_ready():
        settings = (tmp_path / "broker-1.properties").read_text()
        with BrokerProcess(tmp_path, "--brokers", "2") as second:
            _output, errors = second.process.communicate(timeout=180)
        assert second.process.returncode == 1
        assert errors.startswith(f"error: another broker uses {tmp_path}\nhint: ")
        assert (tmp_path / "broker-1.properties").read_text() == settings


def test_a_broker_whose_port_is_occupied_is_named_with_the_port_that_it_has(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        port = occupied.getsockname()[1]
        first = port - 1_000
        with BrokerProcess(tmp_path, "--brokers", "2", port=first).wait_until_ready() as cluster:
            addresses = [row.split()[1] for row in cluster.lines if row.split()[0] in ("1", "2")]
            status, errors = cluster.stop()
    moved = int(addresses[1].rpartition(":")[2])
    assert status == 0 and moved != port
    assert (
        f"warning: not all of the ports {port} to {port + 2} are free: broker 2 listens on port {moved} (others of its "
        "ports may differ, too)"
    ) in errors.splitlines()


@pytest.mark.long
def test_per_broker_settings_are_ignored_with_a_warning(tmp_path: Path) -> None:
    options = ("--brokers", "2", "-X", "node.id=7", "-X", "num.partitions=3")
    with BrokerProcess(tmp_path, *options).wait_until_ready() as cluster:
        _status, errors = cluster.stop()
    (warning,) = map(json.loads, errors.splitlines())
    assert warning["event"] == "setting_ignored"
    assert warning["message"] == "node.id is chosen for each of the 2 brokers: the configured value is ignored"
    assert (warning["logger"], warning["setting"], warning["brokers"]) == ("einmal.cli.start.run", "node.id", 2)
    assert "num.partitions=3" in (tmp_path / "broker-2.properties").read_text()
