from __future__ import annotations

import base64
import json
from typing import Any

import psycopg
import pytest

from einmal.ingest.postgresql.envelope import SCHEMA_HEADER
from einmal.ingest.source import SourceRefused
from einmal.schemas.debezium_format import UNAVAILABLE
from tests.ingest.postgresql.capture import PUBLICATION, SLOT, Captured, Change, change, options
from tests.sinks.postgres.server import PostgresServer

pytestmark = pytest.mark.system

Client = psycopg.Connection[Any]


def test_inserts_updates_and_deletes_arrive_once_in_the_order_of_commits(client: Client, captured: Captured) -> None:
    client.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    assert captured.changes() == []
    client.execute("INSERT INTO t VALUES (1, 'a'), (2, NULL)")
    client.execute("UPDATE t SET v = 'b' WHERE id = 1")
    client.execute("DELETE FROM t WHERE id = 2")
    assert captured.changes() == [
        Change("t", "c", {"id": 1}, {"id": 1, "v": "a"}),
        Change("t", "c", {"id": 2}, {"id": 2, "v": None}),
        Change("t", "u", {"id": 1}, {"id": 1, "v": "b"}),
        Change("t", "d", {"id": 2}, {"id": 2}),
    ]
    assert captured.changes() == []


def test_a_transaction_that_commits_first_comes_first_and_is_whole(
    client: Client, captured: Captured, server: PostgresServer, database: str
) -> None:
    client.execute("CREATE TABLE a (id int PRIMARY KEY)")
    client.execute("CREATE TABLE b (id int PRIMARY KEY)")
    captured.drain()
    with server.connect(database) as other, client.transaction():
        client.execute("INSERT INTO a VALUES (1)")
        with other.transaction():
            other.execute("INSERT INTO b VALUES (2)")
            client.execute("INSERT INTO b VALUES (1)")
            other.execute("INSERT INTO a VALUES (2)")
    (batch,) = captured.drain()
    assert [(each.table, each.key) for each in batch.changes()] == [
        ("b", {"id": 2}), ("a", {"id": 2}), ("a", {"id": 1}), ("b", {"id": 1}),
    ]  # fmt: skip
    orders = [json.loads(each.value or b"")["transaction"] for each in batch.records]
    assert [(each["total_order"], each["data_collection_order"]) for each in orders] == [(1, 1), (2, 1), (1, 1), (2, 1)]
    assert len(batch.transactions()) == 2


def test_what_is_rolled_back_does_not_arrive_and_subtransactions_do(client: Client, captured: Captured) -> None:
    client.execute("CREATE TABLE t (id int PRIMARY KEY)")
    captured.drain()
    with pytest.raises(ZeroDivisionError), client.transaction():
        client.execute("INSERT INTO t VALUES (1)")
        raise ZeroDivisionError
    with client.transaction():
        client.execute("INSERT INTO t VALUES (2)")
        with client.transaction():
            client.execute("INSERT INTO t VALUES (3)")
        with pytest.raises(ZeroDivisionError), client.transaction():
            client.execute("INSERT INTO t VALUES (4)")
            raise ZeroDivisionError
    (batch,) = captured.drain()
    assert [each.key for each in batch.changes()] == [{"id": 2}, {"id": 3}]
    assert len(batch.transactions()) == 1


def test_a_prepared_transaction_arrives_when_it_is_committed(client: Client, captured: Captured) -> None:
    client.execute("CREATE TABLE t (id int PRIMARY KEY)")
    captured.drain()
    client.execute("BEGIN")
    client.execute("INSERT INTO t VALUES (1)")
    client.execute("PREPARE TRANSACTION 'one'")
    client.execute("INSERT INTO t VALUES (2)")
    assert [each.key for each in captured.changes()] == [{"id": 2}]
    client.execute("COMMIT PREPARED 'one'")
    assert [each.key for each in captured.changes()] == [{"id": 1}]


def test_a_batch_holds_whole_transactions_up_to_its_limit(
    client: Client, server: PostgresServer, database: str
) -> None:
    captured = Captured(options(server, database, max__batch__size=20))
    client.execute("CREATE TABLE t (id int PRIMARY KEY)")
    captured.drain()
    for first in range(0, 60, 6):
        client.execute("INSERT INTO t SELECT generate_series(%s::int, %s)", (first, first + 5))
    batches = captured.drain()
    assert [len(each.records) for each in batches] == [18, 18, 18, 6]
    assert [change(each).key for batch in batches for each in batch.records] == [{"id": n} for n in range(60)]


