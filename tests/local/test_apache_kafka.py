"""Claims about the start of Apache Kafka: where its jars are, what is reported, and that no node is left behind.

A program that is no Java stands in for it, because the claims are about processes.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from einmal.chaos.waiting import wait_until
from einmal.local.apache_kafka import ApacheCluster, KafkaJars, KafkaMissing
from einmal.local.processes import BrokerFailed
from tests.suite.patience import patient

_JAR = "kafka_2.13-4.4.0.jar"
_FORMATS = 'case "$*" in *StorageTool*) exit 0;; esac'
_STARTS_ONE = """
import sys
from pathlib import Path
from einmal.local.apache_kafka import ApacheCluster, KafkaJars

folder = Path(sys.argv[1])
cluster = ApacheCluster.on_loopback(folder, 1, KafkaJars.locate(folder), folder / "java")
cluster.brokers[1].start()
print(cluster.brokers[1].pid, flush=True)
sys.stdin.read()
"""


def cluster_of(folder: Path, count: int, script: str) -> ApacheCluster:
    """``script`` is in place of Java: it runs where the storage is formatted, and where a node starts."""
    (folder / _JAR).touch()
    java = folder / "java"
    java.write_text(f"#!/bin/sh\n{script}\n")
    java.chmod(0o755)
    return ApacheCluster.on_loopback(folder, count, KafkaJars.locate(folder), java)


def test_jars_are_found_in_a_distribution_and_in_a_folder_of_jars(tmp_path: Path) -> None:
    (tmp_path / "libs").mkdir()
    with pytest.raises(KafkaMissing, match=r"hint: name the folder of a downloaded Apache Kafka"):
        KafkaJars.locate(tmp_path)
    (tmp_path / "libs" / "kafka-clients-4.4.0.jar").touch()
    (tmp_path / "libs" / _JAR).touch()
    found = KafkaJars.locate(tmp_path)
    assert (found.folder, found.version) == (tmp_path / "libs", "4.4.0")
    assert KafkaJars.locate(tmp_path / "libs") == found


def test_storage_that_cannot_be_formatted_is_reported_with_the_reason(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path, 1, "echo the disk is full; exit 1")
    with pytest.raises(BrokerFailed, match="format has failed.*\nthe disk is full"):
        cluster.start()


def test_a_node_that_ends_is_reported_with_its_last_words(tmp_path: Path) -> None:
    cluster = cluster_of(tmp_path, 3, f"{_FORMATS}; echo the port is in use; exit 1")
    with pytest.raises(BrokerFailed, match="broker 1 does not serve.*\nthe port is in use"):
        cluster.start()
    assert not any(node.is_running for node in cluster.brokers.values())


def test_no_node_outlives_the_process_that_started_it(tmp_path: Path) -> None:
    cluster_of(tmp_path, 1, f"{_FORMATS}; exec sleep 600")
    starter = subprocess.Popen(
        [sys.executable, "-c", _STARTS_ONE, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert starter.stdout is not None and starter.stdin is not None
    pid = int(starter.stdout.readline())
    assert Path(f"/proc/{pid}").exists()
    starter.kill()
    starter.wait()
    starter.stdin.close()
    starter.stdout.close()
    wait_until(lambda: not _runs(pid), patient(10), lambda: f"{pid} runs")


def _runs(pid: int) -> bool:
    """A process that has ended may be left for somebody to reap it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
