"""From the staging table into the table, in the driver's transaction: append, upsert and delete, SCD type 2.

Every row of the table changes at most once in a batch, by one INSERT, UPDATE or DELETE, so its triggers fire once.
MERGE fires the triggers of what it does; INSERT ... ON CONFLICT would fire those of an INSERT before each UPDATE, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from psycopg import sql

from einmal.spark.targets.postgres.names import quoted
from einmal.spark.targets.postgres.options import Mode, PostgresOptions
from einmal.spark.targets.postgres.session import Session
from einmal.spark.targets.postgres.staging import Staged, StagingColumn
from einmal.spark.targets.postgres.table import TableShape
from einmal.spark.targets.target import TargetFailed

_VALID_FROM: Final = "valid_from"
_DELETES: Final = "deletes"
_VERSIONS: Final = "einmal_versions"
"""A temporary table, gone with the transaction."""
_WHAT: Final = "writing the rows"


def apply(session: Session, options: PostgresOptions, shape: TableShape, staged: Staged) -> None:
    """Put the staged rows into the table, in the open transaction. Raises TargetFailed."""
    if options.mode is Mode.APPEND:
        _append(session, shape, staged)
        return
    key = [_of(staged, name) for name in options.key]
    order = [_of(staged, name) for name in options.order]
    _refuse_null_keys(session, staged, key)
    if options.mode is Mode.UPSERT:
        _refuse_ambiguity(session, staged, key, order)
        _upsert(session, shape, staged, key, order)
        return
    order = [_of(staged, _VALID_FROM), *(each for each in order if each.column != _VALID_FROM)]
    _refuse_ambiguity(session, staged, key, order)
    _refuse_late(session, shape, staged, key)
    _version(session, shape, staged, key, order)


def _append(session: Session, shape: TableShape, staged: Staged) -> None:
    stored = _stored(staged)
    statement = sql.SQL("INSERT INTO {} ({}) SELECT {} FROM {} WHERE {}").format(
        shape.id, _columns(stored), _names(stored), staged.id, staged.counted
    )
    session.execute(_WHAT, statement)


# --- upsert -----------------------------------------------------------------------------------------------------


def _upsert(
    session: Session,
    shape: TableShape,
    staged: Staged,
    key: Sequence[StagingColumn],
    order: Sequence[StagingColumn],
) -> None:
    stored = _stored(staged)
    others = [each for each in stored if each not in key]
    deletes = any(each.name == _DELETES for each in staged.columns)
    last = sql.SQL("SELECT * FROM {} WHERE {}").format(staged.id, staged.counted)
    if order:
        last = sql.SQL("SELECT DISTINCT ON ({0}) * FROM {1} WHERE {2} ORDER BY {0}, {3}").format(
            _names(key), staged.id, staged.counted, _descending(order)
        )
    matched = [sql.SQL("WHEN MATCHED AND s.{} THEN DELETE").format(sql.Identifier(_DELETES))] if deletes else []
    if others:
        matched.append(
            sql.SQL("WHEN MATCHED THEN UPDATE SET {}").format(
                _listed(sql.SQL("{} = s.{}").format(_column(each), sql.Identifier(each.name)) for each in others)
            )
        )
    missing = sql.SQL("WHEN NOT MATCHED {} THEN INSERT ({}) VALUES ({})").format(
        sql.SQL("AND s.{} IS NOT TRUE").format(sql.Identifier(_DELETES)) if deletes else sql.SQL(""),
        _columns(stored),
        _listed(sql.SQL("s.{}").format(sql.Identifier(each.name)) for each in stored),
    )
    statement = sql.SQL("MERGE INTO {} AS t USING ({}) AS s ON {} {} {}").format(
        shape.id, last, _same(key, "t", "s"), sql.SQL(" ").join(matched), missing
    )
    session.execute(_WHAT, statement)


# --- SCD type 2 -------------------------------------------------------------------------------------------------


def _version(
    session: Session,
    shape: TableShape,
    staged: Staged,
    key: Sequence[StagingColumn],
    order: Sequence[StagingColumn],
) -> None:
    """Each change of a key ends its current version and begins the next; a row that changes nothing is no version."""
    stored = _stored(staged)
    since = _of(staged, _VALID_FROM)
    attributes = [each for each in stored if each not in key and each is not since]
    deletes = any(each.name == _DELETES for each in staged.columns)
    gone = sql.SQL("coalesce({}, false)").format(sql.Identifier(_DELETES)) if deletes else sql.SQL("false")
    places = {
        "versions": sql.Identifier(_VERSIONS),
        "table": shape.id,
        "staged": staged.id,
        "counted": staged.counted,
        "names": _names(stored),
        "columns": _listed(sql.SQL("t.{}").format(_column(each)) for each in stored),
        "all_columns": _columns(stored),
        "key": _names(key),
        "order": _names(order),
        "since": sql.Identifier(since.name),
        "gone": gone,
        "same": _same(key, "t", "s"),
        "attributes": sql.SQL("ROW({})").format(_names(attributes)),
    }
    # Number 0 is the current version in the table, the others are staged. A version that equals the one before it
    # changes nothing, and so does the end of what has ended.
    versions = sql.SQL(
        "CREATE TEMPORARY TABLE {versions} ON COMMIT DROP AS"
        " WITH staged AS (SELECT {names}, {gone} AS gone, row_number() OVER (PARTITION BY {key} ORDER BY {order}) AS n"
        " FROM {staged} WHERE {counted}),"
        " all_versions AS (SELECT {names}, gone, n FROM staged UNION ALL"
        " SELECT {columns}, false, 0 FROM {table} AS t WHERE t.is_current AND EXISTS"
        " (SELECT FROM staged AS s WHERE {same})),"
        " compared AS (SELECT *, lag(gone, 1, true) OVER w AS was_gone,"
        " lag({attributes}) OVER w IS DISTINCT FROM {attributes} AS is_new FROM all_versions"
        " WINDOW w AS (PARTITION BY {key} ORDER BY n)),"
        " changed AS (SELECT * FROM compared WHERE n = 0 OR gone <> was_gone OR (NOT gone AND is_new))"
        " SELECT {names}, gone, n, lead({since}) OVER (PARTITION BY {key} ORDER BY n) AS until FROM changed"
    ).format(**places)
    session.execute(_WHAT, versions)
    ended = sql.SQL(
        "UPDATE {table} AS t SET valid_to = s.until, is_current = false FROM {versions} AS s"
        " WHERE t.is_current AND s.n = 0 AND s.until IS NOT NULL AND {same}"
    ).format(**places)
    session.execute(_WHAT, ended)
    begun = sql.SQL(
        "INSERT INTO {table} ({all_columns}, valid_to, is_current)"
        " SELECT {names}, until, until IS NULL FROM {versions} WHERE n > 0 AND NOT gone"
    ).format(**places)
    session.execute(_WHAT, begun)


def _refuse_late(session: Session, shape: TableShape, staged: Staged, key: Sequence[StagingColumn]) -> None:
    """A key whose last version has ended, because it was deleted, has a history without a current version. Semi-joins:
    an index on key and valid_to answers the second for the keys of the batch alone."""
    since = sql.Identifier(_of(staged, _VALID_FROM).name)
    for condition, what in (
        ("t.is_current AND s.{since} <= t.valid_from", "not later than the current version of their key"),
        ("NOT t.is_current AND s.{since} < t.valid_to", "earlier than the end of the last version of their key"),
    ):
        statement = sql.SQL(
            "SELECT count(*) FROM {staged} AS s WHERE s.{counted} AND EXISTS"
            f" (SELECT FROM {{table}} AS t WHERE {{same}} AND {condition})"
        ).format(staged=staged.id, counted=staged.counted, table=shape.id, same=_same(key, "t", "s"), since=since)
        ((late,),) = session.execute(_WHAT, statement).fetchall()
        if late:
            raise TargetFailed(
                f"{late:,} rows are {what} ({_titles(key)}) in {shape.name}: history is not rewritten. "
                f"Hint: filter them out, or correct {_VALID_FROM}",
                will_again=True,
            )
    unset = sql.SQL("SELECT count(*) FROM {} WHERE {} IS NULL AND {}").format(staged.id, since, staged.counted)
    ((without,),) = session.execute(_WHAT, unset).fetchall()
    if without:
        raise TargetFailed(f"{without:,} rows have no {_VALID_FROM}. Hint: filter them out", will_again=True)


# --- what both refuse -------------------------------------------------------------------------------------------


def _refuse_null_keys(session: Session, staged: Staged, key: Sequence[StagingColumn]) -> None:
    statement = sql.SQL("SELECT count(*) FROM {} WHERE {} AND ({})").format(
        staged.id,
        staged.counted,
        sql.SQL(" OR ").join(sql.SQL("{} IS NULL").format(sql.Identifier(each.name)) for each in key),
    )
    ((nulls,),) = session.execute(_WHAT, statement).fetchall()
    if nulls:
        raise TargetFailed(
            f"{nulls:,} rows have NULL in their key ({_titles(key)}). Hint: filter them out", will_again=True
        )


def _refuse_ambiguity(
    session: Session, staged: Staged, key: Sequence[StagingColumn], order: Sequence[StagingColumn]
) -> None:
    """Several rows of a key, and nothing that defines which one is the last: the result would depend on the plan."""
    statement = sql.SQL(
        "SELECT count(*) FROM (SELECT FROM {} WHERE {} GROUP BY {} HAVING count(*) > 1) AS several"
    ).format(staged.id, staged.counted, _names([*key, *order]))
    ((several,),) = session.execute(_WHAT, statement).fetchall()
    if several:
        equal = f", with equal {_titles(order)}" if order else ""
        raise TargetFailed(
            f"{several:,} keys ({_titles(key)}) have several rows in the batch{equal}: it is not defined which one is "
            'the last. Hint: option "order" names the columns that decide, for example partition,offset',
            will_again=True,
        )


# --- statements -------------------------------------------------------------------------------------------------


def _of(staged: Staged, name: str) -> StagingColumn:
    return next(each for each in staged.columns if each.source.lower() == name.lower())


def _stored(staged: Staged) -> list[StagingColumn]:
    return [each for each in staged.columns if each.column is not None]


def _column(each: StagingColumn) -> sql.Identifier:
    assert each.column is not None
    return sql.Identifier(each.column)


def _columns(columns: Iterable[StagingColumn]) -> sql.Composed:
    """In the table."""
    return _listed(_column(each) for each in columns)


def _names(columns: Iterable[StagingColumn]) -> sql.Composed:
    """In the staging table."""
    return _listed(sql.Identifier(each.name) for each in columns)


def _descending(columns: Iterable[StagingColumn]) -> sql.Composed:
    # NULL is before every value, so it is last from behind.
    return _listed(sql.SQL("{} DESC NULLS LAST").format(sql.Identifier(each.name)) for each in columns)


def _same(key: Iterable[StagingColumn], table: str, staged: str) -> sql.Composed:
    return sql.SQL(" AND ").join(
        sql.SQL("{}.{} = {}.{}").format(
            sql.Identifier(table), _column(each), sql.Identifier(staged), sql.Identifier(each.name)
        )
        for each in key
    )


def _listed(parts: Iterable[sql.Composable]) -> sql.Composed:
    return sql.SQL(", ").join(parts)


def _titles(columns: Iterable[StagingColumn]) -> str:
    return ", ".join(quoted(each.source) for each in columns)
