"""The table ``einmal_rejected``: the rows of each pipeline's last batch that its table has rejected.

An outbox: it is written in the transaction of the good rows and the commit record, so that all three are decided
together, and read once they are. The entries of earlier batches are deleted in the same transaction. They are in the
dead-letter topic by then: a batch begins only when every part of the one before it is committed, and the dead letters
of its rejected rows are its last part (``spark/protocol/exactly_once``).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from psycopg import sql

from einmal.pipeline.dead_letters import RejectedRow
from einmal.postgresql.names import TableName
from einmal.sinks.postgres.session import Session
from einmal.sinks.postgres.table import find_table
from einmal.sinks.rejections import REJECTED, as_columns

_COLUMNS: Final = """(
    pipeline text NOT NULL,
    batch_id bigint NOT NULL,
    number integer NOT NULL,
    topic text NOT NULL,
    partition integer NOT NULL,
    "offset" bigint NOT NULL,
    exception text NOT NULL,
    message text NOT NULL,
    PRIMARY KEY (pipeline, number)
)"""
_TYPES: Final = ("integer", "text", "integer", "bigint", "text", "text")


class RejectedTable:
    """The statements on it; each runs in the transaction that the session has open, and raises SinkError."""

    def __init__(self, schema: str) -> None:
        self.name = TableName(schema, REJECTED)
        self._id = sql.Identifier(schema, REJECTED)

    def problem(self, session: Session) -> tuple[str, str] | None:
        """Create the table where it is missing. A problem is one that an owner has to solve."""
        shape = find_table(session, self.name)
        if shape is None:
            session.execute(
                f"creating {self.name}",
                sql.SQL("CREATE TABLE IF NOT EXISTS {} ").format(self._id) + sql.SQL(_COLUMNS),
            )
        elif shape.problem:
            return (
                f"{self.name} {shape.problem}: rejected rows would be lost with it",
                f"drop it, or ALTER TABLE {self.name} SET LOGGED",
            )
        return None

    def replace(self, session: Session, pipeline: str, batch_id: int, rows: Sequence[RejectedRow]) -> None:
        """The rows of this batch instead of those of the one before."""
        what = "recording the rejected rows"
        session.execute(what, sql.SQL("DELETE FROM {} WHERE pipeline = {}").format(self._id, pipeline))
        if not rows:
            return
        columns = zip(*as_columns(rows), strict=True)
        arrays = sql.SQL(", ").join(
            sql.SQL("{}::{}[]").format(sql.Literal(list(values)), sql.SQL(kind))
            for values, kind in zip(columns, _TYPES, strict=True)
        )
        session.execute(
            what,
            sql.SQL("INSERT INTO {} SELECT {}, {}, unnested.* FROM unnest({}) AS unnested").format(
                self._id, pipeline, batch_id, arrays
            ),
        )

    def rows(self, session: Session, pipeline: str, batch_id: int) -> tuple[RejectedRow, ...]:
        query = sql.SQL(
            'SELECT topic, partition, "offset", exception, message FROM {} WHERE pipeline = {} AND batch_id = {}'
            " ORDER BY number"
        ).format(self._id, pipeline, batch_id)
        return tuple(RejectedRow(*row) for row in session.execute("reading the rejected rows", query).fetchall())
