"""Claims about Protobuf: typed values, missing fields, unknown fields and bytes that are no message."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2
from hypothesis import given
from hypothesis import strategies as st

from einmal.schemas.errors import (
    BadRow,
    InvalidText,
    MalformedValue,
    MissingField,
    OutOfRange,
    SchemaError,
    UnusableSchema,
    ValueTooLarge,
)
from einmal.schemas.protobuf_format import ProtobufDecoder
from einmal.wire.primitives import encode_uvarint
from tests.schemas.protobuf_files import file_set, message_class

FILES = file_set(
    Item=[("sku", 1, "string"), ("count", 2, "uint32")],
    Payment=[("id", 1, "int64"), ("card", 2, "string"), ("items", 3, "repeated Item"), ("big", 4, "uint64")],
)
DECODER = ProtobufDecoder(FILES, "test.Payment")


def test_a_message_has_its_values_and_its_index_in_the_file() -> None:
    kind = message_class(FILES, "test.Payment")
    message = kind(id=7, card="c", items=[{"sku": "s", "count": 3}], big=2**64 - 1)
    assert DECODER.ddl == (
        "struct<`id`:bigint,`card`:string,`items`:array<struct<`sku`:string,`count`:bigint>>,`big`:decimal(20,0)>"
    )
    expected = {"id": 7, "card": "c", "items": [{"sku": "s", "count": 3}], "big": decimal.Decimal(2**64 - 1)}
    assert DECODER.decode(message.SerializeToString()) == (expected, {})
    assert DECODER.indexes == (1,)


def test_a_field_that_the_descriptors_do_not_have_is_drift() -> None:
    newer = file_set(Payment=[("id", 1, "int64"), ("currency", 9, "string")])
    raw = message_class(newer, "test.Payment")(id=7, currency="EUR").SerializeToString()
    decoded = DECODER.decode(raw)
    assert decoded.value["id"] == 7 and set(decoded.unknown) == {"$.9"}


@pytest.mark.parametrize(
    ("raw", "reason"), [(b"\x0a", MalformedValue), (b"\xff\xff", MalformedValue), (b"\x12\x01\xff", InvalidText)]
)
def test_a_bad_row_has_a_reason(raw: bytes, reason: type[BadRow]) -> None:
    with pytest.raises(BadRow) as raised:
        DECODER.decode(raw)
    assert type(raised.value) in (reason, MalformedValue)


def test_a_required_field_that_is_missing_is_a_bad_row() -> None:
    decoder = ProtobufDecoder(file_set("proto2", Payment=[("id", 1, "required int64")]))
    with pytest.raises(MissingField, match="id"):
        decoder.decode(b"")


def test_required_fields_that_are_missing_below_maps_do_not_end_the_process() -> None:
    """The library's list of them did, with a key of 200 characters and two of them below it."""
    files = file_set(
        "proto2",
        Row=[("f7", 7, "map fixed32 int64"), ("added", 90, "required uint32")],
        Rows=[("f16", 16, "repeated Row")],
        Inner=[("f11", 11, "Rows")],
        Outer=[("f6", 6, "map string Inner")],
    )
    least = b"\x10" + b"\x80" * 9 + b"\x01"
    entry, other = (b"\x3a\x10\x0d" + key + least for key in (b"\xff" * 4, b"\x01\0\0\0"))
    rows = b"\x82\x01\x12" + entry + b"\x82\x01\x24" + entry + other
    value = b"\x0a\xc8\x01" + b"x" * 200 + b"\x12\x3e\x5a\x3c" + rows
    raw = b"\x32\x8b\x02" + value + b"\x32\x07\x0a\x01a\x12\x02\x5a\x00"
    with pytest.raises(MissingField, match="added"):
        ProtobufDecoder(files, "test.Outer").decode(raw)


def test_keys_of_maps_are_text_as_in_the_json_of_protobuf() -> None:
    files = file_set(M=[("flags", 1, "map bool string"), ("numbers", 2, "map uint64 string")])
    raw = message_class(files, "test.M")(flags={True: "t", False: "f"}, numbers={2**64 - 1: "n"}).SerializeToString()
    row = ProtobufDecoder(files).decode(raw).value
    assert dict(row["flags"]) == {"true": "t", "false": "f"} and dict(row["numbers"]) == {str(2**64 - 1): "n"}


def test_a_key_that_was_written_with_more_bits_is_a_bad_row() -> None:
    wide, narrow = (file_set(M=[("m", 1, f"map {kind} string")]) for kind in ("int64", "int32"))
    with pytest.raises(OutOfRange):
        ProtobufDecoder(narrow).decode(message_class(wide, "test.M")(m={2**40 + 7: "x"}).SerializeToString())


SWITCH = descriptor_pb2.EnumDescriptorProto(
    name="Switch",
    value=[{"name": "OFF", "number": 0}, {"name": "ON", "number": 1}, {"name": "BROKEN", "number": -1}],
)


