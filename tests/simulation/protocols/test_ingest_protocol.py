"""Claims about the ingester under simulated faults, and proof that each defence is needed.

A defence is disabled from outside, by patching; then a bounded number of schedules must show an anomaly.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Generator
from typing import Any

import pytest

from einmal.commit_protocol import effects as protocol
from einmal.ingest import effects
from einmal.ingest.deduplication import recorded
from einmal.ingest.deduplication.key_window import KeyWindow, StagedWindow
from einmal.ingest.deduplication.recorded import RecordedWindow
from einmal.ingest.effects import IngestEffect, IngestEvent
from einmal.ingest.machine import IngestMachine
from einmal.ingest.source import Position
from einmal.simulation.protocols import ingest_protocol
from einmal.simulation.protocols.ingest_protocol import SimulatedIngest, run_seed
from einmal.simulation.protocols.kafka_model import OURS, ModelRecord
from einmal.simulation.protocols.model_requests import RECORDS, ModelRequests

SCHEDULES = 200
SCHEDULES_WITH_A_DEFECT_MAX = 300
NO_TRANSACTION = 0
Steps = Generator[None, None, IngestEvent]


def test_no_schedule_loses_or_repeats_a_record() -> None:
    found = [result for result in map(run_seed, range(SCHEDULES)) if result.anomalies]
    assert found == []


def test_the_same_seed_gives_the_same_trace_in_another_process() -> None:
    program = "from einmal.simulation.protocols.ingest_protocol import run_seed; print(run_seed(7).trace_digest)"
    digests = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert digests == {run_seed(7).trace_digest}


def confirm_before_the_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    perform = SimulatedIngest._perform

    def confirm_early(self: SimulatedIngest, effect: IngestEffect) -> Steps:
        if isinstance(effect, protocol.WriteCommitRecord):
            self.confirm(self._next)
        return (yield from perform(self, effect))

    monkeypatch.setattr(SimulatedIngest, "_perform", confirm_early)


def confirm_before_the_commit_and_find_out_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same, shown by what is lost: the source has released records whose transaction was aborted."""
    confirm_before_the_commit(monkeypatch)

    def release(self: SimulatedIngest, position: int) -> None:
        self._source.released = max(self._source.released, position)

    monkeypatch.setattr(SimulatedIngest, "confirm", release)


def write_the_position_outside_of_the_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    perform = SimulatedIngest._perform

    def write_outside(self: SimulatedIngest, effect: IngestEffect) -> Steps:
        if not isinstance(effect, protocol.WriteCommitRecord):
            return (yield from perform(self, effect))
        kafka = self._world.kafka
        kafka.decided[NO_TRANSACTION] = kafka.visible[RECORDS, NO_TRANSACTION] = True
        kafka.log(RECORDS).entries.append(ModelRecord(OURS, NO_TRANSACTION, effect.record))
        return protocol.Done()

    monkeypatch.setattr(SimulatedIngest, "_perform", write_outside)


def record_the_position_of_the_next_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    cut = SimulatedIngest._cut

    def cut_ahead(self: SimulatedIngest) -> IngestEvent:
        event = cut(self)
        if isinstance(event, effects.BatchFound):
            return effects.BatchFound({"next": min(self._source.written, event.end["next"] + 1)})
        return event

    monkeypatch.setattr(SimulatedIngest, "_cut", cut_ahead)


def resume_from_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next run of a process continues where the run before has stopped reading."""
    opened = SimulatedIngest._open

    def open_from_memory(self: SimulatedIngest, position: int) -> IngestEvent:
        return opened(self, max(position, self._next))

    monkeypatch.setattr(SimulatedIngest, "_open", open_from_memory)


def resume_from_the_first_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """The record that was read before the transactional.id was acquired."""
    read = ModelRequests.read_record
    first: dict[int, protocol.Event] = {}

    def read_once(self: ModelRequests, certain: bool) -> Generator[None, None, protocol.Event]:
        if certain and id(self) in first:
            return first.pop(id(self))
        event = yield from read(self, certain)
        first[id(self)] = event
        return event

    monkeypatch.setattr(ModelRequests, "read_record", read_once)


def write_a_batch_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(IngestMachine, "step", lambda self, event: self._steps.send(event))


def ignore_the_origin(monkeypatch: pytest.MonkeyPatch) -> None:
    def read_anything(self: IngestMachine) -> Generator[IngestEffect, IngestEvent, tuple[str, Position | None]]:
        event = yield effects.AskOrigin()
        if not isinstance(event, effects.OriginKnown):
            return "", None
        record = self.record
        return event.origin, None if record is None else record.end[0]["position"]

    monkeypatch.setattr(IngestMachine, "_position", read_anything)


def keep_the_keys_of_aborted_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = KeyWindow.stage

    def stage_for_good(self: KeyWindow, *arguments: Any) -> StagedWindow:
        staged = stage(self, *arguments)
        self.committed()
        self._staged = staged
        return staged

    def forget(self: KeyWindow, *arguments: Any) -> None:
        self._staged = None

    monkeypatch.setattr(KeyWindow, "stage", stage_for_good)
    monkeypatch.setattr(KeyWindow, "restore", forget)


def restore_no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        SimulatedIngest, "written_keys", lambda self, window, recorded: {each.number: {} for each in recorded.spans}
    )


def restore_the_keys_of_aborted_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SimulatedIngest, "is_committed", lambda self, entry: True)


def forget_a_batch_whose_commit_was_not_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    def restore_nothing(self: KeyWindow, recorded: RecordedWindow, read: object) -> None:
        self.recorded, self._staged = recorded, None

    monkeypatch.setattr(KeyWindow, "restore", restore_nothing)


def forget_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorded, "SPANS_WINDOWS", 0.5)


@pytest.mark.parametrize(
    "defect",
    [
        keep_the_keys_of_aborted_batches,
        restore_no_keys,
        restore_the_keys_of_aborted_batches,
        forget_a_batch_whose_commit_was_not_answered,
        forget_too_early,
        confirm_before_the_commit,
        confirm_before_the_commit_and_find_out_later,
        write_the_position_outside_of_the_transaction,
        record_the_position_of_the_next_batch,
        resume_from_memory,
        resume_from_the_first_look,
        write_a_batch_twice,
        ignore_the_origin,
    ],
)
def test_without_a_defence_an_anomaly_is_found(
    defect: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ingest_protocol, "STEPS_MAX", 20_000)
    defect(monkeypatch)
    for seed in range(SCHEDULES_WITH_A_DEFECT_MAX):
        try:
            anomalies = run_seed(seed).anomalies
        except AssertionError:
            continue  # The machine's own invariants stopped this schedule before it could cause an anomaly.
        if any(not text.startswith("liveness") for text in anomalies):
            return
    pytest.fail(f"{SCHEDULES_WITH_A_DEFECT_MAX} schedules did not show what {defect.__name__} breaks")
