"""Claims about what is told of a batch."""

from __future__ import annotations

from typing import Any

from einmal.spark import events
from einmal.spark.reports import BatchReport, BatchReports, offsets_between


def reports_of(told: list[tuple[float, events.Event]]) -> list[BatchReport]:
    """``told``: seconds and events."""
    found: list[BatchReport] = []
    clock = iter([seconds for seconds, event in told if not isinstance(event, events.BatchFinished)])
    reports = BatchReports("p", found.append, lambda: next(clock))
    for _, event in told:
        reports(event)
    return found


def started(batch_id: int) -> events.BatchStarted:
    return events.BatchStarted(batch_id, ({"t": {"0": 5}},), ({"t": {"0": 8}},))


def test_a_batch_is_told_once_it_is_finished_with_its_phases() -> None:
    (report,) = reports_of(
        [
            (1.0, started(3)),
            (1.5, events.BatchWritten(3, 2)),
            (1.75, events.TransactionEnded(3, True)),
            (0.0, events.BatchFinished(3, 800)),
        ]
    )
    assert (report.batch_id, report.outcome, report.records, report.offsets) == (3, "written", 2, 3)
    assert (report.duration_ms, report.write_ms, report.commit_ms) == (800, 500, 250)


def test_a_batch_that_is_not_written_says_why() -> None:
    found = []
    for event, outcome in ((events.BatchAlreadyIn(3), "already_in"), (events.BatchSkipped(3), "skipped")):
        reports = BatchReports("p", found.append)
        for each in (started(3), event, events.BatchFinished(3, 1)):
            reports(each)
        assert (found[-1].outcome, found[-1].records) == (outcome, 0)


def test_offsets_are_counted_where_every_source_has_them() -> None:
    def count(start: Any, end: Any) -> int | None:
        return offsets_between(start, end)

    assert count(({"t": {"0": 5, "1": 1}},), ({"t": {"0": 8, "1": 1, "2": 9}},)) == 3
    assert count(None, ({"t": {"0": 5}},)) is None
    assert count((7,), (8,)) is None
