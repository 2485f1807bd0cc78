"""Avro's binary encoding, strictly: each read returns a value and the offset behind it. Pure.

fastavro parses schemas, but does not check what it decodes: a negative index chooses a branch of a union from its end,
a number may have more bits than its type, and the byte count of a block is not compared with its items.

Where the bytes end early, reads raise IndexError or struct.error; ``read_all`` makes them a bad row.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from typing import Any, Final

from einmal.schemas.columns import Unknown
from einmal.schemas.errors import InvalidText, MalformedValue
from einmal.wire.record_batch import encode_varint

Read = Callable[[bytes, int, Unknown], tuple[Any, int]]
"""Function that reads a value, from a record's bytes and an offset. Raises BadRow."""
_INT_BITS: Final = 32
_LONG_BITS: Final = 64
_FLOAT: Final = struct.Struct("<f")
_DOUBLE: Final = struct.Struct("<d")


def read_all(raw: bytes, read: Read, unknown: Unknown) -> Any:
    """The value that all of the bytes are. Raises BadRow."""
    try:
        value, end = read(raw, 0, unknown)
    except (IndexError, struct.error) as error:
        raise MalformedValue("it ends before its value does") from error
    if end != len(raw):
        raise MalformedValue(f"{len(raw) - end:,} bytes behind the value")
    return value


def read_null(_: bytes, at: int, __: Unknown) -> tuple[None, int]:
    return None, at


def read_boolean(raw: bytes, at: int, _: Unknown) -> tuple[bool, int]:
    value = raw[at]
    if value > 1:
        raise MalformedValue(f"a boolean of the byte {value}")
    return value == 1, at + 1


def read_long(raw: bytes, at: int, _: Unknown) -> tuple[int, int]:
    first = raw[at]
    if first < 0x80:
        return (first >> 1) ^ -(first & 1), at + 1
    return _varint(raw, at, _LONG_BITS)


def read_int(raw: bytes, at: int, _: Unknown) -> tuple[int, int]:
    first = raw[at]
    if first < 0x80:
        return (first >> 1) ^ -(first & 1), at + 1
    return _varint(raw, at, _INT_BITS)


def _varint(raw: bytes, at: int, bits: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        byte = raw[at]
        at += 1
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            break
        if shift >= bits:
            raise MalformedValue(f"a number of more than {bits} bits")
    if number >> bits:
        raise MalformedValue(f"a number of more than {bits} bits")
    return (number >> 1) ^ -(number & 1), at


def read_float(raw: bytes, at: int, _: Unknown) -> tuple[float, int]:
    return _FLOAT.unpack_from(raw, at)[0], at + 4


def read_double(raw: bytes, at: int, _: Unknown) -> tuple[float, int]:
    return _DOUBLE.unpack_from(raw, at)[0], at + 8


def read_bytes(raw: bytes, at: int, _: Unknown) -> tuple[bytes, int]:
    first = raw[at]
    # The length of most texts is one byte, and a call costs more than what it would do.
    size, at = ((first >> 1) ^ -(first & 1), at + 1) if first < 0x80 else _varint(raw, at, _LONG_BITS)
    end = at + size
    if not at <= end <= len(raw):
        raise MalformedValue(f"a length of {size:,} where {len(raw) - at:,} bytes are left")
    return raw[at:end], end


def read_string(raw: bytes, at: int, unknown: Unknown) -> tuple[str, int]:
    value, at = read_bytes(raw, at, unknown)
    try:
        return value.decode(), at
    except UnicodeDecodeError as error:
        raise InvalidText("text that is not UTF-8") from error


def fixed(size: int) -> Read:
    def read(raw: bytes, at: int, _: Unknown) -> tuple[bytes, int]:
        end = at + size
        if end > len(raw):
            raise IndexError
        return raw[at:end], end

    return read


def read_index(raw: bytes, at: int, count: int, what: str) -> tuple[int, int]:
    """Read the index of a branch or a symbol, of which there are ``count``."""
    index = raw[at]
    if index & 1 or index >= 0x80 or (index := index >> 1) >= count:
        index, at = _varint(raw, at, _INT_BITS)
        if not 0 <= index < count:
            raise MalformedValue(f"index {index:,} of {count:,} {what}")
        return index, at
    return index, at + 1


def array_of(item: Read, width: int) -> Read:
    """``width``: values that an item has in the row."""

    def read(raw: bytes, at: int, unknown: Unknown) -> tuple[list[Any], int]:
        values: list[Any] = []
        inside = unknown.inside()
        count, end, at = _block(raw, at, unknown)
        while count:
            # A count may lie, and each item has a byte.
            unknown.count(min(count, len(raw)) * width)
            for _ in range(count):
                value, at = item(raw, at, inside)
                if inside.fields:
                    unknown.take(str(len(values)), inside)
                values.append(value)
            _check_end(at, end)
            count, end, at = _block(raw, at, unknown)
        return values, at

    return read


def map_of(item: Read, width: int) -> Read:
    """A key that comes again replaces the value before. ``width``: see ``array_of``."""

    def read(raw: bytes, at: int, unknown: Unknown) -> tuple[dict[str, Any], int]:
        values: dict[str, Any] = {}
        inside = unknown.inside()
        count, end, at = _block(raw, at, unknown)
        while count:
            # A count may lie, and each item has a byte.
            unknown.count(min(count, len(raw)) * width)
            for _ in range(count):
                key, at = read_string(raw, at, unknown)
                values[key], at = item(raw, at, inside)
                if inside.fields:
                    unknown.take(key, inside)
            _check_end(at, end)
            count, end, at = _block(raw, at, unknown)
        return values, at

    return read


def _block(raw: bytes, at: int, unknown: Unknown) -> tuple[int, int | None, int]:
    """How many items it has, where it ends if that was written, and where its items begin."""
    count, at = read_long(raw, at, unknown)
    if count >= 0:
        return count, None, at
    size, at = read_long(raw, at, unknown)
    return -count, at + size, at


def _check_end(at: int, end: int | None) -> None:
    if end is not None and at != end:
        raise MalformedValue("a block of items that is not as long as was written")


def encoded_bytes(value: bytes) -> bytes:
    return encode_varint(len(value)) + value


def encoded_items(items: Iterable[bytes]) -> bytes:
    """Encode the items of an array or a map, as one block."""
    encoded = list(items)
    return (encode_varint(len(encoded)) + b"".join(encoded) if encoded else b"") + encode_varint(0)


def encoded_float(number: float) -> bytes:
    return _FLOAT.pack(number)


def encoded_double(number: float) -> bytes:
    return _DOUBLE.pack(number)
