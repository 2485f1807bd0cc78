"""How much somebody uses, against a limit, and how long to wait for it to be within the limit again. Pure.

``WindowedRate`` is a rate over the last windows, as Kafka measures bytes, time and connections (KIP-13, KIP-124,
KIP-612); ``TokenBucket`` allows bursts and then a steady rate, as Kafka limits changes of partitions (KIP-599). Times
are arguments.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple


class Windows(NamedTuple):
    """``quota.window.num`` windows of ``quota.window.size.seconds``: the span over which a rate is measured."""

    number: int
    milliseconds: int

    @property
    def span_ms(self) -> int:
        return self.number * self.milliseconds

    @property
    def full_seconds(self) -> float:
        """Seconds of all windows but the present one, of which at least one counts."""
        return max(1, self.number - 1) * self.milliseconds / 1000


class WindowedRate:
    """Amounts per second. Idle time counts: a rate falls when nothing is recorded."""

    __slots__ = ("_samples", "_windows")

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._samples: deque[list[float]] = deque()
        """When each window began, and its amount; the oldest first."""

    def record(self, amount: float, now_ms: int) -> None:
        """A negative amount takes back what was recorded."""
        self._forget(now_ms)
        if not self._samples or now_ms - self._samples[-1][0] >= self._windows.milliseconds:
            self._samples.append([now_ms, 0.0])
        self._samples[-1][1] += amount

    def is_idle(self, now_ms: int) -> bool:
        """Whether nothing counts."""
        self._forget(now_ms)
        return not any(amount for _begun, amount in self._samples)

    def excess_ms(self, limit: float, now_ms: int) -> int:
        """How long nothing more may come, until the rate is within the limit; 0: it is.

        With a rate O over a time W and a limit T: (O - T) / T * W, as in Kafka.
        """
        self._forget(now_ms)
        if not self._samples:
            return 0
        begun_ms = self._samples[0][0]
        elapsed_ms = now_ms - begun_ms
        # A young rate is measured as if the windows before it were empty, so that a burst is not taken for a rate.
        missing = max(0, self._windows.number - 1 - elapsed_ms // self._windows.milliseconds)
        span_ms = max(elapsed_ms + missing * self._windows.milliseconds, self._windows.milliseconds)
        observed = sum(amount for _begun, amount in self._samples) * 1000 / span_ms
        return round((observed - limit) / limit * span_ms) if observed > limit else 0

    def _forget(self, now_ms: int) -> None:
        while self._samples and now_ms - self._samples[0][0] >= self._windows.span_ms:
            self._samples.popleft()


class TokenBucket:
    """``rate`` tokens a second come in, up to what all windows together hold. It may be overdrawn."""

    __slots__ = ("_filled_ms", "_tokens", "_windows")

    def __init__(self, windows: Windows, rate: float, now_ms: int) -> None:
        self._windows = windows
        self._tokens = self._burst(rate)
        self._filled_ms = now_ms

    def take(self, count: float, rate: float, now_ms: int) -> None:
        self._fill(rate, now_ms)
        self._tokens -= count

    def overdrawn_ms(self, rate: float, now_ms: int) -> int:
        """How long until it is not overdrawn any more; 0: it is not."""
        self._fill(rate, now_ms)
        return max(0, round(-self._tokens / rate * 1000))

    def _burst(self, rate: float) -> float:
        return rate * self._windows.span_ms / 1000

    def _fill(self, rate: float, now_ms: int) -> None:
        self._tokens = min(self._burst(rate), self._tokens + rate * (now_ms - self._filled_ms) / 1000)
        self._filled_ms = now_ms
