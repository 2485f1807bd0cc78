"""Claims about what the terminal shows of pipelines."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rich.console import Console as Terminal

from einmal.cli.printing.formats import Format
from einmal.cli.printing.progress import Console, lag_text, line, table
from einmal.pipeline import events
from einmal.spark.operate.watch import Watched
from einmal.spark.output.reports import BatchReport


def report(batch_id: int = 1, **fields: Any) -> BatchReport:
    known: dict[str, Any] = {
        "pipeline": "orders",
        "outcome": "written",
        "input": 3,
        "records": 2,
        "duration_ms": 1310,
        "phases_ms": {"planning": 50, "reading": 1200, "other": 60},
        "aborts": 0,
        "start": ({"t": {"0": 5}},),
        "end": ({"t": {"0": 8}},),
    }
    return BatchReport(batch_id=batch_id, **known | fields)


def watched(name: str = "orders", lag: dict[str, int] | None = None) -> Watched:
    pipeline = Watched(name)
    pipeline.lag = lag
    return pipeline


def test_a_batch_has_a_line_with_its_phases() -> None:
    assert line([report()]) == "batch 1: 2 records in 1.31 s (planning 0.05, reading 1.20, other 0.06)"


def test_phases_of_no_time_are_left_out() -> None:
    assert line([report(phases_ms={"reading": 1306, "record": 4})]) == "batch 1: 2 records in 1.31 s (reading 1.31)"


def test_quick_batches_share_a_line() -> None:
    told = [report(7, records=1000), report(8, records=200, duration_ms=200, phases_ms={"reading": 200})]
    assert line(told) == "batches 7-8: 1,200 records in 1.51 s (planning 0.05, reading 1.40, other 0.06)"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"batch_id": 0, "records": 0, "input": 0}, "batch 0: empty, notes where the query begins, in"),
        ({"batch_id": 4, "records": 0, "outcome": "already_in"}, "batch 4: was in already in"),
        ({"batch_id": 4, "records": 0, "outcome": "skipped"}, "batch 4: skipped: begun before, and not written again"),
        ({"batch_id": 4, "records": 0, "input": 3}, "batch 4: 0 records in"),
    ],
)
def test_a_batch_without_records_shows_the_reason(fields: dict[str, Any], told: str) -> None:
    assert line([report(**fields)]).startswith(told)


def test_lag_is_the_sum_and_its_topics_where_there_are_several() -> None:
    assert lag_text({"a": 1204}) == "1,204"
    assert lag_text({"a": 1000, "b": 204}) == "1,204 (a 1,000, b 204)"


def test_lines_come_at_most_once_a_second_and_none_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    pipeline = watched(lag={"t": 5})
    with Console(Format.TEXT) as console:
        console.report(pipeline, report(0, records=0, input=0))
        console.tick([pipeline], 100.0)
        for batch_id in (1, 2):
            console.report(pipeline, report(batch_id))
            console.tick([pipeline], 100.0)
    captured = capsys.readouterr()
    assert [told.partition(":")[0] for told in captured.err.splitlines()] == ["batch 0", "batches 1-2"]
    assert captured.err.endswith(", lag 5\n")
    assert captured.out == ""


def test_every_batch_is_an_object_on_stdout_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    pipeline = watched(lag={"a": 5, "b": 1})
    with Console(Format.JSON) as console:
        console.report(pipeline, report(1))
        pipeline.lag = None
        console.report(pipeline, report(2))
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["batch_id"], first["lag"], first["lag_by_topic"]) == (1, 6, {"a": 5, "b": 1})
    assert (second["batch_id"], second["lag"], second["lag_by_topic"]) == (2, None, None)
    assert first["phases_ms"] == {"planning": 50, "reading": 1200, "other": 60}


def test_aborts_and_restarts_are_shown_with_the_name_if_there_are_several_pipelines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    orders, refunds = watched("orders"), watched("refunds")
    with Console(Format.TEXT) as console:
        console.hear(orders, events.NameTaken("orders", 7, 0))
        console.report(orders, report(3))
        console.hear(orders, events.TransactionEnded(4, committed=False))
        console.tick([orders, refunds], 1.0)
        console.hear(refunds, events.QueryRestarted("a task failed"))
    assert capsys.readouterr().err.splitlines() == [
        "orders: started, producer id 7, epoch 0",
        "batch 3: 2 records in 1.31 s (planning 0.05, reading 1.20, other 0.06)",
        "batch 4: its transaction is aborted",
        "refunds: restarted: a task failed",
    ]


def test_the_table_fits_a_terminal_and_shows_the_running_phase() -> None:
    pipeline = watched("orders", {"t": 1204})
    for now, event in (
        (1.0, events.NameTaken("orders", 7, 0)),
        (2.0, events.BatchStarted(4, None, None)),
        (3.0, events.PartitionClaimed(4, "out", 0)),
    ):
        pipeline.progress.hear(event, now)
    terminal = Terminal(width=80)
    with terminal.capture() as captured:
        terminal.print(table([pipeline, watched("refunds")], 3.5))
    heads, orders, refunds = captured.get().splitlines()
    assert heads.split() == ["PIPELINE", "IN/S", "OUT/S", "LAG", "TRANSACTION", "NOW"]
    assert orders.split() == ["orders", "0", "0", "1,204", "open", "0.5", "s", "batch", "4", "writing", "0.5", "s"]
    assert refunds.split() == ["refunds", "0", "0", "-", "-", "starting"]
