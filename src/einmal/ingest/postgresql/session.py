"""One session of a source: transactions, cursors whose rows stay on the server, and what its errors mean."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, LiteralString

import psycopg
from psycopg import sql

from einmal.ingest.postgresql.values import SESSION
from einmal.ingest.source import SourceFailed, SourceRefused
from einmal.postgresql import sqlstates
from einmal.postgresql.errors import cause, reason
from einmal.postgresql.options import Connecting
from einmal.postgresql.session import ServerSession, begin

_FETCHED_MAX: Final = 256
_FETCHED_BYTES: Final = 1024 * 1024
"""Rows of about so many bytes are fetched at a time: what a cursor holds here."""
_LOCAL: Final = {
    **SESSION,
    # The ingester writes to topics between two fetches. A dead one must not keep the server from vacuuming.
    "idle_in_transaction_session_timeout": "5min",
    # Instead of a snapshot that silently lacks rows.
    "row_security": "off",
    # Limits the whole transaction.
    "transaction_timeout": "0",
}
REFUSED: Final[Mapping[str, str | None]] = {
    sqlstates.INSUFFICIENT_PRIVILEGE: (
        "grant it: the role needs REPLICATION, and SELECT on the published tables for the snapshot"
    ),
    sqlstates.INVALID_AUTHORIZATION: "correct user, password or pg_hba.conf",
    sqlstates.UNKNOWN_DATABASE: "correct the name of the database",
    sqlstates.SYNTAX_OR_ACCESS_RULE: "correct what the server names; it needs PostgreSQL's own functions",
    # Another session has created the slot meanwhile: the next attempt looks at it.
    sqlstates.DUPLICATE_OBJECT: None,
    # A table was dropped or altered while the snapshot began.
    sqlstates.UNDEFINED_TABLE: None,
    sqlstates.UNDEFINED_COLUMN: None,
    sqlstates.UNDEFINED_OBJECT: (
        "a publication must exist before the slot does, and for as long: it is looked up as it was when a change "
        "was made; drop the slot, and delete the recorded position (einmal pipeline reset einmal-ingest-NAME)"
    ),
    sqlstates.NOT_IN_PREREQUISITE_STATE: (
        "set wal_level = logical, and look at pg_replication_slots: wal_status, invalidation_reason"
    ),
    sqlstates.UNDEFINED_FILE: (
        "log that the slot needs is gone: drop the slot, and delete the recorded position (einmal pipeline reset "
        "einmal-ingest-NAME)"
    ),
    sqlstates.CHARACTER_NOT_IN_REPERTOIRE: (
        "text of a database in SQL_ASCII must be UTF-8, in the log, too: dump it, restore it into one in UTF8, "
        "and capture that under another name"
    ),
    sqlstates.CONFIGURATION_LIMIT_EXCEEDED: "raise max_replication_slots, or drop a slot that nobody needs",
    sqlstates.STATEMENT_NOT_SUPPORTED: "the server does not support logical decoding as it is needed here",
}
"""SQLSTATEs, or their classes, that another attempt would meet as well, and what to do; None: it would not."""


class SourceSession(ServerSession):
    """Methods raise SourceFailed and SourceRefused, ``what`` names the step."""

    def __init__(self, connecting: Connecting, name: str) -> None:
        """``name``: the session's application_name in its transactions."""
        super().__init__(connecting)
        self._name = name

    def begin(self, what: str, mode: LiteralString = "READ COMMITTED READ WRITE") -> None:
        """Begin a transaction, on a new connection if the last one broke."""
        assert not self.is_open
        with self._errors(what):
            begin(self._connected(), self._connecting, self._name, _LOCAL, mode)

    def rows(self, what: str, query: LiteralString | sql.SQL, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The result of one statement, in the open transaction or in one of its own."""
        if self.is_open:
            return self._rows(what, query, parameters)
        self.begin(what)
        try:
            rows = self._rows(what, query, parameters)
            self.commit(what)
            return rows
        finally:
            self.rollback()

    def _rows(self, what: str, query: LiteralString | sql.SQL, parameters: Sequence[Any]) -> list[tuple[Any, ...]]:
        with self._errors(what):
            cursor = self._connected().execute(query, parameters)
            return cursor.fetchall() if cursor.description else []

    def execute(self, what: str, statement: sql.Composed) -> None:
        with self._errors(what):
            self._connected().execute(statement)

    def declare(self, what: str, name: str, query: sql.SQL | sql.Composed) -> None:
        """A cursor in the open transaction, which may move back."""
        self.execute(what, sql.SQL("DECLARE {} SCROLL CURSOR FOR {}").format(sql.Identifier(name), query))

    def last(self, what: str, name: str) -> tuple[bytes | None, ...] | None:
        """The last row of a cursor, in binary format, or None if it has none; then the cursor is before its first."""
        with self._errors(what):
            connection = self._connected()
            rows = _raw(connection, sql.SQL("FETCH LAST FROM {}").format(sql.Identifier(name)), is_binary=True)
            connection.execute(sql.SQL("MOVE ABSOLUTE 0 IN {}").format(sql.Identifier(name)))
        return next(iter(rows), None)

    def fetch(self, what: str, name: str, *, is_binary: bool) -> Iterator[tuple[bytes | None, ...]]:
        """The rows of a cursor as the server sends them."""
        count = 1
        while True:
            statement = sql.SQL("FETCH {} FROM {}").format(sql.Literal(count), sql.Identifier(name))
            with self._errors(what):
                rows = _raw(self._connected(), statement, is_binary=is_binary)
            yield from rows
            if len(rows) < count:
                return
            # The next rows are taken to be as long as these: a few large ones are not followed by many.
            size = sum(len(value or b"") for row in rows for value in row)
            count = max(1, min(_FETCHED_MAX, 8 * count, count * _FETCHED_BYTES // (size + 1)))

    def commit(self, what: str) -> None:
        with self._errors(what):
            self._connected().execute("COMMIT")

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        try:
            yield
        except psycopg.Error as error:
            raise meaning(error, f"{what}: {self._connecting}", REFUSED) from cause(error)


def meaning(error: psycopg.Error, what: str, refused: Mapping[str, str | None]) -> SourceFailed | SourceRefused:
    """Return what an error of the server means to a source: refused if waiting does not help.

    ``refused``: see ``REFUSED``.
    """
    state, text = error.sqlstate or "", f"{what}: {reason(error)}"
    if state == sqlstates.OBJECT_IN_USE:
        return SourceFailed(text, "another session reads the slot: one slot serves one source")
    if isinstance(error, psycopg.ProgrammingError) and not state:
        return SourceRefused(text, "the client refuses the statement, or a parameter of the URL")
    hint = refused.get(state, refused.get(state[:2]))
    return SourceFailed(text) if hint is None else SourceRefused(text, hint)


def _raw(
    connection: psycopg.Connection[Any], statement: sql.Composed, *, is_binary: bool
) -> list[tuple[bytes | None, ...]]:
    result = connection.execute(statement, binary=is_binary).pgresult
    assert result is not None
    columns = range(result.nfields)
    return [tuple([result.get_value(row, column) for column in columns]) for row in range(result.ntuples)]
