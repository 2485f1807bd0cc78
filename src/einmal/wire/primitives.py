"""Kafka's primitive types in a frame: strings, byte strings, array lengths, varints, ids; in classic and compact form.

For the hand-written codecs. Readers take a frame and a position and return a value and the position after it; they
raise Truncated or Malformed, or ``struct.error`` / ``IndexError``, which ``refuse_broken_input`` turns into these.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Final, ParamSpec, TypeVar
from uuid import UUID

from kio.schema.errors import ErrorCode

from einmal.wire.errors import Malformed, Truncated

T = TypeVar("T")
P = ParamSpec("P")
Frame = bytes | bytearray
Topic = str | UUID
"""A topic's name, or its id where the version has ids."""

INT16: Final = struct.Struct(">h")
INT32: Final = struct.Struct(">i")
INT64: Final = struct.Struct(">q")
NO_TAGS: Final = b"\x00"
_VARINT_SHIFT_MAX: Final = 28
_UUID_SIZE: Final = 16
_SHORT_STRING: Final = 300
"""Characters of a string that is remembered with its bytes: those of a topic's name, and of nearly all other names."""
ELEMENTS_MAX: Final = 50_000
"""Array elements of one request, all arrays together. Decoding so many takes a quarter of a second at most."""
STRING_BYTES_MAX: Final = 0x7FFF
"""Limit of a string in UTF-8. Its classic length has 16 bits, and Apache Kafka refuses a longer compact one, too."""
TAGS_MAX: Final = 16
"""Tagged fields of one structure. No message has half as many; a list of them takes a hundred times its bytes."""


def refuse_broken_input(decode: Callable[P, T]) -> Callable[P, T]:
    """Convert the exceptions of a decoder that reads past the end, or reads nonsense, to Truncated or Malformed."""

    @wraps(decode)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return decode(*args, **kwargs)
        except (struct.error, IndexError) as error:
            raise Truncated(decode.__name__) from error
        except UnicodeDecodeError as error:
            raise Malformed(f"{decode.__name__}: a string is not UTF-8") from error

    return guarded


def _encode_uvarint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


_SHORT: Final = tuple(_encode_uvarint(value) for value in range(2048))


def encode_uvarint(value: int) -> bytes:
    """An unsigned varint."""
    return _SHORT[value] if value < len(_SHORT) else _encode_uvarint(value)


def read_uvarint(frame: Frame, position: int) -> tuple[int, int]:
    """An unsigned varint of at most five bytes."""
    byte = frame[position]
    if byte < 0x80:
        return byte, position + 1
    value = byte & 0x7F
    shift = 7
    while True:
        position += 1
        byte = frame[position]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position + 1
        shift += 7
        if shift > _VARINT_SHIFT_MAX:
            raise Malformed("varint longer than five bytes")


def read_length(frame: Frame, position: int, flexible: bool) -> tuple[int, int]:
    """The length of an array: -1 for null."""
    if flexible:
        length, position = read_uvarint(frame, position)
        return length - 1, position
    (length,) = INT32.unpack_from(frame, position)
    if length < -1:
        raise Malformed(f"array of {length}")
    return length, position + 4


def read_count(frame: Frame, position: int, flexible: bool, room: int) -> tuple[int, int, int]:
    """The length of a non-null array, the position after the length, and how many elements may follow this array.

    ``room``: how many elements the request may still have. Raises Malformed where the array has more.
    """
    length, position = read_length(frame, position, flexible)
    if length < 0:
        raise Malformed("null instead of an array")
    if length > room:
        raise Malformed(f"more than {ELEMENTS_MAX} elements in one request")
    return length, position, room - length


def encode_length(length: int, flexible: bool) -> bytes:
    return encode_uvarint(length + 1) if flexible else INT32.pack(length)


