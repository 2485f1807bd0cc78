"""How long a test waits for what must come: a bound for what never comes, not a measurement.

A bound that suits a quiet machine fails on a busy one without any defect. So each bound is written for a quiet machine
and multiplied by how much slower this one is at the moment: what a fixed piece of work takes, with a process to start,
beside what it takes on a quiet machine. No bound is short: on a busy machine a process may stand still for ten seconds,
several times. So it is no bound for how fast something is, either: claim the order of events, or use virtual time.
"""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Final

SLOW: Final = 2.0
"""Such a machine has too little time for many processes at once."""
_QUIET_S: Final = 0.02
"""What ``_once`` takes, in seconds, on a quiet machine with a slow processor."""
_LEAST_S: Final = 90.0
"""Of each bound: whoever waits, and whoever is waited for, may stand still meanwhile."""
_LEAST: Final = 4.0
"""The load may come after the measurement: no bound is smaller than so many times itself."""
_MOST: Final = 20.0
_VALID_S: Final = 20.0

_measured = _LEAST
_measured_at = -_VALID_S


def patient(seconds: float) -> float:
    """So many seconds of a quiet machine, in seconds of this one as it is now, and never less than 90."""
    return max(_LEAST_S, seconds * _patience())


def as_slow(seconds: float) -> float:
    """How long a run takes here for what takes so many seconds on a quiet machine; never less, at most five times."""
    return seconds * _patience() / _LEAST


def _patience() -> float:
    global _measured, _measured_at  # noqa: PLW0603 - one measurement for all tests of a process.
    now = time.monotonic()
    if now - _measured_at >= _VALID_S:
        _measured = min(_MOST, max(_LEAST, _LEAST * _once() / _QUIET_S))
        _measured_at = time.monotonic()
    return _measured


def slowness() -> float:
    """How many times slower this machine is than a quiet one with a slow processor: the least of three looks."""
    return min(_once() for _ in range(3)) / _QUIET_S


def _once() -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-I", "-S", "-c", ""], check=True)
    sum(number * number for number in range(100_000))
    return time.perf_counter() - begun
