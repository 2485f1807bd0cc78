"""JSON with a JSON Schema: validated by jsonschema-rs, whose regular expressions cannot backtrack. Pure.

A property that the schema does not have is drift, not an error, also where ``additionalProperties`` or
``unevaluatedProperties`` is false: the policy for drift decides. References to other documents are refused; nothing is
fetched.

A number is a double where that prints as the same number, else a decimal: no digit is lost before its column is known.
"""

from __future__ import annotations

import decimal
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from einmal.schemas.columns import (
    BIGINT,
    BOOLEAN,
    DATE,
    DOUBLE,
    JSON_TEXT,
    STRING,
    TIMESTAMP,
    ColumnType,
    Unknown,
    array,
    mapping,
    struct,
)
from einmal.schemas.decoder import DEPTH_MAX, Decoded, Limits, VisitedTypes
from einmal.schemas.errors import (
    BadRow,
    InvalidText,
    MalformedValue,
    MissingField,
    NestedTooDeeply,
    OutOfRange,
    SchemaError,
    WrongType,
)

_REQUIRED: Final = "required"
_CLOSING: Final = ("additionalProperties", "unevaluatedProperties")
_SCHEMAS_BY_NAME: Final = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
_CONDITIONAL: Final = ("then", "else", "oneOf", "anyOf")
_KEPT: Final = ("not", "if", "const", "enum", "default", "examples")
"""Keywords that open objects below would change the meaning of, and values."""
_FORMATS: Final = {"date-time": TIMESTAMP, "date": DATE}
_INEXACT: Final = re.compile(rb"\d[eE][+-]?\d{3}|(?<![\d.])[\d.]{16}")
"""Pattern of numbers that a double may not have, and few others: it has 15 digits, but near the ends of its range."""
_DIGITS_MAX: Final = 4_300
"""Python's maximum for integers; a validator takes its time for more."""
_SIMPLE: Final = {"integer": BIGINT, "number": DOUBLE, "boolean": BOOLEAN, "string": STRING}


class JsonDecoder:
    """See ``decoder.Decoder``."""

    def __init__(self, schema: str, limits: Limits | None = None) -> None:
        """``schema``: the text of a JSON Schema. Raises SchemaError."""
        import jsonschema_rs

        document = parsed_schema(schema)
        self._limits = limits or Limits()
        self._column = _column(_Document(document), document, ())
        self._convert = self._column.at("$")
        try:
            self._validator, *self._others = [
                jsonschema_rs.validator_for(
                    reading, validate_formats=False, offline=True, pattern_options=jsonschema_rs.RegexOptions()
                )
                for reading in _readings(document)
            ]
        except (ValueError, jsonschema_rs.ReferencingError) as error:
            reason = str(error).partition("\n")[0]
            raise SchemaError(f"not a JSON Schema that can be used: {reason}") from error

    @property
    def ddl(self) -> str:
        return self._column.ddl

    def decode(self, raw: bytes) -> Decoded:
        """Raises BadRow."""
        value = parsed(raw, self._limits)
        if not self._validator.is_valid(value) and not any(other.is_valid(value) for other in self._others):
            raise self._reason(value)
        unknown = Unknown()
        return Decoded(self._convert(value, unknown), unknown.fields)

    def _reason(self, value: Any) -> BadRow:
        error = next(self._validator.iter_errors(value))
        path = _field_path(error.schema_path)
        kind: Any = error.kind
        rule = kind.name
        if rule == _REQUIRED:
            # The schema's name for it: not the record's content.
            return MissingField(f"{path}.{kind.property} is missing")
        return WrongType(f"{path}: the schema's rule {rule!r} excludes the value")


def _field_path(schema_path: Sequence[str | int]) -> str:
    """Where a rule belongs, in names of the schema only: the keys of a map are the record's content."""
    path = "$"
    for before, step in zip(("", *schema_path), schema_path, strict=False):
        if before == "properties":
            path += f".{step}"
        elif step in ("items", "additionalProperties") and before != "properties":
            path += "[]"
    return path


