"""Avro values from the schema they were written with to the declared one, by the Avro specification. Pure.

A value has the meaning of its writer's schema: its logical type comes first, and what the declared type cannot hold
exactly is a bad row. Only a value without a logical type is read by the declared one. As in Avro's Java implementation
a mismatch concerns the values that have it, not the whole schema: an array of the wrong items may be empty.

What the writer's schema has and the declared one has not is noted while a value is converted, wherever it is: fields
of records, and symbols of enums that are read as the declared default.
"""

from __future__ import annotations

import datetime
import decimal
import struct
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from einmal.schemas.columns import JSON_TEXT, Convert, Unknown, converted_items, exact_decimal
from einmal.schemas.errors import InvalidText, MalformedValue, OutOfRange, UnusableSchema, WrongType

Node = Mapping[str, Any]
"""A schema without references: each type is an object, a union has the type ``union`` and ``branches``."""
PRIMITIVES: Final = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_NULL: Final[Node] = {"type": "null"}
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
_DAY: Final = 24 * 60 * 60 * 1_000_000
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
"""What a default is in JSON."""


def expanded(schema: Any, known: Mapping[str, Any]) -> Node:
    """``schema``: as fastavro parses it, not recursive; ``known``: the types that it names."""
    if isinstance(schema, list):
        return {"type": "union", "branches": [expanded(each, known) for each in schema]}
    if isinstance(schema, str):
        return {"type": schema} if schema in PRIMITIVES else expanded(known[schema], known)
    match schema["type"]:
        case "record" | "error":
            fields = [{**each, "type": expanded(each["type"], known)} for each in schema["fields"]]
            return {**schema, "type": "record", "fields": fields}
        case "array":
            return {"type": "array", "items": expanded(schema["items"], known)}
        case "map":
            return {"type": "map", "values": expanded(schema["values"], known)}
        case kind if kind in PRIMITIVES or kind in ("enum", "fixed"):
            return schema  # type: ignore[no-any-return]
        case kind:
            return expanded(kind, known)


def raw_schema(node: Node) -> Any:
    """The same bytes without logical types, for fastavro: an enum is its number, and a value of a union with several
    types is a record whose one field names the branch."""
    return _raw(node, [])


def _raw(node: Node, names: list[str]) -> Any:
    match node["type"]:
        case "union":
            tells = _tells(node)
            return [
                _record(names, [(_tag(at), _raw(each, names))])
                if tells and each["type"] != "null"
                else _raw(each, names)
                for at, each in enumerate(node["branches"])
            ]
        case "record":
            return _record(names, [(each["name"], _raw(each["type"], names)) for each in node["fields"]])
        case "array":
            return {"type": "array", "items": _raw(node["items"], names)}
        case "map":
            return {"type": "map", "values": _raw(node["values"], names)}
        case "fixed":
            return {"type": "fixed", "name": _name(names), "size": node["size"]}
        case "enum":
            return "int"
        case kind:
            return kind


def _record(names: list[str], fields: Sequence[tuple[str, Any]]) -> Any:
    return {"type": "record", "name": _name(names), "fields": [{"name": each, "type": kind} for each, kind in fields]}


def _name(names: list[str]) -> str:
    names.append(f"t{len(names)}")
    return names[-1]


def _tells(union: Node) -> bool:
    return bool(sum(each["type"] != "null" for each in union["branches"]) > 1)


def _tag(branch: int) -> str:
    return f"b{branch}"


def resolution(writer: Node, reader: Node, path: str = "$") -> Convert:
    """From a value that was read with the writer's ``raw_schema`` to one for the column of ``reader``."""
    return _resolved(writer, reader, path, False)


def _resolved(writer: Node, reader: Node, path: str, as_json: bool) -> Convert:
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
            item = _resolved(writer["items"], reader["items"], f"{path}[]", as_json)
            return lambda value, unknown: [each for _, each in converted_items(enumerate(value), item, unknown)]
        case "map", "map":
            item = _resolved(writer["values"], reader["values"], f"{path}[]", as_json)
            made: Callable[[Any], Any] = dict if as_json else list
            return lambda value, unknown: made(converted_items(value.items(), item, unknown))
        case "enum", "enum" if _same_name(writer, reader):
            return _of_enum(writer, reader, path)
        case "fixed", "fixed" if _same_name(writer, reader) and writer["size"] == reader["size"]:
            return _of_scalar(writer, reader, path)
        case written, declared if written in PRIMITIVES and declared in (written, *_PROMOTED.get(written, ())):
            return _of_scalar(writer, reader, path)
    return _mismatch(f"{path}: it was written as {kinds[0]}, and {kinds[1]} is declared")


def _mismatch(why: str) -> Convert:
    def refuse(value: Any, unknown: Unknown) -> Any:
        raise UnusableSchema(why)

    return refuse


# --- unions -----------------------------------------------------------------------------------------------------


