"""What senders are refused, in the log: the first time at once, and what follows once a minute with its count."""

from __future__ import annotations

import logging
from typing import Final

from einmal.seams import Clock

log = logging.getLogger(__name__)

_INTERVAL_MS: Final = 60_000


class Refusals:
    """``kind`` in ``note`` is one of few words of ours, so that senders cannot make the table grow."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._logged_ms: dict[str, int] = {}
        self._unlogged: dict[str, int] = {}

    def note(self, kind: str, message: str, *values: object, client: str | None = None) -> None:
        now_ms = self._clock.now().monotonic_ms
        last_ms = self._logged_ms.get(kind)
        if last_ms is not None and now_ms - last_ms < _INTERVAL_MS:
            self._unlogged[kind] = self._unlogged.get(kind, 0) + 1
            return
        self._logged_ms[kind] = now_ms
        told = {"client": client, "repeated": self._unlogged.pop(kind, None)}
        log.warning(message, *values, extra={key: value for key, value in told.items() if value is not None})
