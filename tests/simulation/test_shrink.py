"""A failing schedule becomes a short one that fails in the same way."""

from __future__ import annotations

from dataclasses import replace

from einmal.simulation.disk import RELIABLE
from einmal.simulation.network import QUIET
from einmal.simulation.profile import Profile, cluster_profile_of
from einmal.simulation.schedule import Fault, FaultKind
from einmal.simulation.shrink import TRIES_MAX, shrink


def _profile(*kinds: FaultKind) -> Profile:
    faults = tuple(Fault(float(place), kind, 2.0, place) for place, kind in enumerate(kinds))
    return replace(cluster_profile_of(1), faults=faults, duration=30.0)


def test_faults_that_do_not_matter_are_left_out() -> None:
    kinds = list(FaultKind)
    profile = _profile(*kinds)

    def run(candidate: Profile) -> frozenset[str]:
        found = {fault.kind for fault in candidate.faults}
        return frozenset({"lost-write"} if {FaultKind.CRASH, FaultKind.SPLIT} <= found else ())

    short = shrink(profile, run)
    assert [fault.kind for fault in short.faults] == [FaultKind.CRASH, FaultKind.SPLIT]
    assert (short.network, short.disk) == (QUIET, RELIABLE)
    assert short.duration < profile.duration


def test_what_remains_lasts_no_longer_than_it_must() -> None:
    def run(candidate: Profile) -> frozenset[str]:
        long = [fault for fault in candidate.faults if fault.kind is FaultKind.PAUSE and fault.lasts >= 0.5]
        return frozenset({"not-live"} if long else ())

    short = shrink(_profile(FaultKind.RESET, FaultKind.PAUSE), run)
    assert [(fault.kind, fault.lasts) for fault in short.faults] == [(FaultKind.PAUSE, 0.5)]


def test_another_kind_of_failure_is_not_taken_for_the_same() -> None:
    profile = _profile(FaultKind.CRASH, FaultKind.PAUSE)

    def run(candidate: Profile) -> frozenset[str]:
        return frozenset({"lost-write"} if len(candidate.faults) == 2 else {"not-live"})

    assert len(shrink(profile, run).faults) == 2


def test_a_schedule_that_does_not_fail_stays_as_it_is() -> None:
    profile = _profile(FaultKind.CRASH)
    assert shrink(profile, lambda _: frozenset()) is profile


def test_the_number_of_tries_is_bounded() -> None:
    tries = 0

    def run(_: Profile) -> frozenset[str]:
        nonlocal tries
        tries += 1
        return frozenset({"lost-write"} if tries == 1 else ())

    shrink(_profile(*[FaultKind.CRASH] * 300), run)
    assert tries <= TRIES_MAX + 1
