"""The queries of a table as a source (``tables`` has the theory), and what they find.

Each query runs in a transaction of its own, so that no horizon is held back.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final, LiteralString, NamedTuple

import psycopg
from psycopg import sql

from einmal.ingest.postgresql.lsn import LOG_END, end_of_records, parse_lsn
from einmal.ingest.source import Position, SourceFailed, SourceNotice, SourceRefused
from einmal.ingest.table_holder import OldestTransaction, transaction_of
from einmal.ingest.table_sql import OrderColumn, literally, name_of, value_of, xmin_between, xmin_from

_BATCH_BYTES: Final = 8 * 1024 * 1024
_ITERSIZE: Final = 500
_HALF: Final = 2**31
_FLUSHED_S: Final = 60.0
"""An idle server brings to the disk within 15 s what no commit waits for."""
_FLUSH_POLL_S: Final = 0.02
_FOLLOWING_SQL: Final = "(SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint)"
"""``following`` of the snapshot of the query in which this stands."""
_BOUNDS_SQL: Final = "SELECT pg_snapshot_xmin(s)::text::bigint, pg_snapshot_xmax(s)::text::bigint"


@dataclass(frozen=True, slots=True)
class TableLayout:
    """``filenode``: of the table's present files. ``order``: the column, and the key."""

    oid: int
    filenode: int
    timeline: int
    order: tuple[OrderColumn, ...]
    key: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TablePosition:
    """See the module. ``highest``: of the column, in what was read. ``to``: the horizon of a look that has begun,
    ``after``: the last row that it has read, by the columns of ``order``, ``is_full``: whether it reads what is not
    above ``low``. Values of columns are PostgreSQL's text."""

    oid: int
    filenode: int
    timeline: int
    fast: int | None = None
    full: int | None = None
    low: str | None = None
    highest: str | None = None
    ahead: str | None = None
    to: int | None = None
    after: list[str] | None = None
    is_full: bool = False
    order: list[str] | None = None

    @staticmethod
    def of(position: Position) -> TablePosition:
        """Raises SourceRefused."""
        try:
            return TablePosition(**position)
        except TypeError as error:
            raise SourceRefused(
                f"the recorded position is not one in a table: {error!r:.200}", "ingest the table under another name"
            ) from error

    def begun(self, to: int, *, is_full: bool) -> TablePosition:
        return replace(self, to=to, after=None, is_full=is_full, order=None)

    def done(self, ahead: str | None) -> TablePosition:
        """At the end of a look. ``ahead``: as it is now, after the whole table was read."""
        position = replace(self, to=None, after=None, is_full=False, order=None)
        if self.fast is not None and not self.is_full:
            return replace(position, fast=self.to)
        # All rows below one horizon are read: ``low`` may be anywhere.
        return replace(position, fast=self.to, full=self.to, low=self.highest, ahead=ahead)


class Horizon(NamedTuple):
    """Bounds of a snapshot: every transaction below ``oldest`` has ended, none from ``following`` on has begun."""

    oldest: int
    following: int


class TableRow(NamedTuple):
    value: str
    key: str
    order: list[str]


class TableRange(NamedTuple):
    """Rows of a look: behind ``position.after``, up to ``until`` (both in the order of the look)."""

    position: TablePosition
    until: list[str]


class FoundRows(NamedTuple):
    """``rows``, or the ``ranges`` that have them, in order; ``position`` behind them."""

    rows: list[TableRow]
    position: TablePosition
    ranges: tuple[TableRange, ...] = ()


