"""A table of a PostgreSQL database as a sink: options, checks before a run, and the records of all pipelines."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, ClassVar

import psycopg

from einmal.options.values import Options
from einmal.pipeline.reasons import HopVerdict, Reason
from einmal.postgresql.errors import cause
from einmal.postgresql.session import IDENTITY
from einmal.schemas.settings import ErrorSettings
from einmal.sinks.commit_point import Committed
from einmal.sinks.postgres import options as own
from einmal.sinks.postgres.commit_point import PostgresCommitPoint
from einmal.sinks.postgres.record_table import RecordTable
from einmal.sinks.postgres.refusals import failed
from einmal.sinks.postgres.rejected_table import RejectedTable
from einmal.sinks.postgres.session import Session
from einmal.sinks.row_schema import RowSchema
from einmal.sinks.sink import Opening, RowSink

_NOBODY = "status"
"""Whose name the sessions have that only look."""


class PostgresSink(RowSink):
    """See ``Sink``."""

    OPTIONS: ClassVar[tuple[str, ...]] = own.NAMES
    SECRETS: ClassVar[tuple[str, ...]] = own.SECRETS

    def __init__(self, options: Options) -> None:
        self._options = own.postgres_options(options)
        self._records = RecordTable(self._options.schema)

    @property
    def table(self) -> str:
        return str(self._options.table)

    @property
    def errors(self) -> ErrorSettings:
        return self._options.errors

    def identity(self) -> str | None:

        def ask(session: Session) -> str:
            ((text,),) = session.execute("asking for the database's identity", IDENTITY)
            return f"{text}/{self._options.schema}"

        return str(self._asked(_NOBODY, ask))

    def problems(self, name: str, schema: RowSchema | None) -> list[tuple[str, str]]:
        from einmal.sinks.postgres.preparing import TablePreparation, server_problems

        def ask(session: Session) -> list[tuple[str, str]]:
            problems = server_problems(session)
            problems += filter(None, [self._records.problem(session)])
            if self._options.errors.tolerates:
                problems += filter(None, [RejectedTable(self._options.schema).problem(session)])
            if schema is not None and not problems:
                row = self._records.row(session, name)
                record = None if row is None else row.text
                problems += TablePreparation(session, self._options, name, record).problems(schema)
            return problems

        problems: list[tuple[str, str]] = self._asked(name, ask)
        return problems

    def promises(self) -> tuple[Reason, ...]:
        return (
            Reason(
                HopVerdict.HOLDS,
                f"rows and the record in {self._records.name} are one transaction, which the driver commits",
            ),
            Reason(
                HopVerdict.IF,
                "committed transactions survive: fsync = on, and a standby is promoted only if it is synchronous",
                "an asynchronous standby may lack the last batches: a run that meets it is refused",
            ),
            Reason(
                HopVerdict.IF,
                "triggers have no effects outside the database, and nobody needs sequences without gaps",
                "an attempt that is rolled back has had such effects, and has used up values of sequences",
            ),
        )

    def commit_point(self, opening: Opening) -> PostgresCommitPoint:
        return PostgresCommitPoint(self._options, opening)

    def committed(self) -> Mapping[str, Committed]:
        def ask(session: Session) -> Mapping[str, Committed]:
            return self._records.committed(session) if self._records.exists(session) else {}

        committed: Mapping[str, Committed] = self._asked(_NOBODY, ask)
        return committed

    def _asked(self, name: str, ask: Callable[[Session], Any]) -> Any:
        """In a session and a transaction of its own. Raises SinkError."""
        with closing(Session(self._options.connecting, self._options.schema, name)) as session:
            try:
                return session.in_transaction(f"asking {self._options.connecting}", lambda: ask(session))
            except psycopg.Error as error:
                raise failed(error, f"asking {self._options.connecting}") from cause(error)
