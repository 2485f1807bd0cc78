"""Claims about the pipeline's commit protocol under simulated faults, and proof that each defence is needed.

A defence is disabled from outside, by patching; then a bounded number of schedules must show an anomaly.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Generator, Iterable

import pytest

from einmal.pipeline import effects as protocol
from einmal.pipeline import run_state
from einmal.pipeline.batch_plan import AlreadyIn, Batch, Plan, Write, plan_batch
from einmal.pipeline.claims import Claims, Denied, Granted, Output
from einmal.pipeline.commit_record import CommitRecord
from einmal.pipeline.committer import Committer, Phase
from einmal.pipeline.run_state import RunState
from einmal.simulation import commit_protocol, spark_model
from einmal.simulation.commit_protocol import run_seed
from einmal.types import TopicPartition

SCHEDULES = 200
SCHEDULES_WITH_A_DEFECT_MAX = 3_000


def test_no_schedule_loses_repeats_or_splits_a_batch() -> None:
    found = [result for result in map(run_seed, range(SCHEDULES)) if result.anomalies]
    assert found == []


def test_the_same_seed_gives_the_same_trace_in_another_process() -> None:
    program = "from einmal.simulation.commit_protocol import run_seed; print(run_seed(7).trace_digest)"
    digests = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert digests == {run_seed(7).trace_digest}


def grant_to_everybody(monkeypatch: pytest.MonkeyPatch) -> None:
    def claim(self: Claims, token: str, attempt_id: int, target: object) -> Granted:
        self._owners[target] = attempt_id  # type: ignore[index]
        return Granted(add=True)

    def report(self: Claims, token: str, attempt_id: int, output: Output) -> Granted:
        return Granted(add=False)

    def close(self: Claims, collected: Iterable[Output]) -> tuple[Output, ...]:
        return tuple(collected)

    monkeypatch.setattr(Claims, "claim", claim)
    monkeypatch.setattr(Claims, "report", report)
    monkeypatch.setattr(Claims, "close", close)


def keep_the_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    never = property(lambda self: False, lambda self, value: None)
    monkeypatch.setattr(RunState, "epoch_is_used", never)


def skip_by_batch_id(monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(record: CommitRecord | None, batch: Batch, *, adopt: bool) -> Plan:
        if record is not None and batch.batch_id <= record.batch_id:
            return AlreadyIn()
        return Write()

    monkeypatch.setattr(run_state, "plan_batch", plan)


def write_what_is_already_in(monkeypatch: pytest.MonkeyPatch) -> None:
    def plan(record: CommitRecord | None, batch: Batch, *, adopt: bool) -> Plan:
        real = plan_batch(record, batch, adopt=adopt)
        return Write() if isinstance(real, AlreadyIn) else real

    monkeypatch.setattr(run_state, "plan_batch", plan)


def read_the_record_too_early(monkeypatch: pytest.MonkeyPatch) -> None:
    read = commit_protocol.SimulatedDriver._read_record
    monkeypatch.setattr(commit_protocol.SimulatedDriver, "_read_record", lambda self, certain: read(self, False))


def take_what_any_leader_says_for_certain(monkeypatch: pytest.MonkeyPatch) -> None:
    def prove_nothing(self: commit_protocol.SimulatedDriver) -> Generator[None, None, int]:
        yield
        return 0

    monkeypatch.setattr(commit_protocol.SimulatedDriver, "_prove", prove_nothing)


def take_silence_for_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    step = Committer.step

    def step_without_doubt(self: Committer, event: protocol.Event) -> protocol.Effect:
        if isinstance(event, protocol.Unclear) and self._phase is Phase.COMMITTING:
            self._phase = Phase.ABORTING
            event = protocol.Ended(None)
        return step(self, event)

    monkeypatch.setattr(Committer, "step", step_without_doubt)


def leave_spark_to_run_the_committed_batch_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        commit_protocol.SimulatedDriver, "_finish_spark_commit", lambda self, record: protocol.Finished()
    )
    batch = Committer.batch

    def run_again(self: Committer, item: Batch) -> protocol.Effect:
        effect = batch(self, item)
        if isinstance(effect, protocol.Refused) and "already committed" in effect.reason:
            self._phase = Phase.READY
            return protocol.Ready(self.record, already_in=True)
        return effect

    monkeypatch.setattr(Committer, "batch", run_again)


def finish_a_copy_from_its_originals_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit_protocol.SimulatedDriver, "_has_its_state", lambda self, record: True)


def restart_without_the_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Committer, "held", property(lambda self: None))


def commit_without_waiting_for_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Claims, "close", lambda self, collected: tuple(collected))
    monkeypatch.setattr(Claims, "_refusal", lambda self, token: None)

    def give_up_on_the_task(self: spark_model.ModelJob, task: int, reason: str) -> None:
        self._succeeded(task, 0, [])

    monkeypatch.setattr(spark_model.ModelJob, "_failed", give_up_on_the_task)


@pytest.mark.parametrize(
    "defect",
    [
        grant_to_everybody,
        keep_the_epoch,
        skip_by_batch_id,
        write_what_is_already_in,
        read_the_record_too_early,
        take_what_any_leader_says_for_certain,
        take_silence_for_failure,
        leave_spark_to_run_the_committed_batch_again,
        commit_without_waiting_for_reports,
        finish_a_copy_from_its_originals_record,
        restart_without_the_identity,
    ],
)
def test_without_a_defence_an_anomaly_is_found(
    defect: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commit_protocol, "STEPS_MAX", 4_000)
    defect(monkeypatch)
    for seed in range(SCHEDULES_WITH_A_DEFECT_MAX):
        try:
            anomalies = run_seed(seed).anomalies
        except AssertionError:
            continue  # The machine's own invariants stopped this schedule before it could cause an anomaly.
        if any(not text.startswith("liveness") for text in anomalies):
            return
    pytest.fail(f"{SCHEDULES_WITH_A_DEFECT_MAX} schedules did not show what {defect.__name__} breaks")


def test_denied_is_what_a_second_claimant_gets() -> None:
    claims = Claims("t")
    target = TopicPartition("out", 0)
    assert claims.claim("t", 1, target) == Granted(add=True)
    assert isinstance(claims.claim("t", 2, target), Denied)
