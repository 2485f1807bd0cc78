"""Messages by kio's own objects and writer: the reference implementation that ours is checked against."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import Any, Final, NamedTuple
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from einmal.wire.schemas import unwrap

Fields = Mapping[str, Any]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def encode(schema: Any, fields: Fields) -> bytes:
    """The body of a message, as kio writes it."""
    buffer = io.BytesIO()
    entity_writer(schema)(buffer, build(schema, fields))
    return buffer.getvalue()


class _FieldPlan(NamedTuple):
    name: str
    convert: Callable[[Any], Any]
    default: Any


def build(schema: Any, fields: Fields) -> Any:
    """kio's object of this version from version-free fields."""
    values = {}
    for plan in _plan(schema):
        value = fields.get(plan.name, dataclasses.MISSING)
        values[plan.name] = plan.default if value is dataclasses.MISSING else plan.convert(value)
    return schema(**values)


@cache
def _plan(schema: Any) -> tuple[_FieldPlan, ...]:
    return tuple(_field_plan(field) for field in dataclasses.fields(schema))


def _field_plan(field: dataclasses.Field[Any]) -> _FieldPlan:
    inner, is_nullable, is_array = unwrap(field.type)
    convert_one: Callable[[Any], Any]
    if dataclasses.is_dataclass(inner):
        convert_one = partial(build, inner)
    else:
        convert_one = _CONVERTERS.get(field.metadata["kafka_type"], _as_is)

    def convert(value: Any) -> Any:
        if value is None:
            return None
        if is_array:
            assert isinstance(value, Sequence), f"{field.name} takes a sequence"
            return tuple(convert_one(item) for item in value)
        return convert_one(value)

    if field.default is not dataclasses.MISSING:
        default = field.default
    elif is_array:
        default = None if is_nullable else ()
    elif dataclasses.is_dataclass(inner):
        default = None if is_nullable else build(inner, {})
    elif is_nullable:
        default = None
    else:
        default = convert_one(_ZEROES[field.metadata["kafka_type"]])
    return _FieldPlan(field.name, convert, default)


def _as_is(value: Any) -> Any:
    return value


def _to_timedelta(value: int) -> timedelta:
    return timedelta(milliseconds=value)


def _to_datetime(value: int) -> datetime | None:
    return None if value < 0 else _EPOCH + timedelta(milliseconds=value)


_CONVERTERS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "timedelta_i32": _to_timedelta,
    "timedelta_i64": _to_timedelta,
    "datetime_i64": _to_datetime,
    "error_code": ErrorCode,
}

_ZEROES: Final[Mapping[str, Any]] = {
    "bool": False,
    "int8": 0,
    "int16": 0,
    "int32": 0,
    "int64": 0,
    "uint8": 0,
    "uint16": 0,
    "uint32": 0,
    "uint64": 0,
    "float64": 0.0,
    "string": "",
    "bytes": b"",
    "records": b"",
    "uuid": UUID(int=0),
    "error_code": ErrorCode.none,
    "timedelta_i32": 0,
    "timedelta_i64": 0,
    "datetime_i64": 0,
}
