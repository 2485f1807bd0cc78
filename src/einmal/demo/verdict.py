"""Comparison of what came out with what must come out. Pure: counts in, findings out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Record = tuple[bytes | None, bytes | None]
"""Key and value."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """``lost``, ``duplicated``: occurrences missing, or too many; ``examples``: (what, expected, seen)."""

    expected: int
    seen: int
    lost: int
    duplicated: int
    examples: tuple[tuple[str, int, int], ...]

    @property
    def is_exact(self) -> bool:
        return self.lost == 0 and self.duplicated == 0


def compare(expected: Mapping[str, int], seen: Mapping[str, int], examples_max: int = 5) -> Comparison:
    """Word by word (or record by record): every difference counts, none cancels another."""
    lost = duplicated = 0
    differences: Counter[tuple[str, int, int]] = Counter()
    for what in sorted(expected.keys() | seen.keys()):
        wanted, got = expected.get(what, 0), seen.get(what, 0)
        lost += max(0, wanted - got)
        duplicated += max(0, got - wanted)
        if wanted != got:
            differences[what, wanted, got] = abs(wanted - got)
    examples = tuple(item for item, _size in differences.most_common(examples_max))
    return Comparison(sum(expected.values()), sum(seen.values()), lost, duplicated, examples)


def compare_sentences(lines: Sequence[str], records: Iterable[Record]) -> Comparison:
    """Every line once under its number: the whole record counts, not its key alone."""
    expected = {_shown((str(number).encode(), line.encode())): 1 for number, line in enumerate(lines)}
    return compare(expected, Counter(map(_shown, records)))


def compare_counts(expected: Mapping[str, int], records: Iterable[Record]) -> Comparison:
    """The sum of the counts of each word. What is no word with a count, nobody has expected."""
    seen: Counter[str] = Counter()
    for key, value in records:
        if key is not None and value is not None and value.isdigit() and int(value):
            seen[key.decode(errors="backslashreplace")] += int(value)
        else:
            seen[_shown((key, value))] += 1
    return compare(expected, seen)


def _shown(record: Record) -> str:
    return ": ".join("NULL" if field is None else field.decode(errors="backslashreplace") for field in record)


def verdict(
    loaded: Comparison, counted: Comparison, control: Comparison, killed: Sequence[str], victims: Sequence[str]
) -> str:
    """ "exactly-once", or what failed. A control run without repeats proves nothing: the kills hit nothing."""
    if not loaded.is_exact:
        return f"the producer lost {loaded.lost} and repeated {loaded.duplicated} records"
    if not counted.is_exact:
        return f"the pipeline lost {counted.lost} and repeated {counted.duplicated} words"
    if missing := Counter(victims) - Counter(killed):
        return f"not killed: {', '.join(missing)}: nothing is shown"
    if not control.duplicated:
        return "the at-least-once control run shows no repeats: the kills hit nothing, nothing is shown"
    return "exactly-once"
