"""One broker for the commands that need a cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.broker_process import BrokerProcess
from tests.cli.running import Cli


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a broker of ours."""
    settings = ("-X", "group.initial.rebalance.delay.ms=0")
    with BrokerProcess(tmp_path_factory.mktemp("cluster"), *settings).wait_until_ready() as broker:
        yield broker.bootstrap


@pytest.fixture
def cli(cluster: str) -> Cli:
    return Cli(cluster)
