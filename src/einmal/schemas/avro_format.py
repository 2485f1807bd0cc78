"""Avro, whose schemas fastavro parses, read with the schema that a record was written with as the declared one. Pure.

Recursive schemas are refused: a record of a few kilobytes could have more levels than the stack. So are
arrays whose items take no bytes, of which a record of ten bytes could have billions.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, Final
from weakref import WeakKeyDictionary

from einmal.schemas.avro_binary import Read, read_all
from einmal.schemas.avro_resolution import DIGITS_MAX, NO_DECIMAL, decimal_digits, expanded, resolution
from einmal.schemas.columns import (
    BIGINT,
    BINARY,
    BOOLEAN,
    DATE,
    DOUBLE,
    FLOAT,
    INT,
    JSON_TEXT,
    STRING,
    TIMESTAMP,
    ColumnType,
    Unknown,
    array,
    decimal_column,
    mapping,
    struct,
)
from einmal.schemas.decoder import DEPTH_MAX, Decoded, Limits, VisitedTypes
from einmal.schemas.errors import SchemaError

_PRIMITIVES: Final = {
    "boolean": BOOLEAN,
    "int": INT,
    "long": BIGINT,
    "float": FLOAT,
    "double": DOUBLE,
    "bytes": BINARY,
    "string": STRING,
    "null": JSON_TEXT,
}
_LOGICAL: Final = {
    ("int", "date"): DATE,
    ("long", "timestamp-millis"): TIMESTAMP,
    ("long", "timestamp-micros"): TIMESTAMP,
    ("int", "time-millis"): STRING,
    ("long", "time-micros"): STRING,
    ("string", "uuid"): STRING,
    ("fixed", "uuid"): STRING,
}
_DECIMAL_MAX: Final = 38


class _Named(dict[str, Any]):
    """Types by name. ``visited``: those so far; ``declared``: whether there are columns at all."""

    def __init__(self, known: Mapping[str, Any], *, declared: bool) -> None:
        super().__init__(known)
        self.visited = VisitedTypes("Avro schema")
        self.declared = declared


class AvroSchema:
    """A parsed Avro schema that is safe to decode with."""

    def __init__(self, text: str, named: Iterable[str] = (), *, declared: bool = True) -> None:
        """``named``: the texts of the schemas that it refers to, in order; ``declared``: its types are columns',
        and not only what records were written with. Raises SchemaError."""
        import fastavro

        known: dict[str, Any] = {}
        try:
            for named_text in named:
                fastavro.parse_schema(_lenient(_json(named_text), declared), named_schemas=known)
            self.parsed: Any = fastavro.parse_schema(_lenient(_json(text), declared), named_schemas=known)
            self.column = _column(self.parsed, _Named(known, declared=declared), ())
            self.node = expanded(self.parsed, known)
        except SchemaError:
            raise
        except (Exception, RecursionError) as error:
            raise SchemaError(f"not an Avro schema: {type(error).__name__}: {str(error)[:200]}") from error


class AvroDecoder:
    """See ``decoder.Decoder``. ``schema``: the reader's, and the writer's unless ``decode`` gets another."""

    def __init__(self, schema: AvroSchema, limits: Limits | None = None) -> None:
        self._schema = schema
        self._limits = limits or Limits()
        self._reads: WeakKeyDictionary[AvroSchema, Read] = WeakKeyDictionary()
        """By the writer's schema."""

    @property
    def ddl(self) -> str:
        return self._schema.column.ddl

    def decode(self, raw: bytes, writer: AvroSchema | None = None) -> Decoded:
        """Raises BadRow."""
        self._limits.check_size(raw)
        if writer is None:
            writer = self._schema
        read = self._reads.get(writer)
        if read is None:
            read = self._reads[writer] = resolution(writer.node, self._schema.node)
        unknown = Unknown()
        return Decoded(read_all(raw, read, unknown), unknown.fields)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        # The name of a primitive type may stand alone.
        return text