def parsed(raw: bytes, limits: Limits) -> Any:
    """A JSON document, as strict as RFC 8259. Raises BadRow."""
    limits.check_size(raw)
    limits.check_depth(raw)
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidText(f"not UTF-8 at byte {error.start}") from error
    try:
        exact = _exact if _INEXACT.search(raw) else None
        value = json.loads(text, parse_constant=_no_constant, parse_float=exact)
        if b"\\u" in raw:
            # An escape can be half of a surrogate pair, which no UTF-8 has. Decimals are none of the encoder's types.
            json.dumps(value, ensure_ascii=False, default=str).encode("utf-8")
    except OutOfRange:
        raise
    except UnicodeEncodeError as error:
        raise InvalidText("an escaped character that UTF-8 cannot represent") from error
    except json.JSONDecodeError as error:
        raise MalformedValue(f"not JSON at character {error.pos}: {error.msg}") from error
    except RecursionError as error:
        raise NestedTooDeeply("too many levels of nesting") from error
    except ValueError as error:
        raise MalformedValue("not JSON: a number that no number of JSON is, or with too many digits") from error
    return value


def _exact(text: str) -> float | decimal.Decimal:
    """Python's own conversion rounds, and makes infinity of what is too large. Raises OutOfRange, ValueError."""
    value = float(text)
    if repr(value) == text:
        return value
    if value == 0 and not text.lower().partition("e")[0].strip("-0."):
        return value
    if value == 0 or math.isinf(value):
        raise OutOfRange("a number that is too large for a double, or too close to zero")
    if len(text) > _DIGITS_MAX:
        raise ValueError(len(text))
    number = decimal.Decimal(text)
    return value if number == decimal.Decimal(repr(value)) else number


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def parsed_schema(text: str) -> dict[str, Any]:
    """Raises SchemaError."""
    try:
        document = parsed(text.encode("utf-8", "surrogatepass"), Limits())
    except BadRow as error:
        raise SchemaError(f"not a JSON Schema: {error}") from error
    if not isinstance(document, dict):
        raise SchemaError("not a JSON Schema: it is no JSON object")
    return document


