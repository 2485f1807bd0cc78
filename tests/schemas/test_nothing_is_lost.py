"""No value of a record is absent from its row, from what is unknown, and from the bad rows: random schemas, changed at
any depth, in each format."""

from __future__ import annotations

import io
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import fastavro
import pytest
from google.protobuf import json_format
from hypothesis import given, settings
from hypothesis import strategies as st

from einmal.schemas.avro_format import AvroDecoder, AvroSchema
from einmal.schemas.columns import Unknown, rescued_text
from einmal.schemas.debezium_format import DebeziumDecoder
from einmal.schemas.decoder import Decoded
from einmal.schemas.errors import BadRow
from einmal.schemas.json_format import JsonDecoder
from einmal.schemas.protobuf_format import ProtobufDecoder
from einmal.wire.primitives import encode_uvarint
from tests.schemas.protobuf_files import message_class


@dataclass(frozen=True)
class Shape:
    """``kind``: long, string, or record. ``many``: "" for one, "array" or "map" of it; ``nullable``: of one record."""

    kind: str
    many: str = ""
    nullable: bool = False
    fields: tuple[tuple[str, Shape], ...] = ()


LEAVES = st.builds(Shape, st.sampled_from(["long", "string"]), st.sampled_from(["", "", "array", "map"]))


def records(inner: st.SearchStrategy[Shape]) -> st.SearchStrategy[Shape]:
    fields = st.lists(inner, min_size=1, max_size=4).map(
        lambda some: tuple((f"f{at}", each) for at, each in enumerate(some))
    )
    return st.builds(Shape, st.just("record"), st.sampled_from(["", "array", "map"]), st.booleans(), fields)


SHAPES = st.recursive(LEAVES, records, max_leaves=8).map(
    lambda each: Shape("record", fields=(("top", each), ("f", each)))
)


def changed(draw: Any, shape: Shape) -> Shape:
    """The declared shape: without some fields, with others, and with other types."""
    if shape.kind != "record":
        # Protobuf reads the bytes of a list of texts as a list of numbers: nothing is lost, and nothing is found.
        other = shape.kind if shape.many else draw(st.sampled_from([shape.kind] * 6 + ["long", "string"]))
        return replace(shape, kind=other)
    kept = [(name, changed(draw, each)) for name, each in shape.fields if draw(st.integers(0, 3))]
    added = [("added", Shape("long", "array"))] if not kept or draw(st.booleans()) else []
    return replace(shape, fields=(*kept, *added))


def valued(draw: Any, shape: Shape, marks: Iterator[int]) -> Any:
    """A value in which each number and each text is there once."""

    def one() -> Any:
        if shape.kind == "record":
            return {name: valued(draw, each, marks) for name, each in shape.fields}
        mark = next(marks)
        return mark if shape.kind == "long" else f"text-{mark}"

    if shape.many == "array":
        return [one() for _ in range(draw(st.integers(0, 3)))]
    if shape.many == "map":
        return {f"key-{at}": one() for at in range(draw(st.integers(0, 3)))}
    return None if shape.kind == "record" and shape.nullable and not draw(st.integers(0, 3)) else one()


def leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping | list):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from leaves(each)
    elif value is not None:
        yield value


# --- the formats ------------------------------------------------------------------------------------------------


def avro_type(shape: Shape, path: str) -> Any:
    kind: Any = shape.kind
    if kind == "record":
        fields = [
            {"name": name, "type": avro_type(each, f"{path}_{name}")} | ({"default": []} if name == "added" else {})
            for name, each in shape.fields
        ]
        kind = {"type": "record", "name": path, "fields": fields}
    if shape.many:
        return {"type": shape.many, "items" if shape.many == "array" else "values": kind}
    return ["null", kind] if shape.nullable else kind


def through_avro(written: Shape, declared: Shape, value: Any) -> Decoded:
    writer = AvroSchema(json.dumps(avro_type(written, "t")))
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, writer.parsed, value)
    return AvroDecoder(AvroSchema(json.dumps(avro_type(declared, "t")))).decode(stream.getvalue(), writer)


def json_type(shape: Shape) -> Any:
    kind: Any = {"type": "integer" if shape.kind == "long" else "string"}
    if shape.kind == "record":
        kind = {"type": "object", "properties": {name: json_type(each) for name, each in shape.fields}}
    if shape.many == "array":
        return {"type": "array", "items": kind}
    if shape.many == "map":
        return {"type": "object", "additionalProperties": kind}
    return {"anyOf": [{"type": "null"}, kind]} if shape.nullable else kind


def through_json(_: Shape, declared: Shape, value: Any) -> Decoded:
    return JsonDecoder(json.dumps(json_type(declared))).decode(json.dumps(value).encode())