def read_nullable_string(frame: Frame, position: int, flexible: bool) -> tuple[str | None, int]:
    if flexible:
        length, position = read_uvarint(frame, position)
        length -= 1
        if length > STRING_BYTES_MAX:
            raise Malformed(f"string of {length} bytes")
    else:
        (length,) = INT16.unpack_from(frame, position)
        position += 2
    if length < 0:
        return None, position
    end = position + length
    if end > len(frame):
        raise Truncated("string")
    return frame[position:end].decode(), end


def read_string(frame: Frame, position: int, flexible: bool) -> tuple[str, int]:
    value, position = read_nullable_string(frame, position, flexible)
    if value is None:
        raise Malformed("null instead of a string")
    return value, position


def encode_nullable_string(value: str | None, flexible: bool) -> bytes:
    if value is None:
        return b"\x00" if flexible else b"\xff\xff"
    return encode_string(value, flexible)


def encode_string(value: str, flexible: bool) -> bytes:
    """Raises struct.error for a string above STRING_BYTES_MAX."""
    return _encode_short_string(value, flexible) if len(value) <= _SHORT_STRING else _encode_string(value, flexible)


def _encode_string(value: str, flexible: bool) -> bytes:
    encoded = value.encode()
    if len(encoded) > STRING_BYTES_MAX:
        raise struct.error(f"string of {len(encoded)} bytes, the limit is {STRING_BYTES_MAX}")
    return (encode_uvarint(len(encoded) + 1) if flexible else INT16.pack(len(encoded))) + encoded


@lru_cache(maxsize=4096)
def _encode_short_string(value: str, flexible: bool) -> bytes:
    return _encode_string(value, flexible)


def read_records(frame: memoryview, raw: Frame, position: int, flexible: bool) -> tuple[memoryview | None, int]:
    """A slice of the frame without a copy; None for null. ``raw`` is the frame's bytes."""
    length, position = read_length(raw, position, flexible)
    if length < 0:
        return None, position
    end = position + length
    if end > len(raw):
        raise Truncated("records")
    return frame[position:end], end


def read_topic(frame: Frame, position: int, flexible: bool, has_ids: bool) -> tuple[Topic, int]:
    return read_topic_id(frame, position) if has_ids else read_string(frame, position, flexible)


def read_topic_id(frame: Frame, position: int) -> tuple[UUID, int]:
    end = position + _UUID_SIZE
    if end > len(frame):
        raise Truncated("topic id")
    return _uuid(bytes(frame[position:end])), end


def encode_topic(topic: Topic, flexible: bool) -> bytes:
    return encode_string(topic, flexible) if isinstance(topic, str) else topic.bytes


@lru_cache(maxsize=4096)
def _uuid(value: bytes) -> UUID:
    return UUID(bytes=value)


def skip_tags(frame: Frame, position: int) -> int:
    """The position after a section of tagged fields."""
    if not frame[position]:
        return position + 1
    return read_tags(frame, position)[1]


def read_tags(frame: Frame, position: int) -> tuple[list[tuple[int, int]], int]:
    """(tag, where its value starts) of each tagged field, and the position after the section."""
    if not frame[position]:
        return [], position + 1
    count, position = read_uvarint(frame, position)
    if count > TAGS_MAX:
        raise Malformed(f"{count} tagged fields")
    tags = []
    for _ in range(count):
        tag, position = read_uvarint(frame, position)
        size, position = read_uvarint(frame, position)
        tags.append((tag, position))
        position += size
        if position > len(frame):
            raise Truncated("tagged field")
    return tags, position


def encode_tags(tags: list[tuple[int, bytes]]) -> bytes:
    """A section of tagged fields, which must be in the order of their tags."""
    if not tags:
        return NO_TAGS
    parts = [encode_uvarint(len(tags))]
    for tag, value in tags:
        parts += (encode_uvarint(tag), encode_uvarint(len(value)), value)
    return b"".join(parts)


_ERRORS: Final = {int(code): code for code in ErrorCode}


def error_of(code: int) -> ErrorCode:
    """The error of a number on the wire; ``unknown_server_error`` for one that we do not know."""
    return _ERRORS.get(code, ErrorCode.unknown_server_error)
