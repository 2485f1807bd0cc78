"""Requests and responses from bytes that nobody vouches for, by kio's schemas, into our types.

kio's own reader believes the length of an array and reserves room for it: one frame of thirty bytes can abort the
process. This one believes nothing: every element is read before there is room for it, null stands only where the schema
has null, and a tagged field that the schema does not know is skipped, as KIP-482 wants. The elements of all arrays of a
message are counted together, so that arrays of empty arrays cannot multiply. One reader per schema, made when first
used.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Generator, Mapping
from datetime import timedelta
from functools import cache, partial
from typing import Any, Final, NamedTuple, TypeAlias, cast
from uuid import UUID

from einmal.wire.errors import Malformed, Truncated
from einmal.wire.message import Message
from einmal.wire.primitives import STRING_BYTES_MAX, TAGS_MAX, error_of
from einmal.wire.schemas import field_types, unwrap

RESPONSE_ELEMENTS_MAX: Final = 10_000_000
"""A cluster may well have more partitions than a client may ask for by name."""


Reader: TypeAlias = Callable[[Message, int], tuple[Any, int]]
"""From a message and a position to a value and the position after it."""
StepsReader: TypeAlias = Callable[[Message, int], Generator[None, None, tuple[Any, int]]]
"""The same in steps: it yields between elements of arrays, and returns the value and the position."""

_STEP_ELEMENTS: Final = 16
"""Elements of one array in a step. Where arrays nest, a step has as many of the inner ones: thousands of elements in
all."""
_VARINT_SHIFT_MAX: Final = 28


@cache
def message_reader(schema: Any, message: Any) -> Reader:
    """Reads one message, or one nested structure, of this schema as ``message``: a type without versions.

    A field that the schema does not have gets its default. Raises Truncated or Malformed.
    """
    flexible = bool(schema.__flexible__)
    fields, tagged = _fields(schema, message)
    plain = [(field.slot, field.reader) for field in fields]
    defaults = list(message())
    make = partial(tuple.__new__, message)

    def read(frame: Message, position: int) -> tuple[Any, int]:
        values = defaults.copy()
        for slot, reader in plain:
            values[slot], position = reader(frame, position)
        if flexible:
            position = _read_tags(frame, position, tagged, values)
        return make(values), position

    return read


@cache
def message_steps(schema: Any, message: Any) -> StepsReader:
    """As ``message_reader`` does, but in steps of some milliseconds, between which others may have their turn."""
    flexible = bool(schema.__flexible__)
    fields, tagged = _fields(schema, message)
    in_order = [
        (field.slot, field.reader, _array_steps(field, flexible) if field.is_array else None) for field in fields
    ]
    defaults = list(message())
    make = partial(tuple.__new__, message)

    def read(frame: Message, position: int) -> Generator[None, None, tuple[Any, int]]:
        values = defaults.copy()
        for slot, reader, steps in in_order:
            if steps is None:
                values[slot], position = reader(frame, position)
            else:
                values[slot], position = yield from steps(frame, position)
        if flexible:
            position = _read_tags(frame, position, tagged, values)
        return make(values), position

    return read


class _Field(NamedTuple):
    """A field of a schema that has no tag. ``message``: the type of its structure, or of its elements."""

    slot: int
    field: dataclasses.Field[Any]
    message: Any
    reader: Reader

    @property
    def is_array(self) -> bool:
        return unwrap(self.field.type)[2]


def _fields(schema: Any, message: Any) -> tuple[list[_Field], dict[int, tuple[int, Reader]]]:
    """Where each field of a schema goes in ``message``, and its reader: plain ones in order, tagged ones by tag."""
    types = field_types(message)
    slots = {name: slot for slot, name in enumerate(types)}
    plain: list[_Field] = []
    tagged: dict[int, tuple[int, Reader]] = {}
    for field in dataclasses.fields(schema):
        inner = unwrap(types[field.name])[0]
        reader = _field_reader(field, bool(schema.__flexible__), inner)
        tag = field.metadata.get("tag")
        if tag is None:
            plain.append(_Field(slots[field.name], field, inner, reader))
        else:
            tagged[tag] = (slots[field.name], reader)
    return plain, tagged


def _read_tags(frame: Message, position: int, tagged: Mapping[int, tuple[int, Reader]], values: list[Any]) -> int:
    count, position = _uvarint(frame, position)
    if count > TAGS_MAX:
        raise Malformed(f"{count} tagged fields")
    for _ in range(count):
        tag, position = _uvarint(frame, position)
        size, position = _uvarint(frame, position)
        end = position + size
        if end > len(frame):
            raise Truncated("tagged field")
        known = tagged.get(tag)
        if known is not None:
            slot, reader = known
            values[slot], position = reader(frame, position)
            if position != end:
                raise Malformed(f"tagged field {tag} does not have the size that it claims")
        position = end
    return position


# --- fields ------------------------------------------------------------------------------------------------------


def _field_reader(field: dataclasses.Field[Any], flexible: bool, message: Any) -> Reader:
    """``message``: the type of a structure, or of an array's elements."""
    inner, is_nullable, is_array = unwrap(field.type)
    one = _element_reader(field, flexible, message)
    if is_array:
        return partial(_read_array, one, flexible, is_nullable)
    return partial(_read_nullable, one) if is_nullable and dataclasses.is_dataclass(inner) else one


