"""The types of decoded values: what a schema of any format becomes as columns of Spark. Pure.

A column checks the value that a decoder hands it and converts it to what Arrow takes. What the column has no field for
goes into ``Unknown``, so that each format detects drift in the same way.
"""

from __future__ import annotations

import datetime
import decimal
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from einmal.schemas.errors import OutOfRange, UnknownField, ValueTooLarge, WrongType

_INT32: Final = (-(2**31), 2**31 - 1)
_INT64: Final = (-(2**63), 2**63 - 1)
_EXACT: Final = 2**53
"""A double from here on can print as another integer than it is."""
_FINER: Final = re.compile(r"[.,]\d{6}(\d+)")
"""The digits of a time that a timestamp of microseconds does not have."""
_UNKNOWN_MAX: Final = 100
"""Unknown fields that one record reports; more of them are one too many for a schema that has drifted."""


VALUES_MAX: Final = 8 * 1024 * 1024
"""Values of one row below arrays and maps, with those that its record lacks: an item of two bytes can lack a thousand.
A record has no more of its own."""


@dataclass(slots=True)
class Unknown:
    """Fields of one record that its schema does not have, by their path in the schema. Below an array or a map, whose
    path ends in ``[]``, such a field has a dict of its values by position or by key. ``whole``: of the whole record,
    which counts its values."""

    fields: dict[str, Any] = field(default_factory=dict)
    whole: Unknown | None = None
    values: int = 0

    def inside(self) -> Unknown:
        """Return an empty one for the items of an array or a map, one after the other."""
        return Unknown(whole=self.whole or self)

    def count(self, values: int) -> None:
        """Raises ValueTooLarge."""
        whole = self.whole or self
        whole.values += values
        if whole.values > VALUES_MAX:
            raise ValueTooLarge(f"more than {VALUES_MAX:,} values in arrays and maps, with those that are not set")

    def add(self, path: str, value: Any) -> None:
        if len(self.fields) >= _UNKNOWN_MAX:
            raise UnknownField(f"more than {_UNKNOWN_MAX} fields that the schema does not have")
        self.fields[path] = value

    def take(self, key: str, item: Unknown) -> None:
        """The fields of an item of an array or a map, which is then without any."""
        for path, value in item.fields.items():
            if path in self.fields:
                self.fields[path][key] = value
            else:
                self.add(path, {key: value})
        item.fields = {}


Convert = Callable[[Any, Unknown], Any]
"""From a value of a record to a value for Arrow. Raises BadRow."""


@dataclass(frozen=True, slots=True)
class ColumnType:
    """``ddl``: the type in Spark's DDL. ``at``: from a path in the record to the function that converts its values.
    ``width``: values that one of it has, but for those of its arrays and maps.

    Paths are fixed once for a schema: to build them for each row would take longer than the conversion.
    """

    ddl: str
    at: Callable[[str], Convert]
    width: int = 1


def scalar(kind: str, convert: Callable[[Any], Any]) -> ColumnType:
    """``convert`` raises TypeError, ValueError or ArithmeticError for a value that the column cannot hold."""

    def at(path: str) -> Convert:
        def checked(value: Any, _: Unknown) -> Any:
            if value is None:
                return None
            try:
                return convert(value)
            except (OverflowError, ArithmeticError) as error:
                raise OutOfRange(f"{path}: out of the range of {kind}") from error
            except (TypeError, ValueError) as error:
                raise WrongType(f"{path}: a {type(value).__name__} is no {kind}") from error

        return checked

    return ColumnType(kind, at)


def array(item: ColumnType) -> ColumnType:
    def at(path: str) -> Convert:
        inner = item.at(f"{path}[]")

        def convert(value: Any, unknown: Unknown) -> Any:
            if value is None:
                return None
            if not isinstance(value, list | tuple):
                raise WrongType(f"{path}: a {type(value).__name__} is no array")
            unknown.count(len(value) * item.width)
            return [converted for _, converted in converted_items(enumerate(value), inner, unknown)]

        return convert

    return ColumnType(f"array<{item.ddl}>", at)


def mapping(item: ColumnType, key: ColumnType | None = None) -> ColumnType:
    """Text to values. ``key``: what keys are before they become text, unless they are text."""

    def at(path: str) -> Convert:
        inner = item.at(f"{path}[]")
        key_of = None if key is None else key.at(f"{path}[]")

        def convert(value: Any, unknown: Unknown) -> Any:
            if value is None:
                return None
            if not isinstance(value, Mapping):
                raise WrongType(f"{path}: a {type(value).__name__} is no map")
            unknown.count(len(value) * item.width)
            items: Iterable[tuple[Any, Any]] = value.items()
            if key_of is not None:
                items = [(_key_text(key_of(name, unknown)), map_value) for name, map_value in items]
            return converted_items(items, inner, unknown)

        return convert

    return ColumnType(f"map<string,{item.ddl}>", at)


def _key_text(key: Any) -> str:
    """As Protobuf's JSON has it."""
    return str(key).lower() if isinstance(key, bool) else str(key)


def converted_items(items: Iterable[tuple[Any, Any]], convert: Convert, unknown: Unknown) -> list[tuple[Any, Any]]:
    """The items of an array or a map, converted, by position or by key."""
    inside = unknown.inside()
    converted = []
    for key, value in items:
        converted.append((key, convert(value, inside)))
        if inside.fields:
            unknown.take(str(key), inside)
    return converted


