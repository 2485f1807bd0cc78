"""The figures of one pipeline, from its events: totals, the running batch and its phase, the open transaction.

Pure: events and times in, figures and reports out. ``now`` is in seconds, of a monotonic clock. Spark reports a batch
some time after our last event of it, so a report waits for Spark.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from einmal.pipeline import events
from einmal.spark.output.reports import (
    ALREADY_IN,
    CHECKPOINT,
    COMMIT,
    OTHER,
    OUTCOMES,
    PHASES,
    PLANNING,
    READING,
    RECORD,
    SKIPPED,
    WRITING,
    WRITTEN,
    BatchReport,
    lost_between,
    offsets_between,
)

DURATION_BOUNDS_S: Final = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
PLANNING_KEYS: Final = ("latestOffset", "getBatch", "queryPlanning")
CHECKPOINT_KEYS: Final = ("walCommit", "commitOffsets")
_WHOLE: Final = "triggerExecution"
"""Keys of ``durationMs`` in Spark's StreamingQueryProgress."""
_RATE_S: Final = 10.0
"""The period of a rate; at least the last batch."""


@dataclass(frozen=True, slots=True)
class Rates:
    """Records per second."""

    input: float
    output: float


@dataclass(frozen=True, slots=True)
class _Span:
    began: float
    finished: float
    input: int
    output: int


