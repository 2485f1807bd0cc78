"""The answer to a request with an error code in it, made of the request, in the schema of its version.

The entries of the request (topics, partitions, groups, transactions) get an entry in the answer each, and the error
code is on the innermost entries that have one, as a broker reports it; else on the answer itself.
"""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

from einmal.chaos.proxy.addresses import encode_answer
from einmal.chaos.proxy.frames import RequestFrame
from einmal.types import ErrorCode
from einmal.wire.messages import response_type
from einmal.wire.schemas import unwrap

_ERROR: Final = "error_code"
_ZEROES: Final = {
    "bool": False,
    "bytes": b"",
    "records": b"",
    "string": "",
    "timedelta_i32": timedelta(0),
    "timedelta_i64": timedelta(0),
    "uuid": UUID(int=0),
    "float64": 0.0,
    "error_code": ErrorCode.none,
    "datetime_i64": datetime.fromtimestamp(0, UTC),
}
_OTHER_NAMES: Final = {"partition_index": ("partition",)}


def refusal(request: RequestFrame, code: ErrorCode) -> bytes:
    """The frame of the answer. Raises WireError when the request cannot be decoded."""
    message = request.message
    schema = response_type(request.header.api_key, request.header.api_version)
    return encode_answer(request.header, _answered(schema, message, code))


def _answered(schema: Any, asked: Any, code: ErrorCode) -> Any:
    """An object of the answer's schema for a part of the request: one of its objects, or a plain key."""
    values: dict[str, Any] = {}
    errors: list[str] = []
    arrays: dict[str, Any] = {}
    for field in dataclasses.fields(schema):
        inner, is_nullable, is_array = unwrap(field.type)
        if is_array and dataclasses.is_dataclass(inner):
            values[field.name] = ()
            if _has_error(inner):
                arrays[field.name] = inner
        elif field.metadata.get("kafka_type") == _ERROR:
            errors.append(field.name)
        elif not is_array and (name := _asked_name(asked, field.name)):
            values[field.name] = getattr(asked, name)
        elif field.default is dataclasses.MISSING:
            values[field.name] = _zero(field, inner, is_nullable, is_array)
    values |= {name: _entries(inner, asked, code) for name, inner in arrays.items()}
    if not errors and code is not ErrorCode.none and not any(values[name] for name in arrays):
        # The error has no other position: entries without a name, as in CreateAcls.
        values |= {name: _nameless(inner, asked, code) for name, inner in arrays.items()}
    has_refused_entries = any(values[name] for name in arrays)
    for name in errors:
        values[name] = ErrorCode.none if has_refused_entries else code
    if isinstance(asked, str | int):
        values[_key_of(schema, asked)] = asked
    return schema(**values)


def _entries(schema: Any, asked: Any, code: ErrorCode) -> tuple[Any, ...]:
    """One entry for each entry of the first array of the request that fits."""
    for entries in _arrays(asked):
        if entries and _fits(schema, entries[0]):
            return tuple(_answered(schema, entry, code) for entry in entries)
    return ()


def _nameless(schema: Any, asked: Any, code: ErrorCode) -> tuple[Any, ...]:
    """One entry for each entry of the first array of the request, but at least one."""
    count = max(1, len(next(iter(_arrays(asked)), ())))
    return (_answered(schema, None, code),) * count


def _arrays(asked: Any) -> list[tuple[Any, ...]]:
    if not dataclasses.is_dataclass(asked):
        return []
    values = [getattr(asked, field.name) for field in dataclasses.fields(asked)]
    return [value for value in values if isinstance(value, tuple)]


def _fits(schema: Any, entry: Any) -> bool:
    """Whether an entry of the answer names what the entry of the request names."""
    if isinstance(entry, str | int):
        return _key_of(schema, entry) is not None
    return any(_asked_name(entry, field.name) for field in dataclasses.fields(schema))


def _key_of(schema: Any, key: Any) -> Any:
    """The name of the first field that a plain key of the request, a text or a number, belongs in."""
    kind = "string" if isinstance(key, str) else "int32"
    keys = (field.name for field in dataclasses.fields(schema) if field.metadata.get("kafka_type") == kind)
    return next((name for name in keys if not name.startswith("error")), None)


def _has_error(schema: Any) -> bool:
    for field in dataclasses.fields(schema):
        inner, _, _ = unwrap(field.type)
        if field.metadata.get("kafka_type") == _ERROR or (dataclasses.is_dataclass(inner) and _has_error(inner)):
            return True
    return False


def _asked_name(asked: Any, name: str) -> str | None:
    """The name that a field of the answer has in the request; None: it is not in the request."""
    if not dataclasses.is_dataclass(asked):
        return None
    names = {field.name for field in dataclasses.fields(asked)}
    return next((candidate for candidate in (name, *_OTHER_NAMES.get(name, ())) if candidate in names), None)


def _zero(field: dataclasses.Field[Any], inner: Any, is_nullable: bool, is_array: bool) -> Any:
    if is_nullable:
        return None
    if is_array:
        return ()
    if dataclasses.is_dataclass(inner):
        return _answered(inner, None, ErrorCode.none)
    return _ZEROES.get(field.metadata["kafka_type"], 0)
