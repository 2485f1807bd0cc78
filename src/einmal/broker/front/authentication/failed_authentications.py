"""One line in the log for a failed authentication, and of each address only a few in some time: no flood of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from einmal.event_log import EventLog
from einmal.seams import Clock

log = EventLog(__name__)

LINES_MAX: Final = 5
"""Maximum number of lines about an address, in a window."""
WINDOW_MS: Final = 10_000
_ADDRESSES_MAX: Final = 1_000


@dataclass(slots=True)
class _Window:
    began_ms: int
    count: int = 0


class FailedAuthentications:
    """Log of failed authentications, of all listeners of a node."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._windows: dict[str, _Window] = {}

    def log(self, address: str, listener: str, mechanism: str, reason: str) -> None:
        now_ms = self._clock.now().monotonic_ms
        window = self._windows.get(address)
        if window is None or now_ms - window.began_ms >= WINDOW_MS:
            self._report_suppressed(address, window)
            if len(self._windows) >= _ADDRESSES_MAX:
                # The oldest; of many addresses the log's own limits remain.
                self._windows.pop(next(iter(self._windows)))
            window = self._windows[address] = _Window(now_ms)
        window.count += 1
        if window.count <= LINES_MAX:
            log.warning(
                "authentication_failed",
                "authentication failed: %(listener)s: %(mechanism)s: %(reason)s",
                listener=listener,
                mechanism=mechanism,
                reason=reason,
                client=address,
            )

    def _report_suppressed(self, address: str, window: _Window | None) -> None:
        if window is not None:
            del self._windows[address]
            if window.count > LINES_MAX:
                suppressed = window.count - LINES_MAX
                more = "%(count)d more authentications failed before"
                log.warning("authentications_failed_before", more, count=suppressed, client=address)
