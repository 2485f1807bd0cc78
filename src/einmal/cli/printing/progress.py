"""Pipelines on the terminal: a line on stderr for what was finished, and while it is a terminal a table of what runs.

Batches are also given as JSON on stdout, for programs. What is quick comes together: at most one line per second.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from rich.console import Console as Terminal
from rich.live import Live
from rich.table import Table

from einmal.cli.printing.documents import encoded
from einmal.cli.printing.formats import Format
from einmal.cli.printing.messages import is_quiet, note
from einmal.cli.printing.output import ServiceOutput
from einmal.pipeline import events
from einmal.spark.operate.watch import Watched
from einmal.spark.output.reports import ALREADY_IN, SKIPPED, BatchReport

_LINE_S: Final = 1.0
_HEADS: Final = ("PIPELINE", "IN/S", "OUT/S", "LAG", "TRANSACTION", "NOW")


@dataclass(slots=True)
class _Lines:
    """Lines of one pipeline: the batches since its last line."""

    waiting: list[BatchReport] = field(default_factory=list)
    lag: Mapping[str, int] | None = None
    printed: float = float("-inf")


class Console:
    """A ``PipelineView`` of the watch."""

    def __init__(self, output: Format) -> None:
        self._format = output
        self._output = ServiceOutput()
        self._lines: dict[str, _Lines] = {}
        self._begun: set[str] = set()
        terminal = Terminal(stderr=True)
        # The output of a program goes above the table, if both are on the same screen.
        self._live = (
            Live(console=terminal, auto_refresh=False, transient=True, redirect_stdout=sys.stdout.isatty())
            if terminal.is_terminal and not output.is_document and not is_quiet()
            else None
        )

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
        for name, lines in self._lines.items():
            self._flush(name, lines)

    # --- what happens -------------------------------------------------------------------------------------------

    def hear(self, pipeline: Watched, event: events.Event) -> None:
        name = pipeline.progress.pipeline
        match event:
            case events.NameTaken(_, producer_id, epoch):
                note(f"{name}: started, producer id {producer_id}, epoch {epoch}")
            case events.BatchStarted(batch_id) if name not in self._begun:
                # The first batch takes longest: Spark's workers start for it.
                self._begun.add(name)
                self._say_of(name, f"batch {batch_id} begins")
            case events.TransactionEnded(batch_id, False):
                self._note(name, f"batch {batch_id}: its transaction is aborted")
            case events.QueryRestarted(reason):
                self._note(name, f"restarted: {reason}")
            case _:
                pass

    def report(self, pipeline: Watched, report: BatchReport) -> None:
        if self._format.is_document:
            self._print(report, pipeline.lag)
        lines = self._lines.setdefault(report.pipeline, _Lines())
        lines.waiting.append(report)
        lines.lag = pipeline.lag

    def tick(self, pipelines: Sequence[Watched], now: float) -> None:
        for pipeline in pipelines:
            name = pipeline.progress.pipeline
            lines = self._lines.setdefault(name, _Lines())
            if now - lines.printed >= _LINE_S:
                self._flush(name, lines)
        if self._live is not None:
            self._live.update(table(pipelines, now), refresh=True)

    # --- lines --------------------------------------------------------------------------------------------------

    def _flush(self, name: str, lines: _Lines) -> None:
        if lines.waiting:
            behind = "" if lines.lag is None else f", lag {lag_text(lines.lag)}"
            self._say_of(name, line(lines.waiting) + behind)
            lines.waiting, lines.printed = [], time.monotonic()

    def _note(self, name: str, text: str) -> None:
        """After what was before it."""
        self._flush(name, self._lines.setdefault(name, _Lines()))
        self._say_of(name, text)

    def _say_of(self, name: str, text: str) -> None:
        note(f"{name}: {text}" if len(self._lines) > 1 else text)

    def _print(self, report: BatchReport, lag: Mapping[str, int] | None) -> None:
        known = {"lag": None if lag is None else sum(lag.values()), "lag_by_topic": lag}
        self._output.print(encoded(report.fields() | known, self._format))


def line(reports: Sequence[BatchReport]) -> str:
    """Some batches one after the other, or one: what became of them, and where their time went."""
    first, last = reports[0], reports[-1]
    batch = f"batch {first.batch_id}" if first is last else f"batches {first.batch_id}-{last.batch_id}"
    phases: dict[str, int] = {}
    for report in reports:
        for phase, spent_ms in report.phases_ms.items():
            phases[phase] = phases.get(phase, 0) + spent_ms
    # A phase of 0.00 only makes the line longer.
    spent = ", ".join(f"{phase} {spent_ms / 1000:.2f}" for phase, spent_ms in phases.items() if spent_ms >= 5)
    duration_ms = sum(report.duration_ms for report in reports)
    return f"{batch}: {_what(reports)} in {duration_ms / 1000:.2f} s ({spent})"


def _what(reports: Sequence[BatchReport]) -> str:
    texts = {
        ALREADY_IN: "was in already",
        SKIPPED: "skipped: begun before, and not written again",
    }
    if len(reports) == 1:
        (report,) = reports
        if report.is_empty_beginning:
            return "empty, notes where the query begins,"
        if report.outcome in texts:
            return texts[report.outcome]
    return f"{sum(report.records for report in reports):,} records"


def lag_text(lag: Mapping[str, int]) -> str:
    """The sum, and what it is made of where there are several topics."""
    total = f"{sum(lag.values()):,}"
    return (
        total
        if len(lag) < 2
        else f"{total} ({', '.join(f'{topic} {topic_lag:,}' for topic, topic_lag in lag.items())})"
    )


def table(pipelines: Sequence[Watched], now: float) -> Table:
    """Return a table of what runs at this moment."""
    result = Table(*_HEADS, box=None, pad_edge=False, header_style="")
    for pipeline in pipelines:
        progress = pipeline.progress
        rates = progress.rates(now)
        result.add_row(
            progress.pipeline,
            f"{rates.input:,.0f}",
            f"{rates.output:,.0f}",
            "-" if pipeline.lag is None else lag_text(pipeline.lag),
            "-" if progress.open_since is None else f"open {progress.open_s(now):.1f} s",
            _now(pipeline, now),
        )
    return result


def _now(pipeline: Watched, now: float) -> str:
    progress = pipeline.progress
    if pipeline.query is not None and not pipeline.is_running:
        return "ended"
    if progress.phase is None:
        return "starting" if progress.last is None and not progress.waits_for_spark else "waiting"
    return f"batch {progress.batch_id} {progress.phase} {now - progress.phase_began:.1f} s"
