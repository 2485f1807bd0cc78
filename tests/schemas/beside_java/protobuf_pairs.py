"""Random Protobuf messages, with what a next version makes of them, and bytes that were written with them.

Bytes come from the description, and not from a library: fields in any order, again, and packed or not.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, replace
from typing import Any, Final

from google.protobuf import descriptor_pb2

DEPTH_MAX: Final = 3
_VARINTS: Final = ("int32", "int64", "uint32", "uint64", "bool", "enum")
_ZIGZAGS: Final = ("sint32", "sint64")
_FIXED: Final = {"fixed32": "<I", "sfixed32": "<i", "float": "<f", "fixed64": "<Q", "sfixed64": "<q", "double": "<d"}
_SCALARS: Final = (*_VARINTS, *_ZIGZAGS, *_FIXED, "string", "bytes")
_RETYPED: Final = (
    _VARINTS,
    _ZIGZAGS,
    ("fixed32", "sfixed32"),
    ("fixed64", "sfixed64"),
    ("string", "bytes", "message"),
    _SCALARS,
)
_KEYS: Final = ("string", "string", "int32", "uint64", "sint64", "fixed32", "sfixed64", "bool")
_VARINT, _I64, _LEN, _START, _END, _I32 = range(6)


@dataclass(frozen=True, eq=False)
class Field:
    """``label``: "", "optional" (with presence), "required", "repeated" or "map"; ``key``: the type of a map's keys;
    ``choice``: the number of its oneof, or -1."""

    name: str
    number: int
    kind: str
    label: str = ""
    key: str = ""
    message: Message | None = None
    symbols: tuple[int, ...] = ()
    choice: int = -1


@dataclass(frozen=True, eq=False)
class Message:
    fields: tuple[Field, ...]


class Generator:
    """All that is random comes from ``rng``."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self.proto3 = rng.random() < 0.6

    def pair(self) -> tuple[Message, Message]:
        writer = self._message(0)
        return writer, writer if self._chance(0.1) else self._changed(writer)

    def _chance(self, probability: float) -> bool:
        return self._rng.random() < probability

    def _message(self, depth: int) -> Message:
        numbers = self._rng.sample([*range(1, 12), 15, 16, 2047, 2048], self._rng.choice([0, 1, 2, 3, 4, 6]))
        return Message(tuple(self._field(f"f{number}", number, depth) for number in numbers))

    def _field(self, name: str, number: int, depth: int) -> Field:
        kinds = [*_SCALARS, "enum", "string"] + (["message"] * 5 if depth < DEPTH_MAX else [])
        kinds += ["group"] if depth < DEPTH_MAX and not self.proto3 else []
        kind = self._rng.choice(kinds)
        label = self._rng.choice(["", "", "optional", "repeated", "repeated", "map", "oneof"])
        if not self.proto3 and label == "" and self._chance(0.2):
            label = "required"
        if kind == "group" and label in ("map", "oneof"):
            label = ""
        made = Field(name, number, kind, "" if label == "oneof" else label)
        if label == "map":
            made = replace(made, key=self._rng.choice(_KEYS))
        if label == "oneof":
            made = replace(made, choice=self._rng.randrange(2))
        return self._complete(made, depth)

    def _complete(self, made: Field, depth: int) -> Field:
        if made.kind in ("message", "group") and made.message is None:
            return replace(made, message=self._message(depth + 1))
        if made.kind == "enum" and not made.symbols:
            others = self._rng.sample([1, 2, 3, 7, 200, 2**31 - 1], self._rng.randint(0, 3))
            return replace(made, symbols=(0, *others))
        return made

    def _changed(self, old: Message, depth: int = 0) -> Message:
        made: list[Field] = []
        for each in old.fields:
            if self._chance(0.1):
                continue
            kept = each
            if each.message is not None:
                kept = replace(kept, message=self._changed(each.message, depth + 1))
            if self._chance(0.1):
                kept = self._retyped(kept, depth)
            if kept.kind == "enum" and self._chance(0.2):
                kept = replace(kept, symbols=(0, *(symbol for symbol in kept.symbols[1:] if self._chance(0.5))))
            if self._chance(0.05):
                kept = replace(kept, number=each.number + 100_000)
            if kept.kind != "group" and self._chance(0.05):
                kept = replace(kept, name=f"r{kept.name}")
            if kept.label in ("", "repeated", "optional") and kept.choice < 0 and self._chance(0.08):
                kept = replace(kept, label=self._rng.choice(["", "repeated", "optional"]))
            made.append(kept)
        if self._chance(0.4):
            made.append(self._field("added", 90, DEPTH_MAX))
        if self._chance(0.2):
            self._rng.shuffle(made)
        return Message(tuple(made))

    def _retyped(self, old: Field, depth: int) -> Field:
        if old.kind == "group":
            return old
        others = self._rng.choice([each for each in _RETYPED if old.kind in each])
        return self._complete(replace(old, kind=self._rng.choice(others)), depth)

    # --- values ---------------------------------------------------------------------------------------------------

    def written(self, message: Message) -> bytes:
        found: list[bytes] = []
        chosen = {each.choice: each for each in message.fields if each.choice >= 0}
        for each in message.fields:
            # Of a oneof the last one holds, and there are writers that do not know that.
            if each.choice >= 0 and chosen[each.choice] is not each and self._chance(0.9):
                continue
            if each.label == "required" or self._chance(0.8):
                found += self._occurrences(each)
        if self._chance(0.1):
            self._rng.shuffle(found)
        return b"".join(found)

    def _occurrences(self, field: Field) -> list[bytes]:
        if field.label == "map":
            key = Field("key", 1, field.key)
            value = replace(field, number=2, label="")
            entries = [
                b"".join(self._one(part) for part in (key, value) if self._chance(0.95))
                for _ in range(self._rng.choice([0, 1, 2]))
            ]
            return [_tag(field.number, _LEN) + _sized(each) for each in entries]
        if field.label != "repeated":
            return [self._one(field) for _ in range(self._rng.choice([1] * 9 + [2]))]
        count = self._rng.choice([0, 1, 2, 3])
        if _wire(field.kind) in (_LEN, _START) or self._chance(0.4):
            return [self._one(field) for _ in range(count)]
        return [_tag(field.number, _LEN) + _sized(b"".join(self._value(field) for _ in range(count)))]

    def _one(self, field: Field) -> bytes:
        end = _tag(field.number, _END) if field.kind == "group" else b""
        return _tag(field.number, _wire(field.kind)) + self._value(field) + end

    def _value(self, field: Field) -> bytes:
        rng = self._rng
        kind = field.kind
        if kind in ("message", "group"):
            assert field.message is not None
            raw = self.written(field.message)
            return _sized(raw) if kind == "message" else raw
        if kind in ("float", "double"):
            return struct.pack(_FIXED[kind], rng.choice([0.0, -0.0, 1.5, float("nan"), float("inf"), -7.25]))
        if kind == "string":
            return _sized(rng.choice(["", "a", "text", "ä€", "x" * 200, "\0"]).encode())
        if kind == "bytes":
            return _sized(rng.choice([b"", b"\xff", b"abc", b"\x08\x01", rng.randbytes(5)]))
        if kind == "bool":
            return _varint(rng.randrange(2))
        if kind == "enum":
            return _varint(rng.choice([*field.symbols * 3, 5, -1]))
        bits = 32 if kind.endswith("32") else 64
        if kind.startswith(("uint", "fixed")):
            number = rng.choice([0, 1, 127, 128, 2**bits - 1, rng.randrange(2**bits)])
        else:
            low = 2 ** (bits - 1)
            number = rng.choice([0, 1, -1, 127, low - 1, -low, rng.randrange(-low, low)])
        if kind in _FIXED:
            return struct.pack(_FIXED[kind], number)
        return _varint((number << 1) ^ (number >> 63) if kind in _ZIGZAGS else number)


