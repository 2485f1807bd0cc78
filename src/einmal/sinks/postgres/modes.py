"""From the staging table into the table, in the driver's transaction: append, upsert and delete, SCD type 2.

Every row of the table changes at most once in a batch, by one INSERT, UPDATE or DELETE, so its triggers fire once.
MERGE fires the triggers of what it does; INSERT ... ON CONFLICT would fire those of an INSERT before each UPDATE, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from psycopg import sql

from einmal.postgresql.names import quoted
from einmal.sinks.commit_point import SinkFailed
from einmal.sinks.postgres.options import Mode, PostgresOptions
from einmal.sinks.postgres.session import Session
from einmal.sinks.postgres.staging import Staged, StagedRows, StagingColumn, compare_counts
from einmal.sinks.postgres.table import TableShape

_VALID_FROM: Final = "valid_from"
_DELETES: Final = "deletes"
VERSIONS: Final = sql.Identifier("pg_temp", "einmal_versions")
"""A temporary table, gone with the transaction. A search_path may have other schemas before that of this."""
WRITING: Final = "writing the rows"


def apply(session: Session, options: PostgresOptions, shape: TableShape, staged: Staged) -> None:
    """Put the staged rows into the table, in the open transaction, and compare their number with what the tasks have
    reported. Raises SinkFailed."""
    rows = staged.rows
    if options.mode is Mode.APPEND:
        inserted = session.execute(WRITING, _append(shape, rows)).rowcount
        # A scan of all staged rows is saved. The INSERT's own count is lower where a trigger leaves rows out.
        if inserted != sum(staged.counts.values()):
            compare_counts(session, staged)
        return
    compare_counts(session, staged)
    columns = KeyColumns(options, rows)
    _refuse_null_keys(session, rows, columns)
    refuse_ambiguity(session, rows, columns)
    if options.mode is Mode.SCD2:
        _refuse_late(session, shape, rows, columns)
    for statement in statements(options, shape, rows):
        session.execute(WRITING, statement, races=races(options, shape))


def races(options: PostgresOptions, shape: TableShape) -> frozenset[str]:
    """Unique indexes of the key: their violation means that another session has inserted it since it was looked for."""
    key = {column.name for name in options.key if (column := shape.find(name)) is not None}
    return frozenset(index for index, columns in shape.indexes.items() if key and columns == key)


def statements(options: PostgresOptions, shape: TableShape, rows: StagedRows) -> list[sql.Composed]:
    """Return the statements that put checked rows into the table."""
    columns = KeyColumns(options, rows)
    if options.mode is Mode.APPEND:
        return [_append(shape, rows)]
    if options.mode is Mode.UPSERT:
        return [_upsert(shape, rows, columns)]
    every = replace(rows, counted=sql.SQL("true"))
    # The next rows of the same transaction have a table of their own.
    drop = sql.SQL("DROP TABLE {}").format(VERSIONS)
    return [versions(options, shape, rows, sql.SQL("0")), *changes(options, shape, every), drop]


class KeyColumns:
    """The staging columns that the options name. ``order``: of the rows of a key."""

    def __init__(self, options: PostgresOptions, rows: StagedRows) -> None:
        self.key = [_of(rows, name) for name in options.key]
        self.order = [_of(rows, name) for name in options.order]
        self.since: StagingColumn | None = None
        if options.mode is Mode.SCD2:
            self.since = _of(rows, _VALID_FROM)
            self.order = [self.since, *(column for column in self.order if column.column != _VALID_FROM)]

    @property
    def has_no_key(self) -> sql.Composed:
        """The condition for rows that no key can find."""
        return sql.SQL(" OR ").join(sql.SQL("{} IS NULL").format(sql.Identifier(column.name)) for column in self.key)

    def last(self, rows: StagedRows) -> sql.Composed:
        """The last row of each key, as a query."""
        if not self.order:
            return sql.SQL("SELECT * FROM {} WHERE {}").format(rows.id, rows.counted)
        return sql.SQL("SELECT DISTINCT ON ({0}) * FROM {1} WHERE {2} ORDER BY {0}, {3}").format(
            names_of(self.key), rows.id, rows.counted, _descending(self.order)
        )

    def late(self, shape: TableShape) -> list[tuple[sql.Composed, str]]:
        """Conditions for rows ``s`` that would rewrite the history of their key, and what is wrong with these.

        A key whose last version has ended, because it was deleted, has a history without a current version. Semi-joins:
        an index on key and valid_to answers the second for the keys of the batch alone.
        """
        assert self.since is not None
        names = {"table": shape.id, "same": _same(self.key, "t", "s"), "since": sql.Identifier(self.since.name)}
        return [
            (sql.SQL("EXISTS (SELECT FROM {table} AS t WHERE {same} AND " + condition + ")").format(**names), what)
            for condition, what in (
                ("t.is_current AND s.{since} <= t.valid_from", "not later than the current version of their key"),
                (
                    "NOT t.is_current AND s.{since} < t.valid_to",
                    "earlier than the end of the last version of their key",
                ),
            )
        ]

    @property
    def has_no_time(self) -> sql.Composed:
        assert self.since is not None
        return sql.SQL("{} IS NULL").format(sql.Identifier(self.since.name))


def _append(shape: TableShape, rows: StagedRows) -> sql.Composed:
    stored = _stored(rows)
    return sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {} WHERE {}").format(
        shape.id, _columns(stored), names_of(stored), rows.id, rows.counted
    )


# --- upsert -----------------------------------------------------------------------------------------------------


def _upsert(shape: TableShape, rows: StagedRows, columns: KeyColumns) -> sql.Composed:
    stored = _stored(rows)
    others = [column for column in stored if column not in columns.key]
    deletes = any(column.name == _DELETES for column in rows.columns)
    matched = [sql.SQL("WHEN MATCHED AND s.{} THEN DELETE").format(sql.Identifier(_DELETES))] if deletes else []
    if others:
        matched.append(
            sql.SQL("WHEN MATCHED THEN UPDATE SET {}").format(
                _listed(sql.SQL("{} = s.{}").format(_column(column), sql.Identifier(column.name)) for column in others)
            )
        )
    missing = sql.SQL("WHEN NOT MATCHED {} THEN INSERT ({}) VALUES ({})").format(
        sql.SQL("AND s.{} IS NOT TRUE").format(sql.Identifier(_DELETES)) if deletes else sql.SQL(""),
        _columns(stored),
        _listed(sql.SQL("s.{}").format(sql.Identifier(column.name)) for column in stored),
    )
    return sql.SQL("MERGE INTO {} AS t USING ({}) AS s ON {} {} {}").format(
        shape.id, columns.last(rows), _same(columns.key, "t", "s"), sql.SQL(" ").join(matched), missing
    )


# --- SCD type 2 -------------------------------------------------------------------------------------------------


def versions(options: PostgresOptions, shape: TableShape, rows: StagedRows, number: sql.Composable) -> sql.Composed:
    """Each change of a key ends its current version and begins the next; a row that changes nothing is no version.
    What makes a table of them. ``number``: of the rows of a key, in which all have the same."""
    stored, which = _stored(rows), KeyColumns(options, rows)
    assert which.since is not None
    attributes = [column for column in stored if column not in which.key and column is not which.since]
    deletes = any(column.name == _DELETES for column in rows.columns)
    # Number 0 is the current version in the table, the others are staged. A version that equals the one before it
    # changes nothing, and so does the end of what has ended.
    return sql.SQL(
        "CREATE TEMPORARY TABLE {versions} ON COMMIT DROP AS"
        " WITH staged AS (SELECT {names}, {gone} AS gone, row_number() OVER (PARTITION BY {key} ORDER BY {order}) AS n,"
        " {number} AS number FROM {staged} WHERE {counted}),"
        " all_versions AS (SELECT {names}, gone, n, number FROM staged UNION ALL"
        " SELECT {columns}, false, 0, NULL FROM {table} AS t WHERE t.is_current AND EXISTS"
        " (SELECT FROM staged AS s WHERE {same})),"
        " compared AS (SELECT *, max(number) OVER (PARTITION BY {key}) AS all_number, lag(gone, 1, true) OVER w AS"
        " was_gone, lag({attributes}) OVER w IS DISTINCT FROM {attributes} AS is_new FROM all_versions"
        " WINDOW w AS (PARTITION BY {key} ORDER BY n)),"
        " changed AS (SELECT * FROM compared WHERE n = 0 OR gone <> was_gone OR (NOT gone AND is_new))"
        " SELECT {names}, gone, n, lead({since}) OVER (PARTITION BY {key} ORDER BY n) AS until, all_number AS number"
        " FROM changed"
    ).format(
        versions=VERSIONS,
        table=shape.id,
        staged=rows.id,
        counted=rows.counted,
        number=number,
        names=names_of(stored),
        columns=_listed(sql.SQL("t.{}").format(_column(column)) for column in stored),
        key=names_of(which.key),
        order=names_of(which.order),
        since=sql.Identifier(which.since.name),
        gone=sql.SQL("coalesce({}, false)").format(sql.Identifier(_DELETES)) if deletes else sql.SQL("false"),
        same=_same(which.key, "t", "s"),
        attributes=sql.SQL("ROW({})").format(_listed(map(_exact, attributes))),
    )


def changes(options: PostgresOptions, shape: TableShape, rows: StagedRows) -> list[sql.Composed]:
    """Return the statements that put the versions into the table: those that the condition of ``rows`` selects, by
    their number."""
    stored = _stored(rows)
    names = {
        "table": shape.id,
        "versions": sql.SQL("(SELECT * FROM {} WHERE {})").format(VERSIONS, rows.counted),
        "names": names_of(stored),
        "columns": _columns(stored),
        "same": _same(KeyColumns(options, rows).key, "t", "s"),
    }
    ended = sql.SQL(
        "UPDATE {table} AS t SET valid_to = s.until, is_current = false FROM {versions} AS s"
        " WHERE t.is_current AND s.n = 0 AND s.until IS NOT NULL AND {same}"
    ).format(**names)
    begun = sql.SQL(
        "INSERT INTO {table} ({columns}, valid_to, is_current)"
        " SELECT {names}, until, until IS NULL FROM {versions} AS s WHERE n > 0 AND NOT gone"
    ).format(**names)
    return [ended, begun]


def _refuse_late(session: Session, shape: TableShape, rows: StagedRows, columns: KeyColumns) -> None:
    for condition, what in columns.late(shape):
        late = counted(session, rows, condition)
        if late:
            raise SinkFailed(
                f"{late:,} rows are {what} ({_titles(columns.key)}) in {shape.name}: history is not rewritten. "
                f"Hint: filter them out, or correct {_VALID_FROM}",
                will_again=True,
            )
    without = counted(session, rows, columns.has_no_time)
    if without:
        raise SinkFailed(f"{without:,} rows have no {_VALID_FROM}. Hint: filter them out", will_again=True)


# --- what both refuse -------------------------------------------------------------------------------------------


def counted(session: Session, rows: StagedRows, condition: sql.Composable) -> int:
    """How many of the rows, here ``s``, have a condition."""
    statement = sql.SQL("SELECT count(*) FROM {} AS s WHERE {} AND ({})").format(rows.id, rows.counted, condition)
    ((count,),) = session.execute(WRITING, statement).fetchall()
    return int(count)


def _refuse_null_keys(session: Session, rows: StagedRows, columns: KeyColumns) -> None:
    nulls = counted(session, rows, columns.has_no_key)
    if nulls:
        raise SinkFailed(
            f"{nulls:,} rows have NULL in their key ({_titles(columns.key)}). Hint: filter them out", will_again=True
        )


def refuse_ambiguity(session: Session, rows: StagedRows, columns: KeyColumns) -> None:
    """Several rows of a key, and nothing that defines which one is the last: the result would depend on the plan."""
    statement = sql.SQL(
        "SELECT count(*) FROM (SELECT FROM {} WHERE {} GROUP BY {} HAVING count(*) > 1) AS several"
    ).format(rows.id, rows.counted, names_of([*columns.key, *columns.order]))
    ((several,),) = session.execute(WRITING, statement).fetchall()
    if several:
        equal = f", with equal {_titles(columns.order)}" if columns.order else ""
        raise SinkFailed(
            f"{several:,} keys ({_titles(columns.key)}) have several rows in the batch{equal}: it is not defined which "
            'one is the last. Hint: option "order" names the columns that decide, for example partition,offset',
            will_again=True,
        )


# --- statements -------------------------------------------------------------------------------------------------


def _of(rows: StagedRows, name: str) -> StagingColumn:
    return next(column for column in rows.columns if column.source.lower() == name.lower())


def _stored(rows: StagedRows) -> list[StagingColumn]:
    return [column for column in rows.columns if column.column is not None]


def _column(column: StagingColumn) -> sql.Identifier:
    assert column.column is not None
    return sql.Identifier(column.column)


def _columns(columns: Iterable[StagingColumn]) -> sql.Composed:
    """In the table."""
    return _listed(_column(column) for column in columns)


def names_of(columns: Iterable[StagingColumn]) -> sql.Composed:
    """In the staging table."""
    return _listed(sql.Identifier(column.name) for column in columns)


def _exact(column: StagingColumn) -> sql.Composable:
    """Return an expression that differs whenever a value does: json and xml have no equality, and a collation may
    ignore case."""
    name = sql.Identifier(column.name)
    return name if column.is_exact else sql.SQL('CAST({} AS text) COLLATE "C"').format(name)


def _descending(columns: Iterable[StagingColumn]) -> sql.Composed:
    # NULL is before every value, so it is last from behind.
    return _listed(sql.SQL("{} DESC NULLS LAST").format(sql.Identifier(column.name)) for column in columns)


def _same(key: Iterable[StagingColumn], table: str, staged: str) -> sql.Composed:
    return sql.SQL(" AND ").join(
        sql.SQL("{}.{} = {}.{}").format(
            sql.Identifier(table), _column(column), sql.Identifier(staged), sql.Identifier(column.name)
        )
        for column in key
    )


def _listed(parts: Iterable[sql.Composable]) -> sql.Composed:
    return sql.SQL(", ").join(parts)


def _titles(columns: Iterable[StagingColumn]) -> str:
    return ", ".join(quoted(column.source) for column in columns)