def _readings(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The schemas of which a document has to be valid by one: with all objects open, with those closed that can be what
    the alternatives of ``oneOf`` differ by, and as it is written."""
    readings = [_open(document, _KEPT)]
    for reading in (_open(document, (*_KEPT, "oneOf")), document):
        if reading not in readings:
            readings.append(reading)
    return readings


def _open(node: Any, kept: Sequence[str]) -> Any:
    """The schema without ``additionalProperties: false``, but below the keywords ``kept``: unknown properties are for
    the policy."""
    if isinstance(node, list):
        return [_open(child, kept) for child in node]
    if not isinstance(node, dict):
        return node
    opened: dict[str, Any] = {}
    for keyword, child in node.items():
        if keyword in _SCHEMAS_BY_NAME and isinstance(child, dict):
            opened[keyword] = {name: _open(schema, kept) for name, schema in child.items()}
        elif not (keyword in _CLOSING and child is False):
            opened[keyword] = child if keyword in kept else _open(child, kept)
    return opened


class _Document(dict[str, Any]):
    """A schema that its parts refer to. ``visited``: its types so far."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        super().__init__(document)
        self.visited = VisitedTypes("JSON Schema")


def _column(document: _Document, node: Any, above: tuple[str, ...], depth: int = 0) -> ColumnType:
    """The column of a schema within ``document``; ``above``: the references that led here. Raises SchemaError."""
    document.visited.visit()
    if not isinstance(node, Mapping) or depth > DEPTH_MAX:
        return JSON_TEXT
    reference = node.get("$ref")
    if isinstance(reference, str):
        if reference in above:
            return JSON_TEXT
        referred = _referred(document, reference)
        if isinstance(referred, Mapping) and ("properties" in node or "allOf" in node):
            referred = _joined(referred, [{name: child for name, child in node.items() if name != "$ref"}])
        return _column(document, referred, (*above, reference), depth + 1)
    alternatives = next((node[name] for name in ("oneOf", "anyOf") if isinstance(node.get(name), list)), None)
    if alternatives is not None:
        others = [alternative for alternative in alternatives if not _is_null(alternative)]
        return _column(document, others[0], above, depth + 1) if len(others) == 1 else JSON_TEXT
    kinds = node.get("type")
    named = [kind for kind in (kinds if isinstance(kinds, list) else [kinds]) if kind not in ("null", None)]
    if len(named) != 1:
        values = node.get("enum", [node["const"]] if "const" in node else [])
        return STRING if values and all(isinstance(value, str | None) for value in values) else JSON_TEXT
    return _typed(document, node, named[0], above, depth)


def _typed(document: _Document, node: Mapping[str, Any], kind: Any, above: tuple[str, ...], depth: int) -> ColumnType:
    if kind == "object":
        properties = node.get("properties")
        if isinstance(properties, Mapping) and properties:
            return _object_column(document, node, above, depth)
        values = node.get("additionalProperties")
        return mapping(_column(document, values, above, depth + 1)) if isinstance(values, Mapping) else JSON_TEXT
    if kind == "array":
        items = node.get("items")
        return array(_column(document, items, above, depth + 1)) if isinstance(items, Mapping) else JSON_TEXT
    if kind == "string":
        return _FORMATS.get(str(node.get("format")), STRING)
    return _SIMPLE.get(str(kind), JSON_TEXT)


def _object_column(document: _Document, node: Mapping[str, Any], above: tuple[str, ...], depth: int) -> ColumnType:
    """The column of an object with ``properties``: also those of schemas that hold with its own, and as JSON those of
    schemas that can hold."""
    declared: dict[str, list[tuple[Any, tuple[str, ...]]]] = {}
    possible: set[str] = set()
    for schema, path in _all_of(document, node, above):
        for name, subschema in _properties(schema):
            declared.setdefault(name, []).append((subschema, path))
        for alternative in _alternatives(schema):
            for inner, _ in _all_of(document, alternative, path):
                possible.update(name for name, _ in _properties(inner))
    columns: dict[str, ColumnType] = {}
    for name, ((first, path), *others) in declared.items():
        if others and isinstance(first, Mapping):
            first = _joined(first, [subschema for subschema, _ in others])
            path = tuple(reference for _, references in declared[name] for reference in references)
        columns[name] = _column(document, first, path, depth + 1)
    return struct(columns | dict.fromkeys(sorted(possible - columns.keys()), JSON_TEXT))


def _all_of(
    document: _Document, node: Any, above: tuple[str, ...], depth: int = 0
) -> Iterator[tuple[Mapping[str, Any], tuple[str, ...]]]:
    """A schema and those that hold with it, each with the references that led there."""
    document.visited.visit()
    if not isinstance(node, Mapping) or depth > DEPTH_MAX:
        return
    yield node, above
    reference = node.get("$ref")
    if isinstance(reference, str) and reference not in above:
        try:
            referred = _referred(document, reference)
        except SchemaError:
            # The validator also resolves references to parts with an identifier of their own.
            referred = None
        yield from _all_of(document, referred, (*above, reference), depth + 1)
    for schema in _schemas(node.get("allOf")):
        yield from _all_of(document, schema, above, depth + 1)


def _properties(node: Mapping[str, Any]) -> list[tuple[str, Any]]:
    properties = node.get("properties")
    return [*properties.items()] if isinstance(properties, Mapping) else []


def _alternatives(node: Mapping[str, Any]) -> list[Any]:
    dependent = node.get("dependentSchemas")
    alternatives = [schema for keyword in _CONDITIONAL for schema in _schemas(node.get(keyword))]
    return [*alternatives, *(dependent.values() if isinstance(dependent, Mapping) else ())]


def _schemas(value: Any) -> list[Any]:
    if isinstance(value, list):
        return value
    return [] if value is None else [value]


def _joined(node: Mapping[str, Any], others: list[Any]) -> dict[str, Any]:
    """A schema with others that hold for the same value."""
    return {**node, "allOf": [*_schemas(node.get("allOf")), *others]}


def _is_null(node: Any) -> bool:
    return isinstance(node, Mapping) and (node.get("type") == "null" or node.get("const", 0) is None)


def _referred(document: Mapping[str, Any], reference: str) -> Any:
    if not reference.startswith("#"):
        raise SchemaError(
            f"the JSON Schema refers to another document, {reference!r}", "put it under $defs of the same document"
        )
    node: Any = document
    if reference[1:2] not in ("", "/"):
        # An anchor: what it names is JSON, like everything that is no column.
        return {}
    for token in reference.lstrip("#").split("/")[1:]:
        token = token.replace("~1", "/").replace("~0", "~")
        if not isinstance(node, Mapping) or token not in node:
            raise SchemaError(f"the JSON Schema has nothing at {reference!r}")
        node = node[token]
    return node
