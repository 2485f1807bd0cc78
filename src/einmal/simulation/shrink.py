"""Makes a failing schedule short: leaves out faults, and halves what they last, while it still fails in the same way.

First what surrounds the faults is tried without (rough network, sick disks), then faults are left out in ever smaller
groups, then they are made shorter. Each try is a whole run; the number of tries is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

from einmal.simulation.disk import RELIABLE
from einmal.simulation.network import QUIET
from einmal.simulation.profile import Profile
from einmal.simulation.run import simulate
from einmal.simulation.schedule import Fault

TRIES_MAX: Final = 200
_SHORTEST: Final = 0.05
Kinds = frozenset[str]


def kinds_of(profile: Profile) -> Kinds:
    """The kinds of anomaly that a profile shows."""
    return frozenset(anomaly.kind for anomaly in simulate(profile).anomalies)


def shrink(
    profile: Profile,
    run: Callable[[Profile], Kinds] = kinds_of,
    *,
    tried: Callable[[int, Profile], None] = lambda count, profile: None,
) -> Profile:
    """The smallest profile found that shows one of the same kinds; the profile itself if it shows none."""
    expected = run(profile)
    if not expected:
        return profile
    tries = 0
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for candidate in _smaller(profile):
            if tries == TRIES_MAX:
                return profile
            tries += 1
            if run(candidate) & expected:
                profile, is_smaller = candidate, True
                tried(tries, profile)
                break
    return profile


def _smaller(profile: Profile) -> Iterator[Profile]:
    if profile.network != QUIET:
        yield replace(profile, network=QUIET)
    if profile.disk != RELIABLE:
        yield replace(profile, disk=RELIABLE)
    faults = profile.faults
    size = len(faults) // 2
    while size:
        for start in range(0, len(faults), size):
            yield replace(profile, faults=faults[:start] + faults[start + size :])
        size //= 2
    last = max((fault.at + fault.lasts for fault in faults), default=0.0)
    if last + 1.0 < profile.duration:
        yield replace(profile, duration=last + 1.0)
    for index, fault in enumerate(faults):
        if fault.lasts > _SHORTEST:
            shorter = Fault(fault.at, fault.kind, round(fault.lasts / 2, 3), fault.draw)
            yield replace(profile, faults=(*faults[:index], shorter, *faults[index + 1 :]))
