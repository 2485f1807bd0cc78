"""Slots, servers and roles that are not as a position needs them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, closing
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from einmal.ingest.postgresql.options import SnapshotMode
from einmal.ingest.postgresql.session import SourceSession
from einmal.ingest.postgresql.slot_creation import created_slot
from einmal.ingest.postgresql.source import PostgresSource
from einmal.ingest.source import IngestBatch, SourceFailed, SourceNotice, SourceRefused
from tests.ingest.postgresql.capture import PUBLICATION, SLOT, Captured, options
from tests.ingest.postgresql.conftest import SETTINGS
from tests.sinks.postgres.server import PASSWORD, PostgresServer, running, until

pytestmark = pytest.mark.system

Client = psycopg.Connection[Any]


def slot_lsn(client: Client) -> Any:
    return client.execute(
        "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = %s", (SLOT,)
    ).fetchone()


@pytest.fixture
def followed(client: Client, captured: Captured) -> Captured:
    """Has ingested one row."""
    client.execute("CREATE TABLE t (id int PRIMARY KEY)")
    client.execute("INSERT INTO t VALUES (1)")
    captured.drain()
    client.execute("INSERT INTO t VALUES (2)")
    assert [each.key for each in captured.changes()] == [{"id": 2}]
    return captured


def test_the_slot_moves_only_when_a_position_is_confirmed(client: Client, followed: Captured) -> None:
    before = slot_lsn(client)
    client.execute("INSERT INTO t VALUES (3)")
    position = followed.position
    assert len(list(followed.batches(confirm=False))) == 1
    assert slot_lsn(client) == before
    followed.position = position
    assert [each.key for each in followed.changes()] == [{"id": 3}]
    assert slot_lsn(client) > before


def test_a_slot_that_lags_repeats_nothing(client: Client, followed: Captured) -> None:
    for number in (3, 4):
        client.execute("INSERT INTO t VALUES (%s)", (number,))
        (batch,) = followed.batches(confirm=False)
        assert [each.key for each in batch.changes()] == [{"id": number}]


def test_a_slot_that_has_moved_back_fails_for_now(client: Client, followed: Captured) -> None:
    old = followed.position
    client.execute("INSERT INTO t VALUES (3)")
    (batch,) = followed.batches(confirm=False)
    assert batch.end != old
    with closing(PostgresSource(followed.options)) as source, pytest.raises(SourceFailed, match="moved back"):
        list(source.read(batch.end))


def test_an_old_confirmation_does_not_move_the_slot_back(client: Client, followed: Captured) -> None:
    old = followed.position
    assert old is not None
    client.execute("INSERT INTO t VALUES (3)")
    followed.drain()
    lsn = slot_lsn(client)
    with closing(PostgresSource(followed.options)) as source:
        source.confirm(old)
    assert slot_lsn(client) == lsn


def test_a_dropped_slot_is_refused(client: Client, followed: Captured) -> None:
    client.execute("SELECT pg_drop_replication_slot(%s)", (SLOT,))
    with pytest.raises(SourceRefused, match="does not exist any more"):
        followed.drain()


def test_a_slot_that_was_advanced_or_made_anew_is_refused(client: Client, followed: Captured) -> None:
    client.execute("INSERT INTO t VALUES (3)")
    client.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_insert_lsn())", (SLOT,))
    with pytest.raises(SourceRefused, match="changes between them are lost"):
        followed.drain()
    client.execute("SELECT pg_drop_replication_slot(%s)", (SLOT,))
    client.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (SLOT,))
    with pytest.raises(SourceRefused, match="changes between them are lost"):
        followed.drain()


def test_a_source_whose_position_was_deleted_takes_a_snapshot_and_keeps_its_slot(
    client: Client, followed: Captured
) -> None:
    client.execute("SELECT pg_replication_slot_advance(%s, pg_current_wal_insert_lsn())", (SLOT,))
    client.execute("INSERT INTO t VALUES (3)")
    followed.position = None
    assert [(each.op, each.key) for each in followed.changes()] == [("r", {"id": n}) for n in (1, 2, 3)]
    client.execute("INSERT INTO t VALUES (4)")
    assert [(each.op, each.key) for each in followed.changes()] == [("c", {"id": 4})]


def test_a_slot_that_another_session_reads_fails_for_now(
    client: Client, followed: Captured, server: PostgresServer, database: str
) -> None:
    client.execute("INSERT INTO t VALUES (3)")
    url = server.url_of(database) + "?replication=database"
    with closing(psycopg.connect(url, password=PASSWORD, autocommit=True)) as walsender:
        # libpq's own way to read a slot: it holds it until the connection ends.
        result = walsender.pgconn.exec_(
            f"START_REPLICATION SLOT {SLOT} LOGICAL 0/0 (proto_version '1', publication_names '{PUBLICATION}')".encode()
        )
        assert result.status == psycopg.pq.ExecStatus.COPY_BOTH
        with pytest.raises(SourceFailed, match="is active for PID"):
            followed.drain()
    until(
        lambda: client.execute("SELECT FROM pg_replication_slots WHERE active").fetchone() is None,
        "the session has ended",
    )
    assert [each.key for each in followed.changes()] == [{"id": 3}]


@pytest.mark.parametrize("is_interrupted", [False, True])
def test_a_slot_whose_creation_waits_names_the_process_and_can_be_interrupted(
    client: Client, server: PostgresServer, database: str, is_interrupted: bool
) -> None:
    with server.connect(database) as other, closing(PostgresSource(options(server, database))) as source:
        other.execute("BEGIN")
        other.execute("SELECT pg_current_xact_id()")
        parts = source.read(None)
        notices = [next(parts), next(parts)]
        assert isinstance(notices[1], SourceNotice)
        assert f"waits for pid {other.info.backend_pid}" in notices[1].text
        if is_interrupted:
            source.interrupt()
            with pytest.raises(SourceFailed, match="query_canceled"):
                next(parts)
        parts.close()  # type: ignore[attr-defined]
        assert slot_lsn(client) is None
        other.execute("COMMIT")
    assert Captured(options(server, database)).changes() == []
    assert slot_lsn(client) is not None


def test_a_slot_that_another_session_creates_fails_for_now(
    client: Client, captured: Captured, server: PostgresServer, database: str
) -> None:
    client.execute("CREATE TABLE t (id int PRIMARY KEY)")
    create = "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')"
    with server.connect(database) as open_one, server.connect(database) as other, ThreadPoolExecutor(1) as pool:
        open_one.execute("BEGIN")
        open_one.execute("INSERT INTO t VALUES (1)")
        creating = pool.submit(other.execute, create, (SLOT,))
        try:
            until(lambda: slot_lsn(client) == (None,), "the slot is being created")
            with pytest.raises(SourceFailed, match="is being created by another session"):
                captured.drain()
            with (
                closing(SourceSession(captured.options.connecting, "test")) as session,
                pytest.raises(SourceFailed, match="already exists"),
            ):
                session.rows("creating the slot", create, (SLOT,))
        finally:
            open_one.execute("COMMIT")
        creating.result()
    assert [change.key for change in captured.changes()] == [{"id": 1}]


def test_notices_of_a_creation_name_what_it_waits_for_and_become_rarer(
    client: Client, server: PostgresServer, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("einmal.ingest.postgresql.slot_creation._NAMED_S", 0.05)
    connecting = options(server, database).connecting
    sessions = SourceSession(connecting, "creates"), SourceSession(connecting, "watches")
    with server.connect(database) as long, ExitStack() as short, closing(sessions[0]):
        long.execute("BEGIN")
        long.execute("SELECT pg_current_xact_id()")
        newer: list[Client] = []

        def begin_another() -> None:
            newer.append(short.enter_context(server.connect(database)))
            newer[-1].execute("BEGIN")
            newer[-1].execute("SELECT pg_current_xact_id()")

        with closing(created_slot(*sessions, SLOT)) as waits:
            assert next(waits) == f"pid {long.info.backend_pid}"
            begin_another()
            pool = short.enter_context(ThreadPoolExecutor(1))
            following = pool.submit(next, waits, "created")
            until(lambda: slot_lsn(client) == (None,), "the slot is being created")
            for _ in range(5):
                begin_another()
                newer.pop(0).execute("COMMIT")
                assert not wait([following], 0.1).done, "nothing new to report"
            newer.pop().execute("COMMIT")
            long.execute("COMMIT")
            assert following.result() in ("created", "a transaction that is ending")


def test_a_physical_slot_is_refused(client: Client, captured: Captured) -> None:
    client.execute("SELECT pg_create_physical_replication_slot(%s)", (SLOT,))
    try:
        with pytest.raises(SourceRefused, match="output plugin 'physical'"):
            captured.drain()
    finally:
        client.execute("SELECT pg_drop_replication_slot(%s)", (SLOT,))


def test_a_slot_of_another_plugin_is_refused(client: Client, captured: Captured) -> None:
    client.execute("SELECT pg_create_logical_replication_slot(%s, 'test_decoding')", (SLOT,))
    with pytest.raises(SourceRefused, match="output plugin 'test_decoding'"):
        captured.drain()


def test_a_slot_of_another_database_is_refused(client: Client, captured: Captured, server: PostgresServer) -> None:
    with server.connect("postgres") as other:
        other.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (SLOT,))
        try:
            with pytest.raises(SourceRefused, match="belongs to database 'postgres'"):
                captured.drain()
        finally:
            other.execute("SELECT pg_drop_replication_slot(%s)", (SLOT,))


def test_a_missing_publication_is_refused_with_the_statement(client: Client, captured: Captured) -> None:
    client.execute(f"DROP PUBLICATION {PUBLICATION}")
    with pytest.raises(SourceRefused) as caught:
        captured.drain()
    assert f'CREATE PUBLICATION "{PUBLICATION}" FOR TABLE' in caught.value.hint
    assert slot_lsn(client) is None


def test_a_publication_younger_than_the_slot_is_refused(client: Client, captured: Captured) -> None:
    client.execute("CREATE TABLE t (id int PRIMARY KEY)")
    client.execute(f"DROP PUBLICATION {PUBLICATION}")
    client.execute("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (SLOT,))
    client.execute("INSERT INTO t VALUES (1)")
    client.execute(f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES")
    captured.options = replace(captured.options, snapshot=SnapshotMode.NO_DATA)
    with pytest.raises(SourceRefused, match="does not exist") as caught:
        captured.drain()
    assert "must exist before the slot" in caught.value.hint


def test_a_role_needs_replication_and_select(client: Client, server: PostgresServer, database: str) -> None:
    client.execute("CREATE TABLE t (id int PRIMARY KEY)")
    client.execute("INSERT INTO t VALUES (1)")
    client.execute(f"CREATE ROLE reader_{database} LOGIN PASSWORD '{PASSWORD}'")
    captured = Captured(options(server, database, user=f"reader_{database}"))
    with pytest.raises(SourceRefused, match="insufficient_privilege"):
        captured.drain()
    client.execute(f"ALTER ROLE reader_{database} REPLICATION")
    with pytest.raises(SourceRefused, match="permission denied for table t"):
        captured.drain()
    client.execute(f"GRANT SELECT ON t TO reader_{database}")
    assert [each.key for each in captured.changes()] == [{"id": 1}]
    client.execute("INSERT INTO t VALUES (2)")
    assert [each.key for each in captured.changes()] == [{"id": 2}]


def test_row_security_fails_a_snapshot_instead_of_hiding_rows(
    client: Client, server: PostgresServer, database: str
) -> None:
    client.execute("CREATE TABLE t (id int PRIMARY KEY)")
    client.execute("INSERT INTO t VALUES (1)")
    client.execute("ALTER TABLE t ENABLE ROW LEVEL SECURITY")
    client.execute(f"CREATE ROLE reader_{database} LOGIN REPLICATION PASSWORD '{PASSWORD}'")
    client.execute(f"GRANT SELECT ON t TO reader_{database}")
    with pytest.raises(SourceRefused, match="row-level security"):
        Captured(options(server, database, user=f"reader_{database}")).drain()


def test_log_without_changes_moves_the_slot(client: Client, server: PostgresServer, database: str) -> None:
    client.execute(f"DROP PUBLICATION {PUBLICATION}")
    client.execute("CREATE TABLE t (id int PRIMARY KEY)")
    client.execute("CREATE TABLE unpublished (v text)")
    client.execute(f"CREATE PUBLICATION {PUBLICATION} FOR TABLE t")
    source = PostgresSource(options(server, database))
    parts = source.read(None)
    position: Any = None

    def next_part() -> bool:
        nonlocal position
        part = next(parts)
        if isinstance(part, IngestBatch):
            assert list(part.records) == []
            moved = position is not None
            position = part.end
            source.confirm(position)
            return moved
        # Small enough that the log moves in several steps.
        client.execute("INSERT INTO unpublished SELECT repeat('x', 1000) FROM generate_series(1, 5000)")
        return False

    until(next_part, "the position has moved")
    assert "snapshot" not in position
    assert slot_lsn(client) == (position["lsn"],)
    client.execute("INSERT INTO t VALUES (1)")
    parts.close()  # type: ignore[attr-defined]
    source.close()
    captured = Captured(options(server, database))
    captured.position = position
    assert [each.key for each in captured.changes()] == [{"id": 1}]


@pytest.fixture
def own_server() -> Iterator[PostgresServer]:
    with running(**SETTINGS) as server:
        server.rows(f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES")
        server.rows("CREATE TABLE t (id int PRIMARY KEY)")
        yield server


def test_a_server_that_is_killed_repeats_and_loses_nothing(own_server: PostgresServer) -> None:
    captured = Captured(options(own_server, "postgres"))
    captured.drain()
    for number in range(4):
        own_server.rows("INSERT INTO t VALUES (%s)", (number,))
        assert [each.key for each in captured.changes()] == [{"id": number}]
        # The slot's position in memory is lost: on disk it is an older one.
        own_server.kill()
        with pytest.raises(SourceFailed):
            captured.drain()
        own_server.start()


def test_transactions_with_ids_that_a_crash_has_given_out_again_are_not_taken_for_those_of_the_snapshot() -> None:
    with running(**SETTINGS, wal_writer_delay="3000ms", autovacuum="off") as server:
        server.rows(f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES")
        server.rows("CREATE TABLE t (id int PRIMARY KEY)")
        server.rows("SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", (SLOT,))
        captured = Captured(options(server, "postgres"))
        with closing(server.connect()) as client:
            for _ in range(10):
                client.execute("BEGIN")
                client.execute("INSERT INTO t SELECT generate_series(1, 50)")
                client.execute("ROLLBACK")
            (snapshot,) = captured.batches(confirm=False)
            assert snapshot.records == []
            server.kill()
        server.start()
        with server.connect() as client:
            for number in range(5):
                client.execute("INSERT INTO t VALUES (%s)", (number,))
        assert [each.key for each in captured.changes()] == [{"id": number} for number in range(5)]


@pytest.mark.long
def test_a_promoted_standby_is_refused(own_server: PostgresServer) -> None:
    captured = Captured(options(own_server, "postgres"))
    own_server.rows("INSERT INTO t VALUES (1)")
    captured.drain()
    standby = own_server.standby()
    try:
        standby.start()
        standby.catch_up()
        own_server.kill()
        captured.options = options(standby, "postgres")
        with pytest.raises(SourceFailed, match="hot standby|read-only|standby"):
            captured.drain()
        standby.promote()
        with pytest.raises(SourceRefused, match="it was promoted or recovered, and has no replication slot"):
            captured.drain()
    finally:
        standby.remove()


@pytest.mark.long
def test_a_server_without_logical_decoding_is_refused() -> None:
    with running() as server:
        server.rows(f"CREATE PUBLICATION {PUBLICATION} FOR ALL TABLES")
        with pytest.raises(SourceRefused, match="wal_level") as caught:
            Captured(options(server, "postgres")).drain()
        assert "wal_level = logical" in caught.value.hint
