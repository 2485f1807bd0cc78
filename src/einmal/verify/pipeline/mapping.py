"""Mappings state what a pipeline makes of its input: the identity, a query on DuckDB, or a Python function."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final, NamedTuple

from einmal.extras import install_command

FIELDS: Final = ("id", "amount")
"""Fields of each input record, a JSON object of integers."""
_ZEROS_MAX: Final = 30


class InputRecord(NamedTuple):
    """A record of the input topic. ``value``: as text."""

    partition: int
    offset: int
    key: str
    value: str


Mapped = Callable[[Sequence[InputRecord]], list[list[str]]]


class InputRecords(NamedTuple):
    """``wanted``: become output. ``aborted``: of aborted transactions, become nothing. ``first``: from before the
    pipeline was there: one of each tuple may become output or not. ``is_ordered``: what becomes of the records of one
    key has to be in their order."""

    wanted: Sequence[InputRecord]
    aborted: Sequence[InputRecord] = ()
    first: Sequence[tuple[InputRecord, ...]] = ()
    is_ordered: bool = False


class OutputRecord(NamedTuple):
    """A record of the output topic, as text. ``key``, ``value``: None for null."""

    partition: int
    offset: int
    key: str | None
    value: str | None


class MappingWrong(Exception):
    """The statement of a mapping cannot be used. ``str()`` is a sentence for the user."""


NULL: Final = "null"
"""The text of a value that is null, as JSON has it."""


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
    except Exception as error:
        raise MappingWrong(f"--map: {name!r} is not module:function: {type(error).__name__}: {error}") from error
    finally:
        sys.path.pop(0)

    def outputs(records: Sequence[InputRecord]) -> list[list[str]]:
        return [_mapped(name, mapping, record.value) for record in records]

    _mapped(name, mapping, json.dumps(dict.fromkeys(FIELDS, 1)))
    return OutputMapping(name, outputs, str)


def _mapped(name: str, mapping: Callable[[str], object], value: str) -> list[str]:
    """Raises MappingWrong for whatever is wrong with the user's function."""
    try:
        returned = mapping(value)
    except Exception as error:
        raise MappingWrong(f"--map: {name} of {value!r}: {type(error).__name__}: {error}") from error
    values = [] if returned is None else returned if isinstance(returned, list | tuple) else [returned]
    for member in values:
        if isinstance(member, bool) or not isinstance(member, str | bytes | int | float):
            kind = type(member).__name__
            raise MappingWrong(f"--map: {name} returns text, bytes, a number, a list of these or None, not {kind}")
    return [member.decode(errors="backslashreplace") if isinstance(member, bytes) else str(member) for member in values]


def query(sql: str) -> OutputMapping:
    """A query ``FROM input`` makes the outputs of one record. Raises MappingWrong.

    A single column is the value; several are a JSON object.
    """
    _needs_duckdb("--sql")
    columns = (*_COLUMNS, *((name, "BIGINT") for name in FIELDS))

    def outputs(records: Sequence[InputRecord]) -> list[list[str]]:
        rows = [(*record, *_fields(record.value)) for record in records]
        return _queried("--sql", sql, "input", columns, rows)

    outputs([InputRecord(0, 0, "0", json.dumps(dict.fromkeys(FIELDS, 1)))])
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
            described = connection.execute(f"DESCRIBE {laterally}").fetchall()[1:]
            names = [column[0] for column in described]
            is_json = [column[1] == "JSON" for column in described]
            for n, *row in connection.execute(laterally).fetchall():
                by_row[n].append(_value(names, row, is_json))
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


def _value(names: Sequence[str], row: Sequence[object], is_json: Sequence[bool]) -> str:
    """The value that a row states. ``is_json``: by column, whether its text is JSON."""
    if len(row) == 1 and isinstance(row[0], str):
        return row[0]
    values = [
        _loaded(value) if is_text and isinstance(value, str) else value
        for value, is_text in zip(row, is_json, strict=True)
    ]
    return _written(values[0] if len(values) == 1 else dict(zip(names, values, strict=True)))


def _loaded(text: str) -> object:
    return json.loads(text, parse_float=Decimal)


def _written(value: object) -> str:
    """JSON with the fields of objects in order, and each number in one form: 63, 63.0 and 6.3e1 are equal."""
    if isinstance(value, Mapping):
        members = sorted((str(name), _written(member)) for name, member in value.items())
        return "{" + ",".join(f"{json.dumps(name)}:{text}" for name, text in members) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_written, value)) + "]"
    if isinstance(value, float | Decimal):
        number = Decimal(repr(value)) if isinstance(value, float) else value
        return _number(number) if number.is_finite() else json.dumps(str(number))
    return json.dumps(value, default=str)


def _number(number: Decimal) -> str:
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int), "it is finite"
    text = "".join(map(str, digits)).lstrip("0") or "0"
    significant = text.rstrip("0") or "0"
    exponent = 0 if significant == "0" else exponent + len(text) - len(significant)
    shown = f"{significant}e{exponent}"
    if abs(exponent) <= _ZEROS_MAX:
        shown = format(Decimal(shown), "f")
    return f"-{shown}" if sign and significant != "0" else shown


def canonical(text: str) -> str:
    """JSON without the order of fields and without spaces, and with numbers by their value; another text as it is."""
    try:
        parsed = _loaded(text)
        is_number = isinstance(parsed, int | Decimal) and not isinstance(parsed, bool)
        return _written(parsed) if is_number or isinstance(parsed, dict | list) else text
    except (ValueError, RecursionError, ArithmeticError):
        # No JSON, or nested deeper or with a larger exponent than can be held.
        return text
