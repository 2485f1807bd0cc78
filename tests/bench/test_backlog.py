from typing import Any

import pytest

from einmal.bench import backlog
from einmal.pipeline import events


def test_phases_are_the_times_between_a_batchs_events(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 10.5, 11.0, 11.25, 11.5, 11.625, 11.75, 20.0, 21.0])
    monkeypatch.setattr("einmal.bench.backlog.time.perf_counter", lambda: next(clock))
    phases = backlog.Phases()
    for event in (
        events.BatchStarted(1, None, None),
        events.PartitionClaimed(1, "t", 0),
        events.PartitionClaimed(1, "t", 1),
        events.OutputWritten(1),
        events.BatchWritten(1, 9),
        events.TransactionEnded(1, True),
        events.BatchFinished(1, 7),
        events.BatchStarted(2, None, None),
        events.BatchFinished(2, 7),
    ):
        phases(event)
    written = {"reading": 500, "writing": 750, "commit record": 250, "positions and EndTxn": 125}
    assert phases.batches == [written], "a batch without rows is left out"


def test_rates_cover_whole_batches_and_unreported_time_is_the_rest() -> None:
    durations = {"triggerExecution": 100, "latestOffset": 5, "queryPlanning": 5, "walCommit": 20, "commitOffsets": 10}
    batches: list[dict[str, Any]] = [{"durationMs": durations, "numInputRows": 30}] * 2
    peer = backlog._drained(batches, [])
    assert peer.rate == 300
    assert peer.phases == {"planning": 10, "checkpoint": 30, "reading and writing": 60}
    ours = backlog._drained(batches, [{"reading": 10.0, "writing": 25.0}] * 2)
    assert ours.phases == {"planning": 10, "checkpoint": 30, "reading": 10, "writing": 25, "other": 25}