def _written_union(writer: Node, reader: Node, path: str, as_json: bool) -> Convert:
    branches = [_resolved(each, reader, path, as_json) for each in writer["branches"]]
    nulls = [each for each, branch in zip(branches, writer["branches"], strict=True) if branch["type"] == "null"]
    if _tells(writer):
        by_tag = {_tag(at): each for at, each in enumerate(branches)}

        def tagged(value: Any, unknown: Unknown) -> Any:
            if value is None:
                return nulls[0](None, unknown)
            [(tag, inner)] = value.items()
            return by_tag[tag](inner, unknown)

        return tagged
    others = [each for each in branches if each not in nulls]

    def plain(value: Any, unknown: Unknown) -> Any:
        return (nulls if value is None else others)[0](value, unknown)

    return plain


def _declared_union(writer: Node, reader: Node, path: str, as_json: bool) -> Convert:
    branch = _matching(writer, reader["branches"])
    if branch is None:
        return _mismatch(f"{path}: it was written as {writer['type']}, which no type of the declared union is")
    if as_json or not _tells(reader):
        return _resolved(writer, branch, path, as_json)
    inner, text = _resolved(writer, branch, path, True), JSON_TEXT.at(path)
    return lambda value, unknown: text(inner(value, unknown), unknown)


def _matching(writer: Node, branches: Sequence[Node]) -> Node | None:
    """The branch as Avro's Java implementation chooses it: by name, else by structure, else by promotion."""
    same = [each for each in branches if each["type"] == writer["type"]]
    if writer["type"] not in ("record", "enum", "fixed"):
        wider = (each for each in branches if each["type"] in _PROMOTED.get(writer["type"], ()))
        return next(iter(same), None) or next(wider, None)
    for fits in (
        lambda each: each["name"] == writer["name"],
        lambda each: _same_name(writer, each) and _reads(writer, each),
        lambda each: writer["type"] == "record" and _reads(writer, each),
    ):
        if (found := next(filter(fits, same), None)) is not None:
            return found
    return None


def _reads(writer: Node, reader: Node) -> bool:
    """Whether each value of the writer's schema can be read by the reader's, but for its symbols."""
    if writer["type"] == "union":
        return all(_reads(each, reader) for each in writer["branches"])
    if reader["type"] == "union":
        return _matching(writer, reader["branches"]) is not None
    match writer["type"], reader["type"]:
        case "record", "record":
            pairs = _fields(writer, reader)
            return all(
                "default" in each if written is None else _reads(written["type"], each["type"])
                for each, written in pairs
            )
        case "array", "array":
            return _reads(writer["items"], reader["items"])
        case "map", "map":
            return _reads(writer["values"], reader["values"])
        case ("enum", "enum") | ("fixed", "fixed"):
            return _same_name(writer, reader) and writer.get("size") == reader.get("size")
        case written, declared:
            return bool(declared == written or declared in _PROMOTED.get(written, ()))


def _same_name(writer: Node, reader: Node) -> bool:
    """By unqualified name, as the specification has it, or by alias."""
    names = [_short(each) for each in (reader["name"], *reader.get("aliases", ()))]
    return _short(writer["name"]) in names


def _short(name: str) -> str:
    return name.rpartition(".")[2]


# --- records and enums ------------------------------------------------------------------------------------------


def _fields(writer: Node, reader: Node) -> list[tuple[Node, Node | None]]:
    """The declared fields, each with the one that was written, by name, else by alias."""
    written = {each["name"]: each for each in writer["fields"]}
    return [
        (each, next((written[name] for name in (each["name"], *each.get("aliases", ())) if name in written), None))
        for each in reader["fields"]
    ]


def _of_record(writer: Node, reader: Node, path: str, as_json: bool) -> Convert:
    known: list[tuple[str, str, Convert]] = []
    added: list[tuple[str, Convert, Any]] = []
    for each, written in _fields(writer, reader):
        name, inner = each["name"], f"{path}.{each['name']}"
        if written is not None:
            known.append((name, written["name"], _resolved(written["type"], each["type"], inner, as_json)))
            continue
        try:
            value = _default(each["type"], each["default"])
        except KeyError:
            return _mismatch(f"{inner} was not written, and has no default")
        except (TypeError, ValueError):
            return _mismatch(f"{inner} was not written, and its default is no {each['type']['type']}")
        added.append((name, _resolved(each["type"], each["type"], inner, as_json), value))
    names = {written for _, written, _ in known}
    others = [
        (each["name"], f"{path}.{each['name']}", _resolved(each["type"], each["type"], "", True))
        for each in writer["fields"]
        if each["name"] not in names
    ]

    def convert(value: Any, unknown: Unknown) -> Any:
        for name, at, natural in others:
            unknown.add(at, natural(value[name], unknown))
        row = {name: inner(value[written], unknown) for name, written, inner in known}
        for name, inner, default in added:
            row[name] = inner(default, unknown)
        return row

    return convert


