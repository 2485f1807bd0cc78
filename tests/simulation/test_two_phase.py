"""Schedules in which a database is committed together with a topic (KIP-939): both agree, whatever dies."""

from __future__ import annotations

from dataclasses import replace

import pytest

from einmal.checker.history import OpOutcome
from einmal.simulation.profile import TWO_PHASE, two_phase_profile_of
from einmal.simulation.run import run_two_phase_seed, simulate
from tests.simulation.hunt import REPLACED

_SEEDS = 100


@pytest.mark.parametrize("seed", range(8))
def test_topic_and_database_agree(seed: int) -> None:
    result = run_two_phase_seed(seed)
    assert result.anomalies == ()


@pytest.mark.long
def test_topic_and_database_agree_in_many_schedules() -> None:
    assert [seed for seed in range(_SEEDS) if run_two_phase_seed(seed).anomalies] == []


def test_the_same_seed_is_the_same_run() -> None:
    assert run_two_phase_seed(2) == run_two_phase_seed(2)


def test_schedules_have_committed_and_aborted_transactions_and_unknown_ones() -> None:
    outcomes = {op.outcome for seed in (2, 5, 7) for op in simulate(two_phase_profile_of(seed)).history.ops if op.sends}
    assert outcomes == set(OpOutcome)


def test_profiles_cover_one_broker_and_several_with_and_without_flushes() -> None:
    profiles = [two_phase_profile_of(seed) for seed in range(40)]
    assert {len(profile.members) for profile in profiles} == {1, 3}
    assert {profile.flush_each for profile in profiles} == {True, False}
    assert {profile.workload for profile in profiles} == {TWO_PHASE}


def test_without_faults_every_transaction_is_in_both() -> None:
    outcome = simulate(replace(two_phase_profile_of(3), faults=()))
    assert outcome.anomalies == ()
    assert OpOutcome.OK in {op.outcome for op in outcome.history.ops if op.sends}


def test_a_writer_that_was_replaced_while_it_recovered_ends_and_decides_nothing() -> None:
    """It acquires the database last, and finds there what its successor has prepared."""
    assert simulate(REPLACED(1)).anomalies == ()
