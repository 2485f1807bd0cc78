"""Reports of tasks to the driver about the rows that they decode, through an accumulator of Spark's.

Spark adds the report of a task that succeeded, of a repeated one again. A report is therefore a dict by the piece of
work, to which the same report can be added any number of times.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.accumulators import AccumulatorParam


@dataclass(frozen=True, slots=True)
class TaskReport:
    """``turn``: of the batch; ``source``: the decoded source; ``piece``: of its records, None for the good rows.

    ``known`` and ``unknown``: schema ids that the registry had and had not. ``digests``: of the schemas, with their
    ids. ``counts``: dead letters by (stage, reason).
    """

    turn: str
    source: str
    piece: int | None
    records: int = 0
    known: frozenset[int] = frozenset()
    unknown: frozenset[int] = frozenset()
    digests: frozenset[tuple[int, str]] = frozenset()
    drift: frozenset[str] = frozenset()
    counts: tuple[tuple[tuple[str, str], int], ...] = ()


class Reports(AccumulatorParam[dict[Any, None]]):
    """A set of reports, as a dict: PySpark adds in place."""

    def zero(self, value: dict[Any, None]) -> dict[Any, None]:
        return {}

    def addInPlace(self, value1: dict[Any, None], value2: dict[Any, None]) -> dict[Any, None]:
        value1.update(value2)
        return value1


@dataclass(slots=True)
class BatchSummary:
    """All reports of one batch about one source."""

    records: int = 0
    dead_letters: Counter[tuple[str, str]] = field(default_factory=Counter)
    drift: set[str] = field(default_factory=set)
    undecided: set[int] = field(default_factory=set)
    """Schema ids that some tasks found and others did not: registered meanwhile."""
    changed: set[int] = field(default_factory=set)
    """Schema ids that had two schemas in two tasks."""


def summarized(reports: Iterable[TaskReport], turn: str) -> Mapping[str, BatchSummary]:
    """By source. Reports of other turns are of tasks that ended late."""
    summaries: dict[str, BatchSummary] = {}
    ids: dict[str, tuple[set[int], set[int]]] = {}
    digests: dict[str, set[tuple[int, str]]] = {}
    pieces: dict[tuple[str, int], TaskReport] = {}
    for report in reports:
        if report.turn != turn:
            continue
        summary = summaries.setdefault(report.source, BatchSummary())
        known, unknown = ids.setdefault(report.source, (set(), set()))
        known |= report.known
        unknown |= report.unknown
        digests.setdefault(report.source, set()).update(report.digests)
        summary.drift |= report.drift
        if report.piece is not None:
            # Two attempts that saw different registries are two reports of one piece.
            pieces[report.source, report.piece] = report
    for (source, _), report in pieces.items():
        summaries[source].records += report.records
        summaries[source].dead_letters.update(dict(report.counts))
    for source, (known, unknown) in ids.items():
        summaries[source].undecided = known & unknown
        by_id = Counter(schema_id for schema_id, _ in digests[source])
        summaries[source].changed = {schema_id for schema_id, several in by_id.items() if several > 1}
    return summaries
