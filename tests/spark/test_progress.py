"""Claims about what the events of a pipeline come to."""

from __future__ import annotations

from einmal.pipeline import events
from einmal.spark.operate.progress import Progress
from einmal.spark.output.reports import BatchReport

Told = tuple[float, events.Event]


def after(*told: Told, transactional: bool = True) -> Progress:
    """After these events, each with its time in seconds."""
    progress = Progress("p")
    if transactional:
        progress.hear(events.NameTaken("p", 1, 0), 0.0)
    for now, event in told:
        progress.hear(event, now)
    return progress


def started(batch_id: int) -> events.BatchStarted:
    """Of three offsets."""
    return events.BatchStarted(batch_id, ({"t": {"0": 5}},), ({"t": {"0": 8}},))


def whole_batch(batch_id: int, began: float = 1.0) -> list[Told]:
    return [
        (began, started(batch_id)),
        (began + 0.5, events.PartitionClaimed(batch_id, "out", 0)),
        (began + 0.7, events.PartitionClaimed(batch_id, "out", 1)),
        (began + 0.8, events.PartitionWritten(batch_id, "out", 0, 2)),
        (began + 1.0, events.OutputWritten(batch_id)),
        (began + 1.1, events.BatchWritten(batch_id, 2)),
        (began + 1.3, events.TransactionEnded(batch_id, True)),
        (began + 1.4, events.BatchFinished(batch_id, 1400)),
    ]


def only(reports: list[BatchReport]) -> BatchReport:
    (report,) = reports
    return report


SPARK = {"latestOffset": 10, "getBatch": 5, "queryPlanning": 15, "walCommit": 40, "commitOffsets": 60}


def test_a_batch_is_reported_with_its_phases_once_spark_has_reported_it() -> None:
    progress = after(*whole_batch(3))
    assert progress.last is None
    report = only(progress.spark_reports(3, SPARK | {"triggerExecution": 1600, "addBatch": 1450}, 3))
    assert (report.batch_id, report.outcome, report.input, report.records, report.aborts) == (3, "written", 3, 2, 0)
    assert report.duration_ms == 1600
    assert report.phases_ms == {
        "planning": 30,
        "reading": 500,
        "writing": 500,
        "record": 100,
        "commit": 200,
        "checkpoint": 100,
        "other": 170,
    }
    assert sum(report.phases_ms.values()) == report.duration_ms


def test_metrics_that_spark_does_not_report_are_left_out() -> None:
    report = only(after(*whole_batch(3)).without_spark())
    assert report.duration_ms == 1400
    assert report.phases_ms == {"reading": 500, "writing": 500, "record": 100, "commit": 200, "other": 100}


def test_batches_that_spark_skipped_are_reported_before_the_one_it_reports() -> None:
    progress = after(*whole_batch(3), *whole_batch(4, 3.0), *whole_batch(5, 5.0))
    found = progress.spark_reports(4, SPARK | {"triggerExecution": 1600}, 3)
    assert [(each.batch_id, "planning" in each.phases_ms) for each in found] == [(3, False), (4, True)]
    assert list(progress.waits_for_spark) == [5]


def test_a_transaction_is_open_from_its_first_partition_until_it_is_ended() -> None:
    told = whole_batch(3)
    assert after(told[0]).open_s(9.0) == 0.0
    assert after(*told[:4]).open_s(2.5) == 1.0
    assert after(*told).open_s(9.0) == 0.0


def test_the_transaction_of_an_empty_batch_is_opened_by_its_commit_record() -> None:
    assert after((1.0, started(0)), (2.0, events.OutputWritten(0))).open_s(2.5) == 0.5


def test_a_transaction_of_unknown_outcome_stays_open_until_the_name_is_acquired_again() -> None:
    progress = after(*whole_batch(3)[:5], (3.0, events.QueryRestarted("no answer")))
    assert (progress.restarts, progress.phase, progress.open_s(3.5)) == (1, None, 2.0)
    progress.hear(events.NameTaken("p", 1, 1), 4.0)
    assert progress.open_s(4.5) == 0.0


def test_an_aborted_transaction_counts_for_its_batch_and_the_time_of_both_tries() -> None:
    began, claimed, *_ = whole_batch(3)
    aborted: Told = (2.0, events.TransactionEnded(3, False))
    again: list[Told] = [(now + 1.0, event) for now, event in whole_batch(3)[1:]]
    progress = after(began, claimed, aborted, *again)
    report = only(progress.without_spark())
    assert (report.aborts, progress.aborted, progress.committed) == (1, 1, 1)
    # 1.0 to 1.5 and 2.0 to 2.5; 1.5 to 2.0 and 2.5 to 3.0.
    assert (report.phases_ms["reading"], report.phases_ms["writing"]) == (1000, 1000)


def test_without_transactions_nothing_is_open_and_the_job_is_reading() -> None:
    told: list[Told] = [(1.0, started(3)), (2.0, events.BatchWritten(3, 2)), (2.0, events.BatchFinished(3, 1100))]
    progress = after(*told, transactional=False)
    assert progress.open_since is None
    assert only(progress.without_spark()).phases_ms == {
        "reading": 1000,
        "writing": 0,
        "record": 0,
        "commit": 0,
        "other": 100,
    }


def test_a_batch_that_is_not_written_has_a_reason() -> None:
    for event, outcome in ((events.BatchAlreadyIn(3), "already_in"), (events.BatchSkipped(3), "skipped")):
        progress = after((1.0, started(3)), (1.1, event), (1.2, events.BatchFinished(3, 1)))
        report = only(progress.without_spark())
        assert (report.outcome, report.records) == (outcome, 0)
        assert progress.batches == {"written": 0, "already_in": 0, "skipped": 0} | {outcome: 1}


def test_totals_are_those_of_the_reports() -> None:
    progress = after(*whole_batch(3), *whole_batch(4, 3.0))
    progress.spark_reports(4, SPARK | {"triggerExecution": 1600}, 3)
    assert (progress.input, progress.output, progress.committed) == (6, 4, 2)
    assert progress.phases_ms["writing"] == 1000
    # 1.4 and 1.6 s are up to 2.5 s.
    assert progress.duration_counts == [0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0]
    assert progress.duration_ms == sum(progress.phases_ms.values()) == 3000


def test_rows_stand_for_offsets_where_a_source_has_none() -> None:
    told = (1.0, events.BatchStarted(3, (7,), (8,))), (2.0, events.BatchFinished(3, 1000))
    assert only(after(*told).spark_reports(3, SPARK, 11)).input == 11


def test_rates_are_taken_over_the_last_seconds_and_fall_when_nothing_is_finished() -> None:
    progress = after(*whole_batch(3, 1.0), *whole_batch(4, 21.0))
    assert progress.rates(24.0).input == 1.0
    assert progress.rates(27.0).output == 2 / 6
    assert progress.rates(81.0).input == 3 / 60
    assert Progress("p").rates(5.0).input == 0.0


def test_the_running_batch_has_a_phase_with_a_beginning() -> None:
    progress = after(*whole_batch(3)[:3])
    assert (progress.batch_id, progress.phase, progress.phase_began) == (3, "writing", 1.5)
