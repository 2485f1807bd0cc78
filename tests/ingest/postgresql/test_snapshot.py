"""Rows of a snapshot and changes of the stream, joined while transactions run."""

from __future__ import annotations

import json
import random
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from einmal.ingest.postgresql import source as source_module
from einmal.ingest.postgresql.session import SourceSession
from einmal.ingest.postgresql.source import PostgresSource
from einmal.ingest.source import IngestBatch, SourceFailed, SourceRefused
from tests.ingest.postgresql.capture import PUBLICATION, SLOT, Captured, Change, change, options
from tests.sinks.postgres.server import PostgresServer, until

pytestmark = pytest.mark.system

Client = psycopg.Connection[Any]
KEYS = 40


def test_a_snapshot_has_the_rows_and_the_stream_what_follows(client: Client, captured: Captured) -> None:
    client.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    client.execute("INSERT INTO t VALUES (1, 'a'), (2, NULL)")
    (snapshot,) = captured.drain()
    assert snapshot.changes() == [
        Change("t", "r", {"id": 1}, {"id": 1, "v": "a"}),
        Change("t", "r", {"id": 2}, {"id": 2, "v": None}),
    ]
    assert {json.loads(each.value or b"")["source"]["snapshot"] for each in snapshot.records} == {"true"}
    client.execute("UPDATE t SET v = 'b' WHERE id = 2")
    assert captured.changes() == [Change("t", "u", {"id": 2}, {"id": 2, "v": "b"})]


def test_a_snapshot_honours_column_lists_row_filters_partitions_and_inheritance(
    client: Client, captured: Captured
) -> None:
    client.execute(f"DROP PUBLICATION {PUBLICATION}")
    client.execute("CREATE TABLE t (id int PRIMARY KEY, v text, secret text)")
    client.execute("CREATE TABLE parent (id int PRIMARY KEY)")
    client.execute("CREATE TABLE child (PRIMARY KEY (id)) INHERITS (parent)")
    client.execute("CREATE TABLE parts (id int PRIMARY KEY) PARTITION BY RANGE (id)")
    client.execute("CREATE TABLE part_1 PARTITION OF parts FOR VALUES FROM (0) TO (10)")
    client.execute(
        f"CREATE PUBLICATION {PUBLICATION} FOR TABLE t (id, v) WHERE (id > 1 AND v <> '{{%s}}'), parent, parts"
        " WITH (publish_via_partition_root = true)"
    )

    def write(number: int) -> None:
        client.execute("INSERT INTO t VALUES (%s, 'v', 's')", (number,))
        for table in ("parent", "child", "parts"):
            client.execute(f"INSERT INTO {table} VALUES (%s)", (number,))

    write(1)
    write(2)
    snapshot = captured.changes()
    write(3)
    streamed = captured.changes()
    for changes, op, numbers in ((snapshot, "r", (1, 2)), (streamed, "c", (3,))):
        expected = [Change("t", op, {"id": n}, {"id": n, "v": "v"}) for n in numbers if n > 1]
        expected += [Change(table, op, {"id": n}, {"id": n}) for table in ("parent", "child", "parts") for n in numbers]
        assert sorted(changes, key=repr) == sorted(expected, key=repr)


@pytest.mark.parametrize(
    ("listed", "key"), [("w", None), ("a, w", {"a": 1}), ("a, b, w", {"a": 1, "b": 1})], ids=["none", "part", "whole"]
)
def test_a_list_of_columns_without_the_key_has_the_same_key_in_snapshot_and_stream(
    client: Client, server: PostgresServer, database: str, listed: str, key: Any
) -> None:
    client.execute(f"DROP PUBLICATION {PUBLICATION}")
    client.execute("CREATE TABLE t (w int, a int, b int, PRIMARY KEY (a, b))")
    client.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE t ({listed}) WITH (publish = 'insert')")
    client.execute("INSERT INTO t VALUES (1, 1, 1)")
    captured = Captured(options(server, database))
    snapshot = captured.changes()
    client.execute("DELETE FROM t")
    client.execute("INSERT INTO t VALUES (1, 1, 1)")
    assert [each.key for each in (*snapshot, *captured.changes())] == [key, key]


