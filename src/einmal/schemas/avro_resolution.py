"""Reads Avro values of the schema they were written with as values of the declared one, by the specification. Pure.

A value has the meaning of its writer's schema: its logical type comes first, and what the declared type cannot hold
exactly is a bad row. Only a value without a logical type is read by the declared one. As in Avro's Java implementation
a mismatch concerns the values that have it, not the whole schema: an array of the wrong items may be empty.

What the writer's schema has and the declared one has not is noted while a value is read, wherever it is: fields of
records, and symbols of enums that are read as the declared default.
"""

from __future__ import annotations

import datetime
import decimal
import struct
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from einmal.schemas.avro_binary import (
    Read,
    array_of,
    encoded_bytes,
    encoded_double,
    encoded_float,
    encoded_items,
    fixed,
    map_of,
    read_boolean,
    read_bytes,
    read_double,
    read_float,
    read_index,
    read_int,
    read_long,
    read_null,
    read_string,
)
from einmal.schemas.columns import JSON_TEXT, Convert, Unknown, exact_decimal
from einmal.schemas.errors import InvalidText, OutOfRange, SchemaError, UnusableSchema, WrongType
from einmal.wire.record_batch import encode_varint

Node = Mapping[str, Any]
"""A schema without references: each type is an object, a union has the type ``union`` and ``branches``."""
_READ: Final[Mapping[str, Read]] = {
    "null": read_null,
    "boolean": read_boolean,
    "int": read_int,
    "long": read_long,
    "float": read_float,
    "double": read_double,
    "bytes": read_bytes,
    "string": read_string,
}
PRIMITIVES: Final = tuple(_READ)
_PROMOTED: Final[Mapping[str, tuple[str, ...]]] = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
_UNITS: Final = {"millis": 1_000_000, "micros": 1_000, "nanos": 1}
"""In nanoseconds."""
_TIMES: Final = {
    ("int", "time-millis"): ("time", "millis"),
    ("long", "time-micros"): ("time", "micros"),
    **{("long", f"{family}-{unit}"): (family, unit) for family in ("timestamp", "local-timestamp") for unit in _UNITS},
}
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_FIRST_DAY: Final = _EPOCH.date()
_DAY: Final = 24 * 60 * 60 * 1_000_000
NO_DECIMAL: Final = (0, 0)
DIGITS_MAX: Final = 10_000
"""Precision of a decimal that is decoded."""
_EXACT: Final = 2**53
_BOUNDS: Final = {"int": 2**31, "long": 2**63}
_JSON: Final[Mapping[str, type | tuple[type, ...]]] = {
    "boolean": bool,
    "int": int,
    "long": int,
    "float": (int, float),
    "double": (int, float),
    "bytes": str,
    "string": str,
    "fixed": str,
    "enum": str,
    "array": list,
    "map": dict,
    "record": dict,
}
"""Types of a default in JSON."""


def expanded(schema: Any, known: Mapping[str, Any]) -> Node:
    """``schema``: as fastavro parses it, not recursive; ``known``: the types that it names. Raises SchemaError."""
    if isinstance(schema, list):
        return {"type": "union", "branches": [expanded(branch, known) for branch in schema]}
    if isinstance(schema, str):
        return {"type": schema} if schema in PRIMITIVES else expanded(known[schema], known)
    _check_names(schema)
    match schema["type"]:
        case "record" | "error":
            fields = [{**field, "type": expanded(field["type"], known)} for field in schema["fields"]]
            return {**schema, "type": "record", "fields": fields}
        case "array":
            return {"type": "array", "items": expanded(schema["items"], known)}
        case "map":
            return {"type": "map", "values": expanded(schema["values"], known)}
        case kind if kind in PRIMITIVES or kind in ("enum", "fixed"):
            return schema  # type: ignore[no-any-return]
        case kind:
            return expanded(kind, known)


def _check_names(schema: Mapping[str, Any]) -> None:
    """Check the names that fastavro takes as they come."""
    for what in (schema, *schema.get("fields", ())):
        for kind in ("aliases", "symbols"):
            names = what.get(kind, [])
            if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
                raise SchemaError(f"the {kind} of an Avro type are no names")
    fields = [field["name"] for field in schema.get("fields", ())]
    if len(set(fields)) < len(fields):
        raise SchemaError(f"the Avro record {schema['name']!r} has two fields of one name")


