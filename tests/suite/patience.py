"""How long a test waits for what must come: a bound for what never comes, not a measurement.

A bound that suits a quiet machine fails on a busy one without any defect. So each bound is written for a quiet machine
and multiplied by how much slower this one is at the moment: what a fixed piece of work takes, with a process to start,
beside what it takes on a quiet machine.
"""

from __future__ import annotations

import subprocess
import sys
import time
from typing import Final

_QUIET_S: Final = 0.02
"""What ``_slowness`` measures, in seconds, on a quiet machine with a slow processor."""
_LEAST: Final = 4.0
"""The load may come after the measurement: no bound is smaller than so many times itself."""
_MOST: Final = 20.0
_VALID_S: Final = 20.0

_measured = _LEAST
_measured_at = -_VALID_S


def patient(seconds: float) -> float:
    """So many seconds of a quiet machine, in seconds of this one as it is now."""
    global _measured, _measured_at  # noqa: PLW0603 - one measurement for all tests of a process.
    now = time.monotonic()
    if now - _measured_at >= _VALID_S:
        _measured = min(_MOST, max(_LEAST, _LEAST * _slowness()))
        _measured_at = time.monotonic()
    return seconds * _measured


def _slowness() -> float:
    begun = time.perf_counter()
    subprocess.run([sys.executable, "-I", "-S", "-c", ""], check=True)
    sum(number * number for number in range(100_000))
    return (time.perf_counter() - begun) / _QUIET_S
