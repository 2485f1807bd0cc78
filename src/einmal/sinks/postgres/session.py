"""The driver's session: one connection, transactions with settings of their own, and answers that do not come.

Settings are local to each transaction, and no statement is prepared, so that a pooler may be between. A transaction
ends by itself where its driver cannot: the server notices a broken connection within seconds, also in the middle of a
statement, and ends a session that stays idle in a transaction. Otherwise a dead machine's row lock would keep its
successor waiting.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from einmal.sinks.commit_point import OutcomeUnknown, SinkError, SinkFailed
from einmal.sinks.postgres.names import application_name, epoch_of_application
from einmal.sinks.postgres.options import Connecting
from einmal.sinks.postgres.refusals import cause, ended_session, failed, undecided

Statement = sql.SQL | sql.Composed
Parameters = Sequence[Any] | Mapping[str, Any]
Row = tuple[Any, ...]

_RETRIABLE: Final = frozenset({"57P01", "57P02", "57P03", "53300"})
"""Shutting down, crashed, starting up, too many connections."""
_AGAIN_S: Final = 0.2
_RECONNECT_S: Final = 60.0
"""How long a server that has answered before may take to answer again: a restart, a failover."""
_IDLE_IN_TRANSACTION_MS: Final = 60_000
_LOCAL: Final = {
    "idle_in_transaction_session_timeout": str(_IDLE_IN_TRANSACTION_MS),
    # Without it a statement would run to its end although its client is gone.
    "client_connection_check_interval": "5s",
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "25s",
}
_TERMINATED_MS: Final = 5_000

BEGIN: Final = sql.SQL("BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")


def open_connection(connecting: Connecting, *, patience_s: float = 0.0) -> psycopg.Connection[Row]:
    """In autocommit mode: transactions are begun by name. Raises psycopg.Error."""
    conninfo = make_conninfo("", **connecting.conninfo)
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return psycopg.connect(conninfo, autocommit=True, prepare_threshold=None)
        except psycopg.OperationalError as error:
            refused = error.sqlstate is not None and error.sqlstate not in _RETRIABLE
            if refused or time.monotonic() > deadline:
                raise
            time.sleep(_AGAIN_S)


def begin(connection: psycopg.Connection[Row], connecting: Connecting, name: str, **local: str) -> None:
    """Begin a transaction under einmal's settings, whatever role and database have set. Raises psycopg.Error."""
    settings = {
        **_LOCAL,
        "application_name": name,
        "statement_timeout": str(connecting.statement_timeout_ms),
        "lock_timeout": str(connecting.lock_timeout_ms),
        **local,
    }
    connection.execute(BEGIN)
    pairs = [part for pair in settings.items() for part in pair]
    # A commit that is acknowledged must survive the server's crash. What is stricter than "on" stays.
    calls = ["set_config(%s, %s, true)"] * len(settings) + [
        "CASE WHEN current_setting('synchronous_commit') IN ('off', 'local')"
        " THEN set_config('synchronous_commit', 'on', true) END",
        # Limits the whole transaction, since PostgreSQL 17.
        "CASE WHEN current_setting('transaction_timeout', true) IS NOT NULL"
        " THEN set_config('transaction_timeout', '0', true) END",
    ]
    connection.execute(f"SELECT {', '.join(calls)}", pairs)


