"""Fields of a metadata record: writes and reads them by a layout, which has their order and first versions.

The encoding is Kafka's flexible one: compact strings and arrays, tagged fields at the end of every structure. Tags that
a layout does not name are skipped when reading. Knows no record in particular (KIP-482).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, NamedTuple, Protocol
from uuid import UUID

from einmal.wire.errors import Malformed, Truncated
from einmal.wire.messages import read_uvarint


class Kind(Protocol):
    """The encoding of one value."""

    def write(self, buffer: bytearray, value: Any) -> None: ...

    def read(self, reader: Reader) -> Any:
        """Raises Truncated or Malformed."""


@dataclass(slots=True)
class Reader:
    data: bytes
    position: int = 0

    def uvarint(self) -> int:
        value, self.position = read_uvarint(self.data, self.position)
        return value

    def take(self, size: int) -> bytes:
        taken = self.data[self.position : self.position + size]
        if len(taken) != size:
            raise Truncated("metadata record")
        self.position += size
        return taken

    def tags(self) -> dict[int, bytes]:
        fields = {}
        for _ in range(self.uvarint()):
            tag = self.uvarint()
            fields[tag] = self.take(self.uvarint())
        return fields


def write_uvarint(buffer: bytearray, value: int) -> None:
    while value >= 0x80:
        buffer.append(value & 0x7F | 0x80)
        value >>= 7
    buffer.append(value)


class _Number:
    def __init__(self, layout: str) -> None:
        self._struct = struct.Struct(layout)

    def write(self, buffer: bytearray, value: int) -> None:
        buffer += self._struct.pack(value)

    def read(self, reader: Reader) -> Any:
        return self._struct.unpack(reader.take(self._struct.size))[0]


class _Text:
    def __init__(self, *, nullable: bool = False) -> None:
        self._nullable = nullable

    def write(self, buffer: bytearray, value: str | None) -> None:
        if value is None:
            write_uvarint(buffer, 0)
            return
        encoded = value.encode()
        write_uvarint(buffer, len(encoded) + 1)
        buffer += encoded

    def read(self, reader: Reader) -> str | None:
        size = reader.uvarint()
        if size == 0:
            return None if self._nullable else ""
        try:
            return reader.take(size - 1).decode()
        except UnicodeDecodeError as error:
            raise Malformed("a string of a metadata record is not UTF-8") from error


class _Bytes:
    def write(self, buffer: bytearray, value: bytes) -> None:
        write_uvarint(buffer, len(value) + 1)
        buffer += value

    def read(self, reader: Reader) -> bytes:
        size = reader.uvarint()
        if size == 0:
            raise Malformed("no bytes in a metadata record that needs them")
        return reader.take(size - 1)


class _Uuid:
    def write(self, buffer: bytearray, value: UUID) -> None:
        buffer += value.bytes

    def read(self, reader: Reader) -> UUID:
        return UUID(bytes=reader.take(16))


class Named:
    """A number that has a name, in a byte. One that is UNKNOWN here is refused: its meaning would be lost."""

    def __init__(self, names: type[IntEnum]) -> None:
        self._names = names

    def write(self, buffer: bytearray, value: IntEnum) -> None:
        INT8.write(buffer, value)

    def read(self, reader: Reader) -> IntEnum:
        number = INT8.read(reader)
        named = self._names(number)
        if named != number:
            raise Malformed(f"{self._names.__name__} {number} of a metadata record")
        return named


class Array:
    """A tuple of one kind."""

    def __init__(self, kind: Kind) -> None:
        self._kind = kind

    def write(self, buffer: bytearray, value: tuple[Any, ...]) -> None:
        write_uvarint(buffer, len(value) + 1)
        for item in value:
            self._kind.write(buffer, item)

    def read(self, reader: Reader) -> tuple[Any, ...]:
        return tuple(self._kind.read(reader) for _ in range(reader.uvarint() - 1))


class Unused:
    """An unused field: always written with the same value, skipped when read."""

    def __init__(self, kind: Kind, value: Any) -> None:
        self._kind = kind
        self._value = value

    def write(self, buffer: bytearray, value: Any) -> None:
        self._kind.write(buffer, self._value)

    def read(self, reader: Reader) -> None:
        self._kind.read(reader)


INT8: Final = _Number(">b")
UINT16: Final = _Number(">H")
INT16: Final = _Number(">h")
INT32: Final = _Number(">i")
INT64: Final = _Number(">q")
FLOAT64: Final = _Number(">d")
BOOL: Final = _Number(">?")
TEXT: Final = _Text()
NULLABLE_TEXT: Final = _Text(nullable=True)
BYTES: Final = _Bytes()
UUIDS: Final = Array(_Uuid())
A_UUID: Final = _Uuid()
BROKERS: Final = Array(INT32)


class Field(NamedTuple):
    """``name``: the attribute; ``since``: its first version."""

    name: str
    kind: Kind
    since: int = 0


class Tag(NamedTuple):
    """A tagged field; it is not written where it has the value ``absent``."""

    number: int
    name: str
    kind: Kind
    absent: Any = None


@dataclass(frozen=True, slots=True)
class Structure:
    """The arguments of ``make``, for a record or a part of one, in the newest version that we write."""

    make: Callable[..., Any]
    fields: tuple[Field, ...]
    tags: tuple[Tag, ...] = ()

    def write(self, buffer: bytearray, value: Any) -> None:
        for name, kind, _since in self.fields:
            kind.write(buffer, None if isinstance(kind, Unused) else getattr(value, name))
        present: dict[int, bytearray] = {}
        for number, name, kind, absent in self.tags:
            item = getattr(value, name)
            if item != absent:
                kind.write(present.setdefault(number, bytearray()), item)
        write_uvarint(buffer, len(present))
        for number, data in present.items():
            write_uvarint(buffer, number)
            write_uvarint(buffer, len(data))
            buffer += data

    def read(self, reader: Reader, version: int = 32_767) -> Any:
        values: dict[str, Any] = {}
        for name, kind, since in self.fields:
            if version >= since:
                value = kind.read(reader)
                if not isinstance(kind, Unused):
                    values[name] = value
        self._read_tags(reader.tags(), values)
        return self.make(**values)

    def _read_tags(self, data: Mapping[int, bytes], values: dict[str, Any]) -> None:
        for number, name, kind, _absent in self.tags:
            if number in data:
                values[name] = kind.read(Reader(data[number]))
