"""Protobuf with the descriptors that ``protoc --descriptor_set_out --include_imports`` writes. Pure.

The library limits nesting to 100 levels. Names of columns are those of the ``.proto`` file; a field without presence
that is not set has its default, as everywhere in proto3.

Fields that the declared message does not have are among a message's values under their number, so that drift is found
where values are converted, at each depth; so are extensions, declared or not. Numbers are read with 64 bits and then
compared with the declared type: the library would drop the upper bits of a number that was written with a wider one.
So are booleans and enums, but for closed enums, whose unknown symbols the library makes unknown fields.
"""

from __future__ import annotations

import base64
from typing import Any, Final

from einmal.schemas.columns import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DOUBLE,
    FLOAT,
    INT,
    STRING,
    TIMESTAMP,
    UNSIGNED_INT,
    VALUES_MAX,
    ColumnType,
    Convert,
    Unknown,
    array,
    decimal_column,
    mapping,
    struct,
)
from einmal.schemas.decoder import DEPTH_MAX, Decoded, Limits, VisitedTypes
from einmal.schemas.errors import InvalidText, MalformedValue, MissingField, OutOfRange, SchemaError, UnusableSchema

_TIMESTAMP: Final = "google.protobuf.Timestamp"
_NAMES: Final = {
    "BOOL": BOOLEAN,
    "BYTES": BINARY,
    "DOUBLE": DOUBLE,
    "FLOAT": FLOAT,
    "STRING": STRING,
    "ENUM": STRING,
    "INT32": INT,
    "SINT32": INT,
    "SFIXED32": INT,
    "UINT32": UNSIGNED_INT,
    "FIXED32": BIGINT,
    "INT64": BIGINT,
    "SINT64": BIGINT,
    "SFIXED64": BIGINT,
}
_WIDER: Final = {"INT32": "INT64", "SINT32": "SINT64", "UINT32": "INT64", "BOOL": "INT64", "ENUM": "INT64"}
"""Types of the same encoding. A number that no INT64 is, is no UINT32 either."""
_BOOLEANS: Final = (False, True)
_UINT64: Final = ("UINT64", "FIXED64")
_MESSAGE_MIN: Final = 2
"""Bytes of a message within another."""


class ProtobufDecoder:
    """See ``decoder.Decoder``."""

    def __init__(self, descriptors: bytes, message: str | None = None, limits: Limits | None = None) -> None:
        """``descriptors``: a FileDescriptorSet; ``message``: the full name, unless it has one message only.

        Raises SchemaError.
        """
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

        self._limits = limits or Limits()
        pool, wide_pool = descriptor_pool.DescriptorPool(), descriptor_pool.DescriptorPool()
        try:
            files = descriptor_pb2.FileDescriptorSet.FromString(descriptors).file
            for file in files:
                pool.Add(file)
                wide_pool.Add(_widened(file, pool.FindFileByName(file.name)))
            name = message or _only_message(files)
            descriptor = pool.FindMessageTypeByName(name)
        except KeyError as error:
            raise SchemaError(
                f"the descriptors have no message {message!r}", "it is the full name, with the package"
            ) from error
        except Exception as error:
            if isinstance(error, SchemaError):
                raise
            raise SchemaError(
                f"not descriptors of Protobuf ({type(error).__name__})",
                "protoc --include_imports --descriptor_set_out=FILE writes them",
            ) from error
        self._class = message_factory.GetMessageClass(wide_pool.FindMessageTypeByName(name))
        self.indexes = _indexes(descriptor)
        """Where the message is in its file: the message indexes of the wire format."""
        self._descriptor = descriptor
        self._column = _message_column(descriptor, (), VisitedTypes("Protobuf message"))
        self._convert = self._column.at("$")
        self._widest = _widest(descriptor)

    @property
    def ddl(self) -> str:
        return self._column.ddl

    def decode(self, raw: bytes, indexes: tuple[int, ...] | None = None) -> Decoded:
        """``indexes``: of the wire format, if the record has them. Raises BadRow."""
        from google.protobuf.message import DecodeError

        self._limits.check_size(raw)
        if indexes is not None and indexes != self.indexes:
            raise UnusableSchema(f"message {list(indexes)} of its schema, not the declared {list(self.indexes)}")
        try:
            if len(raw) // _MESSAGE_MIN * self._widest > VALUES_MAX:
                # The library has memory for each field of each message, set or not.
                _count_values(raw, self._descriptor, Unknown())
            message = self._class.FromString(raw)
        except DecodeError as error:
            reason = "it is not UTF-8" if "UTF-8" in str(error) else ""
            if reason:
                raise InvalidText("text that is not UTF-8") from error
            raise MalformedValue("not Protobuf of the declared message") from error
        unknown = Unknown()
        try:
            plain = _plain(message, self._descriptor)
        except UnicodeDecodeError as error:
            # The text is a key of a map.
            raise InvalidText("text that is not UTF-8") from error
        return Decoded(self._convert(plain, unknown), unknown.fields)


