"""A PostgreSQL database as a source: its committed transactions by logical replication, over plain SQL.

Theory of operation. ``pg_logical_slot_peek_binary_changes`` sends whole transactions in the order of their commits,
and moves nothing: what it has sent, it sends again. So the position in the commit record alone decides what was
ingested. The slot follows: ``confirm`` advances it once EndTxn is answered, and only so that the server can remove old
log. A slot that lags (the server keeps its position in memory until a checkpoint) repeats what is skipped; a slot that
is ahead of the position has lost changes, and is refused (``slot_checks``).

    start    check server, slot and position  ->  without a position: slot, snapshot (``snapshot``)
    batch    peek  ->  records, the position behind the last commit  ->  [the ingester commits]  ->  advance

Memory. The server decodes one peek completely before it sends the first row, and keeps what does not fit into its
working memory in temporary files: a transaction of any size. Rows are fetched from there a few at a time.

Log without changes. Where other tables are written, nothing is ingested and the server cannot remove log. Therefore an
empty batch moves the position now and then. It must be the start of a record, or a commit record could begin before it
and end behind it: such positions are the end of the log at an earlier peek, once this part of it is on disk.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Final

from psycopg import sql

from einmal.ingest.postgresql.changes import ChangeStream
from einmal.ingest.postgresql.lsn import Lsn, lsn_text, parse_lsn
from einmal.ingest.postgresql.options import CaptureOptions, SnapshotMode
from einmal.ingest.postgresql.pgoutput import CommitTransaction, MalformedMessage, decode_message
from einmal.ingest.postgresql.position import StreamPosition, decode_position
from einmal.ingest.postgresql.session import SourceSession
from einmal.ingest.postgresql.slot_checks import AFRESH, PLUGIN, ServerState, SlotState, check_slot
from einmal.ingest.postgresql.slot_creation import created_slot
from einmal.ingest.postgresql.snapshot import (
    CatalogKeys,
    TableSnapshot,
    catalog_keys,
    catalog_table,
    check_partitions,
    keyed_tables,
    newest_transaction,
    waited_for,
)
from einmal.ingest.postgresql.tables import AnnouncedTables
from einmal.ingest.postgresql.values import UnreadableValue
from einmal.ingest.source import (
    IngestBatch,
    IngestRecord,
    Position,
    RecordSource,
    SourceFailed,
    SourceNotice,
    SourceRefused,
)
from einmal.postgresql.session import IDENTITY

VERSION_MIN: Final = 15
"""The first whose publications have lists of columns and row filters."""
_IDLE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Log without changes, after which the position moves nevertheless: a segment, the unit in which log is removed."""
_VISIBLE_S: Final = 5.0
_LASTING_S: Final = 60.0
"""An idle server brings to the disk within 15 s what no commit waits for."""
_POLL_S: Final = 0.1
_CURSOR: Final = "einmal_peek"
_PEEKING: Final = "reading the slot"
_LOOKING: Final = "looking at the slot"
_LOOK: Final = """
    SELECT current_database()::text, pg_walfile_name(pg_current_wal_insert_lsn()), pg_current_wal_insert_lsn()::text,
        pg_current_wal_flush_lsn()::text, coalesce(s.plugin::text, s.slot_type), coalesce(s.database::text, ''),
        s.confirmed_flush_lsn::text, coalesce(s.wal_status, '')
    FROM (VALUES (1)) AS one LEFT JOIN pg_replication_slots s ON s.slot_name = %s
"""
_PEEK: Final = (
    "SELECT lsn, data FROM pg_logical_slot_peek_binary_changes({}, NULL, {},"
    " 'proto_version', '1', 'publication_names', quote_ident({}))"
)