def _lenient(schema: Any, declared: bool) -> Any:
    """A schema without what fastavro refuses and Avro does not: by the specification a decimal that can be none is its
    bytes, and the defaults of a schema that is not the declared one are never read."""
    if isinstance(schema, list):
        return [_lenient(branch, declared) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    dropped = {"logicalType"} if schema.get("logicalType") == "decimal" and not _can_be_decimal(schema) else set()
    dropped |= set() if declared else {"default"}
    inner = ("type", "items", "values", "fields")
    return {
        name: _lenient(value, declared) if name in inner else value
        for name, value in schema.items()
        if name not in dropped
    }


def _can_be_decimal(schema: Mapping[str, Any]) -> bool:
    precision, scale = decimal_digits(schema)
    if (precision, scale) == NO_DECIMAL or schema.get("type") != "fixed":
        return (precision, scale) != NO_DECIMAL
    size = schema.get("size")
    # As fastavro and Avro's Java implementation have it.
    return isinstance(size, int) and size > 0 and precision <= math.log10(2) * (8 * size - 1)


# --- columns ----------------------------------------------------------------------------------------------------


def _column(schema: Any, known: _Named, above: tuple[str, ...]) -> ColumnType:
    """Raises SchemaError."""
    known.visited.visit()
    if len(above) > DEPTH_MAX:
        raise SchemaError(f"the Avro schema has more than {DEPTH_MAX} levels")
    if isinstance(schema, list):
        return _union(schema, known, above)
    if isinstance(schema, str):
        if schema in _PRIMITIVES:
            return _PRIMITIVES[schema]
        if schema in above:
            raise SchemaError(f"the Avro type {schema!r} contains itself", "recursive types are not decoded")
        return _column(known[schema], known, above)
    kind = schema["type"]
    match kind:
        case "record" | "error":
            inner = (*above, schema["name"])
            return struct({field["name"]: _column(field["type"], known, inner) for field in schema["fields"]})
        case "array":
            if not _takes_bytes(schema["items"], known):
                raise SchemaError("an Avro array has items that take no bytes", "such arrays are not decoded")
            return array(_column(schema["items"], known, (*above, "[]")))
        case "map":
            return mapping(_column(schema["values"], known, (*above, "[]")))
        case "enum":
            return STRING
        case _:
            return _scalar(schema, known, above)


def _scalar(schema: Mapping[str, Any], known: _Named, above: tuple[str, ...]) -> ColumnType:
    kind, logical = schema["type"], schema.get("logicalType")
    if kind == "fixed" and not (isinstance(schema["size"], int) and schema["size"] >= 0):
        raise SchemaError("an Avro fixed has a size that is no number of bytes")
    if logical == "decimal" and kind in ("bytes", "fixed"):
        precision, scale = decimal_digits(schema)
        if precision > _DECIMAL_MAX and known.declared:
            raise SchemaError(f"an Avro decimal({precision},{scale}) is no decimal of Spark's")
        if precision > DIGITS_MAX:
            # Bytes without a scale would be read as the declared decimal, with its scale.
            raise SchemaError(f"an Avro decimal has more than {DIGITS_MAX:,} digits")
        if (precision, scale) != NO_DECIMAL:
            return decimal_column(precision, scale)
    column = _LOGICAL.get((kind, str(logical)))
    if column is not None:
        return column
    return BINARY if kind == "fixed" else _column(kind, known, (*above, "."))


def _union(schema: list[Any], known: _Named, above: tuple[str, ...]) -> ColumnType:
    columns = [_column(branch, known, above) for branch in schema if branch != "null"]
    return columns[0] if len(columns) == 1 else JSON_TEXT


def _takes_bytes(schema: Any, known: _Named, depth: int = 0) -> bool:
    """Whether each value of a schema has at least one byte."""
    known.visited.visit()
    if depth > DEPTH_MAX:
        return True
    if isinstance(schema, str):
        if schema in _PRIMITIVES:
            return schema != "null"
        return _takes_bytes(known[schema], known, depth + 1)
    if isinstance(schema, list):
        return True
    if schema["type"] in ("record", "error"):
        return any(_takes_bytes(field["type"], known, depth + 1) for field in schema["fields"])
    if schema["type"] == "fixed":
        return int(schema["size"]) > 0
    return bool(schema["type"] != "null")
