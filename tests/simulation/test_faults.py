"""Claims about the table of faults: complete, and every fault has the listed outcome."""

from __future__ import annotations

from dataclasses import replace

import pytest

from einmal.simulation.faults import FAULTS
from einmal.simulation.run import simulate
from einmal.simulation.schedule import Fault, FaultKind
from tests.simulation.where import faults

NOTHING_TO_HEAL = {
    FaultKind.ROLLING_RESTART,
    FaultKind.SEVER,
    FaultKind.SET_CLOCK,
    FaultKind.RESET,
    FaultKind.ELECT,
    FaultKind.REASSIGN,
    FaultKind.LOSE_CLIENT,
}


def test_every_kind_of_fault_has_its_row() -> None:
    assert list(FAULTS) == list(FaultKind)


def test_a_fault_that_lasts_is_healed() -> None:
    assert {kind for kind, action in FAULTS.items() if action.heal is None} == NOTHING_TO_HEAL


@pytest.mark.slow
def test_a_cluster_survives_every_fault_one_after_the_other() -> None:
    schedule = tuple(Fault(0.5 + place, kind, 0.7, place) for place, kind in enumerate(FaultKind))
    profile = replace(faults(FaultKind.CRASH, workload="ledger")(1), duration=len(schedule) + 1.0, faults=schedule)
    outcome = simulate(profile, keep_trace=True)
    assert outcome.anomalies == ()
    assert outcome.trace.lines is not None
    assert [fault for fault in schedule if not any(str(fault) in line for line in outcome.trace.lines)] == []
