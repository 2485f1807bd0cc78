"""One server for the tests of a module, and a database of its own for each test."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from tests.spark.targets.postgres.rig import Rig
from tests.spark.targets.postgres.server import PostgresServer, running

_databases = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running() as server:
        yield server


@pytest.fixture
def rig(server: PostgresServer, spark: SparkSession) -> Iterator[Rig]:
    database = f"test_{next(_databases)}"
    server.rows(f"CREATE DATABASE {database}")
    with Rig(server, spark, database) as rig:
        yield rig
