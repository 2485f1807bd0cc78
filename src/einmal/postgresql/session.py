"""One connection to a PostgreSQL server, and transactions on it under settings of their own.

Settings are local to each transaction, and no statement is prepared, so that a pooler in transaction mode may be
between.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, LiteralString

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from einmal.postgresql import sqlstates
from einmal.postgresql.options import Connecting

Row = tuple[Any, ...]

IDENTITY: Final = sql.SQL("SELECT system_identifier::text || '/' || current_database() FROM pg_control_system()")
"""Which database it is. A standby has its primary's identity, as long as it replicates it and after its promotion."""
_CONNECTION: Final = {
    "connect_timeout": "10",
    # A server that died silently is noticed in some 25 s, also while an answer is outstanding.
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "25000",
}
_AGAIN_S: Final = 0.2
_CANCEL_S: Final = 5.0
_SINCE: Final = {"transaction_timeout": 17_00_00}
"""Server versions that settings are known from."""
_NOT_BEGUN: Final = (psycopg.pq.TransactionStatus.IDLE, psycopg.pq.TransactionStatus.UNKNOWN)


def open_connection(conninfo: Mapping[str, str], *, patience_s: float = 0.0) -> psycopg.Connection[Row]:
    """In autocommit mode: transactions are begun by name. ``conninfo``: libpq's parameters. Raises psycopg.Error."""
    # Text is decoded here, as UTF-8.
    text = make_conninfo("", **{**_CONNECTION, **conninfo, "client_encoding": "UTF8"})
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return psycopg.connect(text, autocommit=True, prepare_threshold=None)
        except psycopg.OperationalError as error:
            refused = error.sqlstate is not None and error.sqlstate not in sqlstates.NOT_UP
            if refused or time.monotonic() > deadline:
                raise
            time.sleep(_AGAIN_S)


def begin(
    connection: psycopg.Connection[Row],
    connecting: Connecting,
    name: str,
    settings: Mapping[str, str],
    mode: LiteralString = "READ COMMITTED READ WRITE",
) -> None:
    """Begin a transaction under these settings, whatever role and database have set. ``name``: the session's
    application_name meanwhile. Raises psycopg.Error."""
    settings = {
        # Without it a statement would run to its end although its client is gone.
        "client_connection_check_interval": "5s",
        "application_name": name,
        "statement_timeout": str(connecting.statement_timeout_ms),
        "lock_timeout": str(connecting.lock_timeout_ms),
        **_known(connection, settings),
    }
    # SET, unlike set_config, does not take the transaction's snapshot yet.
    statements: list[sql.Composable] = [sql.SQL("BEGIN ISOLATION LEVEL ") + sql.SQL(mode)]
    statements += [
        sql.SQL("SET LOCAL {} = {}").format(sql.Identifier(name), sql.Literal(value))
        for name, value in settings.items()
    ]
    connection.execute(sql.SQL("; ").join(statements))


def set_for_session(connection: psycopg.Connection[Row], settings: Mapping[str, str]) -> None:
    """Whatever role, database, URL and environment have set. Raises psycopg.Error."""
    statements = [
        sql.SQL("SET {} = {}").format(sql.Identifier(name), sql.Literal(value))
        for name, value in _known(connection, settings).items()
    ]
    connection.execute(sql.SQL("; ").join(statements))


def cancel(connection: psycopg.Connection[Row] | None) -> None:
    """Cancel what a connection waits for, from another thread. Raises nothing."""
    if connection is not None:
        with suppress(psycopg.Error):
            connection.cancel_safe(timeout=_CANCEL_S)


def _known(connection: psycopg.Connection[Row], settings: Mapping[str, str]) -> dict[str, str]:
    """Without those that an older server does not have."""
    version = connection.info.server_version
    return {name: value for name, value in settings.items() if version >= _SINCE.get(name, 0)}


class ServerSession:
    """A connection that is opened when it is needed, and anew if it broke. Used by one thread at a time.

    ``reconnect_s``: how long a server that has answered before may take to answer again: a restart, a failover.
    """

    def __init__(self, connecting: Connecting, reconnect_s: float = 0.0) -> None:
        self._connecting = connecting
        self._reconnect_s = reconnect_s
        self._connection: psycopg.Connection[Row] | None = None
        self._has_connected = False

    @property
    def is_open(self) -> bool:
        """Whether a transaction is."""
        return self._connection is not None and self._connection.info.transaction_status not in _NOT_BEGUN

    def rollback(self) -> None:
        """End an open transaction without an effect. Raises nothing: a connection that is closed ends it, too."""
        if not self.is_open:
            return
        assert self._connection is not None
        try:
            self._connection.execute("ROLLBACK")
        except psycopg.Error:
            self.close()

    def cancel(self) -> None:
        """End what the session waits for, from another thread. Raises nothing."""
        cancel(self._connection)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def _connected(self) -> psycopg.Connection[Row]:
        """Raises psycopg.Error."""
        if self._connection is None or self._connection.closed:
            self.close()
            patience_s = self._reconnect_s if self._has_connected else 0.0
            self._connection = open_connection(self._connecting.conninfo, patience_s=patience_s)
            self._has_connected = True
        return self._connection