def _tells(union: Node) -> bool:
    return bool(sum(branch["type"] != "null" for branch in union["branches"]) > 1)


def resolution(writer: Node, reader: Node, path: str = "$") -> Read:
    """Reads what was written with the one schema as a value for the column of the other."""
    return _resolved(writer, reader, path, False)


def _resolved(writer: Node, reader: Node, path: str, as_json: bool) -> Read:
    """``as_json``: the value becomes part of a JSON text."""
    if writer["type"] == "union":
        return _written_union(writer, reader, path, as_json)
    if reader["type"] == "union":
        return _declared_union(writer, reader, path, as_json)
    kinds = writer["type"], reader["type"]
    match kinds:
        case "record", "record":
            return _of_record(writer, reader, path, as_json)
        case "array", "array":
            return array_of(_resolved(writer["items"], reader["items"], f"{path}[]", as_json), _width(reader["items"]))
        case "map", "map":
            values = _resolved(writer["values"], reader["values"], f"{path}[]", as_json)
            entries = map_of(values, _width(reader["values"]))
            return entries if as_json else _converted(entries, lambda value, _: list(value.items()))
        case "enum", "enum" if _same_name(writer, reader):
            return _of_enum(writer, reader, path)
        case "fixed", "fixed" if _same_name(writer, reader) and writer["size"] == reader["size"]:
            return _of_scalar(writer, reader, path, as_json)
        case written, declared if written in PRIMITIVES and declared in (written, *_PROMOTED.get(written, ())):
            return _of_scalar(writer, reader, path, as_json)
    return _mismatch(f"{path}: it was written as {kinds[0]}, and {kinds[1]} is declared")


def _width(node: Node) -> int:
    """Values that one of a type has, but for those of its arrays and maps."""
    match node["type"]:
        case "record":
            return 1 + sum(_width(field["type"]) for field in node["fields"])
        case "union":
            return max((_width(branch) for branch in node["branches"]), default=1)
    return 1


def _mismatch(why: str) -> Read:
    def refuse(raw: bytes, at: int, unknown: Unknown) -> Any:
        raise UnusableSchema(why)

    return refuse


def _converted(read: Read, convert: Convert) -> Read:
    def converted(raw: bytes, at: int, unknown: Unknown) -> tuple[Any, int]:
        value, at = read(raw, at, unknown)
        return convert(value, unknown), at

    return converted


# --- unions -----------------------------------------------------------------------------------------------------


def _written_union(writer: Node, reader: Node, path: str, as_json: bool) -> Read:
    branches = [_resolved(branch, reader, path, as_json) for branch in writer["branches"]]

    def read(raw: bytes, at: int, unknown: Unknown) -> tuple[Any, int]:
        branch, at = read_index(raw, at, len(branches), "types of a union")
        return branches[branch](raw, at, unknown)

    return read


def _declared_union(writer: Node, reader: Node, path: str, as_json: bool) -> Read:
    branch = _matching(writer, reader["branches"])
    if branch is None:
        return _mismatch(f"{path}: it was written as {writer['type']}, which no type of the declared union is")
    if as_json or not _tells(reader):
        return _resolved(writer, branch, path, as_json)
    return _converted(_resolved(writer, branch, path, True), JSON_TEXT.at(path))


def _matching(writer: Node, branches: Sequence[Node]) -> Node | None:
    """The branch as Avro's Java implementation chooses it: by name, else by structure, else by promotion."""
    same = [branch for branch in branches if branch["type"] == writer["type"]]
    if writer["type"] not in ("record", "enum", "fixed"):
        wider = (branch for branch in branches if branch["type"] in _PROMOTED.get(writer["type"], ()))
        return next(iter(same), None) or next(wider, None)
    for fits in (
        lambda branch: branch["name"] == writer["name"],
        lambda branch: _same_name(writer, branch) and _has_structure(writer, branch),
        lambda branch: writer["type"] == "record" and _has_structure(writer, branch),
    ):
        if (branch := next(filter(fits, same), None)) is not None:
            return branch
    return None


