"""Rows that are Arrow tables in this process, for programs and tests without Spark."""

from __future__ import annotations

import base64
import datetime
import decimal
import json
import math
import secrets
from collections.abc import Sequence
from functools import cache
from typing import Any, Final

from einmal.sinks.batch_rows import BatchRows, PartReport, Selected, TaskAttempt, WritePart
from einmal.sinks.row_schema import ArrayRowType, DecimalRowType, MapRowType, RowField, RowSchema, RowType

_ROWS: Final = 10_000
"""Rows of one record batch, as in Spark."""


class ArrowRows(BatchRows):
    """One part for each table."""

    def __init__(self, parts: Sequence[Any]) -> None:
        """At least one table (pyarrow), all with the same columns."""
        self._parts = tuple(parts)

    @property
    def schema(self) -> RowSchema:
        return schema_of(self._parts[0].schema)

    def without(self, column: str) -> ArrowRows:
        kept = [name for name in self._parts[0].schema.names if name != column]
        return ArrowRows([table.select(kept) for table in self._parts])

    def select(self, columns: Sequence[Selected]) -> ArrowRows:
        return ArrowRows([_selected(table, columns) for table in self._parts])

    def write(self, write: WritePart) -> list[PartReport]:
        reports = [
            write(TaskAttempt(number, secrets.randbits(48)), iter(table.to_batches(_ROWS)))
            for number, table in enumerate(self._parts)
        ]
        return [report for report in reports if report is not None]


def _selected(table: Any, columns: Sequence[Selected]) -> Any:
    import pyarrow
    from pyarrow import compute

    arrays = []
    for column in columns:
        values = table.column(column.column)
        if column.field is not None:
            values = compute.struct_field(values, column.field)
        if column.as_json:
            texts = [None if value is None else _json(value, values.type) for value in values.to_pylist()]
            values = pyarrow.chunked_array([texts], pyarrow.string())
        arrays.append(values)
    return pyarrow.table(arrays, names=[column.name for column in columns])


def _json(value: Any, kind: Any) -> str:
    """As Spark's ``to_json`` has it: times in ISO 8601, bytes in base 64, keys of maps as text, all digits."""
    from pyarrow import types

    if types.is_map(kind) and value is not None:
        pairs = (f"{_key(key, kind.key_type)}:{_json(nested, kind.item_type)}" for key, nested in value)
        return f"{{{','.join(pairs)}}}"
    match value:
        case dict():
            pairs = (f"{json.dumps(name)}:{_json(nested, kind.field(name).type)}" for name, nested in value.items())
            return f"{{{','.join(pairs)}}}"
        case list():
            return f"[{','.join(_json(nested, kind.value_type) for nested in value)}]"
        case bytes():
            value = base64.b64encode(value).decode()
        case datetime.datetime() if value.tzinfo is None:
            value = value.isoformat("T", "microseconds")
        case datetime.datetime():
            value = value.astimezone(datetime.UTC).isoformat("T", "microseconds").replace("+00:00", "Z")
        case datetime.date():
            value = value.isoformat()
        case decimal.Decimal():
            return format(value, "f")
        case float() if not math.isfinite(value):
            value = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return json.dumps(value, ensure_ascii=False)


def _key(key: Any, kind: Any) -> str:
    text = _json(key, kind)
    return text if text.startswith('"') else json.dumps(text, ensure_ascii=False)


def schema_of(schema: Any) -> RowSchema:
    """Return the schema of columns of Arrow's types."""
    return RowSchema(fields=tuple(RowField(field.name, type_of(field.type), field.nullable) for field in schema))


def type_of(kind: Any) -> RowType:
    from pyarrow import types

    if types.is_decimal(kind):
        return DecimalRowType(precision=kind.precision, scale=kind.scale)
    if types.is_map(kind):
        return MapRowType(key=type_of(kind.key_type), value=type_of(kind.item_type), has_null=kind.item_field.nullable)
    if types.is_struct(kind):
        return schema_of(kind)
    if types.is_list(kind) or types.is_large_list(kind):
        return ArrayRowType(element=type_of(kind.value_type), has_null=kind.value_field.nullable)
    if types.is_timestamp(kind) and kind.tz is not None and kind.unit == "us":
        return RowType("timestamp")
    same = {"large_string": "string", "large_binary": "binary", "null": "void"}
    names = {scalar: name for name, scalar in _scalars().items()}
    return RowType(names.get(kind) or same.get(str(kind), str(kind)))


def arrow_type(kind: RowType) -> Any:
    """The type that Arrow has for it, times in UTC. Raises TypeError where there is none."""
    import pyarrow

    match kind:
        case DecimalRowType():
            return pyarrow.decimal128(kind.precision, kind.scale)
        case ArrayRowType():
            return pyarrow.list_(pyarrow.field("element", arrow_type(kind.element), kind.has_null))
        case MapRowType():
            key = pyarrow.field("key", arrow_type(kind.key), nullable=False)
            return pyarrow.map_(key, pyarrow.field("value", arrow_type(kind.value), kind.has_null))
        case RowSchema():
            return pyarrow.struct([pyarrow.field(field.name, arrow_type(field.type), field.nullable) for field in kind])
    scalars = _scalars()
    if kind.kind not in scalars:
        raise TypeError(f"Arrow has no type for {kind}")
    return scalars[kind.kind]


@cache
def _scalars() -> dict[str, Any]:
    """Arrow's types by Spark's names."""
    import pyarrow

    return {
        "boolean": pyarrow.bool_(),
        "byte": pyarrow.int8(),
        "short": pyarrow.int16(),
        "integer": pyarrow.int32(),
        "long": pyarrow.int64(),
        "float": pyarrow.float32(),
        "double": pyarrow.float64(),
        "string": pyarrow.string(),
        "binary": pyarrow.binary(),
        "date": pyarrow.date32(),
        "timestamp": pyarrow.timestamp("us", "UTC"),
        "timestamp_ntz": pyarrow.timestamp("us"),
    }