def _wire(kind: str) -> int:
    if kind in _FIXED:
        return _I32 if struct.calcsize(_FIXED[kind]) == 4 else _I64
    if kind == "group":
        return _START
    return _LEN if kind in ("string", "bytes", "message") else _VARINT


def _varint(number: int) -> bytes:
    number %= 2**64
    made = bytearray()
    while number >= 0x80:
        made.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*made, number])


def _tag(number: int, wire: int) -> bytes:
    return _varint(number << 3 | wire)


def _sized(raw: bytes) -> bytes:
    return _varint(len(raw)) + raw


# --- descriptors ------------------------------------------------------------------------------------------------


def descriptors(message: Message, *, proto3: bool) -> bytes:
    """A FileDescriptorSet, whose message is ``t.M``."""
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="t", syntax="proto3" if proto3 else "proto2")
    _describe(file.message_type.add(name="M"), message, "t.M", proto3)
    return bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())


def _describe(made: Any, message: Message, path: str, proto3: bool) -> None:
    choices = sorted({each.choice for each in message.fields if each.choice >= 0})
    for each in choices:
        made.oneof_decl.add(name=f"choice{each}")
    for field in message.fields:
        _describe_field(made, field, path, choices, proto3)
    # Those of optional fields come last.
    for field in made.field:
        if field.proto3_optional:
            field.oneof_index = len(made.oneof_decl)
            made.oneof_decl.add(name=f"_{field.name}")


def _describe_field(made: Any, field: Field, path: str, choices: list[int], proto3: bool) -> None:
    labels = {"required": 2, "repeated": 3, "map": 3}
    inner = field.name.capitalize()
    name = inner.lower() if field.kind == "group" else field.name
    typed = made.field.add(name=name, number=field.number, label=labels.get(field.label, 1))
    typed.proto3_optional = proto3 and field.label == "optional"
    if field.choice >= 0:
        typed.oneof_index = choices.index(field.choice)
    target = typed
    if field.label == "map":
        entry = made.nested_type.add(name=f"{inner}Entry")
        entry.options.map_entry = True
        entry.field.add(name="key", number=1, label=1, type=_type(field.key))
        typed.type, typed.type_name = _type("message"), f".{path}.{entry.name}"
        target = entry.field.add(name="value", number=2, label=1)
    target.type = _type(field.kind)
    if field.message is not None and field.kind in ("message", "group"):
        nested = made.nested_type.add(name=inner)
        target.type_name = f".{path}.{inner}"
        _describe(nested, field.message, f"{path}.{inner}", proto3)
    if field.kind == "enum":
        enum = made.enum_type.add(name=f"{inner}Kind")
        for number in field.symbols:
            enum.value.add(name=f"{inner.upper()}_{number}", number=number)
        target.type_name = f".{path}.{enum.name}"


def _type(kind: str) -> int:
    return int(descriptor_pb2.FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}"))
