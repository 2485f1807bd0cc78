"""Decoding of Kafka's fields in keys and values that no message schema covers.

Both encodings: fixed lengths, and the flexible one with lengths plus one as varints, and tagged fields. Knows nothing
of what the fields mean. Raises Truncated or Malformed.
"""

from __future__ import annotations

import struct
from typing import Final

from einmal.wire.errors import Malformed, Truncated
from einmal.wire.messages import read_uvarint, skip_tagged_fields

_FIRST_FLEXIBLE_VERSION: Final = 4
_LAST_VERSION: Final = 4
_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")
_INT64: Final = struct.Struct(">q")


class FieldReader:
    """Reads the fields of a key or a value in order."""

    __slots__ = ("_buffer", "_is_flexible", "_position")

    def __init__(self, buffer: bytes) -> None:
        self._buffer = buffer
        self._position = 0
        self._is_flexible = False

    def value_version(self, name: str) -> int:
        version = self.int16()
        if not 0 <= version <= _LAST_VERSION:
            raise Malformed(f"{name} value of version {version}")
        self._is_flexible = version >= _FIRST_FLEXIBLE_VERSION
        return version

    def int16(self) -> int:
        return self._unpack(_INT16)

    def int32(self) -> int:
        return self._unpack(_INT32)

    def int64(self) -> int:
        return self._unpack(_INT64)

    def array_length(self) -> int:
        return self._length(_INT32)

    def blob(self) -> bytes:
        return self._take(self._length(_INT32))

    def string(self) -> str:
        value = self.nullable_string()
        if value is None:
            raise Malformed("null instead of a string")
        return value

    def nullable_string(self) -> str | None:
        length = self._length(_INT16)
        if length < 0:
            return None
        try:
            return self._take(length).decode()
        except UnicodeDecodeError as error:
            raise Malformed("string is not UTF-8") from error

    def tagged_fields(self) -> None:
        if self._is_flexible:
            self._position = skip_tagged_fields(self._buffer, self._position)

    def _length(self, fixed: struct.Struct) -> int:
        if not self._is_flexible:
            return self._unpack(fixed)
        length, self._position = read_uvarint(self._buffer, self._position)
        return length - 1

    def _take(self, length: int) -> bytes:
        end = self._position + length
        if length < 0 or end > len(self._buffer):
            raise Truncated("value of a group or an offset")
        taken = self._buffer[self._position : end]
        self._position = end
        return taken

    def _unpack(self, fixed: struct.Struct) -> int:
        try:
            (value,) = fixed.unpack_from(self._buffer, self._position)
        except struct.error as error:
            raise Truncated("key or value of a group or an offset") from error
        self._position += fixed.size
        return int(value)