def _element_reader(field: dataclasses.Field[Any], flexible: bool, message: Any) -> Reader:
    """Return the reader of the field, or of one element where it is an array."""
    inner, is_nullable, is_array = unwrap(field.type)
    if dataclasses.is_dataclass(inner):
        return message_reader(cast(Any, inner), message)
    kind = field.metadata["kafka_type"]
    return _primitive_reader(kind, flexible, is_nullable and not is_array)


def _array_steps(array: _Field, flexible: bool) -> StepsReader:
    inner, is_nullable, _is_array = unwrap(array.field.type)
    one = _element_reader(array.field, flexible, array.message)
    has_arrays = dataclasses.is_dataclass(inner) and any(unwrap(field.type)[2] for field in dataclasses.fields(inner))
    one_in_steps = message_steps(cast(Any, inner), array.message) if has_arrays else None

    def read(frame: Message, position: int) -> Generator[None, None, tuple[Any, int]]:
        count, position = _array_length(frame, position, flexible, is_nullable)
        if count is None:
            return None, position
        items = []
        for number in range(1, count + 1):
            if one_in_steps is None:
                item, position = one(frame, position)
            else:
                item, position = yield from one_in_steps(frame, position)
            items.append(item)
            if number % _STEP_ELEMENTS == 0:
                yield
        return tuple(items), position

    return read


def _primitive_reader(kind: str, flexible: bool, is_nullable: bool) -> Reader:
    if kind == "string":
        return partial(_read_string, flexible, is_nullable)
    if kind in ("bytes", "records"):
        return partial(_read_bytes, flexible, is_nullable)
    return _FIXED[kind]


def _read_nullable(reader: Reader, frame: Message, position: int) -> tuple[Any, int]:
    """A structure behind a byte that is negative for null (KIP-893)."""
    if position >= len(frame):
        raise Truncated("nullable structure")
    if frame[position] >= 0x80:
        return None, position + 1
    return reader(frame, position + 1)


def _read_array(
    reader: Reader, flexible: bool, is_nullable: bool, frame: Message, position: int
) -> tuple[tuple[Any, ...] | None, int]:
    count, position = _array_length(frame, position, flexible, is_nullable)
    if count is None:
        return None, position
    items = []
    for _ in range(count):
        item, position = reader(frame, position)
        items.append(item)
    return tuple(items), position


def _array_length(frame: Message, position: int, flexible: bool, is_nullable: bool) -> tuple[int | None, int]:
    """How many elements an array has, now counted in ``elements_left``; None for null."""
    count, position = _length(frame, position, flexible, wide=True)
    if count < 0:
        if not is_nullable:
            raise Malformed("null where an array must be")
        return None, position
    if count > len(frame) - position:
        raise Malformed(f"array of {count}")
    frame.elements_left -= count
    if frame.elements_left < 0:
        raise Malformed(f"an array of {count}, and with it too many elements in one message")
    return count, position


