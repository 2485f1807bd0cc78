"""Staging tables: where the rows of one attempt at a batch wait for the driver's transaction.

Unlogged: rows are written once, not twice, and a crash of the server empties the table, which the count of rows finds.
A table belongs to one pipeline, epoch and transaction, so a task that outlives its batch finds no table. It is dropped
in the transaction that takes its rows. What a dead driver left is dropped by its successor, who recognises it by the
name *and* by the comment: nothing else is ever dropped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import psycopg
from psycopg import sql

from einmal.event_log import EventLog
from einmal.postgresql.errors import cause
from einmal.sinks.commit_point import SinkError, SinkFailed
from einmal.sinks.postgres.names import epoch_of_staging, staging_comment, staging_prefix
from einmal.sinks.postgres.refusals import failed
from einmal.sinks.postgres.session import Session

ATTEMPT: Final = "attempt"
ATTEMPT_SETTING: Final = "einmal.attempt"
"""A task sets it, and each of its rows gets it by default: no task sends its own number a million times."""
_DROP_MS: Final = "500"
"""How long a drop waits for a task that still writes there."""
_logger = EventLog(__name__)


REFUSAL: Final = "refusal"
"""Why COPY could not take a row, of which only its record is staged then: a column where rows may be rejected."""


@dataclass(frozen=True, slots=True)
class Wide:
    """How a column is staged where its own type may reject values. ``conversion``: into that type, raising where an
    INSERT would."""

    definition: sql.Composable
    conversion: sql.Composable


@dataclass(frozen=True, slots=True)
class StagingColumn:
    """``source``: the frame's column; ``column``: the table's, None for what is only needed to decide; ``is_exact``:
    whether values that its type takes for equal are the same."""

    name: str
    definition: sql.Composable
    source: str
    column: str | None
    wide: Wide | None = None
    is_exact: bool = True


@dataclass(frozen=True, slots=True)
class StagedRows:
    """Rows with these columns: those of a table that a condition selects."""

    id: sql.Identifier
    columns: Sequence[StagingColumn]
    counted: sql.Composable


@dataclass(slots=True)
class Staged:
    """Rows staged in one transaction: ``counts``, by task attempt, as the tasks reported it. ``tolerates``: rows may be
    rejected, and have their record."""

    schema: str
    name: str
    columns: Sequence[StagingColumn]
    tolerates: bool = False
    counts: Mapping[int, int] = field(default_factory=dict)

    @property
    def id(self) -> sql.Identifier:
        return sql.Identifier(self.schema, self.name)

    @property
    def counted(self) -> sql.Composed:
        """The condition for rows of the attempts that Spark counts."""
        attempts = sql.SQL(", ").join(sql.Literal(attempt) for attempt in sorted(self.counts))
        return sql.SQL("{} = ANY(ARRAY[{}]::bigint[])").format(sql.Identifier(ATTEMPT), attempts)

    @property
    def rows(self) -> StagedRows:
        return StagedRows(self.id, self.columns, self.counted)

    @property
    def copied(self) -> list[str]:
        """The columns that tasks send."""
        return [*(column.name for column in self.columns), *([REFUSAL] if self.tolerates else [])]

    @property
    def titles(self) -> dict[str, str]:
        """Names that the columns of the staging table have in messages."""
        return {column.name: column.source for column in self.columns}


def create(session: Session, staged: Staged, pipeline: str) -> None:
    """In the open transaction, which has compared the epoch. Raises SinkFailed."""
    columns = [
        sql.SQL("{} {}").format(
            sql.Identifier(column.name), column.definition if column.wide is None else column.wide.definition
        )
        for column in staged.columns
    ]
    if staged.tolerates:
        columns.append(sql.SQL("{} text").format(sql.Identifier(REFUSAL)))
    attempt = sql.SQL("{} bigint NOT NULL DEFAULT current_setting({})::bigint").format(
        sql.Identifier(ATTEMPT), sql.Literal(ATTEMPT_SETTING)
    )
    what = "creating the staging table"
    session.execute(
        what,
        sql.SQL("CREATE UNLOGGED TABLE {} ({}) WITH (autovacuum_enabled = false)").format(
            staged.id, sql.SQL(", ").join([*columns, attempt])
        ),
    )
    session.execute(
        what, sql.SQL("COMMENT ON TABLE {} IS {}").format(staged.id, sql.Literal(staging_comment(pipeline)))
    )


def compare_counts(session: Session, staged: Staged) -> None:
    """Raises SinkFailed where the table does not hold what the tasks reported."""
    query = sql.SQL("SELECT {0}, count(*) FROM {1} WHERE {2} GROUP BY 1").format(
        sql.Identifier(ATTEMPT), staged.id, staged.counted
    )
    counts: dict[int, int] = dict(session.execute("counting staged rows", query).fetchall())
    if counts != dict(staged.counts):
        raise SinkFailed(
            f"{sum(counts.values()):,} rows are staged, the tasks reported {sum(staged.counts.values()):,}: the server "
            "has crashed and restarted since, or was replaced by its standby; staging tables do not survive that"
        )


def drop_in_transaction(session: Session, staged: Staged) -> bool:
    """In the transaction that commits. False where a task still writes: it is dropped later."""
    try:
        session.attempt(sql.SQL("SAVEPOINT einmal_drop"))
        session.attempt(sql.SQL("SELECT set_config('lock_timeout', %s, true)"), (_DROP_MS,))
        session.attempt(sql.SQL("DROP TABLE IF EXISTS {}").format(staged.id))
        # COMMIT runs deferred triggers, and the locks that they wait for are not the drop's.
        session.attempt(sql.SQL("SELECT set_config('lock_timeout', %s, true)"), (session.lock_timeout,))
    except psycopg.errors.LockNotAvailable:
        session.execute("dropping the staging table", sql.SQL("ROLLBACK TO SAVEPOINT einmal_drop"))
        return False
    except psycopg.Error as error:
        raise SinkFailed(f"dropping the staging table: SQLSTATE {error.sqlstate}") from error
    return True


def leftovers(session: Session, schema: str, pipeline: str, below: int) -> list[str]:
    """This pipeline's staging tables of epochs below this one. Raises psycopg.Error."""
    query = sql.SQL(
        "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE n.nspname = %s AND c.relkind = 'r' AND c.relpersistence = 'u' AND starts_with(c.relname::text, %s)"
        " AND obj_description(c.oid, 'pg_class') = %s ORDER BY c.oid"
    )
    parameters = (schema, staging_prefix(pipeline), staging_comment(pipeline))
    names = [name for (name,) in session.attempt(query, parameters)]
    return [name for name in names if (epoch := epoch_of_staging(name)) is not None and epoch < below]