def _has_structure(writer: Node, reader: Node) -> bool:
    """Whether the types agree, and those of the fields of a record. As in Java, what is deeper concerns the values that
    have it."""
    fields = _fields(writer, reader) if writer["type"] == "record" else []
    return _agrees(writer, reader) and all(
        written is None or _agrees(written["type"], declared["type"]) for declared, written in fields
    )


def _agrees(writer: Node, reader: Node) -> bool:
    if writer["type"] == "union":
        return True
    if reader["type"] == "union":
        return _matching(writer, reader["branches"]) is not None
    match writer["type"], reader["type"]:
        case "record", "record":
            return all(written is not None or "default" in declared for declared, written in _fields(writer, reader))
        case ("enum", "enum") | ("fixed", "fixed"):
            return _same_name(writer, reader) and writer.get("size") == reader.get("size")
        case written, declared:
            return bool(declared == written or declared in _PROMOTED.get(written, ()))


def _same_name(writer: Node, reader: Node) -> bool:
    """By unqualified name, as the specification has it, or by alias."""
    names = [_short(name) for name in (reader["name"], *reader.get("aliases", ()))]
    return _short(writer["name"]) in names


def _short(name: str) -> str:
    return name.rpartition(".")[2]


# --- records and enums ------------------------------------------------------------------------------------------


def _fields(writer: Node, reader: Node) -> list[tuple[Node, Node | None]]:
    """The declared fields, each with the one that was written, by name, else by alias: what was written is a value of
    one declared field, and a name comes before the alias of another field."""
    written = {field["name"]: field for field in writer["fields"]}
    pairs = {field["name"]: written.pop(field["name"], None) for field in reader["fields"]}
    for field in reader["fields"]:
        if pairs[field["name"]] is None:
            alias = next((name for name in field.get("aliases", ()) if name in written), None)
            pairs[field["name"]] = None if alias is None else written.pop(alias)
    return [(field, pairs[field["name"]]) for field in reader["fields"]]


def _of_record(writer: Node, reader: Node, path: str, as_json: bool) -> Read:
    pairs = _fields(writer, reader)
    declared = {written["name"]: field for field, written in pairs if written is not None}
    steps: list[tuple[str, str, Read]] = []
    for field in writer["fields"]:
        if (known := declared.get(field["name"])) is not None:
            inner = f"{path}.{known['name']}"
            steps.append((known["name"], "", _resolved(field["type"], known["type"], inner, as_json)))
        else:
            inner = f"{path}.{field['name']}"
            steps.append(("", inner, _rescued(field["type"], inner)))
    added: list[tuple[str, bytes, Read]] = []
    for field, written in pairs:
        if written is None:
            inner = f"{path}.{field['name']}"
            try:
                default = _default(field["type"], field["default"])
            except KeyError:
                return _mismatch(f"{inner} was not written, and has no default")
            except (TypeError, ValueError, ArithmeticError):
                return _mismatch(f"{inner} was not written, and its default is no {field['type']['type']}")
            added.append((field["name"], default, _resolved(field["type"], field["type"], inner, as_json)))

    def read(raw: bytes, at: int, unknown: Unknown) -> tuple[dict[str, Any], int]:
        row: dict[str, Any] = {}
        for name, unknown_at, inner in steps:
            if unknown_at:
                value, at = inner(raw, at, unknown)
                unknown.add(unknown_at, value)
            else:
                row[name], at = inner(raw, at, unknown)
        for name, default, inner in added:
            row[name], _ = inner(default, 0, unknown)
        return row, at

    return read


def _rescued(written: Node, path: str) -> Read:
    """Return the reader of a field that is not declared: a value that its logical type does not have is rescued as it
    was written."""
    plain = _without_logical_types(written)
    typed, untyped = (_resolved(node, node, path, True) for node in (written, plain))

    def read(raw: bytes, at: int, unknown: Unknown) -> tuple[Any, int]:
        try:
            return typed(raw, at, unknown)
        except (OutOfRange, WrongType):
            return untyped(raw, at, unknown)

    return read


def _without_logical_types(node: Node) -> Node:
    plain = {name: attribute for name, attribute in node.items() if name != "logicalType"}
    for name in ("items", "values"):
        if name in node:
            plain[name] = _without_logical_types(node[name])
    if "branches" in node:
        plain["branches"] = [_without_logical_types(branch) for branch in node["branches"]]
    if "fields" in node:
        plain["fields"] = [{**field, "type": _without_logical_types(field["type"])} for field in node["fields"]]
    return plain


