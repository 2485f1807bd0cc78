"""Mappings state what a pipeline makes of its input: the identity, a query on DuckDB, or a Python function."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

from einmal.extras import install_command

FIELDS: Final = ("id", "amount")
"""Fields of each input record, a JSON object of integers."""


class InputRecord(NamedTuple):
    """A record of the input topic. ``value``: as text."""

    partition: int
    offset: int
    key: str
    value: str


Mapped = Callable[[Sequence[InputRecord]], list[list[str]]]


class InputRecords(NamedTuple):
    """``wanted``: become output. ``aborted``: of aborted transactions, become nothing. ``first``: from before the
    pipeline was there: one of each tuple may become output or not."""

    wanted: Sequence[InputRecord]
    aborted: Sequence[InputRecord] = ()
    first: Sequence[tuple[InputRecord, ...]] = ()


class OutputRecord(NamedTuple):
    """A record of the output topic, as text. ``key``, ``value``: None for null."""

    partition: int
    offset: int
    key: str | None
    value: str | None


class MappingWrong(Exception):
    """The statement of a mapping cannot be used. ``str()`` is a sentence for the user."""


class OutputMapping(NamedTuple):
    """``outputs``: the values that each record becomes. ``canonical``: makes equal values of equal text."""

    text: str
    outputs: Mapped
    canonical: Callable[[str], str]


def identity() -> OutputMapping:
    return OutputMapping("identity", lambda records: [[record.value] for record in records], str)


def function(name: str) -> OutputMapping:
    """``module:function``: gets a value, returns a value, a list of them, or None. Raises MappingWrong."""
    module_name, _, attribute = name.partition(":")
    # As a program's own directory, and that of python -m.
    sys.path.insert(0, str(Path.cwd()))
    try:
        mapping = getattr(import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise MappingWrong(f"--map: {name!r} is not module:function: {error}") from error
    finally:
        sys.path.pop(0)

    def outputs(records: Sequence[InputRecord]) -> list[list[str]]:
        return [_values(mapping(record.value)) for record in records]

    return OutputMapping(name, outputs, str)


def _values(returned: object) -> list[str]:
    if returned is None:
        return []
    values = returned if isinstance(returned, list | tuple) else [returned]
    return [value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value) for value in values]


def query(sql: str) -> OutputMapping:
    """A query ``FROM input`` makes the outputs of one record. Raises MappingWrong.

    A single column is the value; several are a JSON object.
    """
    _needs_duckdb("--sql")
    columns = (*_COLUMNS, *((name, "BIGINT") for name in FIELDS))

    def outputs(records: Sequence[InputRecord]) -> list[list[str]]:
        rows = [(*record, *_fields(record.value)) for record in records]
        return _queried("--sql", sql, "input", columns, rows)

    outputs([InputRecord(0, 0, "0", json.dumps(dict.fromkeys(FIELDS, 0)))])
    return OutputMapping(sql, outputs, canonical)


class Projection(NamedTuple):
    """``values``: makes of each output record those that count; they are compared with those of the mapping."""

    text: str
    values: Callable[[Sequence[OutputRecord]], list[list[str]]]


def projection(sql: str) -> Projection:
    """A query ``FROM output`` makes what counts of one output record. Raises MappingWrong."""
    _needs_duckdb("--output-sql")

    def counted(records: Sequence[OutputRecord]) -> list[list[str]]:
        return _queried("--output-sql", sql, "output", _COLUMNS, records)

    counted([])
    return Projection(sql, counted)


def _queried(
    option: str, sql: str, table: str, columns: Sequence[tuple[str, str]], rows: Sequence[Sequence[object]]
) -> list[list[str]]:
    """The rows of a query for each row of its table alone. Raises MappingWrong."""
    import duckdb

    typed = [("n", "BIGINT"), *columns]
    numbered = [(n, *row) for n, row in enumerate(rows)]
    named = ", ".join(f'r."{name}" AS "{name}"' for name, _ in columns)
    body = sql.strip().removesuffix(";")
    laterally = f"SELECT r.n, o.* FROM records r, LATERAL (WITH {table} AS (SELECT {named}) SELECT * FROM ({body})) o"
    lists = ", ".join(f'unnest($column_{index}::{kind}[]) AS "{name}"' for index, (name, kind) in enumerate(typed))
    values = {f"column_{index}": [row[index] for row in numbered] for index in range(len(typed))}
    by_row: list[list[str]] = [[] for _ in rows]
    with duckdb.connect() as connection:
        try:
            connection.execute(f"CREATE TABLE records AS SELECT {lists}", values)
            result = connection.execute(laterally)
            names = [column[0] for column in result.description or ()][1:]
            for n, *row in result.fetchall():
                by_row[n].append(_text(row[0]) if len(row) == 1 else _object(dict(zip(names, row, strict=True))))
        except duckdb.Error as error:
            raise MappingWrong(f"{option}: {error}") from error
    return by_row


def _needs_duckdb(option: str) -> None:
    """Raises MappingWrong where it is not installed."""
    if find_spec("duckdb") is None:
        raise MappingWrong(f"{option} needs DuckDB: {install_command('duckdb')}")


_COLUMNS: Final = (
    ("partition", "INTEGER"),
    ("offset", "BIGINT"),
    ("key", "VARCHAR"),
    ("value", "VARCHAR"),
)


def _fields(value: str) -> list[int]:
    parsed = json.loads(value)
    return [parsed[name] for name in FIELDS]


def _text(value: object) -> str:
    return value if isinstance(value, str) else _object(value)


def _object(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)


def canonical(text: str) -> str:
    """A JSON object without the order of its fields and its spaces; another text as it is."""
    try:
        parsed = json.loads(text)
    except ValueError:
        return text
    return _object(parsed) if isinstance(parsed, dict) else text
