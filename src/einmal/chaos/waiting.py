"""Waiting for conditions on real processes, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable


class Stalled(Exception):
    """A system made no progress in time; the text describes its state."""


def holds_within(seconds: float, condition: Callable[[], object], *, pause_s: float = 0.1) -> bool:
    """Whether the condition holds in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(pause_s)
    return True


def wait_until(
    condition: Callable[[], object], seconds: float, state: Callable[[], str], *, pause_s: float = 0.1
) -> None:
    """Wait until the condition holds. Raises Stalled, with the ``state``."""
    if not holds_within(seconds, condition, pause_s=pause_s):
        raise Stalled(f"not within {seconds:.0f} s: {state()}")