class Session:
    """Raises SinkError; ``what`` names the step in the message. Used by one thread at a time. ``schema``: where the
    record of the pipeline is."""

    def __init__(self, connecting: Connecting, schema: str, pipeline: str) -> None:
        self._connecting = connecting
        self._schema = schema
        self._pipeline = pipeline
        self._connection: psycopg.Connection[Row] | None = None
        self._has_connected = False
        self.epoch: int | None = None
        """Shown to other sessions, which may end this one if theirs is later."""

    @property
    def is_open(self) -> bool:
        """Whether a transaction is."""
        return (
            self._connection is not None
            and self._connection.info.transaction_status is not psycopg.pq.TransactionStatus.IDLE
        )

    def begin(self, what: str, **local: str) -> None:
        """Begin a transaction, on a new connection if the last one broke. Raises SinkFailed."""
        assert not self.is_open or self._broken(), "a transaction is open"
        name = application_name(self._schema, self._pipeline, self.epoch)
        while True:
            fresh = self._connection is None or self._broken()
            try:
                connection = self._connected()
                begin(connection, self._connecting, name, **local)
                return
            except psycopg.Error as error:
                self.close()
                # A connection that broke while it was idle proves nothing about the server.
                if fresh or not ended_session(error):
                    raise failed(error, what) from cause(error)

    def execute(
        self,
        what: str,
        statement: Statement,
        parameters: Parameters | None = None,
        *,
        races: Collection[str] = (),
    ) -> psycopg.Cursor[Row]:
        """``races``: see ``refusals.is_race``. Raises SinkFailed: nothing of an open transaction is committed."""
        assert self._connection is not None, "no transaction is open"
        try:
            return self._connection.execute(statement, parameters)
        except psycopg.Error as error:
            raise failed(error, what, races=races) from cause(error)

    def attempt(self, statement: Statement, parameters: Parameters | None = None) -> psycopg.Cursor[Row]:
        """As ``execute``, for a caller who asks for the error. Raises psycopg.Error."""
        assert self._connection is not None, "no transaction is open"
        return self._connection.execute(statement, parameters)

    def text(self, statement: Statement) -> str:
        """The statement as the server gets it."""
        return statement.as_string(self._connection)

    def commit(self, what: str) -> None:
        """Raises SinkFailed if it is certain that nothing was committed, else OutcomeUnknown."""
        if self._connection is None or self._broken():
            # COMMIT was never sent: the server rolls back.
            raise SinkFailed(f"{what}: the connection broke before COMMIT")
        try:
            answer = self._connection.execute("COMMIT").statusmessage
        except psycopg.Error as error:
            raise undecided(error, what) from cause(error)
        except BaseException as error:
            # An interrupt while the answer was awaited.
            self.close()
            raise OutcomeUnknown(f"{what}: interrupted while waiting for the answer to COMMIT") from error
        if answer != "COMMIT":
            raise SinkFailed(f"{what}: the server answered COMMIT with {answer}")

    def rollback(self) -> None:
        """End an open transaction without an effect. Raises nothing: a connection that is closed ends it, too."""
        if not self.is_open:
            return
        assert self._connection is not None
        try:
            self._connection.execute("ROLLBACK")
        except psycopg.Error:
            self.close()

    def in_transaction(self, what: str, work: Callable[[], Any], **local: str) -> Any:
        """``work`` in a transaction of its own. Raises SinkError."""
        self.begin(what, **local)
        try:
            result = work()
            self.commit(what)
            return result
        except (SinkError, psycopg.Error):
            self.rollback()
            raise

    def end_predecessors(self, epoch: int) -> list[int]:
        """Terminate this role's sessions of this pipeline up to an epoch; their pids. Raises SinkError.

        They are fenced, or will be by ``acquire``: what ends is a transaction that holds locks.
        """
        what = "terminating sessions of an earlier run"
        self.begin(what)
        try:
            ended = self._end_predecessors(what, epoch)
            self.commit(what)
            return ended
        finally:
            self.rollback()

    def _end_predecessors(self, what: str, epoch: int) -> list[int]:
        query = sql.SQL(
            "SELECT pid, application_name FROM pg_stat_activity"
            " WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()"
            " AND starts_with(application_name, 'einmal ')"
        )
        ended = []
        for pid, name in self.execute(what, query).fetchall():
            theirs = epoch_of_application(self._schema, self._pipeline, name)
            if theirs is not None and theirs <= epoch:
                self.execute(what, sql.SQL("SELECT pg_terminate_backend(%s, %s)"), (pid, _TERMINATED_MS))
                ended.append(pid)
        return ended

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _connected(self) -> psycopg.Connection[Row]:
        if self._connection is None or self._broken():
            self.close()
            patience_s = _RECONNECT_S if self._has_connected else 0.0
            self._connection = open_connection(self._connecting, patience_s=patience_s)
            self._has_connected = True
        return self._connection

    def _broken(self) -> bool:
        assert self._connection is not None
        return self._connection.closed
