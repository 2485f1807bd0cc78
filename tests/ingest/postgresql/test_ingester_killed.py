"""The ingester of a database, killed before and after each of its steps; real server, real broker."""

from __future__ import annotations

import json
import re
from contextlib import closing
from typing import Any, LiteralString

import psycopg
import pytest

from einmal.client import Admin, NewTopic
from einmal.ingest import IngestStopped
from einmal.ingest.postgresql.options import CaptureOptions
from einmal.ingest.postgresql.source import PostgresSource
from tests.cli.running import Cli
from tests.ingest.postgresql.capture import SLOT, Captured
from tests.ingest.sources import committed
from tests.ingest.test_one_broker import Killed, MortalIngest

pytestmark = [pytest.mark.system, pytest.mark.slow]

TOPIC = "shop.public.t"


@pytest.fixture
def topic(servers: str) -> str:
    with Admin({"bootstrap.servers": servers}) as admin:
        if TOPIC in admin.list_topics():
            admin.delete_topics([TOPIC])
        admin.create_topics([NewTopic(TOPIC, num_partitions=1)])
    return TOPIC


def ingest(servers: str, options: CaptureOptions, kill_at: int = -1, name: str = "t") -> bool:
    """Whether it was killed."""
    with closing(PostgresSource(options)) as source:
        ingester = MortalIngest(source, bootstrap_servers=servers, name=name)
        ingester.kill_at = kill_at
        try:
            ingester.run(available_now=True)
        except Killed:
            return True
    return False


def test_each_version_arrives_once_whichever_step_the_ingester_died_at(
    client: psycopg.Connection[Any], captured: Captured, servers: str, topic: str
) -> None:
    client.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    client.execute("INSERT INTO t VALUES (0, 0), (1, 0)")
    last = 0
    # The first ones die before and in the snapshot.
    while ingest(servers, captured.options, 2 + last):
        last += 1
        client.execute("UPDATE t SET n = %s", (last,))
    ingest(servers, captured.options)
    assert last > 15
    (values,) = committed(servers, topic, 1)
    found: dict[int, list[int]] = {0: [], 1: []}
    for value in map(json.loads, values):
        found[value["after"]["id"]].append(value["after"]["n"])
    assert found[0] == found[1] == list(range(found[0][0], last + 1))
    assert [json.loads(value)["op"] for value in values[:3]] == ["r", "r", "u"]


@pytest.mark.representatives(1)
@pytest.mark.parametrize(
    "name, statement, refusal",
    (
        (
            "moved",
            "SELECT pg_replication_slot_advance(%s, pg_current_wal_insert_lsn())",
            "changes between them are lost",
        ),
        ("dropped", "SELECT pg_drop_replication_slot(%s)", "does not exist any more"),
    ),
)
def test_a_slot_that_lost_changes_stops_the_ingester_until_its_advice_is_followed(
    client: psycopg.Connection[Any],
    captured: Captured,
    servers: str,
    topic: str,
    name: str,
    statement: LiteralString,
    refusal: str,
) -> None:
    client.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    ingest(servers, captured.options, name=name)
    client.execute("INSERT INTO t VALUES (1, 1)")
    client.execute(statement, (SLOT,))
    with pytest.raises(IngestStopped, match=refusal) as caught:
        ingest(servers, captured.options, name=name)
    (reset,) = re.findall(r"einmal (pipeline reset) einmal-ingest-NAME", caught.value.hint)
    Cli(servers)(*reset.split(), f"einmal-ingest-{name}", "--yes")
    ingest(servers, captured.options, name=name)
    client.execute("INSERT INTO t VALUES (2, 2)")
    ingest(servers, captured.options, name=name)
    (values,) = committed(servers, topic, 1)
    found = [(each["op"], each["after"]["id"]) for each in map(json.loads, values)]
    assert found == [("r", 1), ("c", 2)], "a snapshot has what the slot has lost"