@pytest.mark.parametrize("mode", ["initial", "no_data"])
def test_a_key_that_neither_log_nor_publication_has_is_refused_or_declared(
    client: Client, server: PostgresServer, database: str, mode: str
) -> None:
    client.execute(f"DROP PUBLICATION {PUBLICATION}")
    client.execute("CREATE TABLE t (id int PRIMARY KEY, w int)")
    client.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    client.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE t (w) WITH (publish = 'insert')")
    client.execute("INSERT INTO t VALUES (1, 1)")
    captured = Captured(options(server, database, snapshot__mode=mode))
    with pytest.raises(SourceRefused, match="list of columns (of public.t )?lacks") as refused:
        captured.drain()
        client.execute("INSERT INTO t VALUES (2, 2)")
        captured.drain()
    assert "message.key.columns" in refused.value.hint
    captured.options = options(server, database, snapshot__mode=mode, message__key__columns="public.t:w")
    assert [each.key for each in captured.changes()] == [{"w": 1 if mode == "initial" else 2}]


def test_constants_of_row_filters_are_compared_under_the_settings_of_the_source(
    client: Client, server: PostgresServer, database: str
) -> None:
    client.execute(f"DROP PUBLICATION {PUBLICATION}")
    client.execute("CREATE TABLE t (id int PRIMARY KEY, at timestamptz, span interval, b bytea)")
    client.execute("INSERT INTO t VALUES (1, '2026-01-02', '2 days', '\\x01'), (2, '2025-12-31', '2 days', '\\x01')")
    client.execute(
        f"CREATE PUBLICATION {PUBLICATION} FOR TABLE t WHERE (at > '2026-01-01 00:00+00' AND span > '1 day 02:03' "
        "AND b <> '\\x00ff') WITH (publish = 'insert')"
    )
    for name, value in (("TimeZone", "Asia/Tokyo"), ("DateStyle", "German"), ("bytea_output", "escape")):
        client.execute(f"ALTER DATABASE {database} SET {name} = '{value}'")
    assert [each.key for each in Captured(options(server, database)).changes()] == [{"id": 1}]


@pytest.mark.parametrize("is_open", [False, True])
def test_every_statement_runs_under_the_settings_of_the_source(
    server: PostgresServer, database: str, is_open: bool
) -> None:
    url = server.url_of(database) + "?options=-c%20TimeZone%3DAsia/Tokyo%20-c%20row_security%3Don"
    given = options(server, database, url=url, lock_timeout="7s")
    names = {"TimeZone": "UTC", "row_security": "off", "statement_timeout": "0", "lock_timeout": "7s"}
    server.rows("ALTER ROLE admin SET statement_timeout = '20s'")
    try:
        with closing(SourceSession(given.connecting, "test")) as session:
            if is_open:
                session.begin("asking")
            for name, value in names.items():
                assert session.rows("asking", "SELECT current_setting(%s)", (name,)) == [(value,)]
    finally:
        server.rows("ALTER ROLE admin RESET ALL")


def test_a_snapshot_that_was_interrupted_is_taken_again(
    client: Client, server: PostgresServer, database: str, captured: Captured
) -> None:
    client.execute("CREATE TABLE t (id int PRIMARY KEY)")
    client.execute("INSERT INTO t SELECT generate_series(1, 1000)")
    with closing(PostgresSource(options(server, database))) as source:
        parts = source.read(None)
        batch = next(part for part in parts if isinstance(part, IngestBatch))
        assert change(next(iter(batch.records))).key == {"id": 1}
        parts.close()  # type: ignore[attr-defined]
    client.execute("INSERT INTO t VALUES (1001)")
    batches = captured.drain()
    assert [change(each).key for batch in batches for each in batch.records] == [{"id": n} for n in range(1, 1002)]


def test_a_transaction_that_is_older_than_the_snapshot_is_waited_for(
    client: Client, server: PostgresServer, database: str, captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_module, "_VISIBLE_S", 0.3)
    client.execute("CREATE TABLE t (id int PRIMARY KEY)")
    client.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (SLOT,))
    with server.connect(database) as other:
        other.execute("BEGIN")
        other.execute("INSERT INTO t VALUES (1)")
        with pytest.raises(SourceFailed, match=f"pid {other.info.backend_pid}$"):
            captured.drain()
        other.execute("COMMIT")
    assert [(each.op, each.key) for each in captured.changes()] == [("r", {"id": 1})]


