"""The transaction of a PostgreSQL server that holds back the rows of others: who it is, for a notice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import psycopg

# A session that runs a transaction has a lock on its id, as a prepared transaction has. Every role may see these locks,
# the state of other roles' sessions only if it has pg_read_all_stats.
_HOLDER_SQL: Final = (
    "SELECT l.pid, coalesce(a.usename, p.owner)::text, a.application_name, a.state, p.gid,"
    " extract(epoch FROM clock_timestamp() - coalesce(a.xact_start, p.prepared))::float8"
    " FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid"
    " LEFT JOIN pg_prepared_xacts p ON p.transaction = l.transactionid"
    " WHERE l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock' AND l.granted"
    " AND l.transactionid::text::bigint = %s"
)
_BITS: Final = 2**32


@dataclass(frozen=True, slots=True)
class OldestTransaction:
    """``transaction``: its id. ``age_s``: since it began, or was prepared; None where the role may not see it."""

    transaction: int
    pid: int | None
    user: str | None
    application: str | None
    state: str | None
    gid: str | None
    age_s: float | None

    def __str__(self) -> str:
        since = "" if self.age_s is None else f" for {self.age_s:,.0f} s"
        if self.gid is not None:
            return f"transaction {self.transaction}, prepared as {self.gid!r} by {self.user}{since}"
        state = f", {self.state}" if self.state else ""
        application = f" ({self.application})" if self.application else ""
        return f"transaction {self.transaction} of session {self.pid}, user {self.user}{application}{state}{since}"

    @property
    def hint(self) -> str:
        if self.gid is not None:
            return "end it there with COMMIT PREPARED or ROLLBACK PREPARED"
        return f"end it there, or with SELECT pg_terminate_backend({self.pid}), which rolls it back"


def transaction_of(connection: psycopg.Connection[Any], transaction: int) -> OldestTransaction | None:
    """Who runs the transaction; None if it has ended, runs on another server, or the role may not look for it. Raises
    psycopg.Error."""
    try:
        row = connection.execute(_HOLDER_SQL, (transaction % _BITS,)).fetchone()
    except psycopg.errors.InsufficientPrivilege:
        # A server may have taken the views of locks from PUBLIC; the rows can be read all the same.
        return None
    if row is None:
        return None
    pid, user, application, state, gid, age_s = row
    if pid is None and gid is None:
        # A prepared one that has ended between the looks at the two views.
        return None
    return OldestTransaction(transaction, pid, user, application, state, gid, age_s)