def descriptor_bytes(text: str) -> bytes:
    """Return the bytes of a FileDescriptorSet in base 64, as options carry it. Raises SchemaError."""
    try:
        return base64.b64decode(text, validate=True)
    except ValueError as error:
        raise SchemaError("not base 64") from error


def _widened(file: Any, declared: Any) -> Any:
    """The same file with integers of 64 bits, and without extensions: without columns they are unknown fields.
    ``declared``: its descriptor."""
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto

    wide = type(file).FromString(file.SerializeToString())
    del wide.extension[:]
    messages = [(message, declared.message_types_by_name[message.name]) for message in wide.message_type]
    while messages:
        message, descriptor = messages.pop()
        messages += [(nested, descriptor.nested_types_by_name[nested.name]) for nested in message.nested_type]
        del message.extension[:]
        for field in message.field:
            name = FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_")
            enum = descriptor.fields_by_number[field.number].enum_type
            if name in _WIDER and not (enum is not None and enum.is_closed):
                field.type = FieldDescriptorProto.Type.Value(f"TYPE_{_WIDER[name]}")
                # No default is read: where there is one, a field that is not set has no value.
                field.ClearField("type_name")
                field.ClearField("default_value")
    return wide


def _only_message(files: Any) -> str:
    names = [f"{file.package}.{message.name}".lstrip(".") for file in files[-1:] for message in file.message_type]
    if len(names) != 1:
        raise SchemaError(
            f"the descriptors have {len(names)} messages: {', '.join(names)[:200]}", "choose one by its full name"
        )
    return names[0]


def _indexes(descriptor: Any) -> tuple[int, ...]:
    indexes: list[int] = []
    while descriptor.containing_type is not None:
        indexes.insert(0, [nested.name for nested in descriptor.containing_type.nested_types].index(descriptor.name))
        descriptor = descriptor.containing_type
    indexes.insert(0, list(descriptor.file.message_types_by_name).index(descriptor.name))
    return tuple(indexes)


def _message_column(descriptor: Any, above: tuple[str, ...], visited: VisitedTypes) -> ColumnType:
    """Raises SchemaError."""
    if descriptor.full_name in above or len(above) > DEPTH_MAX:
        raise SchemaError(
            f"the Protobuf message {descriptor.full_name} contains itself", "recursive messages are not decoded"
        )
    inner = (*above, descriptor.full_name)
    return struct({field.name: _field_column(field, inner, visited) for field in descriptor.fields})


def _widest(descriptor: Any) -> int:
    """Fields that a message within one of ``descriptor`` has at most."""
    inner = [field.message_type for field in descriptor.fields if field.message_type is not None]
    return max((max(len(message.fields), _widest(message)) for message in inner), default=0)


def _count_values(written: Any, descriptor: Any, counted: Unknown) -> None:
    """Count the fields of the messages within a message, before it is parsed as such. ``written``: its bytes, or the
    fields of a group. Raises ValueTooLarge, DecodeError."""
    from google.protobuf.empty_pb2 import Empty
    from google.protobuf.unknown_fields import UnknownFieldSet

    inner = {field.number: field.message_type for field in descriptor.fields if field.message_type is not None}
    if not inner or isinstance(written, int):
        return
    for field in UnknownFieldSet(Empty.FromString(written)) if isinstance(written, bytes) else written:
        if (declared := inner.get(field.field_number)) is not None:
            counted.count(len(declared.fields))
            _count_values(field.data, declared, counted)


def _timestamp_at(path: str) -> Convert:
    """From a moment, and the unknown fields of its message."""
    convert = TIMESTAMP.at(path)

    def converted(value: Any, unknown: Unknown) -> Any:
        if value is None:
            return None
        moment, others = value
        for number, other in others.items():
            unknown.add(f"{path}.{number}", other)
        return convert(moment, unknown)

    return converted


