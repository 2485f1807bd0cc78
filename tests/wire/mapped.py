"""Messages by plain mappings, as tests write them, and as objects of kio, by our own writer and reader.

Fields that a mapping lacks have the schema's default, or zero; those that the version does not have are left out.
"""

from __future__ import annotations

import dataclasses
import importlib
import pkgutil
from collections import namedtuple
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any, Final, cast

from einmal.wire import api
from einmal.wire.errors import Malformed
from einmal.wire.message import Message
from einmal.wire.message_writer import message_writer
from einmal.wire.messages import Api, request_type, response_type
from einmal.wire.request_reader import RESPONSE_ELEMENTS_MAX, message_reader
from einmal.wire.schemas import field_types, unwrap
from tests.wire.kio_messages import Fields, build

APIS: Final[dict[int, Api[Any, Any]]] = {
    module.API.key: module.API
    for name in pkgutil.iter_modules(api.__path__)
    for module in (importlib.import_module(f"{api.__name__}.{name.name}"),)
}
"""By key, in no order."""


def encode_request(api_key: int, version: int, fields: Fields) -> bytes:
    """The body of a request."""
    return write(request_type(api_key, version), fields)


def decode_request(api_key: int, version: int, frame: bytes, position: int) -> Any:
    """The body at ``position``, as the broker reads it."""
    return APIS[api_key].decode_request(version, frame, position)


def encode_response(api_key: int, version: int, fields: Fields) -> bytes:
    """The body of a response."""
    return write(response_type(api_key, version), fields)


def decode_response(api_key: int, version: int, frame: bytes, position: int) -> Any:
    """The body at ``position``, as kio's object."""
    return read(response_type(api_key, version), frame, position)[0]


def request_of(api_key: int, fields: Fields) -> Any:
    """The request of this API with these fields, structures in them as mappings."""
    return _built(APIS[api_key].request, fields)


def write(schema: Any, fields: Fields) -> bytes:
    """A message of any schema."""
    out = bytearray()
    message_writer(schema, _type_of(schema))(out, _built(_type_of(schema), fields))
    return bytes(out)


def read(schema: Any, frame: bytes, position: int, elements_max: int = RESPONSE_ELEMENTS_MAX) -> tuple[Any, int]:
    """A message of any schema as kio's object, and the position after it."""
    values, end = message_reader(schema, _type_of(schema))(Message.of(frame, elements_max), position)
    try:
        return build(schema, _fields_of(values)), end
    except OverflowError as error:
        raise Malformed("a time beyond all calendars") from error


@cache
def _type_of(schema: Any) -> Any:
    """A type as those in ``wire/api``, with the fields of this version alone."""
    annotations: dict[str, Any] = {}
    defaults = []
    blank = build(schema, {})
    for field in dataclasses.fields(schema):
        inner, is_nullable, is_array = unwrap(field.type)
        annotation: Any = _type_of(cast(Any, inner)) if dataclasses.is_dataclass(inner) else inner
        if is_array:
            annotation = Sequence[annotation]
        annotations[field.name] = annotation | None if is_nullable else annotation
        defaults.append(_plain(getattr(blank, field.name)))
    message = namedtuple(schema.__name__, annotations, defaults=defaults)  # type: ignore[misc]
    message.__annotations__ = annotations
    return message


def _plain(value: Any) -> Any:
    """A default of kio's as our types have it."""
    if isinstance(value, datetime):
        value -= datetime(1970, 1, 1, tzinfo=UTC)
    if isinstance(value, timedelta):
        return value // timedelta(milliseconds=1)
    if dataclasses.is_dataclass(value):
        return _type_of(cast(Any, type(value)))()
    return value


def _built(message: Any, fields: Fields) -> Any:
    values = {}
    for name, annotation in field_types(message).items():
        if name in fields:
            inner, _is_nullable, is_array = unwrap(annotation)
            value = fields[name]
            if value is not None and hasattr(inner, "_fields"):
                value = tuple(_built(inner, each) for each in value) if is_array else _built(inner, value)
            values[name] = value
    return message(**values)


def _fields_of(value: Any) -> Any:
    if hasattr(value, "_fields"):
        return {name: _fields_of(each) for name, each in value._asdict().items()}
    return tuple(map(_fields_of, value)) if isinstance(value, tuple) else value
