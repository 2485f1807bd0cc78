"""Claims about Avro values from the schema they were written with to the declared one."""

from __future__ import annotations

import datetime
import io
import json
from decimal import Decimal
from typing import Any

import fastavro

from einmal.schemas.avro_format import AvroDecoder, AvroSchema
from einmal.schemas.errors import BadRow, OutOfRange, UnusableSchema, WrongType
from tests.suite.cases import each_case

MILLIS = {"type": "long", "logicalType": "timestamp-millis"}
MICROS = {"type": "long", "logicalType": "timestamp-micros"}
NANOS = {"type": "long", "logicalType": "timestamp-nanos"}
LOCAL = {"type": "long", "logicalType": "local-timestamp-micros"}
DATE = {"type": "int", "logicalType": "date"}
CLOCK = {"type": "long", "logicalType": "time-micros"}
R = {"type": "record", "name": "R", "fields": [{"name": "x", "type": "int"}]}
MORE = [{"name": "x", "type": "long"}, {"name": "y", "type": "int", "default": 3}]
R_MORE = {"type": "record", "name": "R", "fields": MORE}
WIDE = {"type": "record", "name": "W", "fields": [{"name": "x", "type": ["int", "string"]}]}
NARROW = {"type": "record", "name": "N", "fields": [{"name": "x", "type": ["int", "null"]}]}
ENUM = {"type": "enum", "name": "E", "symbols": ["A", "B"]}
ENUM_LESS = {"type": "enum", "name": "E", "symbols": ["A"]}


def number(scale: int, precision: int = 10) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


def through(written: Any, declared: Any, value: Any) -> Any:
    """The value in the row, and what is unknown, or the class of the error."""
    writer = AvroSchema(json.dumps(written))
    stream = io.BytesIO()
    plain = fastavro.parse_schema(json.loads(json.dumps(written).replace("logicalType", "notLogical")))
    fastavro.schemaless_writer(stream, plain, value)
    try:
        decoded = AvroDecoder(AvroSchema(json.dumps(declared))).decode(stream.getvalue(), writer)
    except BadRow as error:
        return type(error)
    return (decoded.value, decoded.unknown) if decoded.unknown else decoded.value


def at(**since: int) -> datetime.datetime:
    return datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(**since)


RESOLUTIONS: list[tuple[str, Any, Any, Any, Any]] = [
    ("more digits", number(4), number(2), b"\x30\x39", OutOfRange),
    ("fewer digits", number(2), number(4), b"\x30\x39", Decimal("123.4500")),
    ("zeros may go", number(4), number(2), b"\x30\x0c", Decimal("1.23")),
    ("too many digits for the declared precision", number(0), number(0, 2), b"\x30\x39", OutOfRange),
    ("milliseconds as microseconds", MILLIS, MICROS, 5, at(milliseconds=5)),
    ("microseconds as milliseconds", MICROS, MILLIS, 5_000, at(milliseconds=5)),
    ("nanoseconds as microseconds", NANOS, MICROS, 5_000, at(microseconds=5)),
    ("nanoseconds that no timestamp has", NANOS, MICROS, 5_001, OutOfRange),
    ("a time beyond the last year", MILLIS, MICROS, 2**62, OutOfRange),
    ("an instant is no local time", MICROS, LOCAL, 5, UnusableSchema),
    ("a day is no instant", DATE, MILLIS, 5, UnusableSchema),
    ("a number is read by the declared type", "long", MILLIS, 5, at(milliseconds=5)),
    ("a logical type as its number", MILLIS, "long", 5, 5),
    ("a local time is its number", LOCAL, LOCAL, 5, 5),
    ("a time of day", CLOCK, CLOCK, 1_000_000, "00:00:01"),
    ("no time of day", CLOCK, CLOCK, 86_400_000_000, OutOfRange),
    ("an int as a double", "int", "double", 7, 7.0),
    ("a long as a float, rounded once", "long", "float", 2**60 + 2**36 + 1, float(2**60 + 2**37)),
    ("text as bytes", "string", "bytes", "ä", "ä".encode()),
    ("bytes as text", "bytes", "string", "ä".encode(), "ä"),
    ("no text as a number", "string", "long", "7", UnusableSchema),
    ("an empty array of another type", {"type": "array", "items": "string"}, {"type": "array", "items": "int"}, [], []),
    ("an array of it", {"type": "array", "items": "string"}, {"type": "array", "items": "int"}, ["a"], UnusableSchema),
    ("a branch that fits", ["int", "string"], "long", 7, 7),
    ("a branch that does not", ["int", "string"], "long", "a", UnusableSchema),
    ("null where it is declared", ["null", "int"], ["int", "null"], None, None),
    ("null where it is not", ["null", "int"], "int", None, UnusableSchema),
    ("of several declared types the same one", "int", ["string", "long", "int"], 7, "7"),
    ("a record as the text of a union", R, ["string", R_MORE], {"x": 1}, '{"x":1,"y":3}'),
    ("a record of a union whose field was written as a wider union", WIDE, ["boolean", NARROW], {"x": 7}, '{"x":7}'),
    ("a decimal of no bytes", number(2), number(2), b"", WrongType),
    ("a symbol", ENUM, ENUM_LESS, "A", "A"),
    ("a symbol that is not declared", ENUM, ENUM_LESS, "B", UnusableSchema),
    ("a symbol that is not declared, with a default", ENUM, ENUM_LESS | {"default": "A"}, "B", ("A", {"$": "B"})),
    ("another enum", ENUM, ENUM | {"name": "F"}, "A", UnusableSchema),
    ("an enum by its alias", ENUM, ENUM | {"name": "F", "aliases": ["E"]}, "A", "A"),
]  # fmt: skip