def _default(node: Node, given: Any) -> bytes:
    """A default in JSON as it would have been written.

    Raises TypeError, ValueError, ArithmeticError, KeyError for one that is none.
    """
    kind = node["type"]
    if kind == "union":
        return _union_default(node, given)
    if kind == "null":
        if given is not None:
            raise TypeError(kind)
        return b""
    if not _is_json(kind, given):
        raise TypeError(kind)
    match kind:
        case "array":
            return encoded_items(_default(node["items"], value) for value in given)
        case "map":
            return encoded_items(
                encoded_bytes(name.encode()) + _default(node["values"], value) for name, value in given.items()
            )
        case "record":
            return b"".join(
                _default(field["type"], given[field["name"]] if field["name"] in given else field["default"])
                for field in node["fields"]
            )
    return _scalar_default(node, given)


def _is_json(kind: str, given: Any) -> bool:
    return isinstance(given, _JSON[kind]) and (kind == "boolean" or not isinstance(given, bool))


def _scalar_default(node: Node, given: Any) -> bytes:
    kind = node["type"]
    if kind in _BOUNDS and not -_BOUNDS[kind] <= given < _BOUNDS[kind]:
        raise ValueError(kind)
    match kind:
        case "boolean":
            return bytes([given])
        case "bytes":
            return encoded_bytes(given.encode("latin-1"))
        case "fixed":
            data: bytes = given.encode("latin-1")
            if len(data) != node["size"]:
                raise ValueError(kind)
            return data
        case "string":
            return encoded_bytes(given.encode())
        case "enum":
            return encode_varint(node["symbols"].index(given))
        case "float":
            return encoded_float(_single(given))
        case "double":
            return encoded_double(given)
    return encode_varint(given)


def _union_default(union: Node, given: Any) -> bytes:
    """Encode the default of a union, by the first branch that it is a value of: since Avro 1.12 that need not be the
    first one."""
    for at, branch in enumerate(union["branches"]):
        try:
            return encode_varint(at) + _default(branch, given)
        except (TypeError, ValueError, ArithmeticError, KeyError):
            continue
    raise ValueError("union")


def _of_enum(writer: Node, reader: Node, path: str) -> Read:
    written, declared, default = writer["symbols"], frozenset(reader["symbols"]), reader.get("default")

    def read(raw: bytes, at: int, unknown: Unknown) -> tuple[str, int]:
        index, at = read_index(raw, at, len(written), "symbols of an enum")
        symbol: str = written[index]
        if symbol in declared:
            return symbol, at
        if default is None:
            raise UnusableSchema(f"{path}: a symbol that the declared enum does not have")
        unknown.add(path, symbol)
        return default, at

    return read


# --- scalars ----------------------------------------------------------------------------------------------------


def _of_scalar(writer: Node, reader: Node, path: str, as_json: bool) -> Read:
    read = fixed(writer["size"]) if writer["type"] == "fixed" else _READ[writer["type"]]
    steps = _steps(writer, reader)
    if steps is None:
        return _mismatch(f"{path}: it was written as {_logical(writer)}, and {_logical(reader)} is declared")
    if not steps:
        return read
    kind = _logical(reader) or reader["type"]
    if as_json and kind == "decimal":
        steps = [*steps, str]

    def converted(raw: bytes, at: int, unknown: Unknown) -> tuple[Any, int]:
        value, at = read(raw, at, unknown)
        try:
            for step in steps:
                value = step(value)
        except UnicodeDecodeError as error:
            raise InvalidText(f"{path}: text that is not UTF-8") from error
        except ArithmeticError as error:
            raise OutOfRange(f"{path}: out of the range of {kind}, or with more digits") from error
        except ValueError as error:
            raise WrongType(f"{path}: no {kind}") from error
        return value, at

    return converted


