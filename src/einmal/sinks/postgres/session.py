"""The driver's session: transactions with settings of their own, and answers that do not come.

A transaction ends by itself where its driver cannot: the server notices a broken connection within seconds, also in
the middle of a statement, and ends a session that stays idle in a transaction. Otherwise a dead machine's row lock
would keep its successor waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Final

import psycopg
from psycopg import sql

from einmal.postgresql import session
from einmal.postgresql.errors import cause, ended_session
from einmal.postgresql.options import Connecting
from einmal.postgresql.session import Row, ServerSession
from einmal.sinks.commit_point import OutcomeUnknown, SinkError, SinkFailed
from einmal.sinks.postgres.names import application_name, epoch_of_application
from einmal.sinks.postgres.refusals import failed, undecided

Statement = sql.SQL | sql.Composed
Parameters = Sequence[Any] | Mapping[str, Any]

_RECONNECT_S: Final = 60.0
_IDLE_IN_TRANSACTION_MS: Final = 60_000
_LOCAL: Final = {
    "idle_in_transaction_session_timeout": str(_IDLE_IN_TRANSACTION_MS),
    "tcp_keepalives_idle": "10",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "25s",
    # What texts mean, and how values print that are compared as text.
    "array_nulls": "on",
    "extra_float_digits": "1",
    # Limits the whole transaction.
    "transaction_timeout": "0",
}
_LASTING: Final = sql.SQL(
    # A commit that is acknowledged must survive the server's crash. What is stricter than "on" stays.
    "SELECT CASE WHEN current_setting('synchronous_commit') IN ('off', 'local')"
    " THEN set_config('synchronous_commit', 'on', true) END"
)
_TERMINATED_MS: Final = 5_000


def begin(connection: psycopg.Connection[Row], connecting: Connecting, name: str, **local: str) -> None:
    """Begin a transaction of a sink. Raises psycopg.Error."""
    session.begin(connection, connecting, name, {**_LOCAL, **local})
    connection.execute(_LASTING)


class Session(ServerSession):
    """Methods raise SinkError; ``what`` names the step in the message. ``schema``: where the record of the pipeline
    is."""

    def __init__(self, connecting: Connecting, schema: str, pipeline: str) -> None:
        super().__init__(connecting, _RECONNECT_S)
        self._schema = schema
        self._pipeline = pipeline
        self.epoch: int | None = None
        """Shown to other sessions, which may end this one if theirs is later."""

    def begin(self, what: str, **local: str) -> None:
        """Begin a transaction, on a new connection if the last one broke. Raises SinkFailed."""
        assert not self.is_open, "a transaction is open"
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

    @property
    def lock_timeout(self) -> str:
        """The wait for a lock in a transaction that sets no other, in milliseconds."""
        return str(self._connecting.lock_timeout_ms)

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

    def _broken(self) -> bool:
        assert self._connection is not None
        return self._connection.closed
