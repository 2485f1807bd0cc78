"""Batches of pairs, decoded here while Java decodes them, and what came of it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.schemas.beside_java.avro_cases import AvroCase
from tests.schemas.beside_java.comparison import ALIGNED, LISTED, Difference
from tests.schemas.beside_java.java_side import JavaSide
from tests.schemas.beside_java.protobuf_cases import ProtobufCase

FORMATS: Final[dict[str, type[AvroCase] | type[ProtobufCase]]] = {"avro": AvroCase, "protobuf": ProtobufCase}
_BATCH: Final = 200


@dataclass
class Verdict:
    """``listed``: differences by their reason; ``unlisted``: the texts of the others."""

    pairs: Counter[str] = field(default_factory=Counter)
    records: Counter[str] = field(default_factory=Counter)
    values: Counter[str] = field(default_factory=Counter)
    listed: Counter[str] = field(default_factory=Counter)
    unlisted: list[str] = field(default_factory=list)

    def in_words(self) -> str:
        lines = [
            f"{name}: {self.pairs[name]:,} pairs of schemas, {self.records[name]:,} records decoded on both sides, "
            f"{self.values[name]:,} of them to a value"
            for name in FORMATS
        ]
        lines.append(f"differences that are listed: {self.listed.total():,}")
        lines += [f"{count:9,}  {reason}" for reason, count in self.listed.most_common()]
        lines.append(f"differences that are not: {len(self.unlisted):,}")
        return "\n".join(lines + self.unlisted[:20])


def run(pairs: int, seed: int, progress: Callable[[str, int], None] = lambda *_: None) -> Verdict:
    """``pairs``: of each format. Raises KafkaUnavailable where Java or Maven is missing."""
    verdict = Verdict()
    with JavaSide() as java:
        for name, kind in FORMATS.items():
            for start in range(0, pairs, _BATCH):
                numbers = range(start, min(start + _BATCH, pairs))
                cases = [kind.of(f"{name}-{seed}-{number}") for number in numbers]
                _compare(java, name, cases, verdict)
                progress(name, numbers.stop)
    return verdict


def _compare(java: JavaSide, name: str, cases: Sequence[AvroCase | ProtobufCase], verdict: Verdict) -> None:
    asked = [case.asked() for case in cases]
    java.ask([each for of_case in asked for each in of_case])
    for case in cases:
        case.decode()
    answers = iter(java.answers())
    for case, of_case in zip(cases, asked, strict=True):
        verdict.pairs[name] += 1
        verdict.records[name] += len(case.records) * len(of_case)
        verdict.values[name] += case.values
        for each in case.differences([next(answers) for _ in of_case]):
            reason = reason_of(each) or _if_aligned(java, case, each)
            if reason is None:
                verdict.unlisted.append(_in_words(case, each))
            else:
                verdict.listed[reason] += 1


def reason_of(difference: Difference) -> str | None:
    return next((each.text for each in LISTED if each.holds(difference)), None)


def _if_aligned(java: JavaSide, case: AvroCase | ProtobufCase, difference: Difference) -> str | None:
    if isinstance(case, ProtobufCase):
        return None
    java.ask(case.asked(aligned=True))
    again = [each for each in case.differences(java.answers()) if each.what == difference.what]
    return ALIGNED if all(reason_of(each) for each in again) else None


def _in_words(case: AvroCase | ProtobufCase, each: Difference) -> str:
    ours = f"{type(each.ours).__name__}: {each.ours}" if isinstance(each.ours, Exception) else json.dumps(each.ours)
    return f"\n{each.what}: {each.raw.hex()}\n  {case.shown()}\n  here: {ours}\n  Java: {json.dumps(each.theirs)}"
