"""One server for the tests of a module, and for each test a database with an empty publication of all its tables."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from tests.ingest.postgresql.capture import PUBLICATION, Captured, options
from tests.sinks.postgres.server import PostgresServer, running

SETTINGS = {
    "wal_level": "logical",
    "max_replication_slots": "20",
    "max_prepared_transactions": "5",
    # Processes are killed here, the machine is not.
    "fsync": "off",
}
_databases = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running(**SETTINGS) as server:
        yield server


@pytest.fixture
def database(server: PostgresServer) -> Iterator[str]:
    name = f"cdc_{next(_databases)}"
    server.rows(f"CREATE DATABASE {name}")
    server.rows(f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES", database=name)
    yield name
    # Slots keep log, and their names are unique in the server.
    server.rows(
        "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = %s AND NOT active",
        (name,),
    )


@pytest.fixture
def client(server: PostgresServer, database: str) -> Iterator[psycopg.Connection[Any]]:
    with server.connect(database) as connection:
        yield connection


@pytest.fixture
def captured(server: PostgresServer, database: str) -> Captured:
    return Captured(options(server, database))
