"""Protobuf: what is decoded of a pair here and by Java."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from einmal.schemas.errors import BadRow
from einmal.schemas.protobuf_format import ProtobufDecoder
from tests.schemas.beside_java import comparison
from tests.schemas.beside_java.avro_pairs import damaged
from tests.schemas.beside_java.comparison import Difference
from tests.schemas.beside_java.protobuf_pairs import Generator, descriptors

_RECORDS: Final = 3
_DAMAGED: Final = 0.1


@dataclass
class ProtobufCase:
    """One pair, and records of the writer's message, some of them damaged."""

    seed: str
    declared: bytes
    records: list[bytes]
    traits: set[str]
    _decoded: list[Any] = field(default_factory=list)

    @classmethod
    def of(cls, seed: str) -> ProtobufCase:
        rng = random.Random(seed)
        generator = Generator(rng)
        writer, reader = generator.pair()
        records = [generator.written(writer) for _ in range(_RECORDS)]
        records = [damaged(rng, each) if rng.random() < _DAMAGED else each for each in records]
        declared = descriptors(reader, proto3=generator.proto3)
        return cls(seed, declared, records, {"protobuf", "proto3" if generator.proto3 else "proto2"})

    def asked(self) -> list[Any]:
        descriptors_text = base64.b64encode(self.declared).decode()
        return [{"descriptors": descriptors_text, "values": [each.hex() for each in self.records]}]

    def decode(self) -> None:
        decoder = ProtobufDecoder(self.declared, "t.M")
        self._decoded = []
        for each in self.records:
            try:
                decoded = decoder.decode(each)
                self._decoded.append([comparison.ours(decoded.value), sorted(decoded.unknown)])
            except BadRow as error:
                self._decoded.append(error)

    def differences(self, answers: list[Any]) -> Iterator[Difference]:
        [answer] = answers
        for at, ours in enumerate(self._decoded):
            theirs = answer["values"][at]
            if isinstance(ours, Exception) and theirs[0] == "!":
                continue
            expected = None if theirs[0] == "!" else [javas(theirs), sorted(unknown_paths(theirs, "$"))]
            if isinstance(ours, Exception) or not comparison.same(ours, expected):
                what = f"{self.seed}, record {at}"
                yield Difference(what, self.records[at], ours, theirs, expected, theirs, self.traits)

    @property
    def values(self) -> int:
        """Records that could be decoded."""
        return sum(not isinstance(each, Exception) for each in self._decoded)

    def shown(self) -> str:
        return json.dumps(self.asked()[0], ensure_ascii=False)


def javas(value: list[Any]) -> Any:
    """A message of Java's as its column has it."""
    match value:
        case ["record", fields]:
            return {"record": {name: javas(each) for name, each in sorted(fields.items()) if name != "?"}}
        case ["array", items]:
            return [javas(each) for each in items]
        case ["map", entries]:
            return {"map": sorted((key, javas(each)) for key, each in entries.items())} if entries else []
    return comparison.scalar(value)


def unknown_paths(value: list[Any], path: str) -> set[str]:
    match value:
        case ["record", fields]:
            found = {f"{path}.{number}" for number in fields["?"]}
            return found.union(*(unknown_paths(each, f"{path}.{name}") for name, each in fields.items() if name != "?"))
        case ["array", items]:
            return set().union(*(unknown_paths(each, f"{path}[]") for each in items))
        case ["map", entries]:
            return set().union(*(unknown_paths(each, f"{path}[]") for each in entries.values()))
    return set()