def struct(fields: Mapping[str, ColumnType]) -> ColumnType:
    def at(path: str) -> Convert:
        converts = [(name, column.at(f"{path}.{name}")) for name, column in fields.items()]
        names = fields.keys()

        def convert(value: Any, unknown: Unknown) -> Any:
            if value is None:
                return None
            if not isinstance(value, Mapping):
                raise WrongType(f"{path}: a {type(value).__name__} is no record")
            if not value.keys() <= names:
                # In the record's order, which is the same in each task.
                for name in value:
                    if name not in names:
                        unknown.add(f"{path}.{name}", value[name])
            get = value.get
            return {name: inner(get(name), unknown) for name, inner in converts}

        return convert

    inner = ",".join(f"{_quoted(name)}:{column.ddl}" for name, column in fields.items())
    return ColumnType(f"struct<{inner}>", at, 1 + sum(column.width for column in fields.values()))


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


# --- scalars ----------------------------------------------------------------------------------------------------


def _integer(bounds: tuple[int, int]) -> Callable[[Any], int]:
    low, high = bounds

    def convert(value: Any) -> int:
        if isinstance(value, float) and abs(value) >= _EXACT:
            value = decimal.Decimal(repr(value))
        if isinstance(value, bool) or not isinstance(value, int | float | decimal.Decimal) or value != int(value):
            raise TypeError(value)
        if not low <= value <= high:
            raise OverflowError
        return int(value)

    return convert


def _float(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | decimal.Decimal):
        raise TypeError(value)
    return float(value)


def _exactly(kind: type) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if not isinstance(value, kind):
            raise TypeError(value)
        return value

    return convert


def _string(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise TypeError(value)


def _timestamp(value: Any) -> datetime.datetime:
    moment = moment_of(value) if isinstance(value, str) else value
    if not isinstance(moment, datetime.datetime):
        raise TypeError(value)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=datetime.UTC)
    return moment.astimezone(datetime.UTC)


def moment_of(text: str) -> datetime.datetime:
    """ISO 8601. Raises ValueError, and OverflowError for digits below a microsecond: Python would drop them."""
    if (match := _FINER.search(text)) and match[1].strip("0"):
        raise OverflowError
    # RFC 3339 allows small letters.
    return datetime.datetime.fromisoformat(text.upper())


def _date(value: Any) -> datetime.date:
    day = datetime.date.fromisoformat(value) if isinstance(value, str) else value
    if not isinstance(day, datetime.date) or isinstance(day, datetime.datetime):
        raise TypeError(value)
    return day


def _json_text(value: Any) -> str:
    try:
        return _encoded(value)
    except ValueError:
        return _exact_text(value)


def _exact_text(value: Any) -> str:
    """With numbers that Python's encoder has no JSON for: all digits of a decimal, and NaN and infinity as text, as
    Avro's and Protobuf's implementations have them."""
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_encoded(name)}:{_exact_text(item)}" for name, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_exact_text, value)) + "]"
    if isinstance(value, decimal.Decimal):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return f'"{decimal.Decimal(value)}"'
    return _encoded(value)


def _plain(value: Any) -> Any:
    """Raises ValueError."""
    if isinstance(value, decimal.Decimal):
        raise ValueError("a number that the encoder would round")
    return value.hex() if isinstance(value, bytes) else str(value)


_encoded: Final = json.JSONEncoder(
    ensure_ascii=False, separators=(",", ":"), default=_plain, allow_nan=False, check_circular=False
).encode


BOOLEAN: Final = scalar("boolean", _exactly(bool))
INT: Final = scalar("int", _integer(_INT32))
BIGINT: Final = scalar("bigint", _integer(_INT64))
UNSIGNED_INT: Final = scalar("bigint", _integer((0, 2**32 - 1)))
FLOAT: Final = scalar("float", _float)
DOUBLE: Final = scalar("double", _float)
STRING: Final = scalar("string", _string)
BINARY: Final = scalar("binary", _exactly(bytes))
# The short name is one without a zone under spark.sql.timestampType=TIMESTAMP_NTZ.
TIMESTAMP: Final = scalar("timestamp_ltz", _timestamp)
DATE: Final = scalar("date", _date)
JSON_TEXT: Final = scalar("string", _json_text)
"""Column of values that have no type of their own in Spark, as JSON."""


def decimal_column(precision: int, scale: int) -> ColumnType:
    rescaled = exact_decimal(precision, scale)

    def convert(value: Any) -> decimal.Decimal:
        if not isinstance(value, decimal.Decimal):
            raise TypeError(value)
        return rescaled(value)

    return scalar(f"decimal({precision},{scale})", convert)


def exact_decimal(precision: int, scale: int) -> Callable[[decimal.Decimal], decimal.Decimal]:
    """A number with another scale. Raises ArithmeticError for one with more digits: none is rounded."""
    unit = decimal.Decimal(1).scaleb(-scale)
    context = decimal.Context(prec=precision, traps=[decimal.InvalidOperation, decimal.Inexact])
    return lambda value: value.quantize(unit, context=context)


def rescued_text(unknown: Unknown) -> str:
    """The unknown fields as one JSON object."""
    return _json_text(unknown.fields)
