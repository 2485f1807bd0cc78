"""Claims about faults of three real brokers: who leads afterwards, what is readable, what is damaged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from einmal.chaos import cluster_faults
from einmal.chaos.cluster_faults import ClusterFaults
from einmal.chaos.damage import NothingToDamage, flip_bit, truncate
from einmal.client import Admin, Consumer, NewTopic, Producer
from einmal.local.processes import BrokerFailed, LocalCluster
from einmal.types import TopicPartition
from tests.suite.shared import unique


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    cluster = LocalCluster.on_loopback(tmp_path_factory.mktemp("cluster"), 3, {"broker.session.timeout.ms": "3000"})
    cluster.start()
    yield cluster
    cluster.kill()


@pytest.fixture(scope="module")
def module_faults(cluster: LocalCluster) -> Iterator[ClusterFaults]:
    with ClusterFaults(cluster) as faults:
        yield faults


@pytest.fixture
def faults(module_faults: ClusterFaults) -> Iterator[ClusterFaults]:
    yield module_faults
    module_faults.restore()


@pytest.fixture
def topic(faults: ClusterFaults) -> str:
    name = unique("orders")
    with Admin({"bootstrap.servers": faults.bootstrap_servers}) as admin:
        admin.create_topics([NewTopic(name, 1)])
    return name


def write(faults: ClusterFaults, topic: str, *values: bytes) -> None:
    with Producer({"bootstrap.servers": faults.bootstrap_servers}) as producer:
        for value in values:
            producer.send(topic, value, partition=0)


def read(faults: ClusterFaults, topic: str, count: int) -> list[bytes | None]:
    with Consumer({"bootstrap.servers": faults.bootstrap_servers}) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        found: list[bytes | None] = []
        while len(found) < count:
            found += [record.value for record in consumer.poll()]
        return found


@pytest.mark.system
@pytest.mark.long
def test_all_brokers_at_once_are_restored(faults: ClusterFaults, topic: str) -> None:
    write(faults, topic, b"before")
    for node_id in faults.cluster.brokers:
        faults.kill(node_id)
    faults.restore()
    assert read(faults, topic, 1) == [b"before"]


@pytest.mark.system
def test_a_broker_that_never_serves_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_faults, "_START_S", 2.0)
    with ClusterFaults(LocalCluster.on_loopback(tmp_path, 3)) as faults:
        with pytest.raises(BrokerFailed, match="does not serve"):
            faults.start(1)
        assert faults.serving == []


@pytest.mark.system
def test_another_broker_leads_when_the_leader_is_killed(faults: ClusterFaults, topic: str) -> None:
    write(faults, topic, b"before")
    killed = faults.kill_leader(topic)
    assert faults.leader(topic) != killed
    write(faults, topic, b"after")
    assert killed not in faults.serving
    faults.restore()
    assert killed in faults.serving
    assert read(faults, topic, 2) == [b"before", b"after"]


@pytest.mark.long
@pytest.mark.system
def test_a_paused_leader_is_replaced_and_follows_when_it_runs_again(faults: ClusterFaults, topic: str) -> None:
    paused = faults.leader(topic)
    faults.pause(paused)
    assert faults.leader(topic) != paused
    write(faults, topic, b"while paused")
    faults.resume(paused)
    faults.wait_until_in_sync()
    assert read(faults, topic, 1) == [b"while paused"]


@pytest.mark.long
@pytest.mark.system
def test_a_rolling_restart_loses_nothing(faults: ClusterFaults, topic: str) -> None:
    write(faults, topic, b"kept")
    before = [each.pid for each in faults.cluster.brokers.values()]
    faults.rolling_restart()
    assert not {*before} & {each.pid for each in faults.cluster.brokers.values()}
    assert read(faults, topic, 1) == [b"kept"]


@pytest.mark.system
def test_a_flipped_bit_on_the_leader_does_not_reach_a_reader(faults: ClusterFaults, topic: str) -> None:
    values = [b"%d" % number for number in range(20)]
    write(faults, topic, *values)
    faults.wait_until_in_sync()
    node_id = faults.kill_leader(topic)
    with pytest.raises(ValueError, match="kill or stop it"):
        faults.flip_bit(faults.leader(topic), topic)
    damage = faults.flip_bit(node_id, topic, seed=3)
    assert f"bit {damage.bit} of byte {damage.position} flipped" in str(damage)
    faults.restore()
    assert read(faults, topic, len(values)) == values


def test_damage_is_the_same_for_the_same_seed_and_one_bit(tmp_path: Path) -> None:
    def damaged(seed: int) -> bytes:
        file = tmp_path / "index"
        file.write_bytes(bytes(100))
        assert flip_bit(file, seed).bit is not None
        return file.read_bytes()

    assert damaged(1) == damaged(1) != damaged(2)
    assert sum(each.bit_count() for each in damaged(1)) == 1


def test_a_truncated_file_lacks_its_end(tmp_path: Path) -> None:
    file = tmp_path / "index"
    file.write_bytes(bytes(range(100)))
    damage = truncate(file, 5)
    assert file.read_bytes() == bytes(range(damage.position))
    assert str(damage) == f"{file} truncated to {damage.position} bytes"


@pytest.mark.parametrize("name", ["00000000000000000000.log", "index"])
def test_an_empty_file_cannot_be_damaged(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(NothingToDamage):
        flip_bit(tmp_path / name, 0)