def test_a_commit_that_is_in_the_log_but_not_visible_yet_is_not_lost(
    client: Client, server: PostgresServer, database: str, captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It lies in front of the slot's position, and a snapshot taken at once would not see it."""
    monkeypatch.setattr(source_module, "_VISIBLE_S", 0.3)
    client.execute("CREATE TABLE t (id int PRIMARY KEY)")
    client.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (SLOT,))
    server.reload({"synchronous_standby_names": "'nobody'"})
    writer = threading.Thread(target=lambda: server.rows("INSERT INTO t VALUES (1)", database=database))
    try:
        writer.start()
        until(lambda: server.rows("SELECT 1 FROM pg_stat_activity WHERE wait_event = 'SyncRep'"), "the commit waits")
        client.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_insert_lsn())", (SLOT,))
        assert client.execute("SELECT count(*) FROM t").fetchone() == (0,)
        with pytest.raises(SourceFailed, match="waits for transactions"):
            captured.drain()
    finally:
        server.reload({"synchronous_standby_names": "''"})
        writer.join(300)
    assert [(each.op, each.key) for each in captured.changes()] == [("r", {"id": 1})]


def test_each_version_of_a_row_arrives_once_while_transactions_run(
    client: Client, server: PostgresServer, database: str
) -> None:
    for table in ("a", "b"):
        client.execute(f"CREATE TABLE {table} (id int PRIMARY KEY, n int NOT NULL)")
        client.execute(f"INSERT INTO {table} SELECT id, 0 FROM generate_series(1, {KEYS}) id")
    captured = Captured(options(server, database, max__batch__size=50))
    with writing(server, database, seeds=(1, 2, 3)):
        for _ in range(3):
            # A snapshot that dies in the middle, and leaves its slot.
            with closing(PostgresSource(captured.options)) as source:
                parts = source.read(None)
                records = iter(next(part for part in parts if isinstance(part, IngestBatch)).records)
                for _ in range(KEYS + 5):
                    next(records)
                parts.close()  # type: ignore[attr-defined]
        batches = []
        for batch in captured.batches():
            batches.append(batch)
            if sum(len(each.records) for each in batches) > 2 * KEYS + 100:
                break
    batches += captured.drain()
    versions: dict[Any, list[int]] = defaultdict(list)
    for batch in batches:
        for each in batch.changes():
            assert each.row is not None
            versions[each.table, each.row["id"]].append(each.row["n"])
    assert len(versions) == 2 * KEYS
    for found in versions.values():
        assert found == list(range(found[0], found[0] + len(found)))
    last = {(table, key): n for table in ("a", "b") for key, n in client.execute(f"SELECT id, n FROM {table}")}
    assert {key: found[-1] for key, found in versions.items()} == last
    assert {each.op for each in batches[0].changes()} == {"r"}
    assert sum(map(len, versions.values())) > 2 * KEYS + 100


@contextmanager
def writing(server: PostgresServer, database: str, seeds: tuple[int, ...]) -> Iterator[None]:
    """Transactions over both tables, some of which are rolled back or wait."""
    stop = threading.Event()

    def write(seed: int) -> None:
        chance = random.Random(seed)
        with server.connect(database) as connection:
            while not stop.is_set():
                connection.execute("BEGIN")
                for table in ("a", "b"):
                    keys = sorted(chance.sample(range(1, KEYS + 1), 3))
                    for key in keys:
                        connection.execute(f"UPDATE {table} SET n = n + 1 WHERE id = {key}")
                    stop.wait(chance.choice((0, 0, 0.005)))
                connection.execute(chance.choice(("COMMIT", "COMMIT", "ROLLBACK")))

    threads = [threading.Thread(target=write, args=(seed,)) for seed in seeds]
    for each in threads:
        each.start()
    try:
        yield
    finally:
        stop.set()
        for each in threads:
            each.join(300)


def test_a_table_without_rows_is_a_snapshot_without_records(client: Client, captured: Captured) -> None:
    client.execute("CREATE TABLE t (id int PRIMARY KEY)")
    (snapshot,) = captured.drain()
    assert snapshot.records == []
    assert snapshot.end["snapshot"]["xmax"] > 0


def test_a_publication_without_tables_waits_for_one(client: Client, captured: Captured) -> None:
    captured.options = replace(captured.options, publication="empty")
    client.execute("CREATE PUBLICATION empty")
    assert captured.changes() == []
    client.execute("CREATE TABLE t (id int PRIMARY KEY)")
    client.execute("ALTER PUBLICATION empty ADD TABLE t")
    client.execute("INSERT INTO t VALUES (1)")
    assert [each.key for each in captured.changes()] == [{"id": 1}]