class Progress:
    """One pipeline, over all its restarts in this process."""

    def __init__(self, pipeline: str) -> None:
        self.pipeline = pipeline
        self.batches = dict.fromkeys(OUTCOMES, 0)
        self.input = self.output = self.lost = self.committed = self.aborted = self.restarts = 0
        self.dead_letters: Counter[tuple[str, str, str]] = Counter()
        """By source, stage and reason."""
        self.drifts: Counter[str] = Counter()
        """Batches with fields that the schema does not have, by source."""
        self.phases_ms = dict.fromkeys(PHASES, 0)
        self.duration_counts = [0] * (len(DURATION_BOUNDS_S) + 1)
        """Batches by duration: up to each bound, and beyond the last."""
        self.duration_ms = 0
        self.last: BatchReport | None = None
        self.batch_id: int | None = None
        """The running batch."""
        self.phase: str | None = None
        self.phase_began = 0.0
        self.open_since: float | None = None
        """When the open transaction was opened."""
        self.waits_for_spark: dict[int, BatchReport] = {}
        """Batches that are over, and that Spark has not reported yet."""
        self._transactional = False
        self._started: events.BatchStarted | None = None
        self._began = 0.0
        self._outcome = WRITTEN
        self._records = self._uncommitted = self._aborts = 0
        self._spent: dict[str, float] = {}
        self._spans: deque[_Span] = deque()

    # --- events -------------------------------------------------------------------------------------------------

    def hear(self, event: events.Event, now: float) -> None:
        match event:
            case events.NameTaken():
                # A transaction that was open before is aborted.
                self._transactional, self.open_since = True, None
            case events.BatchStarted():
                self._begin(event, now)
            case events.PartitionClaimed():
                self._open(now)
                if self.phase == READING:
                    self._enter(WRITING, now)
            case events.OutputWritten():
                self._open(now)
                self._enter(RECORD, now)
            case events.BatchWritten(_, records):
                self._uncommitted = records
                self._enter(COMMIT if self._transactional else OTHER, now)
            case events.TransactionEnded(_, committed):
                self._end_transaction(committed, now)
            case events.BatchAlreadyIn() | events.BatchSkipped():
                self._outcome = SKIPPED if isinstance(event, events.BatchSkipped) else ALREADY_IN
            case events.BatchFinished(_, duration_ms):
                self._finish(duration_ms, now)
            case events.QueryRestarted():
                self.restarts += 1
                self._leave(now)
            case _:
                self._hear_of_bad_rows(event)

    def _hear_of_bad_rows(self, event: events.Event) -> None:
        match event:
            case events.DeadLettersWritten(_, source, _, counts):
                self.dead_letters.update(
                    {(source, *stage_and_reason): count for stage_and_reason, count in counts.items()}
                )
            case events.SchemaDrifted(_, source):
                self.drifts[source] += 1
            case _:
                pass

    def _begin(self, event: events.BatchStarted, now: float) -> None:
        self._started, self.batch_id, self._began = event, event.batch_id, now
        self._outcome = WRITTEN
        self._records = self._uncommitted = self._aborts = 0
        self._spent, self.phase = {}, None
        self._enter(READING, now)

    def _open(self, now: float) -> None:
        if self._transactional and self.open_since is None:
            self.open_since = now

    def _end_transaction(self, committed: bool, now: float) -> None:
        self.open_since = None
        # Each of several sinks has a transaction with its part of the batch.
        self._records += self._uncommitted if committed else 0
        self._uncommitted = 0
        if committed:
            self.committed += 1
            self._enter(OTHER, now)
        else:
            self.aborted += 1
            self._aborts += 1
            self._enter(READING, now)

    def _enter(self, phase: str, now: float) -> None:
        if self.phase is not None:
            self._spent[self.phase] = self._spent.get(self.phase, 0.0) + now - self.phase_began
        self.phase, self.phase_began = phase, now

    def _leave(self, now: float) -> None:
        self._enter(OTHER, now)
        self._started = self.batch_id = self.phase = None

    def _finish(self, duration_ms: int, now: float) -> None:
        started = self._started
        if started is None:
            return
        self._leave(now)
        # Without transactions nothing has said that they are committed.
        self._records += self._uncommitted
        spent = {phase: round(self._spent.get(phase, 0.0) * 1000) for phase in (READING, WRITING, RECORD, COMMIT)}
        report = BatchReport(
            pipeline=self.pipeline,
            batch_id=started.batch_id,
            outcome=self._outcome,
            input=offsets_between(started.start, started.end),
            records=self._records,
            duration_ms=duration_ms,
            phases_ms=_whole(spent, duration_ms),
            aborts=self._aborts,
            start=started.start,
            end=started.end,
            lost=lost_between(started.start, started.end),
        )
        self.waits_for_spark[started.batch_id] = report
        self._spans.append(_Span(self._began, now, report.input or 0, report.records))
        while self._spans[0].finished < now - _RATE_S:
            self._spans.popleft()

    # --- reports ------------------------------------------------------------------------------------------------

    def spark_reports(self, batch_id: int, durations_ms: Mapping[str, int], rows: int) -> list[BatchReport]:
        """The reports that need not wait any longer. ``durations_ms``, ``rows``: of Spark's StreamingQueryProgress."""
        reports = []
        for waiting_id in sorted(self.waits_for_spark):
            if waiting_id > batch_id:
                break
            report = self.waits_for_spark.pop(waiting_id)
            reports.append(_completed(report, durations_ms, rows) if waiting_id == batch_id else report)
        return self._count(reports)

    def without_spark(self) -> list[BatchReport]:
        """The reports that wait, as they are."""
        reports = list(self.waits_for_spark.values())
        self.waits_for_spark.clear()
        return self._count(reports)

    def _count(self, reports: list[BatchReport]) -> list[BatchReport]:
        for report in reports:
            self.batches[report.outcome] += 1
            self.input += report.input or 0
            self.output += report.records
            self.lost += report.lost
            for phase, spent_ms in report.phases_ms.items():
                self.phases_ms[phase] += spent_ms
            self.duration_counts[bisect_left(DURATION_BOUNDS_S, report.duration_ms / 1000)] += 1
            self.duration_ms += report.duration_ms
            self.last = report
        return reports

    # --- figures ------------------------------------------------------------------------------------------------

    def rates(self, now: float) -> Rates:
        """Return the rates of the last seconds, falling where nothing is finished any more."""
        recent = [span for span in self._spans if span.finished >= now - _RATE_S] or list(self._spans)[-1:]
        if not recent:
            return Rates(0.0, 0.0)
        seconds = max(now - recent[0].began, 0.001)
        return Rates(sum(span.input for span in recent) / seconds, sum(span.output for span in recent) / seconds)

    def open_s(self, now: float) -> float:
        """The age of the open transaction; 0 where none is."""
        return 0.0 if self.open_since is None else now - self.open_since


def _completed(report: BatchReport, durations_ms: Mapping[str, int], rows: int) -> BatchReport:
    spent = {phase: spent_ms for phase, spent_ms in report.phases_ms.items() if phase != OTHER}
    spent[PLANNING] = sum(durations_ms.get(key, 0) for key in PLANNING_KEYS)
    spent[CHECKPOINT] = sum(durations_ms.get(key, 0) for key in CHECKPOINT_KEYS)
    # Two clocks of whole milliseconds.
    duration_ms = max(durations_ms.get(_WHOLE, 0), report.duration_ms)
    counted = rows if report.input is None else report.input
    return replace(report, input=counted, duration_ms=duration_ms, phases_ms=_whole(spent, duration_ms))


def _whole(spent_ms: Mapping[str, int], duration_ms: int) -> dict[str, int]:
    """The phases in order; what belongs to none of them is ``other``."""
    named = {phase: spent_ms[phase] for phase in PHASES if phase in spent_ms}
    return named | {OTHER: max(0, duration_ms - sum(named.values()))}
