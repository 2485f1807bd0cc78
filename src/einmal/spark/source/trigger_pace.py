"""When a batch begins that has fewer offsets than ``minOffsetsPerTrigger``: after ``maxTriggerDelay``. Pure."""

from __future__ import annotations

from collections.abc import Callable


class TriggerPace:
    """``longest_ms``: no batch waits longer since the one before it. ``clock``: seconds that never go back."""

    def __init__(self, least: int | None, longest_ms: int, clock: Callable[[], float]) -> None:
        self._least = least
        self._longest_s = longest_ms / 1000
        self._clock = clock
        self._last: float | None = None

    def begins(self, offsets: int) -> bool:
        """Whether a batch begins now, if there are so many new offsets. The first one of a run does not wait."""
        if self._least is None or offsets == 0:
            return True
        now = self._clock()
        is_due = self._last is None or now - self._last >= self._longest_s
        if offsets < self._least and not is_due:
            return False
        self._last = now
        return True