def with_enum(files: bytes) -> bytes:
    """The same files, in which the type of fields named ``switch`` is an enum."""
    found = descriptor_pb2.FileDescriptorSet.FromString(files)
    [file] = found.file
    file.enum_type.add().CopyFrom(SWITCH)
    for message in [each for outer in file.message_type for each in (outer, *outer.nested_type)]:
        for field in message.field:
            if field.name == "switch" or (field.name == "value" and message.name == "SwitchesEntry"):
                field.type, field.type_name = 14, ".test.Switch"
    return bytes(found.SerializeToString())


@pytest.mark.parametrize("kind", ["int64", "repeated int64"])
@pytest.mark.parametrize("syntax", ["proto2", "proto3"])
@pytest.mark.parametrize("is_enum", [True, False])
def test_booleans_and_enums_are_what_was_written(syntax: str, kind: str, is_enum: bool) -> None:
    wide = message_class(file_set(syntax, M=[("switch", 1, kind)]), "test.M")
    files = file_set(syntax, M=[("switch", 1, kind.replace("int64", "bool"))])
    decoder = ProtobufDecoder(with_enum(files) if is_enum else files)

    def decoded(number: int) -> Any:
        message = wide(switch=[number] if kind.startswith("repeated") else number)
        try:
            value, unknown = decoder.decode(message.SerializeToString())
        except OutOfRange:
            return OutOfRange
        [switch] = (value["switch"] or [None]) if kind.startswith("repeated") else [value["switch"]]
        return unknown or switch

    assert [decoded(number) for number in (0, 1)] == (["OFF", "ON"] if is_enum else [False, True])
    if not is_enum:
        assert [decoded(number) for number in (2, -1, 2**32, 2**32 + 1)] == [OutOfRange] * 4
    elif syntax == "proto3":
        assert [decoded(number) for number in (-1, 2, 2**32 - 1, 2**32 + 1)] == ["BROKEN", "2", OutOfRange, OutOfRange]
    else:
        assert [decoded(number) for number in (-1, 2)] == ["BROKEN", {"$.1": 2}]


def test_enums_and_booleans_of_maps_are_what_was_written() -> None:
    wide = message_class(file_set(M=[("switches", 1, "map int64 int64")]), "test.M")
    decoder = ProtobufDecoder(with_enum(file_set(M=[("switches", 1, "map bool int64")])))
    assert decoder.decode(wide(switches={1: -1}).SerializeToString()).value == {"switches": [("true", "BROKEN")]}
    for entry in ({2: 0}, {0: 2**32}):
        with pytest.raises(OutOfRange):
            decoder.decode(wide(switches=entry).SerializeToString())


def test_what_a_timestamp_has_beside_its_fields_is_drift() -> None:
    files = descriptor_pb2.FileDescriptorSet.FromString(
        file_set(M=[("at", 1, "string"), ("all", 2, "repeated string")])
    )
    timestamp_pb2.DESCRIPTOR.CopyToProto(files.file.add())
    files.file[0].dependency.append(files.file[1].name)
    for field in files.file[0].message_type[0].field:
        field.type, field.type_name = 11, ".google.protobuf.Timestamp"
    files.file.reverse()
    decoder = ProtobufDecoder(files.SerializeToString())
    value, unknown = decoder.decode(b"\x0a\x02\x08\x01" + b"\x0a\x03\x1a\x01x" + b"\x12\x00\x12\x03\x1a\x01y")
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    assert value == {"at": epoch + datetime.timedelta(seconds=1), "all": [epoch, epoch]}
    assert unknown == {"$.at.3": b"x", "$.all[].3": {"1": b"y"}}


def test_the_type_of_an_enum_may_have_a_relative_name() -> None:
    files = descriptor_pb2.FileDescriptorSet.FromString(with_enum(file_set(M=[("switch", 1, "int64")])))
    files.file[0].message_type[0].field[0].type_name = "Switch"
    assert ProtobufDecoder(files.SerializeToString()).decode(b"\x08\x01").value == {"switch": "ON"}


