"""Schedules of the real node and the real client: nothing is wrong, and a seed is one run."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from dataclasses import replace
from functools import cache

import pytest

from einmal.checker.history import OpOutcome
from einmal.simulation.profile import WORKLOADS, Profile, profile_of
from einmal.simulation.result import Result
from einmal.simulation.run import run_cluster_seed, run_seed, simulate

SEEDS = (*range(8), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(8, 20)))


@cache
def of_seed(seed: int) -> Result:
    return run_seed(seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_schedule_shows_no_anomaly(seed: int) -> None:
    result = of_seed(seed)
    assert result.anomalies == ()
    assert result.virtual_seconds > profile_of(seed).duration


def test_a_schedule_leaves_nothing_in_memory() -> None:
    left = []
    for seed in (7, 7, 7):
        run_cluster_seed(seed)
        left.append(len(gc.get_objects()))
    assert left[2] - left[1] < 100


def test_the_same_seed_is_the_same_run_in_another_process_with_another_hash_seed() -> None:
    code = (
        "garbage = [object() for _ in range(12345)]\n"
        "from einmal.simulation.run import run_cluster_seed, run_seed\n"
        "print(*[result.trace_digest for result in (run_seed(3), run_seed(11), run_cluster_seed(3))])\n"
    )
    # Whatever this process has: one of them is another.
    hash_seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "4242"
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONHASHSEED": hash_seed},
        stdout=subprocess.PIPE,
        text=True,
    )
    here = [result.trace_digest for result in (run_seed(3), run_seed(11), run_cluster_seed(3))]
    assert process.communicate(timeout=120)[0].split() == here


@pytest.mark.long
def test_other_seeds_are_other_runs() -> None:
    assert len({of_seed(seed).trace_digest for seed in (0, 1, 2)}) == 3


def test_the_seeds_cover_both_workloads_versions_flush_modes_and_crashes() -> None:
    profiles = [profile_of(seed) for seed in range(60)]

    def seen(of: str) -> set[object]:
        return {getattr(profile, of) for profile in profiles}

    assert all(len(seen(of)) > 1 for of in ("workload", "transaction_version", "flush_each", "crash", "segment_bytes"))
    assert not any(_has_late_requests(profile) for profile in profiles if profile.transaction_version < 2)


def _has_late_requests(profile: Profile) -> bool:
    return bool(profile.network.give_up or profile.network.stall or profile.network.spike)


@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_workload_really_works(workload: str) -> None:
    ops = [op for seed in (1, 2) for op in simulate(replace(profile_of(seed), workload=workload)).history.ops]
    assert sum(1 for op in ops if op.transactional and op.sends and op.outcome is OpOutcome.OK) >= 10
    assert sum(len(poll.records) for op in ops for poll in op.polls) > 50
