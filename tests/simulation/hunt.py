"""The defects that the simulation must find: each with where to look for it, and what it must show there.

A hunt runs a defect's schedules one seed after the other, until one shows an anomaly of an expected kind that the same
schedule without the defect does not show. The seeds that found it last come first, so that a hunt is short; others
follow, for the product's timing changes. ``python -m tests.simulation.hunt`` prints the table of docs/simulation.md.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Final, NamedTuple

import pytest

from einmal.compiled import PURE, is_compiled, is_pure
from einmal.simulation.disk import DiskFaults
from einmal.simulation.profile import (
    Crash,
    Profile,
    cluster_profile_of,
    delayed_profile_of,
    profile_of,
    two_phase_profile_of,
)
from einmal.simulation.run import simulate
from einmal.simulation.schedule import FaultKind as F
from tests.simulation import cluster_mutants, mutants, two_phase_mutants
from tests.simulation.mutants import Mutant
from tests.simulation.where import ALONE, BOTH, FAR, NEAR, SLOW_DISK, SPIKES, Where, bursts, changed, faults, late

SEEDS_MAX: Final = 100


@dataclass(frozen=True, slots=True)
class Defect:
    """``seeds``: those that have shown it, and ``seconds``, how much of their schedules was enough; None: all."""

    mutant: Mutant
    expected: frozenset[str]
    where: Where = cluster_profile_of
    seeds: tuple[int, ...] = ()
    seconds: float | None = None

    @property
    def name(self) -> str:
        return self.mutant.__name__


class Found(NamedTuple):
    """``tried``: so many seeds were needed. ``kinds``: all kinds of anomaly that the last of them showed."""

    seed: int
    tried: int
    kinds: frozenset[str]


LOST: Final = frozenset({"lost-write", "committed-changed"})
GONE: Final = frozenset({"lost-write", "committed-changed", "stray", "unseen"})
STUCK: Final = frozenset({"undecided", "no-end"})
TORN: Final = frozenset({"G1a", "duplicate", "lost-write", "torn-transaction", "unseen", "int-poll-skip"})


def _kinds(*kinds: str) -> frozenset[str]:
    return frozenset(kinds)


JOINS: Final = bursts(
    F.CRASH,
    F.LAG,
    F.CRASH_LEADER,
    apart=1.5,
    lasts=(0.4, 1.5, 1.0),
    every=3.0,
    duration=20.0,
    workload="ledger",
    network=replace(NEAR, delay_max=0.1),
    transaction_version=2,
)
"""A follower comes back, is slow, and its leader dies."""

DAMAGED: Final = faults(
    F.DAMAGE,
    members=ALONE,
    replication_factor=1,
    min_insync_replicas=1,
    transaction_version=2,
    workload="ledger",
    duration=25.0,
)
"""A broker alone finds one of its files damaged after the other."""

BROKER: Final = (
    Defect(mutants.without_the_sequence_check, _kinds("duplicate"), profile_of, seeds=(4,)),
    Defect(
        mutants.without_fencing,
        _kinds("G1a", "lost-write", "duplicate", "torn-transaction"),
        profile_of,
        seeds=(2,),
        seconds=6.0,
    ),
    Defect(mutants.without_the_aborted_index, _kinds("G1a"), profile_of, seeds=(2,)),
    Defect(mutants.without_the_last_stable_offset, _kinds("G1a"), profile_of, seeds=(2,)),
    Defect(
        mutants.without_flushing,
        _kinds("no-end", "lost-write", "unseen"),
        changed(profile_of, flush_each=True, crash=Crash.POWER),
    ),
    Defect(mutants.without_markers, _kinds("no-end"), profile_of),
    Defect(
        mutants.without_generation_fencing,
        _kinds("duplicate", "bank-sum"),
        changed(profile_of, workload="bank", duration=25.0),
        seeds=(41, 9),
        seconds=8.0,
    ),
    Defect(
        mutants.without_waiting_for_the_commit,
        _kinds("no-end", "G1a", "lost-write"),
        changed(
            profile_of,
            flush_each=True,
            crash=Crash.POWER,
            disk=DiskFaults(sync_min=0.005, sync_max=0.05, slow_sync=0.1),
        ),
        seeds=(12,),
    ),
    Defect(mutants.without_timeouts, _kinds("no-end"), profile_of, seeds=(21,)),
    Defect(mutants.without_resending_markers, _kinds("no-end"), profile_of, seeds=(21,)),
    Defect(mutants.without_producer_state_after_a_restart, _kinds("G1a", "duplicate"), profile_of, seeds=(1,)),
    Defect(
        mutants.without_distinguishing_offline_logs,
        _kinds("uncaught"),
        changed(profile_of, flush_each=True, crash=Crash.POWER, disk=DiskFaults(sync_error=0.05)),
        seeds=(46,),
    ),
    Defect(mutants.without_what_checkpoints_promise, GONE, DAMAGED, seeds=(12,), seconds=20.0),
    Defect(mutants.without_distinguishing_damage_from_torn_tails, GONE, DAMAGED, seeds=(2,), seconds=5.0),
    Defect(mutants.without_checksums_of_identities, GONE, DAMAGED, seeds=(2,), seconds=5.0),
)
"""Of a broker alone."""

REPLICATION: Final = (
    Defect(cluster_mutants.without_waiting_for_the_isr, LOST, seeds=(2,), seconds=5.0),
    Defect(
        cluster_mutants.without_min_insync_replicas,
        LOST,
        faults(F.CRASH_LEADER, F.CRASH_SEVERAL, F.CRASH, transaction_version=2),
    ),
    Defect(cluster_mutants.without_leader_epochs_in_truncation, LOST, seeds=(1,)),
    Defect(cluster_mutants.without_truncation, _kinds("replicas-differ", "committed-changed"), seeds=(4,)),
    Defect(cluster_mutants.without_failing_who_waits, LOST, seeds=(32, 4)),
    Defect(
        cluster_mutants.without_flushing_before_fetching_on,
        LOST,
        faults(F.CRASH_SEVERAL, F.CRASH_LEADER, members=BOTH, flush_each=True, crash=Crash.POWER, disk=SLOW_DISK),
    ),
    Defect(cluster_mutants.without_waiting_for_those_who_join, LOST, JOINS, seeds=(25, 1)),
    Defect(cluster_mutants.without_having_caught_up, LOST, JOINS, seeds=(30, 1)),
    Defect(cluster_mutants.without_producer_state_of_followers, _kinds("G1a", "duplicate"), seeds=(1,)),
    Defect(cluster_mutants.without_new_leader_epochs, _kinds("two-leaders")),
)
CONTROLLER: Final = (
    Defect(
        cluster_mutants.without_unclean_restarts,
        LOST,
        bursts(
            F.CRASH,
            F.CRASH_SEVERAL,
            F.CRASH_SEVERAL,
            apart=0.5,
            lasts=(1.0, 1.5, 1.5),
            every=4.0,
            crash=Crash.POWER,
            duration=12.0,
        ),
        seeds=(6, 8),
    ),
    Defect(
        cluster_mutants.without_asking_for_unclean_elections,
        LOST,
        faults(F.CRASH, F.CRASH_LEADER, F.CRASH_LEADER, min_insync_replicas=1),
    ),
    Defect(cluster_mutants.without_keeping_the_fenced_out, LOST, seeds=(24, 1), seconds=5.0),
    Defect(
        cluster_mutants.without_directory_ids,
        LOST,
        bursts(
            F.WIPE,
            F.CRASH_SEVERAL,
            F.CRASH_SEVERAL,
            apart=0.1,
            lasts=(0.2, 1.5, 1.5),
            every=4.0,
            duration=12.0,
        ),
        seeds=(7, 6),
    ),
    Defect(cluster_mutants.without_recording_producer_ids, TORN),
)
QUORUM: Final = (
    Defect(cluster_mutants.without_flushing_before_promising, _kinds("uncaught"), seeds=(1800876,)),
    Defect(
        cluster_mutants.without_comparing_logs_before_voting,
        _kinds("committed-changed", "two-leaders", "uncaught"),
        seeds=(7, 1),
        seconds=4.0,
    ),
    Defect(
        cluster_mutants.without_a_majority,
        _kinds("committed-changed", "uncaught"),
        bursts(
            F.REASSIGN,
            F.ELECT,
            F.CRASH_CONTROLLER,
            apart=0.02,
            lasts=(0.0, 0.0, 0.5),
            every=1.0,
            network=FAR,
        ),
        seeds=(14,),
    ),
    Defect(
        cluster_mutants.without_a_written_vote,
        _kinds("two-leaders", "committed-changed"),
        bursts(
            F.CRASH_SEVERAL,
            F.CRASH_TWICE,
            F.CRASH_TWICE,
            F.CRASH_TWICE,
            apart=0.15,
            lasts=(0.1, 0.02, 0.02, 0.02),
            every=1.5,
            members=BOTH,
            network=SPIKES,
        ),
        seeds=(79,),
    ),
    Defect(
        cluster_mutants.without_one_vote_per_epoch,
        _kinds("two-leaders", "committed-changed"),
        bursts(
            F.CRASH_SEVERAL,
            F.CRASH_SEVERAL,
            apart=0.15,
            lasts=(0.1, 0.1),
            every=1.5,
            members=BOTH,
            network=SPIKES,
        ),
        seeds=(5, 3),
    ),
)
TRANSACTIONS: Final = (
    Defect(cluster_mutants.without_markers_elsewhere, STUCK),
    Defect(
        cluster_mutants.without_waiting_for_replicas_of_decisions,
        TORN,
        faults(
            F.CRASH_COORDINATOR,
            pause_max=1.5,
            duration=15.0,
            members=BOTH,
            transaction_version=2,
            workload="ledger",
            network=replace(NEAR, delay_max=0.1),
        ),
        seeds=(69,),
    ),
    Defect(
        cluster_mutants.without_late_markers_being_known,
        TORN,
        faults(
            F.RESET,
            pause_max=20.0,
            duration=20.0,
            transaction_version=1,
            workload="ledger",
            network=late(27, share=0.5, seconds=0.4),
        ),
    ),
    Defect(
        cluster_mutants.without_verification,
        TORN,
        changed(delayed_profile_of, transaction_version=1, network=late(0, share=0.2, seconds=4.0)),
        seeds=(29, 8),
    ),
    Defect(cluster_mutants.without_loading, STUCK),
    Defect(cluster_mutants.without_waiting_for_the_load, STUCK, seeds=(7, 2)),
    Defect(cluster_mutants.without_new_epochs, TORN, delayed_profile_of, seeds=(12, 9), seconds=5.0),
    Defect(cluster_mutants.without_a_new_epoch_after_a_timeout, TORN, seeds=(8,)),
    Defect(cluster_mutants.without_fencing_the_predecessor, TORN),
    Defect(cluster_mutants.without_dropping_aborted_offsets, _kinds("lost-write")),
    Defect(cluster_mutants.without_pending_offsets, _kinds("lost-write")),
    Defect(
        cluster_mutants.without_confirmed_leadership,
        _kinds("duplicate", "bank-sum"),
        bursts(
            F.ISOLATE,
            F.RESET,
            apart=5.0,
            lasts=(6.0, 0.0),
            every=7.0,
            members=BOTH,
            workload="bank",
            duration=20.0,
            transaction_version=2,
        ),
        seeds=(4, 12),
        seconds=5.0,
    ),
    Defect(
        cluster_mutants.without_confirmed_ends,
        _kinds("duplicate", "bank-sum"),
        bursts(
            F.ISOLATE,
            F.PAUSE_CLIENT,
            F.REPLACE_CLIENT,
            apart=3.0,
            lasts=(8.0, 4.0, 4.0),
            every=8.0,
            members=BOTH,
            workload="bank",
            duration=20.0,
            transaction_version=2,
        ),
        seeds=(88,),
    ),
    Defect(
        cluster_mutants.without_generations,
        _kinds("duplicate", "bank-sum"),
        faults(F.PAUSE_CLIENT, F.REPLACE_CLIENT, members=BOTH, workload="bank", duration=25.0, transaction_version=2),
    ),
)
DISAGREES: Final = frozenset({"database-only", "topic-only"})
REPLACED: Final = bursts(
    F.REPLACE_CLIENT,
    apart=0.0,
    lasts=(0.8,),
    every=1.0,
    members=ALONE,
    replication_factor=1,
    min_insync_replicas=1,
    transaction_version=2,
    workload="dual-writes",
    duration=30.0,
)
"""Writers are paused, and resume when their successors have begun."""
TWO_PHASE: Final = (
    Defect(two_phase_mutants.without_waiting_for_the_decision, DISAGREES, two_phase_profile_of),
    Defect(two_phase_mutants.without_keeping_the_prepared, DISAGREES, two_phase_profile_of, seeds=(7,)),
    Defect(two_phase_mutants.without_a_second_pair, DISAGREES, REPLACED, seeds=(1,)),
    Defect(two_phase_mutants.without_moving_past_the_epoch_that_kept, DISAGREES, two_phase_profile_of, seeds=(10,)),
    Defect(two_phase_mutants.without_fencing_who_prepared, DISAGREES, two_phase_profile_of, seeds=(10,)),
    Defect(two_phase_mutants.without_sparing_open_transactions_from_expiry, STUCK, two_phase_profile_of),
    Defect(two_phase_mutants.without_comparing_the_state, DISAGREES, two_phase_profile_of, seeds=(2,)),
    Defect(two_phase_mutants.without_flushing_before_the_decision, DISAGREES, two_phase_profile_of, seeds=(17,)),
    Defect(two_phase_mutants.without_a_pair_for_each_transaction, DISAGREES, two_phase_profile_of, seeds=(2,)),
    Defect(two_phase_mutants.without_fencing_in_the_database, DISAGREES, two_phase_profile_of, seeds=(5,)),
)
DEFECTS: Final = (*BROKER, *REPLICATION, *CONTROLLER, *QUORUM, *TRANSACTIONS, *TWO_PHASE)


@contextmanager
def interpreted() -> Iterator[Executor]:
    """A process for hunts without machine code, whose calls among themselves no mutant could replace."""
    with pytest.MonkeyPatch.context() as patch, ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        patch.setenv(PURE, "1")
        pool.submit(is_pure).result()
        yield pool


def hunt(name: str, *, knows_seeds: bool = True) -> Found | None:
    """None: no seed has shown the defect of this name. ``knows_seeds``: those that have shown it come first."""
    assert not is_compiled(), "mutants replace Python functions: hunt in interpreted()"
    defect = next(each for each in DEFECTS if each.name == name)
    if not knows_seeds:
        defect = Defect(defect.mutant, defect.expected, defect.where)
    for tried, (seed, profile) in enumerate(_schedules(defect), start=1):
        with pytest.MonkeyPatch.context() as patch:
            defect.mutant(patch)
            kinds = _shown(profile)
        if kinds & defect.expected and not _innocent(profile):
            return Found(seed, tried, kinds)
    return None


def _schedules(defect: Defect) -> Iterator[tuple[int, Profile]]:
    for seed in defect.seeds:
        profile = defect.where(seed)
        yield seed, profile if defect.seconds is None else beginning(profile, defect.seconds)
    for seed in range(SEEDS_MAX):
        if defect.seconds is not None or seed not in defect.seeds:
            yield seed, defect.where(seed)


def beginning(profile: Profile, seconds: float) -> Profile:
    """A schedule that ends after so many seconds."""
    return replace(profile, duration=seconds, faults=tuple(fault for fault in profile.faults if fault.at < seconds))


def _shown(profile: Profile) -> frozenset[str]:
    return frozenset(anomaly.kind for anomaly in simulate(profile).anomalies)


@cache
def _innocent(profile: Profile) -> frozenset[str]:
    """What the product shows there: nothing, or the defect would be no reason."""
    return _shown(profile)


def _print_table() -> None:
    print("| without | behaviour of the mutant | seeds | shown by |")
    print("|---|---|---|---|")
    with interpreted() as pool:
        for defect in DEFECTS:
            found = pool.submit(hunt, defect.name, knows_seeds=False).result()
            what = (defect.mutant.__doc__ or "").split("\n\n")[0]
            tried, kinds = (found.tried, ", ".join(sorted(found.kinds))) if found else ("none", "")
            without = defect.name.removeprefix("without_").replace("_", " ")
            print(f"| {without} | {what} | {tried} | {kinds} |", flush=True)


if __name__ == "__main__":
    _print_table()