def _read_string(flexible: bool, is_nullable: bool, frame: Message, position: int) -> tuple[str | None, int]:
    length, position = _length(frame, position, flexible, wide=False)
    if length < 0:
        if not is_nullable:
            raise Malformed("null where a string must be")
        return None, position
    if length > STRING_BYTES_MAX:
        raise Malformed(f"string of {length} bytes")
    end = position + length
    if end > len(frame):
        raise Truncated("string")
    try:
        return frame[position:end].decode(), end
    except UnicodeDecodeError as error:
        raise Malformed("a string is not UTF-8") from error


def _read_bytes(flexible: bool, is_nullable: bool, frame: Message, position: int) -> tuple[bytes | None, int]:
    length, position = _length(frame, position, flexible, wide=True)
    if length < 0:
        if not is_nullable:
            raise Malformed("null where bytes must be")
        return None, position
    end = position + length
    if end > len(frame):
        raise Truncated("bytes")
    return frame[position:end], end


def _length(frame: Message, position: int, flexible: bool, *, wide: bool) -> tuple[int, int]:
    """A length, -1 for null. ``wide``: an int32 where it is not a varint, else an int16."""
    if flexible:
        length, position = _uvarint(frame, position)
        return length - 1, position
    layout = _INT32 if wide else _INT16
    end = position + layout.size
    if end > len(frame):
        raise Truncated("length")
    (length,) = layout.unpack_from(frame, position)
    if length < -1:
        raise Malformed(f"length {length}")
    return length, end


def _uvarint(frame: Message, position: int) -> tuple[int, int]:
    value = shift = 0
    try:
        while True:
            byte = frame[position]
            position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value, position
            shift += 7
            if shift > _VARINT_SHIFT_MAX:
                raise Malformed("varint longer than five bytes")
    except IndexError as error:
        raise Truncated("varint") from error


# --- fixed sizes -------------------------------------------------------------------------------------------------

_INT16: Final = struct.Struct(">h")
_INT32: Final = struct.Struct(">i")


def _fixed(layout: str, convert: Callable[[Any], Any] | None = None) -> Reader:
    packed = struct.Struct(layout)
    size = packed.size

    def read(frame: Message, position: int) -> tuple[Any, int]:
        end = position + size
        if end > len(frame):
            raise Truncated("field of fixed size")
        (value,) = packed.unpack_from(frame, position)
        return (value if convert is None else convert(value)), end

    return read


def _to_milliseconds(value: int) -> int:
    if not _DURATION_MS_MIN <= value <= _DURATION_MS_MAX:
        raise Malformed(f"a time of {value} ms")
    return value


def _to_uuid(value: bytes) -> UUID | None:
    """kio has None for the id of zeros."""
    return UUID(bytes=value) if any(value) else None


_FIXED: Final[Mapping[str, Reader]] = {
    "bool": _fixed(">?"),
    "int8": _fixed(">b"),
    "int16": _fixed(">h"),
    "int32": _fixed(">i"),
    "int64": _fixed(">q"),
    "uint8": _fixed(">B"),
    "uint16": _fixed(">H"),
    "uint32": _fixed(">I"),
    "uint64": _fixed(">Q"),
    "float64": _fixed(">d"),
    "uuid": _fixed(">16s", _to_uuid),
    "error_code": _fixed(">h", error_of),
    "timedelta_i32": _fixed(">i"),
    "timedelta_i64": _fixed(">q", _to_milliseconds),
    "datetime_i64": _fixed(">q"),
}
"""By kio's name of the type. Times are milliseconds."""
_DURATION_MS_MIN: Final = timedelta.min // timedelta(milliseconds=1)
_DURATION_MS_MAX: Final = timedelta.max // timedelta(milliseconds=1)