_TIMESTAMP_COLUMN: Final = ColumnType(TIMESTAMP.ddl, _timestamp_at)


def _field_column(field: Any, above: tuple[str, ...], visited: VisitedTypes) -> ColumnType:
    if _is_map(field):
        entry = field.message_type.fields_by_name
        key, value = (_single_column(entry[name], above, visited) for name in ("key", "value"))
        return mapping(value, key)
    column = _single_column(field, above, visited)
    return array(column) if field.is_repeated else column


def _single_column(field: Any, above: tuple[str, ...], visited: VisitedTypes) -> ColumnType:
    visited.visit()
    kind = _kind(field)
    if kind in ("MESSAGE", "GROUP"):
        if field.message_type.full_name == _TIMESTAMP:
            return _TIMESTAMP_COLUMN
        return _message_column(field.message_type, above, visited)
    return decimal_column(20, 0) if kind in _UINT64 else _NAMES[kind]


def _kind(field: Any) -> str:
    from google.protobuf.descriptor_pb2 import FieldDescriptorProto

    return str(FieldDescriptorProto.Type.Name(field.type)).removeprefix("TYPE_")


def _is_map(field: Any) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _plain(message: Any, declared: Any) -> dict[str, Any]:
    """The message's fields as values that columns convert; the unknown ones by number. ``declared``: its descriptor,
    with the types as they are declared.

    Raises BadRow, UnicodeDecodeError.
    """
    from google.protobuf.unknown_fields import UnknownFieldSet

    known_fields = {field.name: _plain_field(message, field) for field in declared.fields}
    return known_fields | _unknown_fields(UnknownFieldSet(message))


def _unknown_fields(fields: Any) -> dict[str, Any]:
    """As the wire has them: a number, bytes, or the fields of a group; of a field that comes again, a list. Raises
    MalformedValue."""
    values_by_number: dict[str, list[Any]] = {}
    for field in fields:
        if field.field_number == 0:
            raise MalformedValue("a field with the number 0")
        is_plain = isinstance(field.data, int | bytes)
        values_by_number.setdefault(str(field.field_number), []).append(
            field.data if is_plain else _unknown_fields(field.data)
        )
    return {number: values[0] if len(values) == 1 else values for number, values in values_by_number.items()}


def _plain_field(message: Any, field: Any) -> Any:
    value = getattr(message, field.name)
    if _is_map(field):
        inner = field.message_type.fields_by_name["value"]
        key = field.message_type.fields_by_name["key"]
        return {_plain_value(name, key): _plain_value(map_value, inner) for name, map_value in value.items()}
    if field.is_repeated:
        return [_plain_value(single_value, field) for single_value in value]
    if field.has_presence and not message.HasField(field.name):
        if field.is_required:
            # The library knows, too; its list of what is missing ends the process for some messages within maps.
            raise MissingField(f"required: {field.name}")
        return None
    return _plain_value(value, field)


def _plain_value(value: Any, field: Any) -> Any:
    import datetime
    import decimal

    kind = _kind(field)
    if kind in ("MESSAGE", "GROUP"):
        if field.message_type.full_name != _TIMESTAMP:
            return _plain(value, field.message_type)
        from google.protobuf.unknown_fields import UnknownFieldSet

        try:
            if value.nanos % 1_000:
                raise OutOfRange(f"$.{field.name}: a timestamp with nanoseconds, which no column has")
            moment = value.ToDatetime(datetime.UTC)
        except OutOfRange:
            raise
        except (ValueError, OverflowError) as error:
            raise OutOfRange(f"$.{field.name}: no timestamp") from error
        return moment, _unknown_fields(UnknownFieldSet(value))
    if kind == "STRING" and isinstance(value, bytes):
        # The library checks texts of proto2 when they are read, and has bytes for those that are none.
        raise InvalidText(f"$.{field.name}: text that is not UTF-8")
    if kind == "BOOL":
        if not 0 <= value <= 1:
            raise OutOfRange(f"$.{field.name}: a number that is no boolean")
        return _BOOLEANS[value]
    if kind == "ENUM":
        if not -(2**31) <= value < 2**31:
            raise OutOfRange(f"$.{field.name}: a number that no enum has")
        named = field.enum_type.values_by_number.get(value)
        return str(value) if named is None else named.name
    return decimal.Decimal(value) if kind in _UINT64 else value
