"""The key of a table whose replica identity is no key: not in the log, and the catalog may be ahead of the log."""

from __future__ import annotations

import json
from typing import Any

import psycopg
import pytest

from einmal.ingest.source import SourceRefused
from einmal.spark.options import OptionError
from tests.ingest.postgresql.capture import Captured, options
from tests.spark.targets.postgres.server import PostgresServer

pytestmark = pytest.mark.system

Client = psycopg.Connection[Any]
WHILE_BEHIND = {
    "key renamed": ["ALTER TABLE t RENAME id TO account_id"],
    "key renamed twice": ["ALTER TABLE t RENAME id TO a", "ALTER TABLE t RENAME a TO b"],
    "names exchanged": [
        "ALTER TABLE t RENAME id TO old",
        "ALTER TABLE t RENAME w TO id",
        "ALTER TABLE t RENAME old TO w",
    ],
    "table dropped": ["DROP TABLE t"],
    "table dropped and created again": ["DROP TABLE t", "CREATE TABLE t (w int PRIMARY KEY, id int, v text)"],
    "table renamed": ["ALTER TABLE t RENAME TO u"],
    "table taken from the publication": ["ALTER TABLE t SET SCHEMA other"],
    "another key": ["ALTER TABLE t DROP CONSTRAINT t_pkey", "ALTER TABLE t ADD PRIMARY KEY (w)"],
    "no key": ["ALTER TABLE t DROP CONSTRAINT t_pkey"],
    "column added": ["ALTER TABLE t ADD x int"],
    "column added and key renamed": ["ALTER TABLE t ADD x int", "ALTER TABLE t RENAME id TO account_id"],
    "column dropped and key renamed": ["ALTER TABLE t DROP v", "ALTER TABLE t RENAME id TO account_id"],
    "key dropped": ["ALTER TABLE t DROP id"],
    "identity changed": ["ALTER TABLE t REPLICA IDENTITY DEFAULT", "ALTER TABLE t RENAME id TO account_id"],
}


def keys(captured: Captured) -> list[Any]:
    return [None if each.key is None else json.loads(each.key) for batch in captured.drain() for each in batch.records]


@pytest.mark.parametrize("identity", ["FULL", "NOTHING"])
@pytest.mark.parametrize("change", WHILE_BEHIND)
def test_no_change_of_before_an_alteration_loses_its_key(
    change: str, identity: str, client: Client, captured: Captured
) -> None:
    client.execute("CREATE SCHEMA other")
    client.execute("CREATE TABLE t (id int PRIMARY KEY, w int NOT NULL, v text)")
    client.execute(f"ALTER TABLE t REPLICA IDENTITY {identity}")
    captured.drain()
    client.execute("INSERT INTO t VALUES (1, 2, 'a')")
    if identity == "FULL":
        client.execute("UPDATE t SET v = 'b'")
        client.execute("DELETE FROM t")
    for statement in WHILE_BEHIND[change]:
        client.execute(statement)
    assert keys(captured) == [{"id": 1}] * (4 if identity == "FULL" else 1)


def test_a_process_that_starts_behind_an_alteration_knows_the_key_by_its_position(
    client: Client, captured: Captured
) -> None:
    """Also of a table that was created, and used, since the first start."""
    captured.drain()
    client.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    client.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    client.execute("INSERT INTO t VALUES (1, 'a')")
    assert keys(captured) == [{"id": 1}]
    client.execute("DELETE FROM t")
    client.execute("DROP TABLE t")
    assert keys(captured) == [{"id": 1}] * 2
    client.execute("CREATE TABLE t (code text PRIMARY KEY)")
    client.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    client.execute("INSERT INTO t VALUES ('x')")
    assert keys(captured) == [{"code": "x"}]


def test_a_key_that_changed_alone_is_noticed_once_everything_is_read(client: Client, captured: Captured) -> None:
    client.execute("CREATE TABLE t (id int PRIMARY KEY, code int NOT NULL)")
    client.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    captured.drain()
    client.execute("INSERT INTO t VALUES (1, 2)")
    assert keys(captured) == [{"id": 1}]
    client.execute("ALTER TABLE t DROP CONSTRAINT t_pkey")
    client.execute("ALTER TABLE t ADD PRIMARY KEY (code)")
    client.execute("INSERT INTO t VALUES (3, 4)")
    assert keys(captured) == [{"id": 3}], "the log does not have when the key was changed"
    client.execute("INSERT INTO t VALUES (5, 6)")
    assert keys(captured) == [{"code": 6}]


def test_a_key_that_nobody_knows_is_refused_until_it_is_declared(
    client: Client, captured: Captured, server: PostgresServer, database: str
) -> None:
    captured.drain()
    client.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    client.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    client.execute("INSERT INTO t VALUES (1, 'a')")
    client.execute("DROP TABLE t")
    with pytest.raises(SourceRefused, match=r"the key of public\.t is not known") as refused:
        captured.drain()
    assert 'message.key.columns = "public.t:' in refused.value.hint
    declared = Captured(options(server, database, message__key__columns="public.t: id"))
    declared.position = captured.position
    assert keys(declared) == [{"id": 1}]


def test_a_declared_key_that_the_log_does_not_have_is_refused_and_a_misspelt_one_reported(
    client: Client, server: PostgresServer, database: str
) -> None:
    client.execute("CREATE TABLE t (id int PRIMARY KEY, code int)")
    captured = Captured(options(server, database, message__key__columns="public.t:code"))
    captured.drain()
    client.execute("INSERT INTO t VALUES (1, 2)")
    with pytest.raises(SourceRefused, match="message.key.columns declares code of public.t"):
        captured.drain()
    misspelt = Captured(options(server, database, message__key__columns="public.t:cod"))
    misspelt.position = captured.position
    assert keys(misspelt) == [{"id": 1}]
    assert [each.kind for each in misspelt.notices] == ["declared key"]


def test_a_table_without_a_key_has_none_and_is_not_refused(client: Client, captured: Captured) -> None:
    client.execute("CREATE TABLE t (v text)")
    client.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    captured.drain()
    client.execute("INSERT INTO t VALUES ('a')")
    client.execute("ALTER TABLE t RENAME v TO w")
    client.execute("INSERT INTO t VALUES ('b')")
    assert keys(captured) == [None, None]


def test_truncate_can_be_skipped(client: Client, server: PostgresServer, database: str) -> None:
    captured = Captured(options(server, database, skipped__operations="t"))
    client.execute("CREATE TABLE t (id int PRIMARY KEY)")
    captured.drain()
    client.execute("TRUNCATE t")
    client.execute("INSERT INTO t VALUES (1)")
    assert [each.op for each in captured.changes()] == ["c"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("message__key__columns", "t:id"), ("message__key__columns", "public.t"), ("skipped__operations", "d")],
)
def test_options_that_cannot_be_meant_are_refused(name: str, value: str, server: PostgresServer, database: str) -> None:
    with pytest.raises(OptionError, match=name.replace("__", r"\.")):
        options(server, database, **{name: value})
