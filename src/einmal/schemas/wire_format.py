"""The wire format of Confluent's serializers: a magic byte, the schema's id, and Protobuf's message indexes. Pure.

https://docs.confluent.io/platform/current/schema-registry/fundamentals/serdes-develop/index.html#wire-format
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from einmal.schemas.errors import MalformedValue

MAGIC: Final = 0
_PREFIX: Final = struct.Struct(">bi")
_INDEXES_MAX: Final = 32
"""Protobuf's compilers allow nesting of 32."""
_VARINT_BYTES_MAX: Final = 5


class Framed(NamedTuple):
    schema_id: int
    payload: bytes


def unframed(raw: bytes) -> Framed:
    """Raises MalformedValue."""
    if len(raw) < _PREFIX.size:
        raise MalformedValue(f"{len(raw)} bytes: the wire format of a schema registry begins with {_PREFIX.size}")
    magic, schema_id = _PREFIX.unpack_from(raw)
    if magic != MAGIC:
        raise MalformedValue("no wire format of a schema registry: its first byte is 0")
    if schema_id < 0:
        raise MalformedValue("a negative schema id")
    return Framed(schema_id, raw[_PREFIX.size :])


def framed(schema_id: int, payload: bytes) -> bytes:
    return _PREFIX.pack(MAGIC, schema_id) + payload


def message_indexes(payload: bytes) -> tuple[tuple[int, ...], bytes]:
    """Protobuf's message indexes, and the bytes behind them. Raises MalformedValue."""
    count, position = _zigzag(payload, 0)
    if count == 0:
        # The first message, which nearly all are, takes one byte.
        return (0,), payload[position:]
    if not 0 < count <= _INDEXES_MAX:
        raise MalformedValue("no message indexes of Protobuf's wire format")
    indexes = []
    for _ in range(count):
        index, position = _zigzag(payload, position)
        indexes.append(index)
    return tuple(indexes), payload[position:]


def _zigzag(payload: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(_VARINT_BYTES_MAX):
        if position >= len(payload):
            break
        byte = payload[position]
        position += 1
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), position
    raise MalformedValue("no message indexes of Protobuf's wire format")
