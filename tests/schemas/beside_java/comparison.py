"""What both implementations make of a record, in one form, and the differences that are meant."""

from __future__ import annotations

import datetime
import decimal
import json
import math
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from einmal.schemas.errors import InvalidText, MalformedValue, OutOfRange, SchemaError, UnusableSchema, WrongType

Node = Mapping[str, Any]
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_LONG_TAG: Final = re.compile(rb"[\x80-\xff]{4}[\x10-\xff]")
"""A variable-length number of more than 32 bits."""
_MICROSECOND: Final = datetime.timedelta(microseconds=1)


class NoValueHere(Exception):
    """Java has a value that no column of Spark's can have; the text is why."""


def ours(value: Any) -> Any:
    """A value of a row as a tree of lists, numbers and texts: floats by their bits, maps by their keys."""
    if isinstance(value, dict):
        return {"record": {name: ours(each) for name, each in sorted(value.items())}}
    if isinstance(value, list):
        if value and all(isinstance(each, tuple) for each in value):
            return {"map": sorted((key, ours(each)) for key, each in value)}
        return [ours(each) for each in value]
    match value:
        case float():
            return {"float": struct.pack(">d", value).hex()}
        case bytes():
            return {"bytes": value.hex()}
        case decimal.Decimal():
            return {"decimal": str(value)}
        case datetime.datetime():
            return {"instant": (value - _EPOCH) // _MICROSECOND}
        case datetime.date():
            return {"date": (value - _EPOCH.date()).days}
    return value


def javas(node: Node, value: list[Any]) -> Any:
    """Java's value of a schema as the column of that schema has it. Raises NoValueHere."""
    if node["type"] == "union":
        branches = [each for each in node["branches"] if each["type"] != "null"]
        if value[0] == "null":
            return None
        return _as_json(value) if len(branches) > 1 else javas(branches[0], value)
    kind, *inner = value
    match kind:
        case "record":
            return {"record": {each["name"]: javas(each["type"], inner[0][each["name"]]) for each in _sorted(node)}}
        case "array":
            return [javas(node["items"], each) for each in inner[0]]
        case "map":
            entries = sorted((key, javas(node["values"], each)) for key, each in inner[0].items())
            return {"map": entries} if entries else []
    if kind == "decimal" and len(inner[0].strip("-")) > node["precision"]:
        raise NoValueHere("a decimal of more digits than its precision")
    return scalar(value)


def scalar(value: list[Any]) -> Any:
    return ours(_scalar(value))


def _sorted(node: Node) -> list[Node]:
    return sorted(node["fields"], key=lambda each: str(each["name"]))


def _scalar(value: list[Any]) -> Any:
    match value:
        case ["null"]:
            return None
        case ["float", bits]:
            return struct.unpack(">f", struct.pack(">i", bits))[0]
        case ["double", bits]:
            return struct.unpack(">d", struct.pack(">q", bits))[0]
        case ["bytes", digits]:
            return bytes.fromhex(digits)
        case ["decimal", digits, scale]:
            return decimal.Decimal(digits).scaleb(-scale, decimal.Context(prec=decimal.MAX_PREC))
        case ["date", days]:
            return _time(days * 86_400_000_000_000).date()
        case ["instant", nanos]:
            return _time(nanos)
        case ["time", nanos]:
            return _time(nanos).time().isoformat()
    return value[1]


def _time(nanos: int) -> datetime.datetime:
    try:
        return _EPOCH + datetime.timedelta(microseconds=nanos // 1_000)
    except OverflowError as error:
        raise NoValueHere("a date or a time beyond the years 1 to 9999") from error


def _as_json(value: list[Any]) -> str:
    return json.dumps(_plain(value), ensure_ascii=False, separators=(",", ":"), default=_text)


def _plain(value: list[Any]) -> Any:
    match value:
        case ["null"]:
            return None
        case ["record" | "map", entries]:
            return {key: _plain(each) for key, each in entries.items()}
        case ["array", items]:
            return [_plain(each) for each in items]
    plain = _scalar(value)
    # As Avro's JsonEncoder has what is no number of JSON.
    return str(decimal.Decimal(plain)) if isinstance(plain, float) and not math.isfinite(plain) else plain


def _text(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def same(left: Any, right: Any) -> bool:
    """The order of fields and entries in a JSON text does not matter."""
    if isinstance(left, str) and isinstance(right, str) and left != right:
        try:
            return json.dumps(json.loads(left), sort_keys=True) == json.dumps(json.loads(right), sort_keys=True)
        except ValueError:
            return False
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same(left[name], right[name]) for name in left)
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and bool(left == right)


@dataclass(frozen=True)
class Difference:
    """``raw``: the record; ``ours``: a tree, or why there is none; ``theirs``: as Java has it; ``expected``: that as a
    tree, or why there is none; ``own``: what Java makes of the record by the writer's schema; ``traits``: of the
    pair."""

    what: str
    raw: bytes
    ours: Any
    theirs: list[Any]
    expected: Any
    own: list[Any]
    traits: set[str]

    def refused_by_us(self, *kinds: type[Exception]) -> bool:
        return isinstance(self.ours, kinds)

    def refused_by_java(self, *texts: str) -> bool:
        return self.theirs[0] == "!" and any(each in " ".join(self.theirs[1:]) for each in texts)


@dataclass(frozen=True)
class Reason:
    """A kind of difference that is meant."""

    text: str
    holds: Callable[[Difference], bool]


ALIGNED: Final = (
    "names and aliases are compared without namespaces, and aliases of fields hold whatever their record is named"
)
"""The reason of a difference that is none where Java gets the schemas so."""
LISTED: Final = (
    Reason(
        "text that is not UTF-8 is a bad row; Java replaces what is not",
        lambda each: (
            each.refused_by_us(InvalidText) and "\ufffd" in json.dumps([each.theirs, each.own], ensure_ascii=False)
        ),
    ),
    Reason(
        "a value beyond its column's type is a bad row (years 1 to 9999, the precision of a decimal), also in an "
        "entry of a map that another one replaces",
        lambda each: (
            each.refused_by_us(OutOfRange)
            and (
                isinstance(each.expected, NoValueHere)
                or ("decimal" in str(each.ours) and '"decimal"' in json.dumps(each.theirs))
                or ("[]" in str(each.ours) and '"map"' in json.dumps(each.theirs))
            )
        ),
    ),
    Reason(
        "a number has no more bits than its type, and a boolean is 0 or 1; Java drops bits, and takes the others for 0",
        lambda each: (
            each.refused_by_us(MalformedValue) and str(each.ours).startswith(("a number of more", "a boolean of"))
        ),
    ),
    Reason(
        "a number that was written with more bits than its type is a bad row; Java drops the upper ones",
        lambda each: each.refused_by_us(OutOfRange) and "protobuf" in each.traits,
    ),
    Reason(
        "a tag has 32 bits; Java drops the upper ones",
        lambda each: (
            each.refused_by_us(MalformedValue) and "protobuf" in each.traits and bool(_LONG_TAG.search(each.raw))
        ),
    ),
    Reason(
        "an entry of a map with a field that is not declared is rescued as a whole; Java has it without that field",
        lambda each: "protobuf" in each.traits and not each.refused_by_us(Exception) and _has_rescued_entries(each),
    ),
    Reason(
        "an entry of a map that another one replaces, or that is rescued, is not checked; Java checks texts and fields",
        lambda each: (
            "protobuf" in each.traits
            and (
                each.refused_by_java("invalid UTF-8")
                or (each.refused_by_java("missing required fields") and "].value." in each.theirs[2])
            )
        ),
    ),
    Reason(
        ALIGNED,
        lambda each: bool(
            re.search("Found .*, expecting .*, missing required field r", " ".join(map(str, each.theirs)))
        ),
    ),
    Reason(
        "a block of items is as long as was written; Java compares that only where it skips",
        lambda each: each.refused_by_us(MalformedValue) and str(each.ours).startswith("a block of items"),
    ),
    Reason(
        "a field that is not declared is decoded and rescued, so that its bytes must be right; Java skips it",
        lambda each: each.refused_by_us(MalformedValue, InvalidText) and each.own[0] == "!",
    ),
    Reason(
        "the text of a uuid passes unchanged; Java reads and formats it",
        lambda each: (
            each.refused_by_java("Invalid UUID", "UUID string too large", "Error at index", "For input string")
            or (not each.refused_by_us(Exception) and same(_lower(each.ours), _lower(each.expected)))
        ),
    ),
    Reason(
        "a value has the logical type that it was written with; Java takes the declared one's",
        lambda each: "logical types" in each.traits and _is_of_logical_types(each),
    ),
    Reason(
        "a default is of the first branch of its union that it is a value of; Java compares the type of the JSON only",
        lambda each: "later branch" in each.traits and not each.refused_by_us(Exception),
    ),
    Reason(
        "defaults of the writer's schema are of no use; Java checks them after it has renamed fields by their aliases",
        lambda each: each.refused_by_java("Invalid default for field") and each.own[0] != "!",
    ),
    Reason(
        "Java fails to convert a logical type where a union is resolved",
        lambda each: each.refused_by_java("expected generic type"),
    ),
    Reason(
        "an empty array is a default of a union; Java fails to make it",
        lambda each: each.refused_by_java("Not an array: ["),
    ),
    Reason(
        "arrays whose items take no bytes are refused: ten bytes could have a billion of them",
        lambda each: each.refused_by_us(SchemaError) and "take no bytes" in str(each.ours),
    ),
)


def _lower(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {name: _lower(each) for name, each in tree.items()}
    if isinstance(tree, list | tuple):
        return [_lower(each) for each in tree]
    return tree.lower() if isinstance(tree, str) else tree


def _has_rescued_entries(each: Difference) -> bool:
    """Whether all else is the same."""
    value, unknown = each.ours
    if each.theirs[0] == "!":
        return bool(unknown) and each.refused_by_java("missing required fields")
    expected, known = each.expected
    return bool(set(unknown) - set(known)) and same(_without_maps(value), _without_maps(expected))


def _without_maps(tree: Any) -> Any:
    if isinstance(tree, dict):
        return [] if "map" in tree else {name: _without_maps(each) for name, each in tree.items()}
    return [_without_maps(each) for each in tree] if isinstance(tree, list) else tree


def _is_of_logical_types(each: Difference) -> bool:
    """Whether all else is the same."""
    if each.refused_by_us(Exception):
        return each.refused_by_us(UnusableSchema, OutOfRange, WrongType) and each.theirs[0] != "!"
    if each.theirs[0] == "!":
        return each.refused_by_java("DateTimeException", "IllegalArgumentException", "NumberFormatException")
    return isinstance(each.expected, NoValueHere) or same(_lower(_masked(each.ours)), _lower(_masked(each.expected)))


def _masked(tree: Any) -> Any:
    if isinstance(tree, dict):
        return (
            "*"
            if tree.keys() & {"decimal", "instant", "date", "bytes"}
            else {name: _masked(each) for name, each in tree.items()}
        )
    if isinstance(tree, list | tuple):
        return [_masked(each) for each in tree]
    is_json_or_time = isinstance(tree, str) and tree[:1] in ("{", "[", '"', "-", *"0123456789")
    return "*" if is_json_or_time or (isinstance(tree, int) and not isinstance(tree, bool)) else tree
