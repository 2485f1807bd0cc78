"""The rows of a PostgreSQL table as a source, also those of transactions that commit late.

Theory of operation. A column that only increases (a serial key, a time of change) does not show what is new: a
transaction may commit a row long after rows with higher values were read. So what was read is described by transaction
ids. A *look* takes a snapshot, whose xmin is a *horizon*: every transaction below it has ended. It reads the rows whose
own xmin is below the horizon, and not below the horizon of the look before. Each version of a row has one xmin, and so
it is read by one look. A position is a horizon; inside of a look it is the look's two horizons and the column and key
of the last row, in the order of which a look reads: a row that changes meanwhile gets an xmin beyond the horizon.

A transaction that was rolled back, or committed without waiting for the disk, has ended before the disk has its end. If
the server crashes then, it gives the id out again. So a look begins once the log up to its snapshot is on disk.

    read are the rows with column > low  and xmin < fast,
        and the rows with column <= low and xmin < full

No index finds an xmin. That is what the column is for: most looks read only what is above ``low``, by the column's
index. From time to time one reads the whole table, and then moves ``low``. Late rows below it wait for such a look.

A row has only the lower 32 bits of its xmin. Those of a row that was written more than 2**32 transactions ago can be
the same as of one that is new. Each look at the whole table finds the highest value of the column among the rows whose
bits are ahead of the snapshot's (``ahead``): such rows are that old. Up to this value, none counts as new before the
next look at the whole table, which must come before 2**31 transactions have passed.

Exactly once is a claim about versions of rows: what is changed twice between two looks is seen once, what is deleted
is not seen. The key must be unique, and column and key must not be NULL.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, Final

import psycopg

from einmal.ingest.postgresql.session import meaning
from einmal.ingest.postgresql.values import PRINTING
from einmal.ingest.source import (
    IngestBatch,
    IngestRecord,
    Position,
    RecordSource,
    SourceFailed,
    SourceNotice,
)
from einmal.ingest.table_reader import FoundRows, TableLayout, TablePosition, TableRange, TableReader, TableRow
from einmal.postgresql import sqlstates
from einmal.postgresql.errors import cause
from einmal.postgresql.session import IDENTITY, cancel, open_connection, set_for_session
from einmal.security.redaction import RedactedDict

_BATCH_ROWS: Final = 10_000
_FULL_S: Final = 10.0
_FULL_RATIO: Final = 20
"""A look at the whole table may take a twentieth of the time."""
_HELD_S: Final = 10.0
"""For which a transaction may hold rows back before it is reported, and between two looks for one."""
_UNRECORDED_MAX: Final = 2**24
"""Transactions by which a horizon may be ahead of the recorded one where there is nothing to record."""
_HINT_ROLE: Final = "the role needs CONNECT, USAGE of the schema and SELECT on the table"
_HINT_TABLE: Final = "correct the names of the table and of its column, or create them"
_HINT_VALUE: Final = "UPDATE the row that has this value; text of a database in SQL_ASCII must be UTF-8"
_REFUSED: Final[Mapping[str, str | None]] = {
    sqlstates.INSUFFICIENT_PRIVILEGE: _HINT_ROLE,
    sqlstates.INVALID_AUTHORIZATION: "correct user, password or pg_hba.conf",
    sqlstates.UNKNOWN_DATABASE: "correct the name of the database",
    sqlstates.INVALID_SCHEMA: _HINT_TABLE,
    sqlstates.SYNTAX_OR_ACCESS_RULE: _HINT_TABLE,
    sqlstates.DATA_EXCEPTION: _HINT_VALUE,
    sqlstates.RAISED: "correct the function that raises it (a cast to json, a default), or the row",
    sqlstates.FEATURE_NOT_SUPPORTED: "ingest a table, or a view that this role can read by SELECT alone",
}
"""SQLSTATEs, or their classes, that another attempt would meet as well, and what to do."""
_NAME: Final = {"application_name": "einmal ingest"}
_LOCK_TIMEOUT_MS: Final = 30_000
_SETTINGS: Final = {
    # Names keep the role's search_path.
    **PRINTING,
    # Instead of rows that are silently not there.
    "row_security": "off",
    # A task writes to topics between two fetches. A dead one must not keep the server from vacuuming.
    "idle_in_transaction_session_timeout": "5min",
    # Limits the whole transaction.
    "transaction_timeout": "0",
}
_OPTION: Final = "-c row_security=off"


class TableSource(RecordSource):
    """See the module. The value of a record is the row as JSON, its key the key columns as JSON."""

    def __init__(
        self,
        conninfo: Mapping[str, str],
        table: str,
        column: str,
        topic: str,
        *,
        batch_rows: int = _BATCH_ROWS,
        statement_timeout_ms: int = 0,
        lock_timeout_ms: int = _LOCK_TIMEOUT_MS,
    ) -> None:
        """``conninfo``: parameters of libpq. ``table``: with its schema; it has a primary key. Times of 0: no limit."""
        self._conninfo = RedactedDict({**_NAME, **conninfo})
        self._settings = {
            **_SETTINGS,
            "statement_timeout": str(statement_timeout_ms),
            "lock_timeout": str(lock_timeout_ms),
        }
        self._connection: psycopg.Connection[Any] | None = None
        self._stopped = threading.Event()
        self._table = table
        self._column = column
        self._topic = topic
        self._batch_rows = batch_rows
        self._origin = ""
        self._full_at = 0.0
        """When to look at the whole table next, on the monotonic clock."""
        self._held_at = 0.0
        """When to look next for a transaction that holds rows back, on the monotonic clock."""
        self._holder: int | None = None
        """The transaction that held rows back at the last such look."""
        self._held_by: int | None = None
        """The transaction that was reported."""
        self._parts = 0

    def origin(self) -> str:
        with self._connected() as connection:
            self._origin = _origin_of(connection, self._table)
        return self._origin

    def split(self, parts: int) -> None:
        self._parts = parts

    def read(self, position: Position | None) -> Iterator[IngestBatch | SourceNotice | None]:
        self._full_at = 0.0
        with self._connected() as connection:
            if _origin_of(connection, self._table) != self._origin:
                raise SourceFailed(f"{self._table}: another server has this address now")
            reader = TableReader(connection, self._table, self._column, self._batch_rows, self._stopped)
            layout = reader.layout()
            start = TablePosition(layout.oid, layout.filenode, layout.timeline)
            current = start if position is None else TablePosition.of(position)
            recorded = current
            while True:
                current, notices = reader.checked(current)
                yield from notices
                for batch in self._look(reader, current):
                    if (
                        batch.rows
                        or batch.ranges
                        or (batch.position.fast or 0) - (recorded.fast or 0) > _UNRECORDED_MAX
                    ):
                        recorded = batch.position
                        yield self._batch(reader.layout(), batch)
                    current = batch.position
                yield from self._held_back(reader, current)
                yield None

    def interrupt(self) -> None:
        self._stopped.set()
        cancel(self._connection)

    @contextmanager
    def _connected(self) -> Iterator[psycopg.Connection[Any]]:
        with _connected(self._conninfo, self._settings, self._table) as self._connection:
            yield self._connection

    def _look(self, reader: TableReader, current: TablePosition) -> Iterator[FoundRows]:
        """Finish the look that has begun, then make another one."""
        begun = time.monotonic()
        looks_at_all = begun >= self._full_at
        if current.to is not None:
            for batch in reader.rest(current, self._parts):
                current = batch.position
                yield batch
        for is_full in (False, True) if looks_at_all and current.fast is not None else (False,):
            for batch in reader.rest(reader.begun(current, is_full=is_full), self._parts):
                current = batch.position
                yield batch
        if looks_at_all:
            now = time.monotonic()
            self._full_at = now + max(_FULL_S, (now - begun) * _FULL_RATIO)

    def _held_back(self, reader: TableReader, current: TablePosition) -> Iterator[SourceNotice]:
        """Report a transaction that holds rows back, once."""
        now = time.monotonic()
        if now < self._held_at:
            return
        self._held_at = now + _HELD_S
        holder, former = reader.holder(current), self._holder
        self._holder = None if holder is None else holder.transaction
        if holder is None or holder.transaction == self._held_by:
            return
        # Without an age it may have just begun, unless the look before had it too.
        if holder.transaction == former if holder.age_s is None else holder.age_s >= _HELD_S:
            self._held_by = holder.transaction
            text = f"{self._table}: rows are committed that are read only once an older transaction has ended: {holder}"
            yield SourceNotice("held back", self._table, f"{text}; {holder.hint}")

    def _batch(self, layout: TableLayout, batch: FoundRows) -> IngestBatch:
        parts = tuple(
            TablePart(
                self._conninfo,
                self._settings,
                self._origin,
                self._table,
                self._column,
                layout,
                self._topic,
                table_range,
            )
            for table_range in batch.ranges
        )
        return IngestBatch([_record(self._topic, row) for row in batch.rows], asdict(batch.position), parts)


@dataclass(frozen=True, slots=True)
class TablePart:
    """A range of a look, for a task to read. ``conninfo``: a RedactedDict, whose repr hides secrets. ``settings``: of
    the session."""

    conninfo: Mapping[str, str]
    settings: Mapping[str, str]
    origin: str
    table: str
    column: str
    layout: TableLayout
    topic: str
    table_range: TableRange

    def records(self) -> Iterator[IngestRecord]:
        """Raises SourceFailed, SourceRefused."""
        with _connected(self.conninfo, self.settings, self.table) as connection:
            reader = TableReader(connection, self.table, self.column, _BATCH_ROWS)
            if _origin_of(connection, self.table) != self.origin or reader.layout() != self.layout:
                raise SourceFailed(f"{self.table}: a task has found another table than the ingester")
            for row in reader.rows_of(self.table_range):
                yield _record(self.topic, row)


def _record(topic: str, row: TableRow) -> IngestRecord:
    return IngestRecord(topic, row.value.encode(), row.key.encode())


def _origin_of(connection: psycopg.Connection[Any], table: str) -> str:
    row = connection.execute(IDENTITY).fetchone()
    assert row is not None
    return f"{table} in {row[0]}"


@contextmanager
def _connected(
    conninfo: Mapping[str, str], settings: Mapping[str, str], table: str
) -> Iterator[psycopg.Connection[Any]]:
    """Raises SourceFailed, SourceRefused, also for the errors of its body."""
    # A pooler that would let other sessions have these settings, and this one theirs, refuses such options.
    options = f"{conninfo.get('options', os.environ.get('PGOPTIONS', ''))} {_OPTION}".strip()
    try:
        with open_connection({**conninfo, "options": options}) as connection:
            set_for_session(connection, settings)
            yield connection
    except psycopg.Error as error:
        raise meaning(error, table, _REFUSED) from cause(error)