def _default(node: Node, given: Any) -> Any:
    """A default in JSON as fastavro would have read it. Raises TypeError, ValueError, KeyError for one that is none."""
    kind = node["type"]
    if kind == "union":
        return _union_default(node, given)
    if kind == "null":
        if given is not None:
            raise TypeError(kind)
        return None
    if not _is_json(kind, given):
        raise TypeError(kind)
    match kind:
        case "array":
            return [_default(node["items"], each) for each in given]
        case "map":
            return {name: _default(node["values"], each) for name, each in given.items()}
        case "record":
            return {
                each["name"]: _default(each["type"], given[each["name"]] if each["name"] in given else each["default"])
                for each in node["fields"]
            }
    return _scalar_default(node, given)


def _is_json(kind: str, given: Any) -> bool:
    return isinstance(given, _JSON[kind]) and (kind == "boolean" or not isinstance(given, bool))


def _scalar_default(node: Node, given: Any) -> Any:
    kind = node["type"]
    if kind in _BOUNDS and not -_BOUNDS[kind] <= given < _BOUNDS[kind]:
        raise ValueError(kind)
    match kind:
        case "bytes" | "fixed":
            data = given.encode("latin-1")
            if kind == "fixed" and len(data) != node["size"]:
                raise ValueError(kind)
            return data
        case "enum":
            return node["symbols"].index(given)
        case "float":
            return _single(given)
        case "double":
            return float(given)
    return given


def _union_default(union: Node, given: Any) -> Any:
    """Of the first branch that it is a value of: since Avro 1.12 that need not be the first one."""
    for at, each in enumerate(union["branches"]):
        try:
            value = _default(each, given)
        except (TypeError, ValueError, KeyError):
            continue
        return {_tag(at): value} if _tells(union) and each["type"] != "null" else value
    raise ValueError("union")


def _of_enum(writer: Node, reader: Node, path: str) -> Convert:
    written, declared, default = writer["symbols"], frozenset(reader["symbols"]), reader.get("default")

    def convert(value: Any, unknown: Unknown) -> Any:
        if not 0 <= value < len(written):
            raise MalformedValue(f"{path}: no symbol of its enum")
        symbol = written[value]
        if symbol in declared:
            return symbol
        if default is None:
            raise UnusableSchema(f"{path}: a symbol that the declared enum does not have")
        unknown.add(path, symbol)
        return default

    return convert


# --- scalars ----------------------------------------------------------------------------------------------------


def _of_scalar(writer: Node, reader: Node, path: str) -> Convert:
    steps = _steps(writer, reader)
    if steps is None:
        return _mismatch(f"{path}: it was written as {_logical(writer)}, and {_logical(reader)} is declared")
    kind = _logical(reader) or reader["type"]

    def convert(value: Any, _: Unknown) -> Any:
        try:
            for step in steps:
                value = step(value)
        except UnicodeDecodeError as error:
            raise InvalidText(f"{path}: text that is not UTF-8") from error
        except ArithmeticError as error:
            raise OutOfRange(f"{path}: out of the range of {kind}, or with more digits") from error
        except ValueError as error:
            raise WrongType(f"{path}: no {kind}") from error
        return value

    return convert if steps else lambda value, _: value


def _steps(writer: Node, reader: Node) -> list[Callable[[Any], Any]] | None:
    """What is done with a value, one after the other; None: the two logical types exclude each other."""
    steps = _promotion(writer["type"], reader["type"])
    written, declared = _logical(writer), _logical(reader)
    if not declared:
        return steps
    finished = _finished(reader, declared)
    if not written:
        return [*steps, *finished]
    if written == declared == "decimal":
        number = _decimal(int(writer.get("scale", 0)))
        return [number, exact_decimal(int(reader["precision"]), int(reader.get("scale", 0)))]
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
    is_decimal = name == "decimal" and kind in ("bytes", "fixed")
    is_uuid = name == "uuid" and kind == "fixed" and node["size"] == 16
    return name if is_decimal or is_uuid else ""


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
            precision, scale = int(node["precision"]), int(node.get("scale", 0))
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
    def number(value: bytes) -> decimal.Decimal:
        digits = int.from_bytes(value, "big", signed=True)
        return decimal.Decimal(digits).scaleb(-scale, context=decimal.Context(prec=decimal.MAX_PREC))

    return number


def _timestamp(value: int) -> datetime.datetime:
    return _EPOCH + datetime.timedelta(microseconds=value)


def _date(value: int) -> datetime.date:
    return _EPOCH.date() + datetime.timedelta(days=value)


def _time(value: int) -> str:
    if not 0 <= value < _DAY:
        raise OverflowError
    return (_EPOCH + datetime.timedelta(microseconds=value)).time().isoformat()
