"""Requests and responses of any version, on kio's generated schemas.

Reading gives kio's object of that version: read fields that not every version has with ``getattr(message, name, x)``.
Writing takes plain mappings and sequences under kio's field names (snake_case, without ``_ms``), in which times are
``int`` milliseconds and errors are ``ErrorCode``: fields that the version does not have are left out, fields that are
absent take the schema's default or zero. So neither side of a conversation ever sees a version.

Produce, Fetch and Metadata have hand-written codecs beside this one (``produce.py``, ``fetch.py``, ``metadata.py``).
"""

from __future__ import annotations

import dataclasses
import io
import struct
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from typing import Any, Final, NamedTuple
from uuid import UUID

from kio.index import UnknownAPIKey, UnknownEntity, load_request_schema, load_response_schema
from kio.schema.errors import ErrorCode
from kio.serial import entity_writer

from einmal.wire.errors import Malformed, Truncated, UnknownVersion
from einmal.wire.request_reader import RESPONSE_ELEMENTS_MAX, request_reader
from einmal.wire.schemas import unwrap

Fields = Mapping[str, Any]
Frame = bytes | bytearray
_HEADER: Final = struct.Struct(">hhih")
_NO_TAGS: Final = b"\x00"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class RequestHeader(NamedTuple):
    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


@cache
def request_type(api_key: int, version: int) -> Any:
    """The schema of a request. Raises UnknownVersion."""
    try:
        return load_request_schema(api_key, version)
    except (UnknownAPIKey, UnknownEntity) as error:
        raise UnknownVersion(f"request {api_key} version {version}") from error


@cache
def response_type(api_key: int, version: int) -> Any:
    """The schema of a response. Raises UnknownVersion."""
    try:
        return load_response_schema(api_key, version)
    except (UnknownAPIKey, UnknownEntity) as error:
        raise UnknownVersion(f"response {api_key} version {version}") from error


def is_flexible(api_key: int, version: int) -> bool:
    return bool(request_type(api_key, version).__flexible__)


# --- headers ---------------------------------------------------------------------------------------------------


def decode_request_header(
    frame: Frame, *, flexible: Callable[[int, int], bool] = is_flexible
) -> tuple[RequestHeader, int]:
    """The header of a request frame (without its length) and the position of the body.

    Raises Truncated, Malformed or UnknownVersion.
    """
    try:
        api_key, version, correlation_id, length = _HEADER.unpack_from(frame)
    except struct.error as error:
        raise Truncated("request header") from error
    position = _HEADER.size
    client_id = None
    if length >= 0:
        if position + length > len(frame):
            raise Truncated("client id")
        try:
            client_id = frame[position : position + length].decode()
        except UnicodeDecodeError as error:
            raise Malformed("client id is not UTF-8") from error
        position += length
    if flexible(api_key, version):
        position = skip_tagged_fields(frame, position)
    return RequestHeader(api_key, version, correlation_id, client_id), position


def skip_tagged_fields(frame: Frame, position: int) -> int:
    """The position after a tagged-field section. Raises Truncated or Malformed."""
    if frame[position : position + 1] == _NO_TAGS:
        return position + 1
    count, position = read_uvarint(frame, position)
    for _ in range(count):
        _tag, position = read_uvarint(frame, position)
        size, position = read_uvarint(frame, position)
        position += size
        if position > len(frame):
            raise Truncated("tagged field")
    return position


def read_uvarint(frame: Frame, position: int) -> tuple[int, int]:
    """An unsigned varint of at most five bytes and the position after it. Raises Truncated or Malformed."""
    value = shift = 0
    try:
        while True:
            byte = frame[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, position
            shift += 7
            if shift > 28:
                raise Malformed("varint longer than five bytes")
    except IndexError as error:
        raise Truncated("varint") from error


def encode_request_header(api_key: int, version: int, correlation_id: int, client_id: str | None) -> bytes:
    encoded = None if client_id is None else client_id.encode()
    header = _HEADER.pack(api_key, version, correlation_id, -1 if encoded is None else len(encoded)) + (encoded or b"")
    return header + _NO_TAGS if is_flexible(api_key, version) else header


def encode_response_header(api_key: int, version: int, correlation_id: int) -> bytes:
    # An ApiVersions answer always has the oldest header: the client does not know yet what we speak.
    flexible = api_key != 18 and is_flexible(api_key, version)
    return struct.pack(">i", correlation_id) + (_NO_TAGS if flexible else b"")


def response_body_position(api_key: int, version: int, frame: bytes) -> int:
    """Where the body of a response frame begins. Raises Truncated or Malformed."""
    if api_key != 18 and is_flexible(api_key, version):
        return skip_tagged_fields(frame, 4)
    return 4


# --- bodies ----------------------------------------------------------------------------------------------------


@cache
def _writer(schema: Any) -> Any:
    return entity_writer(schema)


def decode_request(api_key: int, version: int, frame: bytes, position: int) -> Any:
    """The body at ``position``, as kio's object. Raises Truncated, Malformed or UnknownVersion."""
    message, _end = request_reader(request_type(api_key, version))(frame, position)
    return message


def decode_response(api_key: int, version: int, frame: bytes, position: int) -> Any:
    """The body at ``position``, as kio's object. Raises Truncated, Malformed or UnknownVersion."""
    message, _end = request_reader(response_type(api_key, version), RESPONSE_ELEMENTS_MAX)(frame, position)
    return message


def encode_request(api_key: int, version: int, fields: Fields) -> bytes:
    """The body of a request. Raises UnknownVersion."""
    return _encode(request_type(api_key, version), fields)


def encode_response(api_key: int, version: int, fields: Fields) -> bytes:
    """The body of a response. Raises UnknownVersion."""
    return _encode(response_type(api_key, version), fields)


def _encode(schema: Any, fields: Fields) -> bytes:
    buffer = io.BytesIO()
    _writer(schema)(buffer, build(schema, fields))
    return buffer.getvalue()


# --- plain values to kio's objects ------------------------------------------------------------------------------


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


def milliseconds(value: timedelta) -> int:
    """What kio reads as a timedelta, in whole milliseconds."""
    return value // timedelta(milliseconds=1)