@pytest.mark.parametrize("kind", ["repeated Item", "map int32 Item", "group", "Outer"])
def test_messages_of_few_bytes_have_no_more_fields_than_memory(kind: str) -> None:
    """They are counted before the library has memory for each of 1,000 fields of a message of two bytes."""
    item = [(f"f{at}", at, "int32") for at in range(2, 1_001)] + [("switch", 1, "bool")]
    field = ("items", 1, "repeated Item" if kind == "group" else kind)
    files = descriptor_pb2.FileDescriptorSet.FromString(
        file_set("proto2", Item=item, Outer=[("items", 1, "repeated Item")], M=[field])
    )
    if kind == "group":
        files.file[0].message_type[2].field[0].type = 10
    decoder = ProtobufDecoder(files.SerializeToString(), "test.M")
    # The switch of the last one is no boolean, which nobody finds out.
    empty, last = {
        "map int32 Item": (b"\x0a\x02\x12\x00", b"\x0a\x04\x12\x02\x08\x02"),
        "group": (b"\x0b\x0c", b"\x0b\x08\x02\x0c"),
    }.get(kind, (b"\x0a\x00", b"\x0a\x02\x08\x02"))

    def record(count: int) -> bytes:
        items = empty * count + last
        return b"\x0a" + encode_uvarint(len(items)) + items if kind == "Outer" else items

    with pytest.raises(OutOfRange):
        decoder.decode(record(2))
    with pytest.raises(ValueTooLarge, match="8,388,608 values"):
        decoder.decode(record(8_389))
    with pytest.raises(MalformedValue):
        decoder.decode(record(8_389) + b"\x08")


@pytest.mark.parametrize("kind", ["string", "repeated string", "map string int32", "map int32 string"])
@pytest.mark.parametrize("syntax", ["proto2", "proto3"])
def test_text_that_is_not_utf_8_is_a_bad_row(syntax: str, kind: str) -> None:
    raw = {"map string int32": b"\x0a\x03\x0a\x01\xff", "map int32 string": b"\x0a\x03\x12\x01\xff"}
    with pytest.raises(BadRow) as raised:
        ProtobufDecoder(file_set(syntax, M=[("f", 1, kind)])).decode(raw.get(kind, b"\x0a\x01\xff"))
    assert type(raised.value) is InvalidText


def test_a_field_with_the_number_0_is_a_bad_row() -> None:
    with pytest.raises(MalformedValue):
        ProtobufDecoder(file_set(M=[])).decode(b"\x00\x31")


def test_another_message_of_the_file_is_a_bad_row() -> None:
    with pytest.raises(UnusableSchema):
        DECODER.decode(b"", (0,))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (b"\xff", None),
        (FILES, None),
        (FILES, "test.Nothing"),
        (file_set(Node=[("next", 1, "Node")]), None),
    ],
)
def test_descriptors_that_cannot_be_used_are_refused(files: bytes, message: str | None) -> None:
    with pytest.raises(SchemaError):
        ProtobufDecoder(files, message)


def extended(*, within: bool) -> bytes:
    """``within``: whether the extensions are declared in a message, and not in the file."""
    from google.protobuf import descriptor_pb2

    files = descriptor_pb2.FileDescriptorSet.FromString(
        file_set("proto2", Order=[("id", 1, "int64"), ("part", 2, "Part")], Part=[("id", 1, "int64")])
    )
    file = files.file[0]
    for message in file.message_type:
        message.extension_range.add(start=100, end=200)
    kinds = descriptor_pb2.FieldDescriptorProto
    extensions = file.message_type[1].extension if within else file.extension
    extensions.add(name="note", number=100, type=kinds.TYPE_STRING, label=1, extendee=".test.Order")
    extensions.add(name="sizes", number=101, type=kinds.TYPE_INT32, label=3, extendee=".test.Part")
    extensions.add(name="inner", number=102, type=11, type_name=".test.Part", label=1, extendee=".test.Part")
    return bytes(files.SerializeToString())


@pytest.mark.parametrize("within", [False, True])
def test_an_extension_is_drift_whether_it_is_declared_or_not(within: bool) -> None:
    files = extended(within=within)
    write = message_class(files, "test.Order")
    prefix = "test.Part." if within else "test."
    note, sizes, inner = (
        write.DESCRIPTOR.file.pool.FindExtensionByName(prefix + name) for name in ("note", "sizes", "inner")
    )
    order = write(id=7, part={"id": 8})
    order.Extensions[note] = "important"
    order.part.Extensions[sizes].extend([5, 6])
    order.part.Extensions[inner].id = 9
    value, unknown = ProtobufDecoder(files, "test.Order").decode(order.SerializeToString())
    assert value == {"id": 7, "part": {"id": 8}}
    assert unknown == {"$.100": b"important", "$.part.101": [5, 6], "$.part.102": b"\x08\x09"}


@pytest.mark.parametrize("label", ["", "repeated ", "map string "])
def test_descriptors_of_more_columns_than_memory_are_refused(label: str) -> None:
    """Each of 30 messages has two fields of the next: a billion columns in two kilobytes."""
    levels = {f"M{level}": [("a", 1, f"{label}M{level + 1}"), ("b", 2, f"{label}M{level + 1}")] for level in range(30)}
    with pytest.raises(SchemaError, match="more than 10,000 types"):
        ProtobufDecoder(file_set("proto3", **levels, M30=[("id", 1, "int64")]), "test.M0")


@given(st.binary())
def test_all_bytes_are_a_value_or_a_bad_row(raw: bytes) -> None:
    try:
        DECODER.decode(raw)
    except BadRow as error:
        assert str(error)
