"""Which brokers the Spark tests run on, and the Spark cluster of a run. ``tests.spark.fixtures`` has the session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.interop.apache_kafka import ApacheKafka, in_the_long_run
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


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    """A Spark cluster of processes: master and two workers. A worker that a test has killed is there again."""
    with StandaloneCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster
