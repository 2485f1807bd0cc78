"""Random Avro schemas, with what a next version makes of them, and bytes that were written with them.

A schema is a tree of ``Type``s. Named types may occur several times in it: the text defines them once. Bytes come from
the tree, and not from a library: blocks of arrays, lengths and numbers have every encoding that Avro allows.
"""

from __future__ import annotations

import json
import random
import struct
from dataclasses import dataclass, field, replace
from typing import Any, Final

DEPTH_MAX: Final = 4
PROMOTED: Final = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
PRIMITIVES: Final = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
LOGICAL: Final[dict[str, tuple[str, ...]]] = {
    "int": ("date", "time-millis"),
    "long": (
        "time-micros",
        *(f"{family}-{unit}" for family in ("timestamp", "local-timestamp") for unit in ("millis", "micros", "nanos")),
    ),
    "string": ("uuid",),
    "bytes": ("decimal",),
    "fixed": ("decimal", "uuid", "duration"),
}
_DAY: Final = 24 * 60 * 60 * 1_000


@dataclass(frozen=True, eq=False)
class Type:
    """``name``: of a named type, with its namespace; ``parts``: items, values, or branches; ``options``: what else its
    text has, such as a logical type; ``was``: its name in the version before."""

    kind: str
    name: str = ""
    parts: tuple[Type, ...] = ()
    fields: tuple[Field, ...] = ()
    symbols: tuple[str, ...] = ()
    size: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    was: str = ""

    @property
    def logical(self) -> str:
        return str(self.options.get("logicalType", ""))


@dataclass(frozen=True, eq=False)
class Field:
    name: str
    type: Type
    options: dict[str, Any] = field(default_factory=dict)