@each_case("what, written, declared, value, expected", RESOLUTIONS)
def test_values_are_resolved_by_the_specification(
    what: str, written: Any, declared: Any, value: Any, expected: Any
) -> None:
    assert through(written, declared, value) == expected


@each_case(
    "kind, default, expected",
    [
        ("bytes", "\u00ff", b"\xff"),
        ({"type": "fixed", "name": "F", "size": 2}, "\u0001\u00ff", b"\x01\xff"),
        (number(2), "\u0030\u0039", Decimal("123.45")),
        (MILLIS, 5, at(milliseconds=5)),
        (DATE, 1, datetime.date(1970, 1, 2)),
        (ENUM, "B", "B"),
        (["null", "long"], None, None),
        (["null", "long"], 7, 7),
        (["long", "string"], 7, "7"),
        ({"type": "array", "items": "bytes"}, ["\u00ff"], [b"\xff"]),
        ({"type": "map", "values": "double"}, {"k": 1}, [("k", 1.0)]),
        (R_MORE, {"x": 1}, {"x": 1, "y": 3}),
    ],
)
def test_an_older_record_has_the_default_of_an_added_field(kind: Any, default: Any, expected: Any) -> None:
    old: dict[str, Any] = {"type": "record", "name": "Old", "fields": [{"name": "id", "type": "long"}]}
    new = old | {"fields": [*old["fields"], {"name": "z", "type": kind, "default": default}]}
    assert through(old, new, {"id": 1}) == {"id": 1, "z": expected}


def test_a_field_that_is_not_declared_is_rescued_although_its_logical_type_does_not_have_its_value() -> None:
    clock = {"type": "int", "logicalType": "time-millis"}
    some = {"type": "array", "items": ["null", number(2, 3)]}
    old: dict[str, Any] = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}
    more = [{"name": "t", "type": clock}, {"name": "n", "type": some}]
    written = old | {"fields": [*more, *old["fields"]]}
    value = {"id": 1, "t": 1_000, "n": [b"\x7b", None]}
    assert through(written, old, value) == ({"id": 1}, {"$.t": "00:00:01", "$.n": ["1.23", None]})
    value = {"id": 1, "t": -1, "n": [b"\x7f\x7f", None]}
    assert through(written, old, value) == ({"id": 1}, {"$.t": -1, "$.n": [b"\x7f\x7f", None]})


def test_a_written_field_is_the_value_of_one_declared_field_by_name_before_alias() -> None:
    def record(*fields: dict[str, Any]) -> dict[str, Any]:
        return {"type": "record", "name": "R", "fields": [{"type": "int"} | field for field in fields]}

    old, by_alias = record({"name": "a"}), {"name": "b", "aliases": ["a"]}
    added = by_alias | {"default": 7}
    assert through(old, record({"name": "a"}, added), {"a": 2}) == {"a": 2, "b": 7}
    assert through(old, record(added, {"name": "a"}), {"a": 2}) == {"a": 2, "b": 7}
    assert through(old, record({"name": "a"}, by_alias), {"a": 2}) is UnusableSchema
    assert through(old, record(by_alias, added | {"name": "c"}), {"a": 2}) == {"b": 2, "c": 7}
    assert through(
        record({"name": "a"}, {"name": "z"}), record(by_alias | {"aliases": ["q", "z", "a"]}), {"a": 2, "z": 3}
    ) == (
        {"b": 3},
        {"$.a": 2},
    )


def test_an_added_field_without_a_default_is_a_bad_row() -> None:
    old: dict[str, Any] = {"type": "record", "name": "Old", "fields": []}
    new = old | {"fields": [{"name": "z", "type": "long"}]}
    assert through(old, new, {}) is UnusableSchema
