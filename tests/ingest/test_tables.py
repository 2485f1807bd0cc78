"""Claims about a PostgreSQL table as a source, on a real server."""

from __future__ import annotations

import json
import pickle
import random
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from einmal.ingest import IngestBatch, IngestRecord, SourceFailed, SourceNotice, SourceRefused, table_reader, tables
from einmal.ingest.tables import TableSource
from tests.sinks.postgres.server import PASSWORD, PostgresServer, running, until

pytestmark = pytest.mark.system

Connection = psycopg.Connection[Any]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with running(max_prepared_transactions="5") as found:
        yield found


@pytest.fixture
def database(server: PostgresServer) -> Iterator[Connection]:
    """With a table ``events`` of id and text."""
    server.rows("DROP TABLE IF EXISTS events")
    with server.connect() as connection:
        connection.execute("CREATE TABLE events (id bigint PRIMARY KEY, at timestamptz NOT NULL DEFAULT now(), t text)")
        yield connection


@dataclass
class TableReader:
    server: PostgresServer
    column: str = "id"
    batch_rows: int = 1_000
    table: str = "public.events"
    user: str = "admin"
    url_options: str = ""
    lock_timeout_ms: int = 30_000
    position: Any = None
    records: list[IngestRecord] = field(default_factory=list)
    notices: list[SourceNotice] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Another process, which looks at the whole table first."""
        url = self.server.url.replace("admin", self.user) + self.url_options
        self.source = TableSource(
            {name: str(value) for name, value in conninfo_to_dict(url, password=PASSWORD).items()},
            self.table,
            self.column,
            "rows",
            batch_rows=self.batch_rows,
            lock_timeout_ms=self.lock_timeout_ms,
        )
        self.source.origin()
        self.parts = self.source.read(None if self.position is None else json.loads(json.dumps(self.position)))

    def next_batch(self) -> IngestBatch | None:
        while isinstance(part := next(self.parts), SourceNotice):
            self.notices.append(part)
        return part

    def read(self) -> list[int]:
        """Ids of what is new."""
        begin = len(self.records)
        while (batch := self.next_batch()) is not None:
            self.records += batch.records
            self.position = batch.end
        return [json.loads(record.value or b"")["id"] for record in self.records[begin:]]


def insert(connection: Connection, *ids: int) -> None:
    for each in ids:
        connection.execute("INSERT INTO events (id, t) VALUES (%s, 'x')", (each,))


def test_a_row_is_a_record_with_its_key(server: PostgresServer, database: Connection) -> None:
    database.execute("INSERT INTO events VALUES (1, '2026-01-02 03:04:05+00', 'ä')")
    reader = TableReader(server)
    assert reader.read() == [1]
    assert json.loads(reader.records[0].value or b"") == {"id": 1, "at": "2026-01-02T03:04:05+00:00", "t": "ä"}
    assert json.loads(reader.records[0].key or b"") == {"id": 1}


SETTINGS = (
    "TimeZone=Asia/Tokyo", "DateStyle=German", "IntervalStyle=sql_standard", "extra_float_digits=-2",
    "bytea_output=escape", "quote_all_identifiers=on", "row_security=on", "client_encoding=LATIN1",
)  # fmt: skip


def test_settings_of_url_environment_role_and_database_change_no_value(
    server: PostgresServer, database: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute(
        "ALTER TABLE events ADD b bytea DEFAULT '\\x00ff', ADD span interval DEFAULT '1 day 02:03', "
        "ADD f float8 DEFAULT 0.1::float8 + 0.2, ADD d daterange DEFAULT '[2026-01-02,2026-02-03)', "
        "ADD c regclass DEFAULT 'pg_class'"
    )
    database.execute("INSERT INTO events VALUES (1, '2026-01-02 03:04:05+00', 'ä')")
    plain = TableReader(server)
    assert plain.read() == [1]
    urls = ["?" + urlencode({"options": " ".join(f"-c {each}" for each in SETTINGS)}, quote_via=quote)]
    urls.append("?client_encoding=LATIN1")
    for url in urls:
        changed = TableReader(server, url_options=url)
        changed.read()
        assert changed.records == plain.records
    monkeypatch.setenv("PGTZ", "Asia/Tokyo")
    monkeypatch.setenv("PGDATESTYLE", "German")
    for each in SETTINGS:
        name, value = each.split("=")
        database.execute(f"ALTER ROLE CURRENT_USER SET {name} = '{value}'")
    try:
        changed = TableReader(server)
        changed.read()
    finally:
        database.execute("ALTER ROLE CURRENT_USER RESET ALL")
    assert changed.records == plain.records


@pytest.mark.parametrize(
    ("url_options", "environment", "options"),
    [
        ("", "", "-c row_security=off"),
        ("?options=-c%20geqo%3Doff", "", "-c geqo=off -c row_security=off"),
        ("", "-c geqo=off", "-c geqo=off -c row_security=off"),
    ],
)
def test_a_pooler_that_keeps_no_settings_refuses_the_session(
    url_options: str, environment: str, options: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As PgBouncer does in transaction mode for options that it does not track."""
    if environment:
        monkeypatch.setenv("PGOPTIONS", environment)
    started: list[bytes] = []

    def refuse(listener: socket.socket) -> None:
        client, _ = listener.accept()
        with client, client.makefile("rb") as stream:
            while (packet := stream.read(int.from_bytes(stream.read(4), "big") - 4))[:2] != b"\x00\x03":
                # A request for encryption.
                client.sendall(b"N")
            started.append(packet)
            text = b"SFATAL\0VFATAL\0C08P01\0Munsupported startup parameter in options: row_security\0\0"
            client.sendall(b"E" + (len(text) + 4).to_bytes(4, "big") + text)

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        refusing = pool.submit(refuse, listener)
        url = f"postgresql://admin@127.0.0.1:{listener.getsockname()[1]}/shop{url_options}"
        source = TableSource({name: str(value) for name, value in conninfo_to_dict(url).items()}, "a.b", "id", "rows")
        with pytest.raises(SourceFailed, match="unsupported startup parameter in options: row_security"):
            source.origin()
        refusing.result()
    assert b"\0options\0%b\0" % options.encode() in started[0]