def remove(session: Session, schema: str, pipeline: str, below: int) -> None:
    """Drop what earlier epochs of this pipeline left, and end the sessions that still write there.

    Raises nothing: what cannot be dropped now is dropped by a later start.
    """
    try:
        for name in _remaining(session, schema, pipeline, below):
            _logger.info("staging_sessions_terminated", "terminating sessions that use %(table)s", table=name)
            session.end_predecessors(below - 1)
        for name in _remaining(session, schema, pipeline, below):
            kept = "staging table %(table)s could not be dropped; the next start tries again"
            _logger.warning("staging_table_not_dropped", kept, table=name)
    except (psycopg.Error, SinkError) as error:
        unknown = "staging tables of earlier runs could not be looked for; the next start tries again: %(error)s"
        _logger.warning("staging_tables_unknown", unknown, error=error)


def abandoned(session: Session, schema: str, pipeline: str, epoch: int) -> list[str]:
    """Drop what this epoch has staged, as far as nobody uses it; the names of all its tables. Raises SinkError."""
    try:
        names: list[str] = session.in_transaction(
            "looking for staging tables", lambda: leftovers(session, schema, pipeline, epoch + 1)
        )
        _remaining(session, schema, pipeline, epoch + 1)
    except psycopg.Error as error:
        raise failed(error, "looking for staging tables") from cause(error)
    return names


def _remaining(session: Session, schema: str, pipeline: str, below: int) -> list[str]:
    """Drop the staging tables below an epoch, and return the names of those that could not be dropped."""
    remaining = []
    for name in session.in_transaction(
        "looking for staging tables", lambda: leftovers(session, schema, pipeline, below)
    ):
        drop = sql.SQL("DROP TABLE IF EXISTS {}").format(sql.Identifier(schema, name))
        try:
            session.in_transaction("dropping a staging table", partial(session.attempt, drop), lock_timeout=_DROP_MS)
        except psycopg.Error:
            remaining.append(name)
    return remaining
