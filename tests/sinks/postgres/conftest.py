"""The server that the whole run shares, and a database of its own for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.sinks.postgres.rig import Rig
from tests.sinks.postgres.server import PostgresServer, running
from tests.suite.shared import shared, unique


@pytest.fixture(scope="session")
def server() -> PostgresServer:
    server: PostgresServer = shared("postgres")
    return server


@pytest.fixture
def rig(server: PostgresServer, spark: SparkSession) -> Iterator[Rig]:
    with _new_database(server, spark) as rig:
        yield rig


@pytest.fixture(scope="module")
def mortal() -> Iterator[PostgresServer]:
    """A server that tests may lose, if they start it again."""
    with running() as server:
        yield server


@pytest.fixture
def own(mortal: PostgresServer, spark: SparkSession) -> Iterator[Rig]:
    """A database of that server."""
    with _new_database(mortal, spark) as rig:
        yield rig


def _new_database(server: PostgresServer, spark: SparkSession) -> Rig:
    database = unique("test").replace("-", "_")
    server.rows(f"CREATE DATABASE {database}")
    return Rig(server, spark, database)