@pytest.mark.parametrize("url_options", ["", "?options=-c%20search_path%3Dpublic", "?options=-c%20row_security%3Don"])
def test_row_security_that_would_hide_rows_is_refused(
    server: PostgresServer, database: Connection, url_options: str
) -> None:
    insert(database, 1, 2)
    database.execute("ALTER TABLE events ENABLE ROW LEVEL SECURITY")
    database.execute("CREATE POLICY few ON events USING (id = 1)")
    database.execute(f"CREATE ROLE tenant LOGIN PASSWORD '{PASSWORD}'")
    database.execute("GRANT SELECT ON events TO tenant")
    try:
        with pytest.raises(SourceRefused, match="row-level security"):
            TableReader(server, user="tenant", url_options=url_options).read()
    finally:
        database.execute("DROP OWNED BY tenant")
        database.execute("DROP ROLE tenant")


def test_parts_of_a_batch_have_its_rows_in_order(server: PostgresServer, database: Connection) -> None:
    database.execute(
        "INSERT INTO events SELECT n, '2026-01-01'::timestamptz + n / 7 * interval '1 s' "
        "FROM generate_series(1, 2345) n"
    )
    whole, split = TableReader(server, "at", batch_rows=300), TableReader(server, "at", batch_rows=100)
    whole.read()
    split.source.split(3)
    sizes = []
    while (batch := split.next_batch()) is not None:
        assert batch.records == []
        split.records += [each for part in pickle.loads(pickle.dumps(batch.parts)) for each in part.records()]
        sizes.append(len(batch.parts))
        split.position = batch.end
    assert sizes == [3] * 7 + [3]
    assert split.records == whole.records
    # A position of one is a position of the other.
    assert {**split.position, "fast": 0, "full": 0} == {**whole.position, "fast": 0, "full": 0}
    database.execute("INSERT INTO events (id) VALUES (3000)")
    split.position, whole.position = whole.position, split.position
    whole.restart()
    assert whole.read() == [3000]


