"""When a broker's process looks for cyclic garbage.

Such a collection stops everything: for 0.1 to 0.2 s with a million objects, as 10,000 partitions have. CPython looks
through all objects when the young ones that survived are a quarter of the old ones, which one request of many elements
can be. Here young objects are collected as always. Those that survive are looked through once, soon after they were
made, and are set aside then (``gc.freeze``): what a collection costs depends on what was made since the last one, not
on what there is. References that are counted down free objects that were set aside like all others; cycles among them
are found when memory has grown much since all objects were looked through, else every few hours.
"""

from __future__ import annotations

import asyncio
import gc
import os
from enum import Enum
from pathlib import Path
from typing import Final

_LOOK_SECONDS: Final = 1.0
GROWN_BYTES: Final = 8 * 1024 * 1024
LOOKS_MAX: Final = 60
GROWN_MUCH_BYTES: Final = (256 * 1024 * 1024, 512 * 1024 * 1024)
"""Between these two, by as much as there was."""
LOOKS_AT_ALL_MAX: Final = 4 * 60 * 60
LOOKS_AT_ALL_BLIND: Final = 10 * 60
"""Where the system does not report what is resident."""
_NEVER: Final = 2**30
_STATM: Final = Path("/proc/self/statm")


class Collect(Enum):
    NOTHING = "nothing"
    NEW = "what was made since the last collection"
    ALL = "all"


class OldGarbage:
    """The decision, apart from time and memory."""

    def __init__(self, resident_bytes: int) -> None:
        """After a collection of all objects."""
        self._bytes_before = self._bytes_at_all = resident_bytes
        self._looks = self._looks_at_all = 0

    def collected(self, what: Collect, resident_bytes: int) -> None:
        """Note what is resident after a collection."""
        self._bytes_before = resident_bytes
        self._looks = 0
        if what is Collect.ALL:
            self._bytes_at_all = resident_bytes
            self._looks_at_all = 0

    def due(self, resident_bytes: int) -> Collect:
        """Return what to collect at one look at the memory that the process has."""
        self._looks += 1
        self._looks_at_all += 1
        # Also after a burst, whose memory was given back.
        self._bytes_at_all = min(self._bytes_at_all, resident_bytes)
        least, most = GROWN_MUCH_BYTES
        looks_max = LOOKS_AT_ALL_MAX if resident_bytes else LOOKS_AT_ALL_BLIND
        has_grown = resident_bytes - self._bytes_at_all >= min(max(least, self._bytes_at_all), most)
        if has_grown or self._looks_at_all >= looks_max:
            return Collect.ALL
        if resident_bytes - self._bytes_before >= GROWN_BYTES or self._looks >= LOOKS_MAX:
            return Collect.NEW
        return Collect.NOTHING


def collect_in_time() -> asyncio.Task[None]:
    """Set aside what there is now, and take over from CPython until the task is cancelled."""
    gc.collect()
    gc.freeze()
    young, middle, _old = gc.get_threshold()
    gc.set_threshold(young, middle, _NEVER)
    gc.enable()
    return asyncio.create_task(_collect())


async def _collect() -> None:
    old = OldGarbage(_resident_bytes())
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        what = old.due(_resident_bytes())
        if what is Collect.NOTHING:
            continue
        if what is Collect.ALL:
            gc.unfreeze()
        gc.collect()
        gc.freeze()
        old.collected(what, _resident_bytes())


def _resident_bytes() -> int:
    """0 where the system does not report it: only the time counts then."""
    try:
        return int(_STATM.read_text(encoding="utf-8").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0
