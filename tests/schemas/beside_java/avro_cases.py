"""Avro: what is decoded of a pair here and by Java, and the differences that are meant."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from einmal.schemas.avro_format import AvroDecoder, AvroSchema
from einmal.schemas.errors import BadRow, SchemaError
from tests.schemas.beside_java import comparison
from tests.schemas.beside_java.avro_pairs import Generator, Type, damaged, logical_types, text
from tests.schemas.beside_java.comparison import Difference, NoValueHere

_RECORDS: Final = 3
_DAMAGED: Final = 0.1


@dataclass
class AvroCase:
    """One pair, and records of the writer's schema, some of them damaged."""

    seed: str
    writer: Type
    reader: Type
    records: list[bytes]
    traits: set[str]
    _decoded: dict[bool, list[Any]] = field(default_factory=dict)
    _declared: dict[bool, AvroSchema] = field(default_factory=dict)

    @classmethod
    def of(cls, seed: str) -> AvroCase:
        rng = random.Random(seed)
        generator = Generator(rng)
        writer, reader = generator.pair()
        records = [generator.written(writer) for _ in range(_RECORDS)]
        records = [damaged(rng, each) if rng.random() < _DAMAGED else each for each in records]
        traits = {"later branch"} if generator.has_default_of_later_branch else set()
        if logical_types(writer) != logical_types(reader):
            traits.add("logical types")
        return cls(seed, writer, reader, records, traits)

    def asked(self, *, aligned: bool = False) -> list[Any]:
        """With logical types, and without."""
        return [
            {
                "writer": text(self.writer, logical=logical, aligned=aligned),
                "reader": text(self.reader, logical=logical, aligned=aligned),
                "values": [each.hex() for each in self.records],
            }
            for logical in (True, False)
        ]

    def decode(self) -> None:
        for logical, asked in zip((True, False), self.asked(), strict=True):
            self._decoded[logical] = self._decode(logical, asked)

    def _decode(self, logical: bool, asked: Any) -> list[Any]:
        try:
            declared = self._declared[logical] = AvroSchema(asked["reader"])
            writer = AvroSchema(asked["writer"])
        except SchemaError as error:
            return [error] * len(self.records)
        decoder = AvroDecoder(declared)
        decoded: list[Any] = []
        for each in self.records:
            try:
                decoded.append(comparison.ours(decoder.decode(each, writer).value))
            except BadRow as error:
                decoded.append(error)
        return decoded

    def differences(self, answers: list[Any]) -> Iterator[Difference]:
        for logical, answer in zip((True, False), answers, strict=True):
            for at, ours in enumerate(self._decoded[logical]):
                if "values" in answer:
                    own, theirs = (answer["values"][at][each] for each in ("own", "logical" if logical else "plain"))
                else:
                    own = theirs = next(iter(answer.values()))
                if isinstance(ours, Exception) and theirs[0] == "!":
                    continue
                expected = self._expected(logical, theirs)
                if not isinstance(ours, Exception) and comparison.same(ours, expected):
                    continue
                what = f"{self.seed}, record {at}, {'with' if logical else 'without'} logical types"
                traits = self.traits if logical else self.traits - {"logical types"}
                yield Difference(what, self.records[at], ours, theirs, expected, own, traits)

    def _expected(self, logical: bool, theirs: Any) -> Any:
        if theirs[0] == "!" or logical not in self._declared:
            return None
        try:
            return comparison.javas(self._declared[logical].node, theirs)
        except NoValueHere as error:
            return error

    @property
    def values(self) -> int:
        """Records that could be decoded."""
        return sum(not isinstance(each, Exception) for decoded in self._decoded.values() for each in decoded)

    def shown(self) -> str:
        [asked, _] = self.asked()
        return json.dumps(asked, ensure_ascii=False)