def test_a_row_that_changes_before_its_part_is_read_belongs_to_the_next_look(
    server: PostgresServer, database: Connection
) -> None:
    insert(database, *range(1, 11))
    reader = TableReader(server, batch_rows=5)
    reader.source.split(2)
    batch = reader.next_batch()
    assert batch is not None
    database.execute("UPDATE events SET t = 'y' WHERE id = 7")
    database.execute("DELETE FROM events WHERE id = 10")
    found = [json.loads(each.value or b"")["id"] for part in batch.parts for each in part.records()]
    assert found == [1, 2, 3, 4, 5, 6, 8, 9]
    reader.position = batch.end
    reader.restart()
    assert reader.read() == [7]


def test_a_part_of_a_table_that_was_rewritten_is_not_read(server: PostgresServer, database: Connection) -> None:
    insert(database, 1, 2)
    reader = TableReader(server)
    reader.source.split(2)
    batch = reader.next_batch()
    assert batch is not None
    database.execute("TRUNCATE events")
    with pytest.raises(SourceFailed, match="a task has found another table"):
        list(batch.parts[0].records())


@pytest.mark.parametrize("restarts", [False, True])
def test_rows_that_are_committed_late_are_read(server: PostgresServer, database: Connection, restarts: bool) -> None:
    insert(database, 1)
    reader = TableReader(server)
    assert reader.read() == [1]
    with server.connect() as late, late.transaction():
        insert(late, 2)
        insert(database, 3)
        if restarts:
            reader.restart()
        # Behind the horizon of the open transaction.
        assert reader.read() == []
    assert sorted(reader.read()) == [2, 3]
    reader.restart()
    assert reader.read() == []


def test_a_row_far_below_those_that_were_read_is_found_by_the_next_look_at_all(
    server: PostgresServer, database: Connection
) -> None:
    insert(database, *range(100, 110))
    reader = TableReader(server)
    reader.read()
    with server.connect() as late, late.transaction():
        insert(late, 5)
        insert(database, 200)
    assert reader.read() == [200]
    reader.restart()
    assert reader.read() == [5]
    reader.restart()
    assert reader.read() == []


def test_rows_of_prepared_and_of_sub_transactions_are_read_once(server: PostgresServer, database: Connection) -> None:
    insert(database, 10)
    reader = TableReader(server)
    reader.read()
    with server.connect() as other:
        other.execute("BEGIN")
        insert(other, 11)
        other.execute("SAVEPOINT a")
        insert(other, 12)
        other.execute("ROLLBACK TO a")
        insert(other, 13)
        other.execute("PREPARE TRANSACTION 'p'")
        insert(database, 14)
        assert reader.read() == []
        other.execute("COMMIT PREPARED 'p'")
    assert sorted(reader.read()) == [11, 13, 14]


def test_a_transaction_that_holds_rows_back_is_reported_once(
    server: PostgresServer, database: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "_HELD_S", 0.0)
    reader = TableReader(server)
    with server.connect() as other, other.transaction():
        other.execute("SET LOCAL application_name = 'nightly \"report\"'")
        # In another table, even of another database: what matters is its age.
        other.execute("SELECT pg_current_xact_id()")
        assert reader.read() == []
        assert reader.notices == [], "nothing waits"
        insert(database, 1)
        assert [reader.read(), reader.read()] == [[], []]
        (notice,) = reader.notices
        assert notice.kind == "held back" and notice.subject == "public.events"
        assert f'of session {other.info.backend_pid}, user admin (nightly "report"), idle in transaction' in notice.text
        assert f"pg_terminate_backend({other.info.backend_pid})" in notice.text
    assert reader.read() == [1]
    with server.connect() as other:
        other.execute("BEGIN")
        insert(other, 2)
        other.execute("PREPARE TRANSACTION 'it''s'")
        insert(database, 3)
        assert [reader.read(), reader.read()] == [[], []]
        other.execute("ROLLBACK PREPARED 'it''s'")
    assert len(reader.notices) == 2 and 'prepared as "it\'s" by admin' in reader.notices[-1].text
    assert reader.read() == [3]


