"""Claims about Avro: resolution, drift, and bytes that would exhaust a decoder."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from einmal.schemas.avro_format import AvroDecoder, AvroSchema
from einmal.schemas.columns import Unknown, rescued_text
from einmal.schemas.errors import (
    BadRow,
    InvalidText,
    MalformedValue,
    OutOfRange,
    SchemaError,
    UnusableSchema,
    ValueTooLarge,
)
from einmal.wire.record_batch import encode_varint
from tests.schemas.beside_java.avro_pairs import Generator, text


def record(*fields: dict[str, Any]) -> str:
    return json.dumps({"type": "record", "name": "Payment", "fields": list(fields)})


ID = {"name": "id", "type": "long"}
NAME = {"name": "name", "type": ["null", "string"], "default": None}
SCHEMA = AvroSchema(record(ID, NAME))


def encoded(schema: AvroSchema, value: Any) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, schema.parsed, value)
    return stream.getvalue()


def test_logical_types_are_sparks_types() -> None:
    kinds = {
        "d": {"type": "int", "logicalType": "date"},
        "t": {"type": "long", "logicalType": "timestamp-micros"},
        "n": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        "u": {"type": "string", "logicalType": "uuid"},
        "e": {"type": "enum", "name": "E", "symbols": ["A"]},
        "f": {"type": "fixed", "name": "F", "size": 4},
        "m": {"type": "map", "values": "int"},
        "o": ["null", "long", "string"],
    }
    schema = AvroSchema(record(*({"name": name, "type": kind} for name, kind in kinds.items())))
    assert schema.column.ddl == (
        "struct<`d`:date,`t`:timestamp_ltz,`n`:decimal(9,2),`u`:string,`e`:string,`f`:binary,`m`:map<string,int>,`o`:string>"
    )


def test_the_writers_schema_is_resolved_and_its_new_fields_are_drift() -> None:
    writer = AvroSchema(record({"name": "id", "type": "int"}, {"name": "currency", "type": "string"}))
    raw = encoded(writer, {"id": 7, "currency": "EUR"})
    assert AvroDecoder(SCHEMA).decode(raw, writer) == ({"id": 7, "name": None}, {"$.currency": "EUR"})


def test_a_writers_schema_that_cannot_be_resolved_is_a_bad_row() -> None:
    writer = AvroSchema(record({"name": "id", "type": "string"}))
    with pytest.raises(UnusableSchema):
        AvroDecoder(SCHEMA).decode(encoded(writer, {"id": "x"}), writer)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", MalformedValue),
        (b"\x02", MalformedValue),
        (b"\x02\x02\xff\xff\xff\xff\x0f", MalformedValue),
        (b"\x02\x00tail", MalformedValue),
        (b"\x02\x02\x02\xff", InvalidText),
        (b"\x02\x09", MalformedValue),
    ],
)
def test_a_bad_row_has_a_reason(raw: bytes, reason: type[BadRow]) -> None:
    with pytest.raises(BadRow) as raised:
        AvroDecoder(SCHEMA).decode(raw)
    assert type(raised.value) is reason


ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
LONGS = {"type": "array", "items": "long"}


@pytest.mark.parametrize(
    ("kind", "raw", "why"),
    [
        (["null", "long"], b"\x01\x04", "index -1 of 2 types"),
        (["null", "long"], b"\x85\x01\x04", "index -67 of 2 types"),
        (["null", "long"], b"\x04\x04", "index 2 of 2 types"),
        (ENUM, b"\x01", "index -1 of 2 symbols"),
        (ENUM, b"\x04", "index 2 of 2 symbols"),
        ("boolean", b"\x02", "a boolean of the byte 2"),
        ("int", b"\x80\x80\x80\x80\x10", "more than 32 bits"),
        ("int", b"\x80\x80\x80\x80\x80\x00", "more than 32 bits"),
        ("long", b"\x80" * 9 + b"\x02", "more than 64 bits"),
        ("long", b"\x80" * 10 + b"\x00", "more than 64 bits"),
        ("bytes", b"\x01abc", "a length of -1 where 3 bytes"),
        ("string", b"\xfe\xff\xff\xff\x0fabc", "a length of 2,147,483,647 where 3 bytes"),
        (LONGS, b"\xfe\xff\xff\xff\x0f\x02\x02\x00", "ends before"),
        (LONGS, b"\x03\x02\x02\x04\x00", "a block of items that is not as long"),
        ({"type": "map", "values": "long"}, b"\x01\x08\x02a\x04\x00", "a block of items that is not as long"),
        ({"type": "fixed", "name": "F", "size": 4}, b"abc", "ends before"),
        ("double", b"abc", "ends before"),
    ],
)
def test_indexes_lengths_and_counts_that_lie_are_bad_rows(kind: Any, raw: bytes, why: str) -> None:
    with pytest.raises(MalformedValue, match=why):
        AvroDecoder(AvroSchema(json.dumps(kind))).decode(raw)


def test_items_may_come_in_blocks_with_their_size() -> None:
    decoder = AvroDecoder(AvroSchema(json.dumps(LONGS)))
    assert decoder.decode(b"\x03\x04\x02\x04\x02\x06\x00").value == [1, 2, 3]


@pytest.mark.parametrize(
    "schema",
    [
        "{",
        '"no-such-type"',
        '{"type": "record", "name": "L", "fields": [{"name": "next", "type": ["null", "L"]}]}',
        '{"type": "array", "items": "null"}',
        '{"type": "array", "items": {"type": "record", "name": "E", "fields": []}}',
        '{"type": "bytes", "logicalType": "decimal", "precision": 60, "scale": 2}',
        '{"type": "fixed", "name": "F", "size": -1}',
        '{"type": "fixed", "name": "F", "size": "many"}',
    ],
)
def test_a_schema_that_is_not_safe_to_decode_with_is_refused(schema: str) -> None:
    with pytest.raises(SchemaError):
        AvroSchema(schema)


@pytest.mark.parametrize("digits", [{}, {"precision": 0}, {"precision": None, "scale": 2}])
def test_a_decimal_without_digits_is_bytes(digits: dict[str, Any]) -> None:
    try:
        schema = AvroSchema(json.dumps({"type": "bytes", "logicalType": "decimal"} | digits))
    except SchemaError:
        # fastavro refuses some of them.
        return
    assert schema.column.ddl == "binary"
    assert AvroDecoder(schema).decode(b"\x02a").value == b"a"


@pytest.mark.parametrize("kind", ["array", "map"])
def test_items_of_few_bytes_have_no_more_columns_than_memory(kind: str) -> None:
    """One item of a byte has a value for each of 1,000 fields."""
    fields = [{"name": f"f{at}", "type": "null"} for at in range(1_000)] + [{"name": "x", "type": "int"}]
    item = {"type": "record", "name": "R", "fields": fields}
    schema = AvroSchema(json.dumps({"type": kind, "items" if kind == "array" else "values": item}))
    few, many = (encode_varint(count) + (b"\x0e" if kind == "array" else b"\x02k\x0e") * count for count in (10, 8_370))
    assert len(AvroDecoder(schema).decode(few + b"\0").value) == (10 if kind == "array" else 1)
    # Each of the two would be small enough.
    with pytest.raises(ValueTooLarge, match="8,388,608 values"):
        AvroDecoder(schema).decode(few + many + b"\0")


@pytest.mark.parametrize(
    "digits",
    [{"precision": 20}, {"precision": 3, "scale": 4}, {"precision": -1}, {"precision": "3"}, {"precision": True}]
    + [{"precision": 10**6, "scale": 10**6}, {"precision": 3, "scale": -1}],
)
def test_a_decimal_that_can_be_none_is_its_bytes(digits: dict[str, Any]) -> None:
    kind = {"type": "fixed", "name": "F", "size": 2, "logicalType": "decimal"} | digits
    text = json.dumps({"type": "record", "name": "R", "fields": [{"name": "n", "type": kind}]})
    empty = AvroSchema('{"type": "record", "name": "R", "fields": []}')
    schema = AvroSchema(text)
    assert schema.column.ddl == "struct<`n`:binary>"
    assert AvroDecoder(schema).decode(b"ab", AvroSchema(text, declared=False)).value == {"n": b"ab"}
    assert AvroDecoder(empty).decode(b"ab", AvroSchema(text, declared=False)).unknown == {"$.n": b"ab"}


def test_a_decimal_of_very_many_digits_is_refused_and_not_read_with_another_scale() -> None:
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 10_000, "scale": 5}
    schema = AvroDecoder(AvroSchema(json.dumps(kind | {"precision": 9, "scale": 5})))
    assert schema.decode(b"\x02\x07", AvroSchema(json.dumps(kind), declared=False)).value == Decimal("0.00007")
    for declared in (True, False):
        with pytest.raises(SchemaError, match="more than 10,000 digits" if not declared else "no decimal of Spark's"):
            AvroSchema(json.dumps(kind | {"precision": 10_001}), declared=declared)


def test_wrong_defaults_of_a_schema_that_records_were_written_with_are_not_read() -> None:
    enum = {"type": "enum", "name": "E", "symbols": ["A"], "default": "B"}
    fields = [{"name": "id", "type": "long", "default": None}, {"name": "e", "type": enum, "default": 7}]
    text = json.dumps({"type": "record", "name": "R", "fields": fields})
    declared = AvroSchema('{"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}')
    decoded = AvroDecoder(declared).decode(b"\x0e\x00", AvroSchema(text, declared=False))
    assert decoded == ({"id": 7}, {"$.e": "A"})
    with pytest.raises(SchemaError, match="Default value"):
        AvroSchema(text)


def test_a_record_with_two_fields_of_one_name_is_refused() -> None:
    fields = [{"name": "a", "type": "int"}, {"name": "a", "type": "string"}]
    for declared in (True, False):
        with pytest.raises(SchemaError, match="'R' has two fields of one name"):
            AvroSchema(json.dumps({"type": "record", "name": "R", "fields": fields}), declared=declared)


def test_a_scale_of_null_is_none() -> None:
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": None}
    assert AvroDecoder(AvroSchema(json.dumps(kind))).decode(b"\x02\x07").value == Decimal(7)


def test_a_decimal_may_have_been_written_with_more_digits_than_a_column_has() -> None:
    long, short = ({"type": "bytes", "logicalType": "decimal", "precision": each, "scale": 2} for each in (60, 38))
    writer = AvroSchema(json.dumps(long), declared=False)
    decoder = AvroDecoder(AvroSchema(json.dumps(short)))
    assert decoder.decode(b"\x04\x30\x39", writer).value == Decimal("123.45")
    with pytest.raises(OutOfRange):
        decoder.decode(b"\x28" + b"\x7f" * 20, writer)


def test_a_billion_items_in_ten_bytes_are_a_bad_row() -> None:
    schema = AvroSchema('{"type": "array", "items": "long"}')
    with pytest.raises(MalformedValue):
        AvroDecoder(schema).decode(b"\x80\x94\xeb\xdc\x03\x02\x02")


def parts(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    for name, each in value.items() if isinstance(value, dict) else enumerate(value if isinstance(value, list) else ()):
        yield from parts(each, (*path, name))


def spoilt(rng: random.Random, schema: str) -> str:
    """With another value somewhere, or without it."""
    document = json.loads(schema)
    *path, last = rng.choice([each for each in parts({"schema": document}) if each])
    target: Any = {"schema": document}
    for name in path:
        target = target[name]
    if isinstance(target, dict) and path and rng.random() < 0.2:
        del target[last]
    else:
        others = [None, True, 0, -1, 1.5, 2**70, "", "int", "record", [], {}, ["int"], [None], {"type": "fixed"}]
        target[last] = rng.choice(others)
    return json.dumps(target[last] if not path else document)


@settings(max_examples=500, deadline=None)
@given(st.integers(0, 2**32))
def test_all_schemas_are_read_or_refused(seed: int) -> None:
    rng = random.Random(seed)
    generator = Generator(rng)
    written, declared = generator.pair()
    raw = generator.written(written)
    texts = [text(written), text(declared)]
    at = rng.randrange(2)
    texts[at] = spoilt(rng, texts[at])
    try:
        writer, reader = AvroSchema(texts[0], declared=False), AvroSchema(texts[1])
        AvroDecoder(reader).decode(raw, writer)
    except (SchemaError, BadRow) as error:
        assert str(error)


@pytest.mark.parametrize("kind", ["aliases", "symbols"])
@pytest.mark.parametrize("names", [7, [7], [None], [[]], {"A": 1}])
def test_names_that_are_none_are_refused(kind: str, names: Any) -> None:
    schema = {"type": "enum", "name": "E", "symbols": ["A"]} | {kind: names}
    with pytest.raises(SchemaError):
        AvroSchema(json.dumps(schema))
    with pytest.raises(SchemaError):
        AvroSchema(record({"name": "a", "type": schema}))
    if kind == "aliases":
        with pytest.raises(SchemaError):
            AvroSchema(record({"name": "a", "type": "int", "aliases": names}))


@given(st.binary())
def test_all_bytes_are_a_value_or_a_bad_row(raw: bytes) -> None:
    try:
        AvroDecoder(SCHEMA).decode(raw)
    except BadRow as error:
        assert str(error)


@pytest.mark.parametrize(("number", "text"), [("nan", '"NaN"'), ("inf", '"Infinity"'), ("-inf", '"-Infinity"')])
@pytest.mark.parametrize("kind", ["float", "double"])
def test_json_of_numbers_that_json_does_not_have_is_json(kind: str, number: str, text: str) -> None:
    value = {"id": 1, "x": {"a": [float(number), 0.5]}}
    array = {"type": "array", "items": [kind, "string"]}
    written = AvroSchema(record(ID, {"name": "x", "type": {"type": "map", "values": array}}))
    unknown = AvroDecoder(AvroSchema(record(ID))).decode(encoded(written, value), written).unknown
    assert rescued_text(Unknown(dict(unknown))) == '{"$.x":{"a":[' + text + ",0.5]}}"
    union = AvroSchema(record(ID, {"name": "x", "type": [{"type": "map", "values": array}, "string"]}))
    assert AvroDecoder(union).decode(encoded(union, value)).value["x"] == '{"a":[' + text + ",0.5]}"


def test_decimals_are_text_within_json() -> None:
    price = {"type": "bytes", "logicalType": "decimal", "precision": 4, "scale": 2}
    union = AvroSchema(record(ID, {"name": "x", "type": [price, "string"]}))
    raw = encoded(union, {"id": 1, "x": Decimal("12.50")})
    assert AvroDecoder(union).decode(raw).value["x"] == '"12.50"'
    unknown = AvroDecoder(AvroSchema(record(ID))).decode(raw, union).unknown
    assert rescued_text(Unknown(dict(unknown))) == '{"$.x":"12.50"}'


@given(st.integers(-(2**63), 2**63 - 1), st.none() | st.text())
def test_what_is_written_is_read(number: int, name: str | None) -> None:
    value = {"id": number, "name": name}
    try:
        raw = encoded(SCHEMA, value)
    except UnicodeEncodeError:
        return
    assert AvroDecoder(SCHEMA).decode(raw).value == value


@pytest.mark.parametrize("items", ["record", "array"])
def test_schema_with_more_columns_than_text_is_refused(items: str) -> None:
    """Each of 40 types has two fields of the next: a trillion columns in two kilobytes."""
    kind: Any = {"type": "record", "name": "R0", "fields": [{"name": "x", "type": "null"}]}
    for number in range(1, 40):
        fields = [{"name": "a", "type": kind}, {"name": "b", "type": f"R{number - 1}"}]
        kind = {"type": "record", "name": f"R{number}", "fields": fields}
    schema = kind if items == "record" else {"type": "array", "items": kind}
    with pytest.raises(SchemaError, match="more than"):
        AvroSchema(json.dumps(schema))
