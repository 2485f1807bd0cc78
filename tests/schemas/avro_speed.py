"""``python -m tests.schemas.avro_speed``: records a second that are decoded from Avro, beside fastavro's own reader.

fastavro checks less, finds no drift, and has no row for Arrow at the end. Seconds are the processor's, the best of many
turns, because other processes share the machine.
"""

from __future__ import annotations

import datetime
import decimal
import io
import json
import time
import timeit
from typing import Any, Final

import fastavro

from einmal.schemas.avro_format import AvroDecoder, AvroSchema

_RECORDS: Final = 2_000
_TURNS: Final = 25
PLAIN: Final[list[dict[str, Any]]] = [
    {"name": "id", "type": "long"},
    {"name": "name", "type": "string"},
    {"name": "amount", "type": "double"},
    {"name": "note", "type": ["null", "string"]},
    {"name": "reference", "type": ["null", "long"]},
    {"name": "count", "type": "int"},
    {"name": "paid", "type": "boolean"},
    {"name": "tags", "type": {"type": "array", "items": "long"}},
    {
        "name": "address",
        "type": {
            "type": "record",
            "name": "Address",
            "fields": [{"name": "city", "type": "string"}, {"name": "height", "type": ["null", "double"]}],
        },
    },
]
LOGICAL: Final[list[dict[str, Any]]] = [
    {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    {"name": "day", "type": {"type": "int", "logicalType": "date"}},
    {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 2}},
    {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B", "C"]}},
    {"name": "labels", "type": {"type": "map", "values": "string"}},
]
ADDED: Final = {"name": "added", "type": ["null", "string"], "default": None}
VALUE: Final = {
    "id": 123_456_789,
    "name": "name of a customer",
    "amount": 12.5,
    "note": "a remark",
    "reference": None,
    "count": 7,
    "paid": True,
    "tags": [1, 2, 300],
    "address": {"city": "Ulm", "height": 2.5},
    "at": datetime.datetime(2026, 1, 2, 3, 4, 5, tzinfo=datetime.UTC),
    "day": datetime.date(2026, 1, 2),
    "price": decimal.Decimal("12.34"),
    "kind": "B",
    "labels": {"k": "v", "l": "w"},
}


def schema(fields: list[dict[str, Any]]) -> AvroSchema:
    return AvroSchema(json.dumps({"type": "record", "name": "Payment", "fields": fields}))


def main() -> None:
    for what, fields in (("plain types", PLAIN), ("logical types, too", [*PLAIN, *LOGICAL])):
        writer = schema(fields)
        stream = io.BytesIO()
        fastavro.schemaless_writer(stream, writer.parsed, VALUE)
        raw = stream.getvalue()
        for change, reader in (("the same schema", writer), ("a field added", schema([*fields, ADDED]))):
            ours, theirs = _seconds(raw, writer, reader)
            print(
                f"{what}, {change}: {_RECORDS / ours:,.0f} records/s; fastavro {_RECORDS / theirs:,.0f}; "
                f"{ours / theirs:.2f} of its time"
            )


def _seconds(raw: bytes, writer: AvroSchema, reader: AvroSchema) -> tuple[float, float]:
    decoder = AvroDecoder(reader)

    def ours() -> None:
        decoder.decode(raw, writer)

    def theirs() -> None:
        fastavro.schemaless_reader(io.BytesIO(raw), writer.parsed, reader.parsed)

    # In turn, so that the machine is as busy for the one as for the other.
    turns = [
        [timeit.timeit(each, number=_RECORDS, timer=time.process_time) for each in (ours, theirs)]
        for _ in range(_TURNS)
    ]
    one, other = map(min, zip(*turns, strict=True))
    return one, other


if __name__ == "__main__":
    main()
