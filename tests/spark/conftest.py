"""One Spark session per worker, and both brokers for all Spark tests of a run: each costs seconds to start.

Apache Kafka needs Java and Maven; where one is missing its tests are skipped with a reason.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.interop.apache_kafka import ApacheKafka, in_the_long_run
from tests.interop.einmal_broker import EinmalBroker
from tests.spark.standalone import StandaloneCluster
from tests.suite import warm
from tests.suite.shared import shared

Node = ApacheKafka | EinmalBroker
NodeOf = Callable[[str], Node]

KINDS = ("einmal", "apache")

_WORKERS = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")
"""Variables for the Python of Spark's workers."""

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
    # Of all tests, for there is one list of them: thousands, which makes comparing paths expensive.
    here = str(Path(__file__).parent) + os.sep
    for item in items:
        if str(item.path).startswith(here):
            # pyspark warns of the pandas that it finds, also where it needs none.
            item.add_marker(pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"))


@pytest.fixture(scope="session")
def two_phase() -> EinmalBroker:
    """Our broker, on which transactions can be prepared (KIP-939)."""
    node: EinmalBroker = shared("einmal-two-phase")
    return node


@pytest.fixture(scope="session")
def node_of() -> NodeOf:
    """The broker of a kind, which the whole run shares: "einmal" or "apache", or with "-TV1" one without KIP-890 part
    2."""
    return shared


@pytest.fixture
def bootstrap(request: pytest.FixtureRequest, node_of: NodeOf) -> str:
    """The address of our broker, or of each of those that the test is marked for in turn."""
    return node_of(getattr(request, "param", "einmal")).bootstrap


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    from einmal.spark import session
    from einmal.spark.environment import spark_session
    from einmal.spark.environment.interpreter import worker_python

    local = tmp_path_factory.mktemp("spark-local")
    python = warm.stream_python(Path(worker_python()), local)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(spark_session, "worker_python", lambda: str(python))
        os.environ |= dict.fromkeys(_WORKERS, str(python))
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
    # Other processes of a test have the Python that they would have without it.
    os.environ |= dict.fromkeys(_WORKERS, worker_python())
    yield spark
    spark.stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """A Spark cluster of processes: master and two workers. A worker that a test has killed is there again."""
    with StandaloneCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster
