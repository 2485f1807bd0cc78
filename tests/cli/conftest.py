"""The broker that the commands that need a cluster share, and no other test: they list everything it has."""

from __future__ import annotations

import pytest

from tests.cli.running import Cli
from tests.interop.einmal_broker import EinmalBroker
from tests.suite.shared import shared


@pytest.fixture(scope="session")
def cluster() -> str:
    """The address of a broker of ours."""
    broker: EinmalBroker = shared("einmal-commands")
    return broker.bootstrap


@pytest.fixture
def cli(cluster: str) -> Cli:
    return Cli(cluster)
