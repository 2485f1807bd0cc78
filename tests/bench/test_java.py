"""Claims about measurements of Kafka's Java producer by Apache Kafka's own tool."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from einmal.bench.cases import MeasuredBroker
from einmal.bench.java import ProducerPerformance
from einmal.bench.load import BenchRefused
from einmal.bench.server import FreshBrokers
from tests.interop.apache_kafka import KafkaUnavailable, classpath


def test_a_folder_without_the_tool_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BenchRefused, match=r"no kafka-tools-\*\.jar in .*\nhint: name the folder libs"):
        ProducerPerformance(Path("java"), tmp_path)


def test_a_tool_that_does_not_run_is_reported(tmp_path: Path) -> None:
    (tmp_path / "kafka-tools-0.jar").touch()
    java = shutil.which("false")
    assert java is not None
    with FreshBrokers().running() as cluster, pytest.raises(BenchRefused, match="perf-test has failed"):
        list(ProducerPerformance(Path(java), tmp_path).price(MeasuredBroker(cluster.bootstrap_servers), 0.01))


@pytest.mark.long
def test_the_java_producer_is_measured_under_each_guarantee_and_with_each_codec() -> None:
    try:
        jars = Path(classpath("performance")).parent
    except KafkaUnavailable as error:
        pytest.skip(str(error))
    java = shutil.which("java")
    assert java is not None
    with FreshBrokers().running() as cluster:
        producer, target = ProducerPerformance(Path(java), jars), MeasuredBroker(cluster.bootstrap_servers)
        prices, rates = list(producer.price(target, 0.01)), list(producer.client(target, 0.01))
    assert [figure.name for figure in prices] == [
        "Java, at-most-once, 1 KB records",
        "Java, at-least-once, ordered, 1 KB records",
        "Java, exactly-once, 1 KB records",
        "Java, exactly-once against at-least-once",
        "Java, exactly-once against at-most-once",
    ]
    assert [figure.name for figure in rates] == [
        f"Java, {size} B, {codec}: {what}"
        for size in (100, 1_000)
        for codec in ("none", "lz4", "zstd")
        for what in ("produce", "broker CPU")
    ]
    assert all(figure.value > 0 for figure in (*prices, *rates) if figure.unit != "%")
