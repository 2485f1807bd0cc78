"""Claims about examples/declarative: its flows and sinks, without the command of Spark, whose packages are not here."""

from __future__ import annotations

import runpy
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

pytestmark = [pytest.mark.spark, pytest.mark.slow]

FLOWS = ROOT / "examples" / "declarative" / "flows" / "orders.py"


class Graph(GraphElementRegistry):
    """What a project declares."""

    def __init__(self) -> None:
        self.sinks: dict[str, Sink] = {}
        self.flows: list[Flow] = []

    def register_output(self, output: Output) -> None:
        assert isinstance(output, Sink)
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
    assert sorted(graph.sinks) == sorted(flow.target for flow in graph.flows) == ["orders-large", "orders-upper"]
    with Producer({"bootstrap.servers": broker.bootstrap}) as producer:
        producer.send("orders", "tea")
        producer.flush()
        run(graph, tmp_path)
        producer.send("orders", "twelve chairs")
        producer.flush()
        run(graph, tmp_path)
    assert sorted(values(broker.bootstrap, "orders-upper", committed=False)) == ["TEA", "TWELVE CHAIRS"]
    assert values(broker.bootstrap, "orders-large", committed=False) == ["twelve chairs"]
