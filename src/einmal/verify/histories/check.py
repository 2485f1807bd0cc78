"""The verdict about a history in a file: the same checks as of a run, without a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from einmal.checker.history import Op
from einmal.checker.log import find_anomalies
from einmal.verify.evidence import WorkloadEvidence
from einmal.verify.histories.files import read_history
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
    history = read_history(path)
    workload = WorkloadEvidence.of(path.name, history, find_anomalies(history))
    gaps = [] if workload.acknowledged else ["nothing was acknowledged"]
    if not history.is_read_to_the_end:
        gaps.append("the history was not read to its end")
    verdict, sentence = decide(workload.anomalies, gaps)
    first: Op | None = next(iter(history.ops), None)
    return CheckedHistory(
        workload=workload, verdict=verdict, sentence=sentence, began=0.0 if first is None else first.began
    )
