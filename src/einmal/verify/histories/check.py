"""The verdict about a history in a file: the same checks as of a run, without a cluster."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from einmal.checker.history import Op
from einmal.checker.index import ValueSentTwice
from einmal.checker.log import find_anomalies
from einmal.verify.evidence import OpCounts, WorkloadEvidence
from einmal.verify.histories.files import HistoryUnreadable, read_history
from einmal.verify.verdict import DEFINITION, RunVerdict, decide


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedHistory:
    """``began``: 0 of the clock of its operations."""

    workload: WorkloadEvidence
    verdict: RunVerdict
    sentence: str
    began: float

    def fields(self) -> dict[str, object]:
        """The document for programs."""
        return {
            "verdict": self.verdict.value,
            "exit_status": self.verdict.exit_status,
            "sentence": self.sentence,
            "definition": DEFINITION,
            "workloads": [self.workload.fields(self.began)],
        }


def check_history(path: Path) -> CheckedHistory:
    """Raises HistoryUnreadable."""
    file = read_history(path)
    counts = OpCounts()
    history = replace(file, ops=_CountedOps(file.ops, counts))
    try:
        anomalies = find_anomalies(history)
    except ValueSentTwice as error:
        raise HistoryUnreadable(f"{path}: {error}") from error
    workload = WorkloadEvidence.of(path.name, file, anomalies, counts=counts)
    gaps = [] if workload.acknowledged else ["nothing was acknowledged"]
    if not file.is_read_to_the_end:
        gaps.append("the history was not read to its end")
    verdict, sentence = decide(workload.anomalies, gaps)
    return CheckedHistory(workload=workload, verdict=verdict, sentence=sentence, began=counts.began)


class _CountedOps:
    """``ops``, which ``counts`` gets the first time that they are iterated: a file is long."""

    def __init__(self, ops: Iterable[Op], counts: OpCounts) -> None:
        self._ops = ops
        self._counts: OpCounts | None = counts

    def __iter__(self) -> Iterator[Op]:
        counts, self._counts = self._counts, None
        return iter(self._ops) if counts is None else counts.counted(self._ops)