class Generator:
    """All that is random comes from ``rng``."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._count = 0
        self._named: list[Type] = []
        self._changed: dict[int, Type] = {}
        self.has_default_of_later_branch = False
        """The default of a field is of a branch of its union that is not the first one."""

    def pair(self) -> tuple[Type, Type]:
        """The writer's schema and the reader's."""
        self._named, self._changed = [], {}
        writer = self._record(0) if self._rng.random() < 0.7 else self.type(0)
        # The types of the next version have its names.
        self._named = []
        return writer, writer if self._rng.random() < 0.1 else self.changed(writer)

    def _chance(self, probability: float) -> bool:
        return self._rng.random() < probability

    def _name(self, *spaces: str) -> str:
        self._count += 1
        return self._rng.choice(spaces or ["", "", "", "a.", "a.b."]) + f"{self._rng.choice('NPQ')}{self._count}"

    def type(self, depth: int, *, union: bool = True) -> Type:
        kinds = [*PRIMITIVES[1:], *PRIMITIVES[1:], "null", "logical", "logical", "logical", "fixed", "enum"]
        if depth < DEPTH_MAX:
            kinds += ["record", "record", "array", "map"] + (["union"] * 4 if union else [])
        # A name without a namespace cannot be referred to from within one.
        if self._chance(0.1) and (again := [each for each in self._named if "." in each.name]):
            return self._rng.choice(again)
        match kind := self._rng.choice(kinds):
            case "record":
                return self._record(depth)
            case "array" | "map":
                # Arrays whose items take no bytes are refused, and are rare.
                item = self.type(depth + 1)
                while kind == "array" and item.kind in ("null", "record", "fixed") and self._chance(0.9):
                    item = self.type(depth + 1)
                return Type(kind, parts=(item,))
            case "union":
                return self._union(depth)
            case "enum":
                symbols = tuple(self._rng.sample("ABCDEF", self._rng.randint(1, 4)))
                default = {"default": self._rng.choice(symbols)} if self._chance(0.3) else {}
                return self._kept(Type("enum", self._name(), symbols=symbols, options=default))
            case "fixed":
                return self._kept(Type("fixed", self._name(), size=self._rng.choice([0, 1, 2, 4, 12, 16])))
            case "logical":
                return self._logical()
        return Type(kind)

    def _kept(self, made: Type) -> Type:
        self._named.append(made)
        return made

    def _record(self, depth: int) -> Type:
        fields = tuple(self._field(f"f{at}", depth) for at in range(self._rng.choice([0, 1, 1, 2, 2, 3, 4, 5])))
        return self._kept(Type("record", self._name(), fields=fields))

    def _field(self, name: str, depth: int) -> Field:
        kind = self.type(depth + 1)
        return Field(name, kind, {"default": self.default(kind)} if self._chance(0.3) else {})

    def _union(self, depth: int) -> Type:
        if self._chance(0.5):
            some = [Type("null"), self.type(depth + 1, union=False)]
            self._rng.shuffle(some)
        else:
            some = [self.type(depth + 1, union=False) for _ in range(self._rng.randint(1, 4))]
        return Type("union", parts=distinct(some))

    def _logical(self, kind: str = "") -> Type:
        kind = kind or self._rng.choice(["int", "long", "long", "string", "bytes", "bytes", "fixed"])
        logical = self._rng.choice(LOGICAL[kind])
        options: dict[str, Any] = {"logicalType": logical}
        if logical == "decimal":
            options["precision"] = self._rng.choice([1, 3, 9, 18, 38])
            if self._chance(0.8):
                options["scale"] = self._rng.choice([0, 1, 2, options["precision"]])
                options["scale"] = min(options["scale"], options["precision"])
        if kind != "fixed":
            return Type(kind, options=options)
        return self._kept(
            Type("fixed", self._name(), size={"uuid": 16, "duration": 12}.get(logical, 16), options=options)
        )

    # --- the next version -----------------------------------------------------------------------------------------

    def changed(self, old: Type) -> Type:
        """A named type is changed once, wherever it occurs."""
        if self._chance(0.02):
            return self.type(DEPTH_MAX)
        if self._chance(0.05) and old.kind != "union":
            some = [old, self.type(DEPTH_MAX, union=False), self.type(DEPTH_MAX, union=False)]
            some = [self._inside(old), *some[1 : self._rng.randint(1, 3)]]
            self._rng.shuffle(some)
            return Type("union", parts=distinct(some))
        return self._inside(old)

    def _inside(self, old: Type) -> Type:
        if old.name and id(old) in self._changed:
            return self._changed[id(old)]
        made = self._altered(old)
        if old.name:
            self._changed[id(old)] = made
        return made

    def _altered(self, old: Type) -> Type:
        match old.kind:
            case "union":
                return self._changed_union(old)
            case "array" | "map":
                return replace(old, parts=(self.changed(old.parts[0]),))
            case "record":
                return self._renamed(replace(old, fields=self._changed_fields(old.fields)))
            case "enum":
                symbols = [each for each in old.symbols if self._chance(0.9)] or [old.symbols[0]]
                symbols += ["X"] if self._chance(0.1) else []
                self._rng.shuffle(symbols)
                default = {"default": self._rng.choice(symbols)} if self._chance(0.5) else {}
                return self._renamed(replace(old, symbols=tuple(symbols), options=default))
            case "fixed":
                if old.logical and self._chance(0.1):
                    return replace(self._logical("fixed"), name=old.name)
                size = old.size + 1 if not old.logical and self._chance(0.05) else old.size
                return self._renamed(replace(old, size=size))
        if old.kind in LOGICAL and self._chance(0.08):
            return Type(old.kind) if old.logical else self._logical(old.kind)
        if old.kind in PROMOTED and self._chance(0.15):
            return Type(self._rng.choice(PROMOTED[old.kind]))
        return old

    def _renamed(self, made: Type) -> Type:
        made = replace(made, was=made.name)
        short = made.name.rpartition(".")[2]
        spaces = ("a.", "a.b.") if "." in made.name else ()
        match self._rng.choice(["same"] * 8 + ["alias", "alias", "name", "namespace"]):
            case "alias":
                return replace(made, name=self._name(*spaces), options=made.options | {"aliases": [made.name]})
            case "name":
                return replace(made, name=self._name(*spaces))
            case "namespace":
                return replace(made, name=f"c.{short}")
        return made

    def _changed_union(self, old: Type) -> Type:
        some = [self.changed(each) for each in old.parts if self._chance(0.95)]
        some += [self.type(DEPTH_MAX, union=False)] if self._chance(0.1) else []
        some = [inner for each in some for inner in (each.parts if each.kind == "union" else [each])]
        if self._chance(0.1):
            self._rng.shuffle(some)
        if not some or (len(some) == 1 and self._chance(0.5)):
            return some[0] if some else Type("null")
        return Type("union", parts=distinct(some)) if self._chance(0.95) else some[0]

    def _changed_fields(self, old: tuple[Field, ...]) -> tuple[Field, ...]:
        made: list[Field] = []
        for each in old:
            if self._chance(0.1):
                continue
            kind = self.changed(each.type)
            options = {"default": self.default(kind)} if self._chance(0.3) else {}
            if self._chance(0.08):
                made.append(Field(f"r{each.name}", kind, options | {"aliases": [each.name]}))
            else:
                made.append(Field(each.name, kind, options))
        if self._chance(0.4):
            kind = self.type(2)
            made.append(Field("added", kind, {"default": self.default(kind)} if self._chance(0.9) else {}))
        if self._chance(0.2):
            self._rng.shuffle(made)
        return tuple(made)

    # --- values ---------------------------------------------------------------------------------------------------

    def default(self, kind: Type) -> Any:
        """In JSON, as a schema has it."""
        rng = self._rng
        match kind.kind:
            case "null":
                return None
            case "boolean":
                return self._chance(0.5)
            case "int" | "long":
                return self._number(kind)
            case "float" | "double":
                return rng.choice([0, 1.5, -2.25, 1e10, 7])
            case "bytes" | "fixed":
                data = self._scalar_bytes(kind)
                return data.decode("latin-1")
            case "string":
                return self._text(kind)
            case "enum":
                return rng.choice(kind.symbols)
            case "array":
                return [self.default(kind.parts[0]) for _ in range(rng.choice([0, 0, 1, 2]))]
            case "map":
                return {f"k{at}": self.default(kind.parts[0]) for at in range(rng.choice([0, 0, 1, 2]))}
            case "record":
                return {
                    each.name: self.default(each.type)
                    for each in kind.fields
                    if "default" not in each.options or self._chance(0.5)
                }
        branch = rng.choice(kind.parts) if self._chance(0.05) else kind.parts[0]
        if branch is not kind.parts[0]:
            self.has_default_of_later_branch = True
        return self.default(branch)

    def written(self, kind: Type) -> bytes:
        """A value in one of its encodings."""
        rng = self._rng
        match kind.kind:
            case "null":
                return b""
            case "fixed":
                return self._scalar_bytes(kind)
            case "enum":
                return self._varint(rng.randrange(len(kind.symbols)))
            case "array":
                return self._blocks([self.written(kind.parts[0]) for _ in range(rng.choice([0, 1, 2, 3]))])
            case "map":
                keys = [each.encode() for each in rng.sample(["a", "b", "key", "ä"], rng.choice([0, 1, 2, 3]))]
                # Texts and logical types can be wrong in a value that is then replaced.
                is_plain = kind.parts[0].kind in ("int", "long") and not kind.parts[0].logical
                keys += keys[:1] if is_plain else []
                return self._blocks([self._sized(each) + self.written(kind.parts[0]) for each in keys])
            case "record":
                return b"".join(self.written(each.type) for each in kind.fields)
            case "union":
                branch = rng.randrange(len(kind.parts))
                return self._varint(branch) + self.written(kind.parts[branch])
        return self._written_scalar(kind)

    def _written_scalar(self, kind: Type) -> bytes:
        rng = self._rng
        match kind.kind:
            case "boolean":
                return rng.choice([b"\0", b"\1"])
            case "int" | "long":
                return self._varint(self._number(kind))
            case "float":
                special = [0.0, -0.0, 1.5, float("inf"), float("nan")]
                return struct.pack("<f", rng.choice([*special, rng.uniform(-1e9, 1e9)]))
            case "double":
                special = [0.0, -0.0, 0.1, float("-inf"), float("nan")]
                return struct.pack("<d", rng.choice([*special, rng.uniform(-1e99, 1e99)]))
            case "bytes":
                return self._sized(self._scalar_bytes(kind))
        return self._sized(self._text(kind).encode())

    def _sized(self, data: bytes) -> bytes:
        return self._varint(len(data)) + data

    def _number(self, kind: Type) -> int:
        bits = 31 if kind.kind == "int" else 63
        if kind.logical and self._chance(0.9):
            match kind.logical:
                case "date":
                    return self._rng.randint(-700_000, 2_900_000)
                case "time-millis":
                    return self._rng.randrange(_DAY)
                case "time-micros":
                    return self._rng.randrange(_DAY * 1_000)
            unit = {"millis": 1, "micros": 1_000, "nanos": 1_000_000}[kind.logical.rpartition("-")[2]]
            return self._rng.randint(-10 * 365 * _DAY, 100 * 365 * _DAY) * unit
        edges = [0, 1, -1, 63, 64, -64, -65, 2**bits - 1, -(2**bits), 2**24 + 1]
        return int(self._rng.choice([*edges, self._rng.randrange(-(2**bits), 2**bits)]))

    def _text(self, kind: Type) -> str:
        if kind.logical == "uuid":
            digits = f"{self._rng.getrandbits(128):032x}"
            text = "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
            return self._rng.choice([text] * 8 + [text.upper(), "no uuid"])
        return self._rng.choice(["", "a", "text", "ä€", "𝄞", "null", "x" * 70, '"\\', "\0"])

    def _scalar_bytes(self, kind: Type) -> bytes:
        if kind.logical == "decimal":
            # A number of 39 digits need not be one of 16 bytes.
            digits = self._rng.randint(1, min(38, kind.options["precision"] + self._chance(0.1)))
            number = self._rng.randrange(10**digits) * self._rng.choice([1, -1])
            return number.to_bytes(kind.size or number.bit_length() // 8 + 1, "big", signed=True)
        size = kind.size if kind.kind == "fixed" else self._rng.choice([0, 1, 3, 70])
        return self._rng.randbytes(size)

    def _varint(self, number: int) -> bytes:
        rest = (number << 1) ^ (number >> 63)
        made = bytearray()
        while rest >= 0x80:
            made.append(rest & 0x7F | 0x80)
            rest >>= 7
        # Zeros in front of a number are allowed.
        padded = len(made) < 3 and self._chance(0.02)
        return bytes([*made, rest | 0x80, 0]) if padded else bytes([*made, rest])

    def _blocks(self, items: list[bytes]) -> bytes:
        made = b""
        while items:
            count = self._rng.randint(1, len(items))
            block, items = b"".join(items[:count]), items[count:]
            if self._chance(0.3):
                made += self._varint(-count) + self._varint(len(block)) + block
            else:
                made += self._varint(count) + block
        return made + self._varint(0)


def damaged(rng: random.Random, raw: bytes) -> bytes:
    """A byte is another one, missing, or too many."""
    at = rng.randrange(len(raw) + 1)
    extra = bytes([rng.choice([0, 1, 2, 3, 0x7F, 0x80, 0xFF, rng.randrange(256)])])
    match rng.choice(["set", "set", "set", "cut", "add"]):
        case "set":
            return raw[:at] + extra + raw[at + 1 :]
        case "cut":
            return raw[:at]
    return raw[:at] + extra + raw[at:]


def distinct(branches: list[Type]) -> tuple[Type, ...]:
    """A union has each unnamed type once, and each name."""
    found: dict[str, Type] = {}
    for each in branches:
        if each.kind != "union":
            found.setdefault(each.name or each.kind, each)
    return tuple(found.values())


def text(schema: Type, *, logical: bool = True, aligned: bool = False) -> str:
    """``logical``: with its logical types; ``aligned``: without namespaces, and an alias for each renamed record
    that has aliases of fields, or is in a union with one: an alias rules out a branch, and so decides for another."""
    return json.dumps(_json(schema, logical, aligned, set()))


def _has_aliases(node: Type) -> bool:
    return "aliases" in node.options or any("aliases" in each.options for each in node.fields)


def _json(node: Type, logical: bool, aligned: bool, defined: set[str], beside_aliases: bool = False) -> Any:
    if node.kind == "union":
        has_aliases = any(map(_has_aliases, node.parts))
        return [_json(each, logical, aligned, defined, has_aliases) for each in node.parts]
    names = ("logicalType", "precision", "scale")
    options = {name: each for name, each in node.options.items() if logical or name not in names}
    if node.name:
        space, _, short = node.name.rpartition(".")
        if node.name in defined:
            return short if aligned else node.name
        defined.add(node.name)
        options = {"name": short} | ({} if aligned else {"namespace": space}) | options
        if aligned and node.was and (beside_aliases or _has_aliases(node)):
            options["aliases"] = [node.was.rpartition(".")[2]]
    match node.kind:
        case "array":
            return {"type": "array", "items": _json(node.parts[0], logical, aligned, defined)}
        case "map":
            return {"type": "map", "values": _json(node.parts[0], logical, aligned, defined)}
        case "record":
            options["fields"] = [
                {"name": each.name, "type": _json(each.type, logical, aligned, defined)} | each.options
                for each in node.fields
            ]
        case "enum":
            options["symbols"] = list(node.symbols)
        case "fixed":
            options["size"] = node.size
    return {"type": node.kind} | options if options else node.kind


def logical_types(schema: Type) -> set[tuple[Any, ...]]:
    found = set()
    if schema.logical:
        precision, scale = schema.options.get("precision"), schema.options.get("scale", 0)
        found.add((schema.kind, schema.logical, precision, scale))
    inner = [*schema.parts, *(each.type for each in schema.fields)]
    return found.union(*map(logical_types, inner))
