"""One Spark session, and both brokers, for all Spark tests of a run: each costs seconds to start.

Apache Kafka needs Java and Maven; where one is missing its tests are skipped with a reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.apache_kafka import ApacheKafka, KafkaUnavailable, in_the_long_run
from tests.interop.einmal_broker import EinmalBroker
from tests.spark.standalone import StandaloneCluster

Node = ApacheKafka | EinmalBroker
NodeOf = Callable[[str], Node]

KINDS = ("einmal", "apache")

on_both_brokers = pytest.mark.parametrize("bootstrap", KINDS, indirect=True)
"""For what depends on the broker's answers: the sink. Every test runs on ours."""

TV1_KINDS = ("einmal-TV1", "apache-TV1")

on_both_in_the_long_run = pytest.mark.parametrize("bootstrap", [*map(in_the_long_run, KINDS)], indirect=True)
"""For what depends on the broker's answers, and is not the sink's transaction."""

on_both_tv1_in_the_long_run = pytest.mark.parametrize("bootstrap", [*map(in_the_long_run, TV1_KINDS)], indirect=True)
"""For what the driver must do itself where EndTxn gives no epoch and nothing is added to a transaction by its write."""


def long(value: object) -> Any:
    """One more value of a parameter, for ``make test-long``."""
    return pytest.param(value, marks=pytest.mark.long)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            # pyspark warns of the pandas that it finds, also where it needs none.
            item.add_marker(pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"))


@pytest.fixture(scope="module")
def two_phase(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EinmalBroker]:
    """Our broker, on which transactions can be prepared (KIP-939)."""
    broker = EinmalBroker(
        tmp_path_factory.mktemp("two-phase"), settings={"transaction.two.phase.commit.enable": "true"}
    )
    broker.start()
    yield broker
    broker.stop()


@pytest.fixture(scope="session")
def node_of(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeOf]:
    """The broker of a kind: "einmal" or "apache", or with "-TV1" one without KIP-890 part 2."""
    nodes: dict[str, Node] = {}

    def get(kind: str) -> Node:
        if kind not in nodes:
            directory = tmp_path_factory.mktemp(kind)
            version = 1 if kind in TV1_KINDS else 2
            try:
                node: Node = (
                    EinmalBroker(directory, {"transaction.version": str(version)})
                    if kind.startswith("einmal")
                    else ApacheKafka(directory, transaction_version=version)
                )
            except KafkaUnavailable as error:
                pytest.skip(str(error))
            node.start()
            nodes[kind] = node
        return nodes[kind]

    yield get
    for node in nodes.values():
        node.stop()


@pytest.fixture
def bootstrap(request: pytest.FixtureRequest, node_of: NodeOf) -> str:
    """The address of our broker, or of each of those that the test is marked for in turn."""
    return node_of(getattr(request, "param", "einmal")).bootstrap


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    from einmal.spark import session

    local = tmp_path_factory.mktemp("spark-local")
    spark = session(
        "einmal-tests",
        master="local[4]",
        quick=True,
        config={
            "spark.local.dir": local,
            "spark.sql.warehouse.dir": local / "warehouse",
            "spark.sql.shuffle.partitions": 2,
            "spark.sql.session.timeZone": "UTC",
        },
    )
    yield spark
    spark.stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """A Spark cluster of processes: master and two workers. A worker that a test has killed is there again."""
    with StandaloneCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster
