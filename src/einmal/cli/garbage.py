"""When a broker's process looks for cyclic garbage among all of its objects.

Such a collection stops everything: for 0.1 s with a million objects, as 10,000 partitions have. CPython begins one when
the young objects that survived are a quarter of the old ones, which one request of many elements can be. Here young
objects are collected as always, and old ones when memory has grown by that much, else every ten minutes: what garbage
can hold meanwhile is bounded by both.
"""

from __future__ import annotations

import asyncio
import gc
import os
from pathlib import Path
from typing import Final

_LOOK_SECONDS: Final = 5.0
GROWN_BYTES: Final = 64 * 1024 * 1024
LOOKS_MAX: Final = 120
_NEVER: Final = 2**30
_STATM: Final = Path("/proc/self/statm")


class OldGarbage:
    """The decision, apart from time and memory."""

    def __init__(self) -> None:
        self._bytes_before = 0
        self._looks_since = 0

    def collected(self, resident_bytes: int) -> None:
        """What is resident after a collection."""
        self._bytes_before = resident_bytes
        self._looks_since = 0

    def is_due(self, resident_bytes: int) -> bool:
        """Of one look at the memory that the process has."""
        self._looks_since += 1
        return resident_bytes - self._bytes_before >= GROWN_BYTES or self._looks_since >= LOOKS_MAX


def collect_in_time() -> asyncio.Task[None]:
    """Freeze what there is now, and take over from CPython until the task is cancelled."""
    gc.collect()
    gc.freeze()
    young, middle, _old = gc.get_threshold()
    gc.set_threshold(young, middle, _NEVER)
    gc.enable()
    return asyncio.create_task(_collect())


async def _collect() -> None:
    old = OldGarbage()
    old.collected(_resident_bytes())
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        if old.is_due(_resident_bytes()):
            gc.collect()
            old.collected(_resident_bytes())


def _resident_bytes() -> int:
    """0 where the system does not report it: only the time counts then."""
    try:
        return int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