def protobuf_files(shape: Shape) -> bytes:
    from google.protobuf import descriptor_pb2

    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="t", syntax="proto3")

    def message(name: str, each: Shape) -> None:
        made = file.message_type.add(name=name)
        for field, inner in each.fields:
            number = 99 if field == "added" else int(field.strip("ftop") or 50) + 1 + 100 * (field == "top")
            typed = made.field.add(name=field, number=number, label=3 if inner.many else 1)
            if inner.kind == "record":
                message(f"{name}_{field}", inner)
            target = typed
            if inner.many == "map":
                entry = made.nested_type.add(name=f"{field.capitalize()}Entry")
                entry.options.map_entry = True
                entry.field.add(name="key", number=1, label=1, type=kinds.TYPE_STRING)
                typed.type, typed.type_name = kinds.TYPE_MESSAGE, f".t.{name}.{entry.name}"
                target = entry.field.add(name="value", number=2, label=1)
            if inner.kind == "record":
                target.type, target.type_name = kinds.TYPE_MESSAGE, f".t.{name}_{field}"
            else:
                target.type = kinds.TYPE_INT64 if inner.kind == "long" else kinds.TYPE_STRING

    message("M", shape)
    return bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())


def through_protobuf(written: Shape, declared: Shape, value: Any) -> Decoded:
    message = json_format.ParseDict(value, message_class(protobuf_files(written), "t.M")())
    return ProtobufDecoder(protobuf_files(declared), "t.M").decode(message.SerializeToString())


def through_debezium(operation: str, _: Shape, declared: Shape, value: Any) -> Decoded:
    """Columns of a table are plain: any other value is that of a field that is not declared, or of another type."""
    kinds = {"long": "BIGINT", "string": "STRING"}
    plain = [f"{name} {kinds[each.kind]}" for name, each in declared.fields if each.kind in kinds and not each.many]
    row = "before" if operation == "d" else "after"
    change = {"op": operation, "source": {"table": "t"}, "before": None, "after": None, row: value}
    return DebeziumDecoder(", ".join([*plain, "other BIGINT"])).decode(json.dumps(change).encode())


def all_bytes(value: Any) -> bytes:
    """The bytes of unknown fields, in which a message or a number of a list is as the wire has it."""
    if isinstance(value, bytes):
        return value
    if isinstance(value, Mapping | list):
        return b"|".join(map(all_bytes, value.values() if isinstance(value, Mapping) else value))
    return b""


@pytest.mark.parametrize(
    "through",
    [
        through_avro,
        through_json,
        through_protobuf,
        *(partial(through_debezium, operation) for operation in "crud"),
    ],
)
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_each_value_is_in_the_row_or_unknown_or_makes_a_bad_row(through: Any, data: st.DataObject) -> None:
    written = data.draw(SHAPES)
    declared = changed(data.draw, written)
    value = valued(data.draw, written, itertools.count(1_000_000_007, 1_000_003))
    try:
        decoded = through(written, declared, value)
    except BadRow:
        return
    found = repr(decoded.value) + rescued_text(Unknown(dict(decoded.unknown)))
    raw = all_bytes(decoded.unknown)
    for each in leaves(value):
        in_bytes = encode_uvarint(each) if isinstance(each, int) else each.encode()
        assert str(each) in found or in_bytes in raw, f"{each} of {value} is lost: {decoded}"


def test_unknown_fields_of_items_are_kept_by_position_and_key() -> None:
    declared = {"type": "object", "properties": {"id": {"type": "integer"}}}
    schema = {
        "properties": {
            "a": {"type": "array", "items": declared},
            "m": {"type": "object", "additionalProperties": declared},
        }
    }
    document = {"a": [{"id": 1, "x": 7}, {"id": 2}, {"x": 8}], "m": {"k": {"x": 9}}}
    decoded = JsonDecoder(json.dumps({"type": "object", **schema})).decode(json.dumps(document).encode())
    assert decoded.unknown == {"$.a[].x": {"0": 7, "2": 8}, "$.m[].x": {"k": 9}}


def test_many_items_with_the_same_unknown_field_are_one_drift() -> None:
    item = {"type": "object", "properties": {"id": {"type": "integer"}}}
    decoder = JsonDecoder(json.dumps({"type": "array", "items": item}))
    decoded = decoder.decode(json.dumps([{"x": at} for at in range(1_000)]).encode())
    assert len(decoded.unknown) == 1 and len(decoded.unknown["$[].x"]) == 1_000


def test_numbers_that_were_written_with_more_bits_are_bad_rows() -> None:
    def files(kind: int) -> bytes:
        from google.protobuf import descriptor_pb2

        file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="t", syntax="proto3")
        file.message_type.add(name="M").field.add(name="n", number=1, label=1, type=kind)
        return bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())

    for wide, narrow in ((3, 5), (4, 13), (18, 17)):
        write, read = message_class(files(wide), "t.M"), ProtobufDecoder(files(narrow), "t.M")
        assert read.decode(write(n=7).SerializeToString()).value == {"n": 7}
        with pytest.raises(BadRow):
            read.decode(write(n=2**40 + 7).SerializeToString())
