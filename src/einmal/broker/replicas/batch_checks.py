"""Checks of batches that take longer than the event loop may stand: one at a time, in the background.

What one check can cost is bounded by what a batch may decompress to. Large ones wait for each other, and do not hold up
those that are only too long for the event loop: two lanes, first come, first served in each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from einmal.log.admission import SECTION_BYTES_MAX
from einmal.log.disk import Disk

_LIGHT_BYTES: Final = 4 * 1024 * 1024


class BatchChecks:
    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self._lanes = ((asyncio.Lock(), _LIGHT_BYTES), (asyncio.Lock(), SECTION_BYTES_MAX))

    async def run(self, check: Callable[[int], bool]) -> None:
        """Call ``check`` with the most bytes it may decompress to, and with more when it returns False."""
        for lane, max_bytes in self._lanes:
            async with lane:
                if await self._disk.in_background(partial(check, max_bytes)):
                    return
