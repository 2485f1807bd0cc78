"""Checks before a batch is staged: the server's version, the table, its columns. Missing tables are made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from psycopg import sql

from einmal.pipeline.errors import PreflightFailed
from einmal.sinks import stored_record
from einmal.sinks.postgres.mapping import create_statement, problems
from einmal.sinks.postgres.options import PostgresOptions
from einmal.sinks.postgres.session import Session
from einmal.sinks.postgres.table import TableShape, find_table
from einmal.sinks.rejections import RECORD, record_problems
from einmal.sinks.row_schema import RowSchema

Problems = list[tuple[str, str]]

_VERSION_MIN: Final = 15
"""The oldest that PostgreSQL supports, and the first with MERGE."""


@dataclass(frozen=True, slots=True)
class TablePreparation:
    """One pipeline's look at its table, in the open transaction. ``record``: its encoded record, None before the first
    commit: a table that it proves rows in is not made anew."""

    session: Session
    options: PostgresOptions
    name: str
    record: str | None

    def problems(self, schema: RowSchema) -> Problems:
        """Create the table where it is missing and the columns have no problem. Raises SinkFailed."""
        return self._checked(schema)[1]

    def table(self, schema: RowSchema) -> TableShape:
        """The table for a batch, whose columns may differ from those of the batch before.

        Raises SinkFailed, PreflightFailed.
        """
        shape, faults = self._checked(schema)
        if faults:
            raise PreflightFailed(faults, f"the batch cannot be written to {self.options.table}")
        assert shape is not None, "it was found, or created"
        return shape

    def _checked(self, schema: RowSchema) -> tuple[TableShape | None, Problems]:
        session, options = self.session, self.options
        shape = find_table(session, options.table)
        faults = record_problems(options.errors, schema)
        schema = schema.without(RECORD)
        faults += problems(schema, options, shape)
        if shape is None:
            faults += stored_record.missing_table(self.name, self.record, str(options.table))
        if shape is not None or faults:
            return shape, faults
        statements = create_statement(schema, options)
        if not options.create_table:
            proposal = "; ".join(statement.as_string() for statement in statements)
            return None, [(f"table {options.table} does not exist, and createTable is false", proposal)]
        for statement in statements:
            session.execute("creating the table", statement)
        return find_table(session, options.table), []


def server_problems(session: Session) -> Problems:
    """In the open transaction. Raises SinkFailed."""
    query = sql.SQL("SELECT current_setting('server_version_num')::int / 10000, current_setting('fsync')")
    ((version, fsync),) = session.execute("asking for the server's version", query).fetchall()
    findings: Problems = []
    if version < _VERSION_MIN:
        findings.append((f"the server is PostgreSQL {version}", f"use PostgreSQL {_VERSION_MIN} or later"))
    if fsync != "on":
        findings.append(("the server runs with fsync = off: a crash may lose what it has committed", "set fsync = on"))
    return findings
