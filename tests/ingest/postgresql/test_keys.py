"""The key of a table whose replica identity is no key: not in the log, and the catalog may be ahead of the log."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import psycopg
import pytest

from einmal.ingest.postgresql.session import SourceSession
from einmal.ingest.postgresql.snapshot import CatalogKeys, catalog_keys
from einmal.ingest.source import SourceRefused
from einmal.options.values import OptionError
from tests.ingest.postgresql.capture import Batch, Captured, options
from tests.sinks.postgres.server import PostgresServer

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


ANOTHER_KEY = ["ALTER TABLE t DROP CONSTRAINT t_pkey", "ALTER TABLE t ADD PRIMARY KEY (code)"]


def keys(captured: Captured) -> list[Any]:
    return [each for batch in captured.drain() for each in keys_of(batch)]


def keys_of(batch: Batch) -> list[Any]:
    return [None if each.key is None else json.loads(each.key) for each in batch.records]


@pytest.mark.representatives(8)
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


def test_the_key_of_a_new_table_is_recorded_before_its_first_change_is_ingested(
    client: Client, captured: Captured
) -> None:
    """The process dies after that change, and the table is gone when another one reads the second."""
    client.execute("CREATE TABLE u (id int PRIMARY KEY)")
    captured.drain()
    client.execute("INSERT INTO u VALUES (1)")
    batches = captured.batches()
    assert keys_of(next(batches)) == [{"id": 1}]
    client.execute("CREATE TABLE t (code int PRIMARY KEY, v text)")
    client.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    client.execute("INSERT INTO t VALUES (1, 'a')")
    while not (found := keys_of(next(batches))):
        pass
    assert found == [{"code": 1}]
    batches.close()  # type: ignore[attr-defined]
    client.execute("UPDATE t SET v = 'b'")
    client.execute("DROP TABLE t")
    assert keys(captured) == [{"code": 1}]


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


def test_the_catalog_is_not_taken_for_what_explains_changes_that_were_committed_before_it_was_read(
    client: Client, captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A change, and the change of the key alone, between the look at the log and the one at the catalog."""
    client.execute("CREATE TABLE t (id int PRIMARY KEY, code int NOT NULL)")
    client.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    captured.drain()
    calls = itertools.count(1)

    def changed_and_read(*arguments: Any) -> CatalogKeys:
        # The first one is that of the start.
        if next(calls) == 2:
            for statement in ("INSERT INTO t VALUES (1, 2)", *ANOTHER_KEY):
                client.execute(statement)
        return catalog_keys(*arguments)

    monkeypatch.setattr("einmal.ingest.postgresql.source.catalog_keys", changed_and_read)
    assert keys(captured) == [{"id": 1}]
    client.execute("INSERT INTO t VALUES (3, 4)")
    assert keys(captured) == [{"code": 4}]


def test_the_position_forgets_tables_that_are_gone_and_those_whose_key_is_declared(
    client: Client, server: PostgresServer, database: str
) -> None:
    captured = Captured(options(server, database, message__key__columns="public.declared:id"))
    for name in ("t", "u", "declared", "default_identity"):
        client.execute(f"CREATE TABLE {name} (id int PRIMARY KEY, v text)")
        if name != "default_identity":
            client.execute(f"ALTER TABLE {name} REPLICA IDENTITY FULL")
    captured.drain()
    assert captured.position is not None
    assert len(captured.position["keys"]) == 2
    client.execute("INSERT INTO t VALUES (1, 'a')")
    client.execute("DROP TABLE t")
    batches = captured.batches()
    assert keys_of(next(batches)) == [{"id": 1}]
    assert len(captured.position["keys"]) == 2, "what follows in the log may be of it"
    assert [each for batch in batches for each in keys_of(batch)] == []
    assert len(captured.position["keys"]) == 1
    client.execute("ALTER TABLE u REPLICA IDENTITY DEFAULT")
    client.execute("INSERT INTO u VALUES (1, 'a')")
    assert keys(captured) == [{"id": 1}]
    assert "keys" not in captured.position