def test_a_role_that_may_not_see_ages_gets_the_session_that_holds_rows_back_at_two_looks(
    server: PostgresServer, database: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At one it may be any short transaction: on a busy server there is always one."""
    monkeypatch.setattr(tables, "_HELD_S", 0.0)
    database.execute("DROP ROLE IF EXISTS reads_only")
    database.execute(sql.SQL("CREATE ROLE reads_only LOGIN PASSWORD {}").format(PASSWORD))
    database.execute("GRANT SELECT ON events TO reads_only")
    reader = TableReader(server, user="reads_only")
    for short in (1, 2):
        with server.connect() as other, other.transaction():
            insert(other, 10 * short)
            insert(database, 10 * short + 1)
            reader.read()
            assert reader.notices == []
    with server.connect() as other, other.transaction():
        insert(other, 30)
        insert(database, 31)
        reader.read()
        reader.read()
        (notice,) = reader.notices
        assert f"of session {other.info.backend_pid}" in notice.text
    database.execute("DROP OWNED BY reads_only")


def test_a_role_that_may_not_look_for_transactions_reads_rows_all_the_same(
    server: PostgresServer, database: Connection
) -> None:
    database.execute("DROP ROLE IF EXISTS reads_only")
    database.execute(sql.SQL("CREATE ROLE reads_only LOGIN PASSWORD {}").format(PASSWORD))
    database.execute("GRANT SELECT ON events TO reads_only")
    database.execute("REVOKE SELECT ON pg_locks FROM PUBLIC")
    try:
        reader = TableReader(server, user="reads_only")
        with server.connect() as other, other.transaction():
            insert(other, 1)
            insert(database, 2)
            assert (reader.read(), reader.notices) == ([], [])
        assert sorted(reader.read()) == [1, 2]
    finally:
        database.execute("GRANT SELECT ON pg_locks TO PUBLIC")
    database.execute("DROP OWNED BY reads_only")


def test_each_version_of_a_row_that_is_seen_is_a_record(server: PostgresServer, database: Connection) -> None:
    insert(database, 1, 2)
    reader = TableReader(server, column="at")
    assert reader.read() == [1, 2]
    database.execute("UPDATE events SET t = 'y', at = now() WHERE id = 1")
    database.execute("DELETE FROM events WHERE id = 2")
    assert reader.read() == [1]
    assert json.loads(reader.records[-1].value or b"")["t"] == "y"


def test_a_look_that_is_broken_off_is_resumed_behind_its_last_batch(
    server: PostgresServer, database: Connection
) -> None:
    database.execute("INSERT INTO events SELECT n, '2026-01-01', 'x' FROM generate_series(1, 100) n")
    reader = TableReader(server, column="at", batch_rows=7)
    first = reader.next_batch()
    assert first is not None
    reader.records += first.records
    reader.position = first.end
    insert(database, 1000)
    database.execute("UPDATE events SET t = 'y' WHERE id IN (3, 50)")
    reader.restart()
    ids = [1, 2, 3, 4, 5, 6, 7, *reader.read()]
    # Row 3 was read before and after its change, row 50 only after it.
    assert sorted(ids) == sorted([*range(1, 101), 1000, 3])


def test_rows_with_ids_that_a_crash_has_given_out_again_are_read() -> None:
    with running(wal_writer_delay="3000ms", autovacuum="off") as server:
        server.rows("CREATE TABLE events (id bigint PRIMARY KEY, t text)")
        server.rows("INSERT INTO events VALUES (1)")
        reader = TableReader(server)
        assert reader.read() == [1]
        with closing(server.connect()) as client:
            insert(client, 2)
            for _ in range(10):
                client.execute("BEGIN")
                client.execute("SELECT pg_current_xact_id()")
                client.execute("ROLLBACK")
            assert reader.read() == [2]
            server.kill()
        server.start()
        with server.connect() as client:
            insert(client, *range(3, 23))
        reader.restart()
        assert reader.read() == list(range(3, 23))


def test_rows_below_a_horizon_that_is_not_on_disk_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_reader, "_FLUSHED_S", 0.3)
    with running(wal_writer_delay="10000ms", synchronous_commit="off", autovacuum="off") as server:
        server.rows("CREATE TABLE events (id bigint PRIMARY KEY, t text)")
        with server.connect() as client:
            client.execute("CHECKPOINT")
            reader = TableReader(server)
            assert reader.read() == []
            insert(client, 1)
            with pytest.raises(SourceFailed, match="is on disk only up to"):
                reader.read()
            client.execute("CHECKPOINT")
        reader.restart()
        assert reader.read() == [1]


@pytest.mark.parametrize("half", [2**31, 500])
@pytest.mark.representatives(1)
def test_random_transactions_are_read_once_each(
    server: PostgresServer, database: Connection, half: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with the queries of a server that has had more than ``half`` transactions."""
    monkeypatch.setattr(table_reader, "_HALF", half)
    source = random.Random(5)
    reader = TableReader(server, batch_rows=3)
    sessions = [server.connect() for _ in range(4)]
    open_rows: dict[int, list[int]] = {}
    committed: list[int] = []
    number = 0
    database.execute("CREATE TABLE IF NOT EXISTS flushed ()")
    for _ in range(400):
        index = source.randrange(len(sessions))
        session = sessions[index]
        choice = source.random()
        if choice < 0.5:
            number += 1
            if index not in open_rows:
                session.execute("BEGIN")
            # Sequences cached by sessions, and keys that clients choose, come in no order.
            chosen = number * 10 if source.random() < 0.8 else 1_000_000 - number
            insert(session, chosen)
            open_rows.setdefault(index, []).append(chosen)
        elif choice < 0.7 and index in open_rows:
            is_committed = source.random() < 0.8
            session.execute("COMMIT" if is_committed else "ROLLBACK")
            rows = open_rows.pop(index)
            committed += rows if is_committed else []
        elif choice < 0.9:
            # On a server where nothing is committed, the log comes to the disk later.
            server.rows("TRUNCATE flushed")
            batch = reader.next_batch()
            if batch is not None and source.random() < 0.8:
                reader.records += batch.records
                reader.position = batch.end
            elif batch is not None:
                reader.restart()
        elif choice < 0.93:
            reader.restart()
    for index, session in enumerate(sessions):
        if index in open_rows:
            session.execute("COMMIT")
            committed += open_rows.pop(index)
        session.close()
    reader.read()
    reader.restart()
    reader.read()
    assert sorted(json.loads(record.value or b"")["id"] for record in reader.records) == sorted(committed)


@pytest.mark.parametrize(
    "name", ["discount%", "%s", "%(id)s", 'a"b', "two words", "Upper", "größe", "{0}", "it's", "back\\slash", "n" * 63]
)
def test_names_are_any_that_postgresql_takes(server: PostgresServer, database: Connection, name: str) -> None:
    quoted = sql.Identifier(name)
    kind = sql.Identifier(f"kind {name}"[:63])
    for statement in (
        "CREATE TYPE {kind} AS ENUM ('low', 'high')",
        "CREATE TABLE {table} ({table} bigint, k {kind}, x int, PRIMARY KEY ({table}, k))",
        "INSERT INTO {table} VALUES (1, 'low', 2), (1, 'high', 3), (2, 'low', 4)",
    ):
        database.execute(sql.SQL(statement).format(table=quoted, kind=kind))
    try:
        reader = TableReader(server, name, table=f"public.{quoted.as_string()}", batch_rows=2)
        rows = [each for batch in iter(reader.next_batch, None) for each in batch.records]
        assert [json.loads(each.value or b"")["x"] for each in rows] == [2, 3, 4]
        assert json.loads(rows[1].key or b"") == {name: 1, "k": "high"}
    finally:
        database.execute(sql.SQL("DROP TABLE {}").format(quoted))
        database.execute(sql.SQL("DROP TYPE {}").format(kind))


def test_included_columns_are_no_part_of_the_key(server: PostgresServer, database: Connection) -> None:
    database.execute("ALTER TABLE events DROP CONSTRAINT events_pkey, ADD j json")
    database.execute("ALTER TABLE events ADD PRIMARY KEY (id) INCLUDE (t, j)")
    database.execute("INSERT INTO events (id, t, j) VALUES (1, NULL, '{}'), (2, 'x', '{}'), (3, 'y', '{}')")
    reader = TableReader(server, batch_rows=2)
    first = reader.next_batch()
    assert first is not None
    # As a release has recorded it that took them for columns of the key.
    position = {name: value for name, value in first.end.items() if name != "order"}
    reader.position = {**position, "after": [*position["after"], "x", "{}"]}
    reader.restart()
    assert reader.read() == [3]
    assert [json.loads(each.key or b"") for each in [*first.records, *reader.records]] == [
        {"id": 1},
        {"id": 2},
        {"id": 3},
    ]


# --- what is refused --------------------------------------------------------------------------------------------------


def test_a_table_that_was_created_again_is_refused(server: PostgresServer, database: Connection) -> None:
    insert(database, 1)
    reader = TableReader(server)
    reader.read()
    database.execute("DROP TABLE events")
    database.execute("CREATE TABLE events (id bigint PRIMARY KEY)")
    with pytest.raises(SourceRefused, match="was deleted and created again since"):
        reader.read()


def test_a_rewrite_of_all_rows_is_refused_and_one_that_keeps_them_is_not(
    server: PostgresServer, database: Connection
) -> None:
    insert(database, 1, 2)
    reader = TableReader(server)
    reader.read()
    database.execute("VACUUM FULL events")
    insert(database, 3)
    assert reader.read() == [3]
    database.execute("ALTER TABLE events ALTER COLUMN t TYPE bytea USING t::bytea")
    with pytest.raises(SourceRefused, match="3 rows up to 3 have new transaction ids"):
        reader.read()


@pytest.mark.parametrize("column", ["id", "at"])
def test_a_rewrite_during_the_first_look_is_refused_and_one_that_keeps_the_rows_is_not(
    server: PostgresServer, database: Connection, column: str
) -> None:
    insert(database, *range(1, 11))
    reader = TableReader(server, column, batch_rows=4)
    first = reader.next_batch()
    assert first is not None
    reader.position = first.end
    database.execute("VACUUM FULL events")
    reader.restart()
    second = reader.next_batch()
    assert second is not None
    assert [json.loads(each.value or b"")["id"] for each in second.records] == [5, 6, 7, 8]
    reader.position = second.end
    database.execute("ALTER TABLE events ALTER COLUMN t TYPE bytea USING t::bytea")
    reader.restart()
    with pytest.raises(SourceRefused, match="8 rows up to .* have new transaction ids"):
        reader.read()


def test_a_key_that_changes_within_a_look_is_refused(server: PostgresServer, database: Connection) -> None:
    insert(database, *range(1, 11))
    reader = TableReader(server, batch_rows=4)
    first = reader.next_batch()
    assert first is not None
    reader.records += first.records
    reader.position = first.end
    database.execute("ALTER TABLE events DROP CONSTRAINT events_pkey, ADD PRIMARY KEY (id, at)")
    reader.restart()
    with pytest.raises(SourceRefused, match="the primary key has changed while its rows were read"):
        reader.read()
    database.execute("ALTER TABLE events DROP CONSTRAINT events_pkey, ADD PRIMARY KEY (id)")
    reader.restart()
    assert reader.read() == [5, 6, 7, 8, 9, 10]


def test_a_new_column_is_read_with_the_next_row(server: PostgresServer, database: Connection) -> None:
    insert(database, 1)
    reader = TableReader(server)
    reader.read()
    database.execute("ALTER TABLE events ADD COLUMN more int DEFAULT 7")
    insert(database, 2)
    assert reader.read() == [2]
    assert json.loads(reader.records[-1].value or b"")["more"] == 7


@pytest.mark.parametrize(
    ("statement", "column", "table", "reason"),
    [
        ("SELECT 1", "id", "public.nothing", "there is no table public.nothing"),
        ("SELECT 1", "other", "public.events", "has no column 'other'"),
        ("ALTER TABLE events ALTER COLUMN at DROP NOT NULL", "at", "public.events", "may be NULL"),
        ("ALTER TABLE events DROP CONSTRAINT events_pkey", "id", "public.events", "has no primary key"),
        ("CREATE OR REPLACE VIEW seen AS SELECT * FROM pg_class", "id", "public.seen", "is not an ordinary table"),
    ],
)
def test_tables_that_cannot_be_read_exactly_once_are_refused(
    server: PostgresServer, database: Connection, statement: str, column: str, table: str, reason: str
) -> None:
    database.execute(statement)
    with pytest.raises(SourceRefused, match=reason):
        TableReader(server, column, table=table).read()


def test_a_table_that_another_session_has_locked_is_read_later(server: PostgresServer, database: Connection) -> None:
    insert(database, 1)
    reader = TableReader(server, lock_timeout_ms=100)
    with database.transaction():
        database.execute("LOCK TABLE events IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(SourceFailed, match="lock_not_available"):
            reader.read()
    assert TableReader(server).read() == [1]


def test_a_source_that_waits_for_a_lock_can_be_interrupted(server: PostgresServer, database: Connection) -> None:
    insert(database, 1)
    reader = TableReader(server)
    with database.transaction(), ThreadPoolExecutor(1) as pool:
        database.execute("LOCK TABLE events IN ACCESS EXCLUSIVE MODE")
        reading = pool.submit(reader.read)
        until(lambda: server.rows("SELECT 1 FROM pg_locks WHERE NOT granted"), "the source waits")
        reader.source.interrupt()
        with pytest.raises(SourceFailed, match="query_canceled"):
            reading.result(60)


@pytest.mark.parametrize("state", ["P0001", "22012", "45000"])
def test_errors_of_functions_do_not_show_values_of_rows(
    server: PostgresServer, database: Connection, state: str
) -> None:
    kind = f"kept_{state.lower()}"
    database.execute(f"CREATE TYPE {kind} AS ENUM ('hunter2')")
    database.execute(
        f"CREATE FUNCTION as_json({kind}) RETURNS json LANGUAGE plpgsql AS "
        f"$$ BEGIN RAISE EXCEPTION 'not %', $1 USING ERRCODE = '{state}'; END $$"
    )
    database.execute(f"CREATE CAST ({kind} AS json) WITH FUNCTION as_json({kind})")
    database.execute(f"ALTER TABLE events ADD COLUMN hidden {kind}")
    insert(database, 1)
    database.execute("UPDATE events SET hidden = 'hunter2'")
    with pytest.raises((SourceRefused, SourceFailed)) as caught:
        TableReader(server).read()
    assert state in str(caught.value)
    assert "hunter2" not in str(caught.value)


def test_a_server_with_fewer_transactions_than_were_read_is_refused(
    server: PostgresServer, database: Connection
) -> None:
    insert(database, 1)
    reader = TableReader(server)
    reader.read()
    reader.position["fast"] += 1_000_000
    reader.restart()
    with pytest.raises(SourceRefused, match="it was restored from a backup, or has lost transactions"):
        reader.read()


def test_rows_that_were_not_looked_at_for_too_long_are_refused(server: PostgresServer, database: Connection) -> None:
    insert(database, 1)
    reader = TableReader(server)
    reader.read()
    reader.position["full"] -= 2**31
    reader.restart()
    with pytest.raises(SourceRefused, match="was not read for 2147"):
        reader.read()


def test_the_bits_of_old_rows_are_not_taken_for_new_ones(server: PostgresServer, database: Connection) -> None:
    """As 2**32 transactions later: the same bits, another epoch."""
    insert(database, 1, 2)
    reader = TableReader(server)
    reader.read()
    # As if the two rows were of the epoch before, and were found ahead by the last look at the whole table.
    reader.position["fast"] -= 10
    reader.position["full"] -= 10
    reader.position["ahead"] = "2"
    reader.restart()
    insert(database, 3)
    assert reader.read() == [3]


def test_another_position_is_refused(server: PostgresServer, database: Connection) -> None:
    with pytest.raises(SourceRefused, match="not one in a table"):
        TableReader(server, position={"files": []}).read()


def test_a_server_that_is_away_is_a_failure_that_passes(server: PostgresServer, database: Connection) -> None:
    insert(database, 1)
    reader = TableReader(server)
    reader.read()
    database.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'einmal ingest'")
    with pytest.raises(SourceFailed):
        reader.read()
    reader.restart()
    insert(database, 2)
    assert reader.read() == [2]
