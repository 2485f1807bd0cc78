"""Requests and responses of any version, on kio's generated schemas.

Reading gives kio's object of that version: read fields that not every version has with ``getattr(message, name, x)``.
Writing takes plain mappings and sequences under kio's field names (snake_case, without ``_ms``), in which times are
``int`` milliseconds and errors are ``ErrorCode``: fields that the version does not have are left out, fields that are
absent take the schema's default or zero. So neither side of a conversation ever sees a version.

Produce, Fetch and Metadata have hand-written codecs beside this one (``produce.py``, ``fetch.py``, ``metadata.py``).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from functools import cache
from typing import Any, Final, NamedTuple

from kio.index import UnknownAPIKey, UnknownEntity, load_request_schema, load_response_schema

from einmal.wire.errors import Malformed, Truncated, UnknownVersion
from einmal.wire.message_writer import message_slices, message_writer
from einmal.wire.primitives import ELEMENTS_MAX, TAGS_MAX
from einmal.wire.request_reader import RESPONSE_ELEMENTS_MAX, Message, request_reader

Fields = Mapping[str, Any]
Frame = bytes | bytearray
_HEADER: Final = struct.Struct(">hhih")
_NO_TAGS: Final = b"\x00"


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
    if count > TAGS_MAX:
        raise Malformed(f"{count} tagged fields")
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


def decode_request(api_key: int, version: int, frame: Frame, position: int) -> Any:
    """The body at ``position``, as kio's object. Raises Truncated, Malformed or UnknownVersion."""
    message, _end = request_reader(request_type(api_key, version))(Message.of(frame, ELEMENTS_MAX), position)
    return message


def decode_response(api_key: int, version: int, frame: bytes, position: int) -> Any:
    """The body at ``position``, as kio's object. Raises Truncated, Malformed or UnknownVersion."""
    message, _end = request_reader(response_type(api_key, version))(Message.of(frame, RESPONSE_ELEMENTS_MAX), position)
    return message


def encode_request(api_key: int, version: int, fields: Fields) -> bytes:
    """The body of a request. Raises UnknownVersion."""
    return _encode(request_type(api_key, version), fields)


def encode_response(api_key: int, version: int, fields: Fields) -> bytes:
    """The body of a response. Raises UnknownVersion."""
    return _encode(response_type(api_key, version), fields)


def response_slices(api_key: int, version: int, fields: Fields) -> Iterator[bytes]:
    """The same body in pieces, each made when it is asked for. Raises UnknownVersion."""
    return message_slices(response_type(api_key, version), fields)


def _encode(schema: Any, fields: Fields) -> bytes:
    encoded = bytearray()
    message_writer(schema)(encoded, fields)
    return bytes(encoded)


def milliseconds(value: timedelta) -> int:
    """What kio reads as a timedelta, in whole milliseconds."""
    return value // timedelta(milliseconds=1)
