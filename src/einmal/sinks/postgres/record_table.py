"""The table ``einmal_commits``: one row per pipeline with its epoch, its holder and its commit record.

The row is the lock. Whoever commits holds it from the comparison to the end of COMMIT, and PostgreSQL releases it only
when the outcome is decided. ``acquire`` changes the row, so it waits for a predecessor's COMMIT that is under way, and
then returns the epoch above the one that this COMMIT saw.

An epoch alone does not identify its holder: after a failover that lost an ``acquire``, two instances can be granted the
same number. ``holder`` is random, and compared as well. A pipeline that is reset keeps its row, without a record: names
of staging tables carry the epoch, and a task of an old run must not find its table again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from psycopg import sql

from einmal.commit_protocol.commit_record import CommitRecord
from einmal.postgresql.names import TableName, quoted
from einmal.postgresql.session import Row
from einmal.sinks import stored_record
from einmal.sinks.commit_point import Committed
from einmal.sinks.postgres.names import RECORDS
from einmal.sinks.postgres.session import Session

_COLUMNS: Final = """(
    pipeline text PRIMARY KEY,
    epoch bigint NOT NULL,
    holder uuid NOT NULL,
    record json,
    committed_at timestamptz,
    batch_id bigint GENERATED ALWAYS AS ((record ->> 'batch_id')::bigint) STORED,
    records bigint GENERATED ALWAYS AS ((record ->> 'records')::bigint) STORED,
    end_offsets jsonb GENERATED ALWAYS AS ((record -> 'end')::jsonb) STORED,
    digest text GENERATED ALWAYS AS (record ->> 'digest') STORED
)"""
"""``record`` is the encoded record, digit for digit; what follows it is for readers."""
_KIND: Final = sql.SQL(
    "SELECT c.relkind::text, c.relpersistence::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
    " WHERE n.nspname = %s AND c.relname = %s"
)


@dataclass(frozen=True, slots=True)
class HeldRow:
    """The row as it was read. ``text``: the encoded record, None before the first commit."""

    epoch: int
    holder: str
    text: str | None


class RecordTable:
    """The statements on it; each runs in the transaction that the session has open, and raises SinkError. Values are
    literals: psycopg would take a percent sign in the name of a schema for a placeholder."""

    def __init__(self, schema: str) -> None:
        self.name = TableName(schema, RECORDS)
        self._id = sql.Identifier(schema, RECORDS)

    def problem(self, session: Session) -> tuple[str, str] | None:
        """Create the table where it is missing. A problem is one that an owner has to solve."""
        schema, role, may_create = self._schema(session)
        if schema is None:
            name = quoted(self.name.schema or "")
            return f"schema {name} does not exist", f"CREATE SCHEMA {name} AUTHORIZATION {quoted(role)}"
        if not may_create:
            return (
                f"role {quoted(role)} may not create tables in schema {quoted(schema)}, where batches are staged",
                f"GRANT USAGE, CREATE ON SCHEMA {quoted(schema)} TO {quoted(role)}; or set option schema",
            )
        row = session.execute(f"looking for {self.name}", _KIND, (self.name.schema, self.name.name)).fetchone()
        if row is None:
            session.execute(
                f"creating {self.name}",
                sql.SQL("CREATE TABLE IF NOT EXISTS {} ").format(self._id) + sql.SQL(_COLUMNS),
            )
        elif row != ("r", "p"):
            return (
                f"{self.name} is not an ordinary, logged table: commit records would not survive a crash",
                f"ALTER TABLE {self.name} SET LOGGED, or drop it",
            )
        return None

    def _schema(self, session: Session) -> tuple[str | None, str, bool]:
        """Its name if it exists, this session's role, and whether that may create tables there."""
        query = sql.SQL(
            "SELECT n.nspname::text, current_user::text, coalesce(has_schema_privilege(n.oid, 'CREATE'), false)"
            " FROM (VALUES (%s)) AS wanted(name) LEFT JOIN pg_namespace n ON n.nspname = wanted.name"
        )
        ((schema, role, may_create),) = session.execute("looking for the schema", query, (self.name.schema,)).fetchall()
        return schema, role, may_create

    def exists(self, session: Session) -> bool:
        query = _KIND
        return session.execute(f"looking for {self.name}", query, (self.name.schema, self.name.name)).rowcount > 0

    def row(self, session: Session, pipeline: str, lock: str = "") -> HeldRow | None:
        """``lock``: "FOR SHARE" waits for a COMMIT under way, "FOR UPDATE" keeps all others away."""
        query = sql.SQL("SELECT epoch, holder::text, record::text FROM {} WHERE pipeline = {} {}").format(
            self._id, pipeline, sql.SQL(lock)
        )
        row = session.execute("reading the commit record", query).fetchone()
        return None if row is None else HeldRow(*row)

    def acquire(self, session: Session, pipeline: str, holder: str) -> int:
        """Raise the epoch for a new holder, whoever held it. Raises psycopg.Error."""
        statement = sql.SQL(
            "INSERT INTO {0} AS held (pipeline, epoch, holder) VALUES ({1}, 1, {2})"
            " ON CONFLICT (pipeline) DO UPDATE SET epoch = held.epoch + 1, holder = EXCLUDED.holder RETURNING epoch"
        ).format(self._id, pipeline, holder)
        return _epoch(session.attempt(statement).fetchone())

    def acquire_again(self, session: Session, pipeline: str, holder: str) -> int | None:
        """Raise the epoch if this holder still has the name, else None. Raises psycopg.Error."""
        statement = sql.SQL(
            "UPDATE {} SET epoch = epoch + 1 WHERE pipeline = {} AND holder = {} RETURNING epoch"
        ).format(self._id, pipeline, holder)
        row = session.attempt(statement).fetchone()
        return None if row is None else _epoch(row)

    def write(self, session: Session, pipeline: str, record: CommitRecord | None) -> None:
        """Set the record of a row that is locked; None deletes it, and the row stays."""
        text, now = (None, None) if record is None else (record.encode().decode(), sql.SQL("clock_timestamp()"))
        session.execute(
            "writing the commit record",
            sql.SQL("UPDATE {} SET record = {}::json, committed_at = {} WHERE pipeline = {}").format(
                self._id, text, now, pipeline
            ),
        )

    def delete(self, session: Session, pipeline: str) -> None:
        """Delete a row that is locked."""
        session.execute("deleting a name", sql.SQL("DELETE FROM {} WHERE pipeline = {}").format(self._id, pipeline))

    def delete_unused(self, session: Session, pipeline: str, holder: str) -> None:
        """Delete the row of a name that this holder has committed nothing under."""
        session.execute(
            "deleting an unused name",
            sql.SQL("DELETE FROM {} WHERE pipeline = {} AND holder = {} AND record IS NULL").format(
                self._id, pipeline, holder
            ),
        )

    def committed(self, session: Session) -> dict[str, Committed]:
        query = sql.SQL(
            "SELECT pipeline, record::text, (extract(epoch FROM committed_at) * 1000)::bigint FROM {}"
            " WHERE record IS NOT NULL ORDER BY pipeline"
        ).format(self._id)
        return {
            name: stored_record.committed(name, text, timestamp or 0)
            for name, text, timestamp in session.execute("reading the commit records", query)
        }


def _epoch(row: Row | None) -> int:
    assert row is not None
    epoch: Any = row[0]
    return int(epoch)
