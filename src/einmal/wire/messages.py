"""Requests and responses of any version, on kio's generated schemas.

Both sides read and write values of the types in ``api/``, by the ``Api`` of each module there. They have no versions:
fields that the version does not have are left out, or get the schema's default.

Produce, Fetch and Metadata have hand-written codecs beside this one (``produce.py``, ``fetch.py``, ``metadata.py``).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Generic, NamedTuple, TypeAlias, TypeVar, cast

from kio.index import UnknownAPIKey, UnknownEntity, load_request_schema, load_response_schema
from kio.schema.index import api_key_map

from einmal.wire.errors import Malformed, Truncated, UnknownVersion
from einmal.wire.message import Message
from einmal.wire.message_writer import Writer, message_slices, message_writer
from einmal.wire.primitives import ELEMENTS_MAX, TAGS_MAX
from einmal.wire.request_reader import (
    RESPONSE_ELEMENTS_MAX,
    Reader,
    StepsReader,
    message_reader,
    message_steps,
)

Frame = bytes | bytearray
Values: TypeAlias = tuple[object, ...]
"""A request or a response: one of the named tuples in ``api/``, or of the hand-written codecs."""
Q = TypeVar("Q", bound=Values)
R = TypeVar("R", bound=Values)
R_co = TypeVar("R_co", bound=Values, covariant=True)
_HEADER: Final = struct.Struct(">hhih")
_NO_TAGS: Final = b"\x00"


class Versions(NamedTuple):
    """Supported versions of one API, both ends included. ``flexible``: the first version with tagged fields."""

    min: int
    max: int
    flexible: int = 32_767

    @property
    def all(self) -> range:
        return range(self.min, self.max + 1)


def api_name(api_key: int) -> str:
    """``DescribeAcls``, as Apache Kafka logs it; the key of an unknown one."""
    name = api_key_map.get(api_key, str(api_key))
    return "".join(map(str.capitalize, name.split("_")))


@dataclass(frozen=True, slots=True)
class Api(Generic[Q, R_co]):
    """One API: its key, its versions, and the types of its request and its response.

    ``decode``: a hand-written decoder, from version, frame and position to the request.
    """

    key: int
    versions: Versions
    request: type[Q]
    response: type[R_co]
    decode: Callable[[int, Frame, int], Q] | None = None

    def decode_request(self, version: int, frame: Frame, position: int) -> Q:
        """The body at ``position``. Raises Truncated, Malformed or UnknownVersion."""
        if self.decode is not None:
            return self.decode(version, frame, position)
        read = _request_reader(self.key, version, self.request)
        return cast(Q, read(Message.of(frame, ELEMENTS_MAX), position)[0])

    def decode_request_in_steps(self, version: int, frame: Frame, position: int) -> Iterator[Q | None]:
        """The same in steps of some milliseconds: the last one is the request. Raises as ``decode_request`` does."""
        if self.decode is not None:
            yield self.decode(version, frame, position)
            return
        read = _request_steps(self.key, version, self.request)
        request, _end = yield from read(Message.of(frame, ELEMENTS_MAX), position)
        yield cast(Q, request)

    def encode_request(self, version: int, request: Q) -> bytes:
        """The body of a request. Raises UnknownVersion."""
        encoded = bytearray()
        _request_writer(self.key, version, self.request)(encoded, request)
        return bytes(encoded)

    def decode_response(self, version: int, frame: Frame, position: int) -> R_co:
        """The body at ``position``. Raises Truncated, Malformed or UnknownVersion."""
        read = _response_reader(self.key, version, self.response)
        return cast(R_co, read(Message.of(frame, RESPONSE_ELEMENTS_MAX), position)[0])

    def encode_response(self, version: int, response: Values) -> bytes:
        """The body of a response. Raises UnknownVersion."""
        assert isinstance(response, self.response), f"{type(response).__name__} is no {self.response.__name__}"
        encoded = bytearray()
        _response_writer(self.key, version, self.response)(encoded, response)
        return bytes(encoded)

    def response_slices(self, version: int, response: Values) -> Iterator[bytes]:
        """The same body in pieces, each made when it is asked for. Raises UnknownVersion."""
        assert isinstance(response, self.response), f"{type(response).__name__} is no {self.response.__name__}"
        return message_slices(response_type(self.key, version), self.response, response)


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


@cache
def _request_reader(api_key: int, version: int, message: type[Values]) -> Reader:
    return message_reader(request_type(api_key, version), message)


@cache
def _request_steps(api_key: int, version: int, message: type[Values]) -> StepsReader:
    return message_steps(request_type(api_key, version), message)


@cache
def _request_writer(api_key: int, version: int, message: type[Values]) -> Writer:
    return message_writer(request_type(api_key, version), message)


@cache
def _response_reader(api_key: int, version: int, message: type[Values]) -> Reader:
    return message_reader(response_type(api_key, version), message)


@cache
def _response_writer(api_key: int, version: int, message: type[Values]) -> Writer:
    return message_writer(response_type(api_key, version), message)


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