class PostgresSource(RecordSource):
    """See ``RecordSource``. One slot serves one source."""

    def __init__(self, options: CaptureOptions) -> None:
        self._options = options
        self._session = self._new_session()
        self._tables = AnnouncedTables(options.routing, lambda relation_id: catalog_table(self._session, relation_id))
        self._stopped = threading.Event()
        self._newest: int | None = None
        """Newest of the transactions that a snapshot has to see."""

    def origin(self) -> str:
        ((identity,),) = self._session.rows("asking for the server's identity", IDENTITY)
        return f"postgresql {identity}/{self._options.slot}"

    def read(self, position: Position | None) -> Iterator[IngestBatch | SourceNotice | None]:
        try:
            self._check_server()
            at = None if position is None else _decoded(position)
            state = self._look()
            check_slot(self._options.slot, state, at)
            self._tables.database = state.database
            # Recorded keys are of the log that follows; for tables without them, the catalog is the best there is.
            self._tables.known = {**self._catalog_keys().keys, **({} if at is None else at.keys)}
            if at is None:
                check_partitions(self._session, self._options.publication)
                at = yield from self._begin(state)
            yield from self._follow(at)
        finally:
            self._session.rollback()

    def confirm(self, position: Position) -> None:
        """Advance the slot: never past the position, never back, and never on another server."""
        at = _decoded(position)
        state = self._look()
        if state.slot is not None and state.slot.confirmed_lsn >= at.lsn:
            # A later run has confirmed more, or this position again. ``read`` refuses a slot that should not be there.
            return
        check_slot(self._options.slot, state, at)
        self._session.rows(
            "advancing the slot",
            "SELECT pg_replication_slot_advance(%s, %s::pg_lsn)",
            (self._options.slot, lsn_text(at.lsn)),
        )

    def interrupt(self) -> None:
        self._stopped.set()
        self._session.cancel()

    def close(self) -> None:
        self._session.close()

    def _new_session(self) -> SourceSession:
        return SourceSession(self._options.connecting, f"einmal {self._options.slot}")

    # --- the start ------------------------------------------------------------------------------------------------

    def _check_server(self) -> None:
        options = self._options
        ((version, published),) = self._session.rows(
            "looking at the server",
            "SELECT current_setting('server_version_num')::int, EXISTS (SELECT FROM pg_publication WHERE pubname = %s)",
            (options.publication,),
        )
        if version < VERSION_MIN * 10_000:
            raise SourceRefused(
                f"{options.connecting} is PostgreSQL {version // 10_000}",
                f"PostgreSQL {VERSION_MIN} or later is needed",
            )
        if not published:
            name = sql.Identifier(options.publication).as_string()
            raise SourceRefused(
                f"publication {options.publication!r} does not exist in {options.connecting}",
                f"choose the tables: CREATE PUBLICATION {name} FOR TABLE ...; or FOR ALL TABLES, as a superuser",
            )

    def _begin(self, state: ServerState) -> Generator[IngestBatch | SourceNotice | None, None, StreamPosition]:
        """Begin a source without a position. Returns the position behind the snapshot."""
        slot = self._options.slot
        if state.slot is None:
            yield SourceNotice("slot", slot, f"creating replication slot {slot!r}: waits for running transactions")
            with closing(created_slot(self._session, self._new_session(), slot)) as waits:
                for who in waits:
                    text = f"creating replication slot {slot!r} waits for {who}: commit, or end these sessions"
                    yield SourceNotice("slot", slot, text)
            state = self._look()
            check_slot(slot, state, None)
        assert state.slot is not None
        if self._options.snapshot is SnapshotMode.NO_DATA:
            at = StreamPosition(state.slot.confirmed_lsn, state.timeline, keys=dict(self._tables.known))
            # Recorded at once: a slot that is lost before the first change must not be replaced by another one.
            yield IngestBatch((), at.encode())
            return at
        self._await_visible()
        snapshot = TableSnapshot(self._session, self._options.publication, self._tables)
        self._await_lasting(snapshot)
        at = StreamPosition(state.slot.confirmed_lsn, state.timeline, snapshot.taken, dict(self._tables.known))
        yield IngestBatch(self._checked(snapshot.records()), at.encode())
        return at

    def _await_visible(self) -> None:
        """Until a snapshot sees every transaction in front of the slot's position. Raises SourceFailed after a while;
        the next call waits for the same transactions, not for later ones."""
        if self._newest is None:
            self._newest = newest_transaction(self._session)
        deadline = time.monotonic() + _VISIBLE_S
        while (who := waited_for(self._session, self._newest)) is not None:
            if time.monotonic() > deadline or self._stopped.wait(_POLL_S):
                raise SourceFailed(
                    f"the snapshot waits for transactions that began before the slot: {who}",
                    "commit them, or end their sessions",
                )

    def _await_lasting(self, snapshot: TableSnapshot) -> None:
        """Until the log of what a snapshot sees is on disk. Raises SourceFailed after a while."""
        deadline = time.monotonic() + _LASTING_S
        while not snapshot.is_lasting():
            if time.monotonic() > deadline or self._stopped.wait(_POLL_S):
                raise SourceFailed("the snapshot waits for the server to bring its log to the disk")

    # --- the stream -----------------------------------------------------------------------------------------------

    def _follow(self, at: StreamPosition) -> Iterator[IngestBatch | SourceNotice | None]:
        pending: CatalogKeys | None = None
        """Keys that become known, unless a change that was committed before they were read is still to be read."""
        added = certain = ""
        """Keyed tables when new ones became known, and when all of them did."""
        searched = boundary = Lsn(0)
        """Log up to ``searched`` had no changes behind the position; ``boundary``: the end of the log at that time."""
        while True:
            state = self._look()
            check_slot(self._options.slot, state, at)
            if state.flushed_lsn <= searched and pending is None:
                yield None
                continue
            if (keyed := keyed_tables(self._session)) != added:
                check_partitions(self._session, self._options.publication)
                # Before their first change is ingested: the table may be gone when the next process reads the second.
                added, self._tables.known = keyed, {**self._catalog_keys().keys, **self._tables.known}
            if self._tables.known != at.keys:
                # The keys that explain the log so far must be there for the next log, whatever becomes of the process.
                at = replace(at, keys=dict(self._tables.known))
                yield IngestBatch((), at.encode())
            end = self._peek()
            if end is not None:
                if pending is not None:
                    certain, pending = "", None
                if end <= at.lsn:
                    # The server has lost the slot's position in a crash. The next run begins with ``confirm``.
                    raise SourceFailed(f"slot {self._options.slot!r} has moved back, and repeats what was ingested")
                stream, at = ChangeStream(self._tables, at), at.moved(end)
                yield IngestBatch(self._changes(stream, at), at.encode())
                yield from self._tables.take_notices()
                continue
            self._session.commit(_PEEKING)
            if pending is None and keyed != certain:
                certain, pending = keyed, self._catalog_keys()
                continue
            if pending is not None and pending.lsn <= state.flushed_lsn:
                # A key may have changed alone, which is not in the log, and tables may be gone.
                self._tables.known, pending = pending.keys, None
                continue
            searched = state.flushed_lsn
            if at.lsn + _IDLE_BYTES_MAX <= boundary <= searched:
                at = at.moved(boundary)
                yield IngestBatch((), at.encode())
            if boundary <= searched:
                boundary = state.insert_lsn
            yield None

    def _catalog_keys(self) -> CatalogKeys:
        return catalog_keys(self._session, self._options.publication, self._tables)

    def _peek(self) -> Lsn | None:
        """Open the cursor of the next transactions; the end of the last one's commit record, None if there is none."""
        options = self._options
        self._session.begin(_PEEKING)
        values = map(sql.Literal, (options.slot, options.changes_max, options.publication))
        self._session.declare(_PEEKING, _CURSOR, sql.SQL(_PEEK).format(*values))
        last = self._session.last(_PEEKING, _CURSOR)
        if last is None:
            return None
        with self._readable():
            message = decode_message(last[1] or b"")
            if not isinstance(message, CommitTransaction):
                raise MalformedMessage(f"the changes end with {type(message).__name__}, not with a commit")
            return message.end_lsn

    def _changes(self, stream: ChangeStream, end: StreamPosition) -> Iterator[IngestRecord]:
        yield from self._checked(stream.records(self._messages()))
        with self._readable():
            if stream.end != end:
                raise MalformedMessage(f"the changes end at {lsn_text(stream.end.lsn)}, not {lsn_text(end.lsn)}")
        self._session.commit(_PEEKING)

    def _messages(self) -> Iterator[tuple[Lsn, bytes]]:
        for lsn, data in self._session.fetch(_PEEKING, _CURSOR, is_binary=True):
            yield Lsn(int.from_bytes(lsn or b"", "big")), data or b""

    def _checked(self, records: Iterable[IngestRecord]) -> Iterator[IngestRecord]:
        with self._readable():
            yield from records

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except (MalformedMessage, UnreadableValue) as error:
            raise SourceRefused(
                f"slot {self._options.slot!r} of {self._options.connecting}: {error}",
                "nothing of this transaction was ingested; look at the change with "
                f"pg_logical_slot_peek_binary_changes; {AFRESH}",
            ) from error

    def _look(self) -> ServerState:
        ((database, file, insert, flushed, plugin, of, confirmed, status),) = self._session.rows(
            _LOOKING, _LOOK, (self._options.slot,)
        )
        slot = None
        if plugin == PLUGIN and confirmed is None:
            raise SourceFailed(
                f"replication slot {self._options.slot!r} is being created by another session",
                "wait for it, or end that session: pg_replication_slots has its pid, active_pid",
            )
        if plugin is not None:
            confirmed_lsn = Lsn(0) if confirmed is None else parse_lsn(confirmed)
            slot = SlotState(plugin=plugin, database=of, confirmed_lsn=confirmed_lsn, wal_status=status)
        return ServerState(
            database=database,
            # The name of a log file begins with its timeline, in eight hexadecimal digits.
            timeline=int(file[:8], 16),
            insert_lsn=parse_lsn(insert),
            flushed_lsn=parse_lsn(flushed),
            slot=slot,
        )


def _decoded(position: Position) -> StreamPosition:
    try:
        return decode_position(position)
    except ValueError as error:
        raise SourceRefused(
            f"the recorded position cannot be read: {error}",
            "it is of another kind of source, or of a newer release: ingest this source under another name",
        ) from error