class TableReader:
    """Methods raise psycopg.Error, SourceFailed and SourceRefused."""

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        table: str,
        column: str,
        batch_rows: int,
        stopped: threading.Event | None = None,
    ) -> None:
        """``stopped``: ends what waits without a query."""
        self._stopped = stopped or threading.Event()
        self._connection = connection
        self._table = table
        self._column = column
        self._batch_rows = batch_rows
        self._layout = self.layout()

    # --- what the table is ------------------------------------------------------------------------------------------

    def layout(self) -> TableLayout:
        """Raises SourceRefused."""
        row = self._connection.execute(
            "SELECT c.oid::bigint, pg_relation_filenode(c.oid)::bigint, c.relkind::text, k.timeline_id"
            " FROM pg_class c, pg_control_checkpoint() k WHERE c.oid = to_regclass(%s)",
            (self._table,),
        ).fetchone()
        if row is None:
            raise SourceRefused(f"there is no table {self._table}", "name it with its schema; quote it as in SQL")
        oid, filenode, kind, timeline = row
        if kind != "r":
            raise SourceRefused(f"{self._table} is not an ordinary table", "ingest the partitions, or the tables below")
        columns = self._connection.execute(
            # The first columns of the index are its key: others are included.
            "SELECT a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,"
            " array_position((i.indkey::int2[])[0:i.indnkeyatts - 1], a.attnum)"
            " FROM pg_attribute a LEFT JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisprimary"
            " WHERE a.attrelid = %s::oid AND a.attnum > 0 AND NOT a.attisdropped",
            (oid,),
        ).fetchall()
        return TableLayout(oid, filenode, timeline, *self._ordered(columns))

    def _ordered(self, columns: list[Any]) -> tuple[tuple[OrderColumn, ...], tuple[str, ...]]:
        known = {name: (OrderColumn(name, kind), is_not_null) for name, kind, is_not_null, _ in columns}
        key_columns = sorted((position, name) for name, _, _, position in columns if position is not None)
        key = tuple(name for _, name in key_columns)
        if self._column not in known:
            raise SourceRefused(f"{self._table} has no column {self._column!r}", f"columns: {', '.join(known)}")
        if not key:
            raise SourceRefused(
                f"{self._table} has no primary key", "add one: rows with the same value are distinguished by it"
            )
        column, is_not_null = known[self._column]
        if not is_not_null:
            raise SourceRefused(
                f"{self._table}: {self._column} may be NULL, and such rows would not be read",
                f"ALTER TABLE {self._table} ALTER COLUMN {self._column} SET NOT NULL",
            )
        return (column, *(known[name][0] for name in key if name != self._column)), key

    def checked(self, position: TablePosition) -> tuple[TablePosition, list[SourceNotice]]:
        """The position for the table as it is now. Raises SourceRefused."""
        layout = self._layout = self.layout()
        notices = []
        if position.oid != layout.oid:
            raise SourceRefused(
                f"{self._table} was deleted and created again since (oid {position.oid}, now {layout.oid})",
                "ingest the new table under another name",
            )
        if position.timeline != layout.timeline:
            notices.append(
                SourceNotice(
                    "failover",
                    self._table,
                    f"{self._table}: the server is on timeline {layout.timeline} now, after {position.timeline}: if "
                    "the failover has lost transactions, rows of the first ones after it may be missing",
                )
            )
        if position.filenode != layout.filenode:
            self._check_rewritten(position)
        position = self._checked_order(position)
        return replace(position, filenode=layout.filenode, timeline=layout.timeline), notices

    def _checked_order(self, position: TablePosition) -> TablePosition:
        """Compare the order of a look that has begun with that of now. Raises SourceRefused."""
        if position.after is None:
            return position
        now = [column.name for column in self._layout.order]
        if position.order is None:
            # Of a release in which included columns were part of the key, behind it.
            position = replace(position, order=now, after=position.after[: len(now)])
        if position.order != now or len(position.after or ()) != len(now):
            raise SourceRefused(
                f"{self._table}: the primary key has changed while its rows were read, which are ordered by "
                f"{', '.join(now)} now",
                "change the key back, and change it again once all rows are read; or ingest the table under another "
                "name, from its beginning",
            )
        return position

    def _check_rewritten(self, position: TablePosition) -> None:
        begin = position.to if position.fast is None else position.fast
        if begin is None or position.highest is None:
            return
        horizon = self._horizon()
        window = xmin_between(begin, horizon.following)
        query = self._select("count(*)", [window, self._compare("<=")], [position.highest])
        row = self._connection.execute(*query).fetchone()
        if row is not None and row[0]:
            raise SourceRefused(
                f"the files of {self._table} are new, and {row[0]} rows up to {position.highest} have new transaction "
                "ids: ALTER TABLE has rewritten all rows, or TRUNCATE has made room for other ones, and late rows "
                "cannot be distinguished from those that were read",
                "ingest the table under another name, from its beginning",
            )

    # --- looks ------------------------------------------------------------------------------------------------------

    def begun(self, position: TablePosition, *, is_full: bool) -> TablePosition:
        if is_full:
            # Up to the horizon that the look above ``low`` has just reached.
            assert position.fast is not None
            return position.begun(position.fast, is_full=True)
        horizon = self._lasting_horizon()
        if position.fast is None:
            position = replace(position, ahead=self._ahead(horizon))
        elif horizon.following < position.fast:
            raise SourceRefused(
                f"the server's next transaction is {horizon.following}, but rows up to {position.fast} were read: it "
                "was restored from a backup, or has lost transactions",
                "ingest the table under another name",
            )
        oldest = min(
            transaction for transaction in (position.fast, position.full, horizon.oldest) if transaction is not None
        )
        if horizon.following - oldest >= _HALF:
            raise SourceRefused(
                f"{self._table} was not read for {horizon.following - oldest} transactions: new rows "
                "cannot be distinguished from old ones any more",
                "ingest the table under another name, and let it run at least every 2,000,000,000 transactions",
            )
        return position.begun(horizon.oldest, is_full=False)

    def rest(self, position: TablePosition, parts: int = 0) -> Iterator[FoundRows]:
        """Yield what remains of a look, in batches; the last one, which may be empty, ends it. ``parts``: return ranges
        instead of rows, up to so many in a batch."""
        is_all = position.is_full or position.fast is None
        order = [column.name for column in self._layout.order]
        while True:
            rows: list[TableRow] = []
            ranges: tuple[TableRange, ...] = ()
            is_last = True
            # Without ``low``, all rows are above it.
            if not position.is_full or position.low is not None:
                if parts:
                    ranges, is_last = self._ranges(position, parts)
                else:
                    rows, is_last = self._batch(position)
            if rows or ranges:
                last = rows[-1].order if rows else ranges[-1].until
                position = replace(position, order=order, after=last, highest=self._greatest(position.highest, last[0]))
            if is_last:
                is_first = position.fast is None
                ahead = self._ahead(self._horizon()) if is_all and not is_first else position.ahead
                yield FoundRows(rows, position.done(ahead), ranges)
                return
            yield FoundRows(rows, position, ranges)

    def holder(self, position: TablePosition) -> OldestTransaction | None:
        """The oldest transaction, if rows that are committed wait for its end behind this position."""
        horizon = self._horizon()
        if horizon.oldest == horizon.following:
            return None
        conditions, parameters = [xmin_between(horizon.oldest, horizon.following)], []
        for bound in (position.low, position.ahead):
            if bound is not None:
                conditions.append(self._compare(">"))
                parameters.append(bound)
        query = self._select("true", conditions, parameters, sql.SQL(" LIMIT 1"))
        if self._connection.execute(*query).fetchone() is None:
            return None
        return transaction_of(self._connection, horizon.oldest)

    def _batch(self, position: TablePosition) -> tuple[list[TableRow], bool]:
        """The next rows, and whether there are no more."""
        query = self._select(
            self._columns(),
            *self._conditions(position),
            sql.SQL(" ORDER BY {} LIMIT {}").format(self._order(), self._batch_rows),
        )
        return self._fetch(*query)

    def _ranges(self, position: TablePosition, parts: int) -> tuple[tuple[TableRange, ...], bool]:
        """The next ranges, of ``batch_rows`` rows each, and whether there are no more.

        Their rows are read later, and by others: the rows of a look only become fewer, as they change or are deleted.
        """
        names = [sql.Identifier(f"o{number}") for number in range(len(self._layout.order))]
        selected = sql.SQL(", ").join(
            sql.SQL("{} AS {}").format(name_of(column), name)
            for column, name in zip(self._layout.order, names, strict=True)
        )
        most = self._batch_rows * parts
        inner, parameters = self._select(
            selected, *self._conditions(position), sql.SQL(" ORDER BY {} LIMIT {}").format(self._order(), most)
        )
        query = sql.SQL(
            "SELECT n, {texts} FROM (SELECT *, row_number() OVER w AS n, lead(true) OVER w IS NULL AS is_last"
            " FROM ({inner}) s WINDOW w AS (ORDER BY {names})) s WHERE mod(n, {rows}) = 0 OR is_last ORDER BY n"
        ).format(
            texts=sql.SQL(", ").join(sql.SQL("{}::text").format(name) for name in names),
            inner=inner,
            names=sql.SQL(", ").join(names),
            rows=sql.Literal(self._batch_rows),
        )
        ends = self._connection.execute(query, parameters).fetchall()
        ranges = []
        for _, *until in ends:
            ranges.append(TableRange(position, until))
            position = replace(position, after=until)
        return tuple(ranges), not ends or ends[-1][0] < most

    def rows_of(self, table_range: TableRange) -> Iterator[TableRow]:
        """The rows of a range, in order. Raises SourceFailed if this server does not have all of them yet."""
        assert table_range.position.to is not None
        if self._horizon().oldest < table_range.position.to:
            raise SourceFailed(f"{self._table}: the server of a task is behind that of the ingester")
        conditions, parameters = self._conditions(table_range.position)
        conditions += [self._compare("<="), self._beyond("<=")]
        query, parameters = self._select(
            self._columns(),
            conditions,
            [*parameters, table_range.until[0], *table_range.until],
            sql.SQL(" ORDER BY {}").format(self._order()),
        )
        with self._connection.transaction(), self._connection.cursor(name="einmal") as cursor:
            cursor.itersize = _ITERSIZE
            cursor.execute(query, parameters)
            for value, key, *order in cursor:
                yield TableRow(value, key, order)

    def _order(self) -> sql.Composable:
        return sql.SQL(", ").join(map(name_of, self._layout.order))

    def _conditions(self, position: TablePosition) -> tuple[list[sql.Composable], list[Any]]:
        """Return the conditions on the rows of a look behind its position, with the parameters."""
        conditions: list[sql.Composable] = []
        parameters: list[Any] = []

        def add(condition: sql.Composable, *values: Any) -> None:
            conditions.append(condition)
            parameters.extend(values)

        assert position.to is not None
        begin = position.full if position.is_full else position.fast
        if begin is None:
            # The query's own snapshot: what begins and ends before it is none of this look.
            window = xmin_from(
                sql.Literal(position.to),
                sql.SQL("({} - {})").format(sql.SQL(_FOLLOWING_SQL), sql.Literal(position.to)),
            )
            if position.ahead is None:
                add(sql.SQL("NOT {}").format(window))
            else:
                add(sql.SQL("(NOT {} OR {})").format(window, self._compare("<=")), position.ahead)
        else:
            add(xmin_between(begin, position.to))
            if position.ahead is not None:
                add(self._compare(">"), position.ahead)
        if position.low is not None:
            add(self._compare("<=" if position.is_full else ">"), position.low)
        if position.after is not None:
            add(self._compare(">="), position.after[0])
            add(self._beyond(">"), *position.after)
        return conditions, parameters

    def _fetch(self, query: sql.Composed, parameters: list[Any]) -> tuple[list[TableRow], bool]:
        rows: list[TableRow] = []
        size = 0
        with self._connection.transaction(), self._connection.cursor(name="einmal") as cursor:
            cursor.itersize = _ITERSIZE
            cursor.execute(query, parameters)
            for value, key, *order in cursor:
                rows.append(TableRow(value, key, order))
                size += len(value)
                if size > _BATCH_BYTES:
                    return rows, False
        return rows, len(rows) < self._batch_rows

    def _columns(self) -> sql.Composable:
        key = sql.SQL(", ").join(
            argument
            for name in self._layout.key
            for argument in (literally(sql.Literal(name)), name_of(OrderColumn(name, "")))
        )
        order = sql.SQL(", ").join(sql.SQL("{}::text").format(name_of(column)) for column in self._layout.order)
        return sql.SQL("row_to_json(t.*)::text, json_build_object({})::text, {}").format(key, order)

    def _select(
        self,
        what: sql.Composable | str,
        conditions: list[sql.Composable],
        parameters: list[Any],
        rest: sql.Composable | None = None,
    ) -> tuple[sql.Composed, list[Any]]:
        query = sql.SQL("SELECT {} FROM ONLY {} t WHERE {}{}").format(
            sql.SQL(what) if isinstance(what, str) else what,
            literally(sql.SQL(self._qualified())),
            sql.SQL(" AND ").join(conditions),
            rest or sql.SQL(""),
        )
        return query, parameters

    def _qualified(self) -> str:
        """As PostgreSQL spells it, quoted where it must be."""
        row = self._connection.execute("SELECT %s::bigint::oid::regclass::text", (self._layout.oid,)).fetchone()
        assert row is not None
        return str(row[0])

    def _compare(self, operator: str) -> sql.Composable:
        column = self._layout.order[0]
        return sql.SQL("{} {} {}").format(name_of(column), sql.SQL(operator), value_of(column))

    def _beyond(self, operator: str) -> sql.Composable:
        """Compare column and key with those of a row."""
        values = sql.SQL(", ").join(map(value_of, self._layout.order))
        return sql.SQL("({}) {} ({})").format(self._order(), sql.SQL(operator), values)

    def _greatest(self, one: str | None, other: str) -> str:
        if one is None:
            return other
        value = value_of(self._layout.order[0])
        row = self._connection.execute(
            sql.SQL("SELECT GREATEST({}, {})::text").format(value, value), (one, other)
        ).fetchone()
        assert row is not None
        return str(row[0])

    def _horizon(self) -> Horizon:
        return Horizon(*self._row(f"{_BOUNDS_SQL} FROM pg_current_snapshot() s"))

    def _lasting_horizon(self) -> Horizon:
        """A horizon that a crash of the server does not undo. Raises SourceFailed.

        Transactions that were rolled back, or committed without waiting for the disk, end before the disk has their
        end. If the server crashes then, it gives their ids out again, and the new rows would be below the horizon. A
        standby only replays what is on its disk.
        """
        if self._row("SELECT pg_is_in_recovery()")[0]:
            return self._horizon()
        # The snapshot is taken before the functions are called.
        *bounds, end, flushed, segment_bytes, page_bytes = self._row(
            f"{_BOUNDS_SQL}, {LOG_END} FROM pg_current_snapshot() s"
        )
        needed = end_of_records(parse_lsn(end), segment_bytes, page_bytes)
        deadline = time.monotonic() + _FLUSHED_S
        while parse_lsn(flushed) < needed:
            if time.monotonic() > deadline or self._stopped.wait(_FLUSH_POLL_S):
                raise SourceFailed(
                    f"{self._table}: the server's log is on disk only up to {flushed}, not up to {end}: after a crash "
                    "it would give out again the ids of transactions that have ended",
                    "rows are read once it is on disk, at the latest after the next commit or checkpoint",
                )
            (flushed,) = self._row("SELECT pg_current_wal_flush_lsn()::text")
        return Horizon(*bounds)

    def _row(self, query: LiteralString) -> tuple[Any, ...]:
        row: tuple[Any, ...] | None = self._connection.execute(query).fetchone()
        assert row is not None
        return row

    def _ahead(self, horizon: Horizon) -> str | None:
        """See the module."""
        if horizon.following < _HALF:
            return None
        # It is that of the query's own snapshot, or the rows of transactions that have just ended would count as old.
        window = xmin_from(sql.SQL(_FOLLOWING_SQL), sql.Literal(_HALF))
        column = self._layout.order[0]
        what = sql.SQL("max({})::text").format(name_of(column))
        row = self._connection.execute(*self._select(what, [window], [])).fetchone()
        return None if row is None else row[0]
