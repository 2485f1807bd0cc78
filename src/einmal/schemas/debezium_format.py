"""Changes of rows, in Debezium's JSON without schemas, as rows to load: what a copy of the table needs. Pure.

The value is the row's columns and ``__deleted``, as Debezium's ExtractNewRecordState makes it with
``delete.tombstone.handling.mode=rewrite``. Types are those in which ``einmal.ingest.postgresql`` writes them: numbers
and booleans of JSON, base64, and the text that PostgreSQL prints.

A change that a row cannot express is a bad row, never a row that looks right: a truncate, and a value that was not in
the log. So is a number with more digits than its column: no value is rounded.
"""

from __future__ import annotations

import base64
import datetime
import decimal
import re
import struct
from collections.abc import Callable, Mapping
from typing import Any, Final

from einmal.schemas.columns import (
    BIGINT,
    BOOLEAN,
    DATE,
    INT,
    STRING,
    TIMESTAMP,
    ColumnType,
    Convert,
    Unknown,
    exact_decimal,
    moment_of,
    scalar,
)
from einmal.schemas.ddl import DdlColumn, parsed_columns
from einmal.schemas.decoder import Decoded, Limits
from einmal.schemas.errors import MissingField, SchemaError, UnavailableValue, UnsupportedChange, WrongType
from einmal.schemas.json_format import parsed

DELETED: Final = "__deleted"
"""The boolean column of rows that are gone."""
UNAVAILABLE: Final = "__debezium_unavailable_value"
"""Debezium's text for a value that the server has not sent."""
_UNAVAILABLE: Final = (UNAVAILABLE, base64.b64encode(UNAVAILABLE.encode()).decode())
_INT16: Final = 2**15
_SINGLE: Final = struct.Struct("<f")
_DECIMAL: Final = re.compile(r"-?\d+(\.\d+)?")
_NOT_FINITE: Final = ("NaN", "Infinity", "-Infinity")


class DebeziumDecoder:
    """See ``decoder.Decoder``."""

    def __init__(self, schema: str, limits: Limits | None = None) -> None:
        """``schema``: the row's columns in Spark's DDL. Raises SchemaError."""
        self._limits = limits or Limits()
        columns = parsed_columns(schema)
        if any(column.name.lower() == DELETED for column in columns):
            raise SchemaError(f"{DELETED} is the column of deleted rows, not one of the table's")
        types = [(column, _type(column)) for column in columns]
        self._after = _Row("$.after", types, requires=True)
        # A deleted row has its key only, unless its table has replica identity full.
        self._before = _Row("$.before", types, requires=False)
        fields = ",".join(f"`{column.name.replace('`', '``')}`:{kind.ddl}" for column, kind in types)
        self.ddl = f"struct<{fields},`{DELETED}`:boolean>"

    def decode(self, raw: bytes) -> Decoded:
        """Raises BadRow."""
        change = parsed(raw, self._limits)
        if not isinstance(change, dict):
            raise WrongType(f"$: a {type(change).__name__} is no change of a row")
        match change.get("op"):
            case "c" | "u" | "r":
                row, is_deleted = self._after, False
            case "d":
                row, is_deleted = self._before, True
            case "t":
                raise UnsupportedChange("$.op: a truncate, which is no change of a row")
            case None:
                raise MissingField("$.op is missing")
            case _:
                raise UnsupportedChange("$.op: no operation on a row")
        unknown = Unknown()
        value = row.convert(change, unknown)
        value[DELETED] = is_deleted
        return Decoded(value, unknown.fields)


class _Row:
    """One of the two rows of a change. ``requires``: whether NOT NULL holds."""

    def __init__(self, path: str, types: list[tuple[DdlColumn, ColumnType]], *, requires: bool) -> None:
        self._path = path
        self._field = path.removeprefix("$.")
        self._names = frozenset(column.name for column, _ in types)
        self._columns: list[tuple[str, bool, Convert]] = [
            (column.name, column.is_required and requires, kind.at(f"{path}.{column.name}")) for column, kind in types
        ]

    def convert(self, change: Mapping[str, Any], unknown: Unknown) -> dict[str, Any]:
        """Raises BadRow."""
        row = change.get(self._field)
        if not isinstance(row, dict):
            raise MissingField(f"{self._path} is no row")
        if not row.keys() <= self._names:
            for name in row:
                if name not in self._names:
                    unknown.add(f"{self._path}.{name}", row[name])
        return {name: self._value(row, name, required, convert) for name, required, convert in self._columns}

    def _value(self, row: Mapping[str, Any], name: str, required: bool, convert: Convert) -> Any:
        value = row.get(name)
        if value is None and required:
            raise MissingField(f"{self._path}.{name} is missing, or null")
        if value in _UNAVAILABLE:
            raise UnavailableValue(f"{self._path}.{name} was not in the log: its table needs REPLICA IDENTITY FULL")
        return convert(value, Unknown())


# --- types ------------------------------------------------------------------------------------------------------


def _type(column: DdlColumn) -> ColumnType:
    if column.type == "decimal":
        return scalar(f"decimal({column.precision},{column.scale})", _decimal(column.precision, column.scale))
    return _TYPES[column.type]


def _decimal(precision: int, scale: int) -> Callable[[Any], decimal.Decimal]:
    exact = exact_decimal(precision, scale)

    def convert(value: Any) -> decimal.Decimal:
        if isinstance(value, str) and value in _NOT_FINITE:
            raise OverflowError
        if isinstance(value, bool) or not (isinstance(value, int) or (isinstance(value, str) and _is_number(value))):
            raise TypeError(value)
        return exact(decimal.Decimal(value))

    return convert


def _is_number(text: str) -> bool:
    return _DECIMAL.fullmatch(text) is not None


def _smallint(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(value)
    if not -_INT16 <= value < _INT16:
        raise OverflowError
    return value


def _floating(value: Any) -> float:
    if isinstance(value, bool) or not (isinstance(value, int | float | decimal.Decimal) or value in _NOT_FINITE):
        raise TypeError(value)
    return float(value)


def _single(value: Any) -> float:
    """A number that four bytes have, rounded: Arrow would make infinity of one that is too large."""
    number = _floating(value)
    single: float = _SINGLE.unpack(_SINGLE.pack(number))[0]
    if single == 0 != number:
        raise OverflowError
    return single


def _binary(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError(value)
    return base64.b64decode(value, validate=True)


def _timestamp(value: Any) -> datetime.datetime:
    moment = _moment(value)
    if moment.tzinfo is None:
        raise ValueError("no offset: TIMESTAMP_NTZ")
    return moment.astimezone(datetime.UTC)


def _local_timestamp(value: Any) -> datetime.datetime:
    moment = _moment(value)
    if moment.tzinfo is not None:
        raise ValueError("an offset: TIMESTAMP")
    return moment


def _moment(value: Any) -> datetime.datetime:
    if not isinstance(value, str):
        raise TypeError(value)
    return moment_of(value)


_TYPES: Final[Mapping[str, ColumnType]] = {
    "boolean": BOOLEAN,
    "smallint": scalar("smallint", _smallint),
    "int": INT,
    "bigint": BIGINT,
    "float": scalar("float", _single),
    "double": scalar("double", _floating),
    "string": STRING,
    "binary": scalar("binary", _binary),
    "date": DATE,
    "timestamp": scalar(TIMESTAMP.ddl, _timestamp),
    "timestamp_ntz": scalar("timestamp_ntz", _local_timestamp),
}