@pytest.mark.parametrize("count", [10_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_a_large_transaction_is_one_batch(client: Client, captured: Captured, count: int) -> None:
    client.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    captured.drain()
    client.execute("INSERT INTO t SELECT n, repeat('v', 50) FROM generate_series(1, %s) n", (count,))
    client.execute("INSERT INTO t VALUES (0, 'after')")
    large, small = captured.drain()
    assert [change(each).key for each in large.records] == [{"id": n} for n in range(1, count + 1)]
    assert len(large.transactions()) == 1
    assert small.changes() == [Change("t", "c", {"id": 0}, {"id": 0, "v": "after"})]


def test_a_changed_key_ends_the_old_key_and_creates_the_new_one(client: Client, captured: Captured) -> None:
    client.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    client.execute("INSERT INTO t VALUES (1, 'a')")
    captured.drain()
    client.execute("UPDATE t SET id = 2")
    (batch,) = captured.drain()
    deleted, tombstone, created = batch.records
    assert change(deleted) == Change("t", "d", {"id": 1}, {"id": 1})
    assert (tombstone.key, tombstone.value) == (deleted.key, None)
    assert change(created) == Change("t", "c", {"id": 2}, {"id": 2, "v": "a"})
    assert {each.key: each.value for each in deleted.headers}["__debezium.newkey"] == b'{"id":2}'
    assert {each.key: each.value for each in created.headers}["__debezium.oldkey"] == b'{"id":1}'


def test_tombstones_can_be_left_out(client: Client, server: PostgresServer, database: str) -> None:
    captured = Captured(options(server, database, tombstones__on__delete=False))
    client.execute("CREATE TABLE t (id int PRIMARY KEY)")
    client.execute("INSERT INTO t VALUES (1)")
    captured.drain()
    client.execute("DELETE FROM t")
    (batch,) = captured.drain()
    assert [change(each).op for each in batch.records] == ["d"]


def test_a_table_with_full_identity_has_its_old_row_and_the_primary_key_as_key(
    client: Client, captured: Captured
) -> None:
    client.execute("CREATE TABLE t (id int PRIMARY KEY, v text, w int)")
    client.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    client.execute("CREATE TABLE keyless (v text)")
    client.execute("ALTER TABLE keyless REPLICA IDENTITY FULL")
    captured.drain()
    client.execute("INSERT INTO t VALUES (1, 'a', 5)")
    client.execute("UPDATE t SET w = 6")
    client.execute("INSERT INTO keyless VALUES ('x')")
    client.execute("DELETE FROM keyless")
    (batch,) = captured.drain()
    updated = json.loads(batch.records[1].value or b"")
    assert updated["before"] == {"id": 1, "v": "a", "w": 5}
    assert updated["after"] == {"id": 1, "v": "a", "w": 6}
    assert batch.records[1].key == b'{"id":1}'
    assert batch.changes()[2:] == [Change("keyless", "c", None, {"v": "x"}), Change("keyless", "d", None, {"v": "x"})]


def test_a_table_can_be_identified_by_a_unique_index(client: Client, captured: Captured) -> None:
    client.execute("CREATE TABLE t (id int PRIMARY KEY, code text NOT NULL, v int)")
    client.execute("CREATE UNIQUE INDEX t_code ON t (code)")
    client.execute("ALTER TABLE t REPLICA IDENTITY USING INDEX t_code")
    client.execute("INSERT INTO t VALUES (1, 'x', 1)")
    assert [each.key for each in captured.changes()] == [{"code": "x"}]
    client.execute("UPDATE t SET v = 2")
    assert [each.key for each in captured.changes()] == [{"code": "x"}]


def test_a_toasted_value_that_was_not_touched_is_marked_unavailable(client: Client, captured: Captured) -> None:
    client.execute("CREATE TABLE t (id int PRIMARY KEY, v text, w int)")
    client.execute("ALTER TABLE t ALTER v SET STORAGE EXTERNAL")
    captured.drain()
    large = "ä" * 5_000
    client.execute("INSERT INTO t VALUES (1, %s, 1)", (large,))
    client.execute("UPDATE t SET w = 2")
    client.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    client.execute("UPDATE t SET w = 3")
    rows = [each.row for each in captured.changes()]
    assert rows == [
        {"id": 1, "v": large, "w": 1},
        {"id": 1, "v": UNAVAILABLE, "w": 2},
        {"id": 1, "v": large, "w": 3},
    ]


def partitioned(client: Client, root: str, leaf: str) -> None:
    """A table of one partition, with these replica identities, published as one."""
    client.execute(
        "CREATE TABLE root (id int, region text, v text, PRIMARY KEY (region, id)) PARTITION BY LIST (region)"
    )
    client.execute("CREATE TABLE leaf PARTITION OF root FOR VALUES IN ('eu')")
    client.execute("ALTER TABLE leaf ALTER v SET STORAGE EXTERNAL")
    client.execute(f"ALTER TABLE root REPLICA IDENTITY {root}")
    client.execute(f"ALTER TABLE leaf REPLICA IDENTITY {leaf}")
    client.execute(f"DROP PUBLICATION {PUBLICATION}")
    client.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE root WITH (publish_via_partition_root = true)")


@pytest.mark.parametrize("root", ["FULL", "DEFAULT"])
def test_toasted_values_of_partitions_arrive_by_their_own_full_identity(
    client: Client, captured: Captured, root: str
) -> None:
    partitioned(client, root, "FULL")
    captured.drain()
    large = "v" * 5_000
    client.execute("INSERT INTO root VALUES (1, 'eu', %s)", (large,))
    client.execute("UPDATE root SET id = 2")
    changes = captured.changes()
    assert [(each.op, (each.row or {})["id"]) for each in changes] == [("c", 1), ("d", 1), ("c", 2)]
    assert changes[2].row == {"id": 2, "region": "eu", "v": large}


def test_partitions_without_the_replica_identity_of_their_root_are_refused(client: Client, captured: Captured) -> None:
    partitioned(client, "FULL", "DEFAULT")
    with pytest.raises(SourceRefused, match="1 partitions of public.root have another replica identity") as refused:
        captured.drain()
    assert refused.value.hint.startswith("ALTER TABLE public.leaf REPLICA IDENTITY FULL")
    client.execute("ALTER TABLE leaf REPLICA IDENTITY FULL")
    client.execute("INSERT INTO root VALUES (1, 'eu', 'v')")
    captured.drain()
    client.execute("CREATE TABLE added PARTITION OF root FOR VALUES IN ('us')")
    client.execute("INSERT INTO root VALUES (2, 'us', 'v')")
    with pytest.raises(SourceRefused, match="added"):
        captured.drain()


def test_a_toasted_key_is_never_the_marker(client: Client, captured: Captured) -> None:
    client.execute("CREATE TABLE t (id text PRIMARY KEY, w int)")
    client.execute("ALTER TABLE t ALTER id SET STORAGE EXTERNAL")
    captured.drain()
    key = "k" * 2_400
    client.execute("INSERT INTO t VALUES (%s, 1)", (key,))
    client.execute("UPDATE t SET w = 2")
    assert [(each.op, each.key) for each in captured.changes()] == [("c", {"id": key}), ("u", {"id": key})]


def test_truncated_tables_are_reported_by_one_record_each(client: Client, captured: Captured) -> None:
    client.execute("CREATE TABLE a (id int PRIMARY KEY)")
    client.execute("CREATE TABLE b (id int PRIMARY KEY REFERENCES a)")
    client.execute("INSERT INTO a VALUES (1)")
    captured.drain()
    client.execute("TRUNCATE a CASCADE")
    assert sorted(captured.changes()) == [Change("a", "t", None, None), Change("b", "t", None, None)]


def test_a_column_that_is_added_is_reported_and_changes_the_schema_header(client: Client, captured: Captured) -> None:
    client.execute("CREATE TABLE t (id int PRIMARY KEY)")
    captured.drain()
    client.execute("INSERT INTO t VALUES (1)")
    client.execute("ALTER TABLE t ADD COLUMN note text DEFAULT 'none'")
    client.execute("INSERT INTO t VALUES (2, 'two')")
    client.execute("ALTER TABLE t DROP COLUMN note")
    client.execute("ALTER TABLE t ALTER id TYPE bigint")
    client.execute("INSERT INTO t VALUES (3)")
    (batch,) = captured.drain()
    assert [each.row for each in batch.changes()] == [{"id": 1}, {"id": 2, "note": "two"}, {"id": 3}]
    schemas = [each.value for record in batch.records for each in record.headers if each.key == SCHEMA_HEADER]
    assert len(set(schemas)) == 3
    texts = [each.text for each in captured.notices if each.kind == "schema change"]
    assert texts == [
        "public.t has changed: column note (type 25) added",
        "public.t has changed: column note dropped; column id is (type 20), was (type 23)",
    ]


def test_values_are_numbers_where_json_has_them_and_text_elsewhere(client: Client, captured: Captured) -> None:
    client.execute("CREATE TYPE mood AS ENUM ('ok')")
    client.execute("CREATE DOMAIN small AS int")
    columns = {
        "id": ("bigint", "9007199254740993", 9007199254740993),
        "b": ("boolean", "true", True),
        "f": ("double precision", "1.5", 1.5),
        "nan": ("double precision", "'NaN'", "NaN"),
        "num": ("numeric", "123456789012345678901234567890.123", "123456789012345678901234567890.123"),
        "data": ("bytea", "'\\x00ff'", base64.b64encode(b"\x00\xff").decode()),
        "j": ("jsonb", """'{"a": 1}'""", '{"a": 1}'),
        "at": ("timestamptz", "'2026-11-23 12:00:00+02'", "2026-11-23 10:00:00+00"),
        "took": ("interval", "'1 day 2 hours'", "P1DT2H"),
        "several": ("int[]", "'{1,2}'", "{1,2}"),
        "c": ("char(3)", "'x'", "x  "),
        "feeling": ("mood", "'ok'", "ok"),
        "dom": ("small", "5", "5"),
        "cls": ("regclass", "'public.t'::regclass", "public.t"),
        "price": ("money", "12.5", "$12.50"),
    }
    client.execute(f"CREATE TABLE t ({', '.join(f'{name} {kind}' for name, (kind, _, _) in columns.items())})")
    client.execute("ALTER TABLE t ADD PRIMARY KEY (id), ADD COLUMN twice int GENERATED ALWAYS AS (dom * 2) STORED")
    client.execute("ALTER DATABASE " + client.info.dbname + " SET TimeZone = 'Asia/Tokyo'")
    row = ", ".join(text for _, text, _ in columns.values())
    expected = {name: value for name, (_, _, value) in columns.items()}
    client.execute(f"INSERT INTO t VALUES ({row})")
    (snapshot,) = captured.changes()
    client.execute("TRUNCATE t")
    client.execute(f"INSERT INTO t VALUES ({row})")
    _, streamed = captured.changes()
    assert snapshot.row == streamed.row == expected


def test_quoted_names_arrive_and_topics_have_legal_ones(client: Client, captured: Captured) -> None:
    client.execute('CREATE SCHEMA "Größe"')
    client.execute('CREATE TABLE "Größe"."a b" ("der Schlüssel" int PRIMARY KEY)')
    client.execute('INSERT INTO "Größe"."a b" VALUES (1)')
    (snapshot,) = captured.drain()
    client.execute('INSERT INTO "Größe"."a b" VALUES (2)')
    (streamed,) = captured.drain()
    assert {each.topic for each in snapshot.records + streamed.records} == {"shop.Gr__e.a_b"}
    assert [each.key for each in snapshot.records + streamed.records] == [
        '{"der Schlüssel":1}'.encode(),
        '{"der Schlüssel":2}'.encode(),
    ]


def test_without_a_snapshot_the_stream_begins_at_the_slot(
    client: Client, server: PostgresServer, database: str
) -> None:
    captured = Captured(options(server, database, snapshot__mode="no_data"))
    client.execute("CREATE TABLE t (id int PRIMARY KEY)")
    client.execute("INSERT INTO t VALUES (1)")
    (first,) = captured.drain()
    assert first.records == []
    client.execute("INSERT INTO t VALUES (2)")
    assert captured.changes() == [Change("t", "c", {"id": 2}, {"id": 2})]


def test_rows_of_every_size_arrive(client: Client, captured: Captured) -> None:
    client.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    sizes = [10] * 2_000 + [3_000_000] * 3 + [10] * 300 + [400_000] * 5
    insert = "INSERT INTO t SELECT {} + n, repeat('v', size) FROM unnest(%s::int[]) WITH ORDINALITY AS row (size, n)"
    client.execute(insert.format(0), (sizes,))
    snapshot = captured.changes()
    client.execute(insert.format(len(sizes)), (sizes,))
    streamed = captured.changes()
    for changes, first in ((snapshot, 1), (streamed, len(sizes) + 1)):
        rows = sorted((each.row["id"], len(each.row["v"])) for each in changes if each.row is not None)
        assert rows == [(first + i, size) for i, size in enumerate(sizes)]


def test_text_that_is_not_utf_8_is_refused_with_a_way_past(server: PostgresServer) -> None:
    """The server converts nothing in a database that has no encoding: to read it again would not help."""
    server.rows("CREATE DATABASE bytes ENCODING 'SQL_ASCII' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'")
    server.rows(f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES", database="bytes")
    captured = Captured(options(server, "bytes"))
    with server.connect("bytes") as client:
        client.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        captured.drain()
        client.execute("INSERT INTO t VALUES (1, 'text')")
        assert [each.row for each in captured.changes()] == [{"id": 1, "v": "text"}]
        client.execute("SET client_encoding = 'SQL_ASCII'")
        client.execute(b"INSERT INTO t VALUES (2, E'\\xff')")
        with pytest.raises(SourceRefused, match="22021") as refused:
            captured.drain()
        client.execute("SELECT pg_drop_replication_slot(%s)", (SLOT,))
    assert "UTF8" in refused.value.hint