def test_the_catalog_is_read_by_as_many_statements_however_many_tables_there_are(
    client: Client, captured: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements: list[str] = []
    rows = SourceSession.rows

    def counted(self: SourceSession, what: str, *others: Any) -> Any:
        statements.append(what)
        return rows(self, what, *others)

    monkeypatch.setattr(SourceSession, "rows", counted)
    counts = []
    for number in range(2):
        for table in range(1 + 20 * number):
            client.execute(f"CREATE TABLE t_{number}_{table} (id int PRIMARY KEY)")
            client.execute(f"ALTER TABLE t_{number}_{table} REPLICA IDENTITY FULL")
        captured.drain()
        client.execute("CREATE TABLE IF NOT EXISTS other AS SELECT 1")
        statements.clear()
        captured.drain()
        counts.append(statements.count("reading the publication"))
        assert "looking up a primary key" not in statements
    assert counts[0] == counts[1]


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
    assert 'message.key.columns = "public.t:COLUMN,..."' in refused.value.hint
    declared = Captured(options(server, database, message__key__columns="public.t: id"), captured.position)
    assert keys(declared) == [{"id": 1}]


@pytest.mark.representatives(1)
@pytest.mark.parametrize("identity", ["FULL", "NOTHING"])
def test_the_advice_leads_past_a_table_that_was_created_altered_and_dropped_while_the_ingester_was_behind(
    identity: str, client: Client, captured: Captured, server: PostgresServer, database: str
) -> None:
    """Each refusal has the names under which the next changes need a declaration."""
    client.execute("CREATE TABLE u (id int PRIMARY KEY)")
    captured.drain()
    client.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    client.execute(f"ALTER TABLE t REPLICA IDENTITY {identity}")
    client.execute("INSERT INTO t VALUES (1, 'a')")
    client.execute("ALTER TABLE t RENAME id TO account_id")
    client.execute("INSERT INTO t VALUES (2, 'b')")
    client.execute("INSERT INTO u VALUES (1)")
    client.execute("ALTER TABLE t ADD line int NOT NULL DEFAULT 0")
    client.execute("ALTER TABLE t RENAME account_id TO number")
    client.execute("ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (number, line)")
    client.execute("INSERT INTO t VALUES (3, 'c', 4)")
    if identity == "FULL":
        client.execute("UPDATE t SET v = 'd' WHERE number = 3")
        client.execute("DELETE FROM t WHERE number = 3")
    client.execute("DROP TABLE t")
    its_key = {"id, v": "id", "account_id, v": "account_id", "number, v, line": "number,line"}
    following, found, advised = captured, list[Any](), list[str]()
    while not found:
        assert len(advised) <= len(its_key), advised
        try:
            found = keys(following)
        except SourceRefused as error:
            columns = re.search(r"the columns ([a-z_, ]+?)(, without.*)?: its", str(error))
            advice = re.search(r'message\.key\.columns = "([^"]+)"', error.hint)
            assert columns is not None and advice is not None, error
            advised.append(advice[1])
            declared = advice[1].replace("COLUMN,...", its_key[columns[1]])
            following = Captured(options(server, database, message__key__columns=declared), following.position)
    last = {"number": 3, "line": 4}
    assert found == [{"id": 1}, {"account_id": 2}, {"id": 1}] + [last] * (4 if identity == "FULL" else 1)
    assert advised == [
        "public.t:COLUMN,...",
        "public.t:id;public.t:COLUMN,...",
        "public.t:id;public.t:account_id;public.t:COLUMN,...",
    ]


def test_a_longer_declaration_counts_before_one_that_is_part_of_it(
    client: Client, captured: Captured, server: PostgresServer, database: str
) -> None:
    captured.drain()
    client.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    client.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    client.execute("INSERT INTO t VALUES (1, 'a')")
    client.execute("ALTER TABLE t ADD line int")
    client.execute("INSERT INTO t VALUES (2, 'b', 3)")
    client.execute("DROP TABLE t")
    declared = Captured(
        options(server, database, message__key__columns="public.t:id; public.t:line,id"), captured.position
    )
    assert keys(declared) == [{"id": 1}, {"id": 2, "line": 3}]


def test_two_declarations_that_fit_are_refused_and_the_advice_leads_past_them(
    client: Client, captured: Captured, server: PostgresServer, database: str
) -> None:
    """Another column has the former name of the key."""
    captured.drain()
    client.execute("CREATE TABLE t (id int PRIMARY KEY)")
    client.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    client.execute("INSERT INTO t VALUES (1)")
    client.execute("ALTER TABLE t RENAME id TO account_id")
    client.execute("ALTER TABLE t ADD id int")
    client.execute("INSERT INTO t VALUES (2, 3)")
    client.execute("DROP TABLE t")
    both = {"message__key__columns": "public.t:id;public.t:account_id"}
    declared = Captured(options(server, database, **both), captured.position)
    with pytest.raises(SourceRefused, match="declares id or account_id of public.t, whose columns .* account_id, id:"):
        keys(declared)
    single = Captured(options(server, database, max__batch__size="1", **both), captured.position)
    found = list[Any]()
    with pytest.raises(SourceRefused, match="declares id or account_id") as refused:
        for batch in single.batches():
            found += keys_of(batch)
    assert "max.batch.size = 1" in refused.value.hint
    assert found == [{"id": 1}]
    left = Captured(options(server, database, message__key__columns="public.t:account_id"), single.position)
    assert keys(left) == [{"account_id": 2}]


def test_rows_of_the_snapshot_have_the_declared_key(client: Client, server: PostgresServer, database: str) -> None:
    client.execute("CREATE TABLE t (id int PRIMARY KEY, code int)")
    client.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    client.execute("INSERT INTO t VALUES (1, 2)")
    captured = Captured(options(server, database, message__key__columns="public.t:code;public.t:former"))
    assert keys(captured) == [{"code": 2}]
    client.execute("UPDATE t SET id = 3")
    assert keys(captured) == [{"code": 2}]


def test_a_table_whose_declaration_does_not_fit_keeps_its_own_key(
    client: Client, server: PostgresServer, database: str
) -> None:
    """The declaration is of a table that had the name before, or misspelt."""
    client.execute("CREATE TABLE t (id int PRIMARY KEY)")
    client.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    captured = Captured(options(server, database, message__key__columns="public.t:former"))
    captured.drain()
    client.execute("INSERT INTO t VALUES (1)")
    client.execute("DROP TABLE t")
    assert keys(captured) == [{"id": 1}]


def test_a_declared_key_that_the_log_does_not_have_is_refused_and_a_misspelt_one_reported(
    client: Client, server: PostgresServer, database: str
) -> None:
    client.execute("CREATE TABLE t (id int PRIMARY KEY, code int)")
    captured = Captured(options(server, database, message__key__columns="public.t:code"))
    captured.drain()
    client.execute("INSERT INTO t VALUES (1, 2)")
    with pytest.raises(SourceRefused, match="message.key.columns declares code of public.t"):
        captured.drain()
    misspelt = Captured(options(server, database, message__key__columns="public.t:cod"), captured.position)
    assert keys(misspelt) == [{"id": 1}]
    assert [each.kind for each in misspelt.notices] == ["declared key"]


@pytest.mark.parametrize("way", ["", "public.t:id"])
def test_the_advice_leads_past_a_declared_key_that_the_log_does_not_have(
    way: str, client: Client, server: PostgresServer, database: str
) -> None:
    client.execute("CREATE TABLE t (id int PRIMARY KEY, code int)")
    captured = Captured(options(server, database, message__key__columns="public.t:code"))
    captured.drain()
    client.execute("INSERT INTO t VALUES (1, 2)")
    client.execute("ALTER TABLE t REPLICA IDENTITY FULL")
    with pytest.raises(SourceRefused, match=r"other columns \(id\)") as refused:
        captured.drain()
    assert "leave the table out" in refused.value.hint
    past = Captured(options(server, database, message__key__columns=way), captured.position)
    assert keys(past) == [{"id": 1}]
    past.options = captured.options
    client.execute("INSERT INTO t VALUES (3, 4)")
    assert keys(past) == [{"code": 4}], "the identity is full since"


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