def _steps(writer: Node, reader: Node) -> list[Callable[[Any], Any]] | None:
    """Return the steps that are done with a value, one after the other; None: the two logical types exclude each
    other."""
    steps = _promotion(writer["type"], reader["type"])
    written, declared = _logical(writer), _logical(reader)
    if not declared:
        return steps
    finished = _finished(reader, declared)
    if not written:
        return [*steps, *finished]
    if written == declared == "decimal":
        return [_decimal(decimal_digits(writer)[1]), exact_decimal(*decimal_digits(reader))]
    if written == declared:
        return finished
    here, there = _TIMES.get((writer["type"], written)), _TIMES.get((reader["type"], declared))
    if here is None or there is None or here[0] != there[0]:
        return None
    return [_rescaled(_UNITS[here[1]], _UNITS[there[1]]), *finished]


def _logical(node: Node) -> str:
    """The name of a logical type, where it is one of Avro's for this type."""
    name, kind = str(node.get("logicalType", "")), node["type"]
    if (kind, name) in _TIMES or (kind, name) in (("int", "date"), ("string", "uuid")):
        return name
    is_decimal = name == "decimal" and kind in ("bytes", "fixed") and decimal_digits(node) != NO_DECIMAL
    is_uuid = name == "uuid" and kind == "fixed" and node["size"] == 16
    return name if is_decimal or is_uuid else ""


def decimal_digits(node: Node) -> tuple[int, int]:
    """Precision and scale; NO_DECIMAL where a schema has none, or none that can be: the value is then bytes."""
    precision, scale = node.get("precision"), node.get("scale") or 0
    # A boolean is an int, too.
    if type(precision) is not int or type(scale) is not int or not 0 <= scale <= precision:
        return NO_DECIMAL
    return precision, scale


def _promotion(written: str, declared: str) -> list[Callable[[Any], Any]]:
    if written == declared:
        return []
    match declared:
        case "float":
            return [_single]
        case "double":
            return [float]
        case "bytes":
            return [str.encode]
        case "string":
            return [bytes.decode]
    return []


def _single(number: float) -> float:
    """Rounded once to four bytes, as IEEE 754 has it, also where a double cannot hold the integer."""
    if isinstance(number, int) and abs(number) >= _EXACT:
        # The last bit that is kept stands for all bits below it.
        size, sign = abs(number), -1 if number < 0 else 1
        number = sign * float(size >> 11 << 11 | (0x800 if size & 0x7FF else 0))
    single: float = struct.unpack("f", struct.pack("f", number))[0]
    return single


def _finished(node: Node, logical: str) -> list[Callable[[Any], Any]]:
    """The value of a logical type as its column has it; the others have the plain number."""
    match logical:
        case "date":
            return [_date]
        case "decimal":
            precision, scale = decimal_digits(node)
            return [_decimal(scale), exact_decimal(precision, scale)]
        case "timestamp-millis":
            return [_rescaled(_UNITS["millis"], _UNITS["micros"]), _timestamp]
        case "timestamp-micros":
            return [_timestamp]
        case "time-millis":
            return [_rescaled(_UNITS["millis"], _UNITS["micros"]), _time]
        case "time-micros":
            return [_time]
        case "uuid" if node["type"] == "fixed":
            return [lambda value: str(uuid.UUID(bytes=value))]
    return []


def _rescaled(written: int, declared: int) -> Callable[[int], int]:
    """From one unit of time to another, both in nanoseconds."""

    def rescaled(value: int) -> int:
        number, rest = divmod(value * written, declared)
        if rest or not -_BOUNDS["long"] <= number < _BOUNDS["long"]:
            raise OverflowError
        return number

    return rescaled


def _decimal(scale: int) -> Callable[[bytes], decimal.Decimal]:
    unrounded = decimal.Context(prec=decimal.MAX_PREC)

    def number(value: bytes) -> decimal.Decimal:
        if not value:
            raise ValueError("a decimal has at least one byte")
        digits = int.from_bytes(value, "big", signed=True)
        return decimal.Decimal(digits).scaleb(-scale, context=unrounded)

    return number


def _timestamp(value: int) -> datetime.datetime:
    return _EPOCH + datetime.timedelta(0, 0, value)


def _date(value: int) -> datetime.date:
    return _FIRST_DAY + datetime.timedelta(value)


def _time(value: int) -> str:
    if not 0 <= value < _DAY:
        raise OverflowError
    return (_EPOCH + datetime.timedelta(microseconds=value)).time().isoformat()
