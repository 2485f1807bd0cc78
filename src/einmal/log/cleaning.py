"""A round of compaction as one awaited call: map the keys, rewrite the segments, swap each one in.

The work is cut into slices. Each runs in the background, and is followed by a rest as long as it took, so that a round
never takes more than half of a processor while requests are served. Between two slices the round may turn out to be
void: the log was truncated, or segments went. Then what was begun is removed, and the next round begins anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any, Final, TypeAlias

from einmal.event_log import EventLog
from einmal.log.compaction import CleanedSegment, Cleaning, last_batches
from einmal.log.disk import Disk
from einmal.log.partition_log import PartitionLog
from einmal.types import Instant, Offset

log = EventLog(__name__)

Swap: TypeAlias = Callable[[Cleaning, CleanedSegment], Awaitable[bool]]
_END: Final = object()


def begin(partition_log: PartitionLog, now: Instant, map_bytes_max: int) -> Cleaning:
    """A round over what is cleanable now. Raises OSError."""
    return Cleaning(
        partition_log.segments,
        partition_log.config,
        what=partition_log.cleanable(now),
        last_batches=last_batches(partition_log.producers),
        wall_ms=now.wall_ms,
        map_bytes_max=map_bytes_max,
    )


async def clean(
    partition_log: PartitionLog, now: Instant, map_bytes_max: int, *, swap: Swap, may_go_on: Callable[[], bool]
) -> Offset | None:
    """Clean what is cleanable now; returns up to where the log is clean. None: the round came to nothing.

    ``swap`` replaces the old segments by a new one; false ends the round. Raises LogCorruption, WireError or OSError
    for what cannot be read or written, unless the log was cut meanwhile: then that is why.
    """
    disk = partition_log.segments.disk
    cleaning = begin(partition_log, now, map_bytes_max)
    try:
        is_whole = await _run(disk, cleaning, swap, lambda: may_go_on() and not cleaning.is_void)
    except Exception:
        await _discard(disk, cleaning)
        if cleaning.is_void or partition_log.durability.is_closing:
            return None
        raise
    if not is_whole:
        await _discard(disk, cleaning)
        return None
    if not cleaning.is_void:
        partition_log.mark_clean(cleaning.end)
    return cleaning.end


async def _run(disk: Disk, cleaning: Cleaning, swap: Swap, may_go_on: Callable[[], bool]) -> bool:
    mapping = cleaning.map_keys()
    while await _slice(disk, mapping) is not _END:
        if not may_go_on():
            return False
    rewriting = cleaning.rewrite()
    while (cleaned := await _slice(disk, rewriting)) is not _END:
        if not may_go_on():
            return False
        if cleaned is not None and not await swap(cleaning, cleaned):
            return False
    return True


async def _slice(disk: Disk, work: Iterator[Any]) -> Any:
    """The next step, in the background, and a rest as long as it took. ``_END``: there was none."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    result = await disk.in_background(partial(next, work, _END))
    await asyncio.sleep(loop.time() - begun)
    return result


async def _discard(disk: Disk, cleaning: Cleaning) -> None:
    try:
        await disk.in_background(cleaning.discard)
    except OSError as error:
        # The folder is gone, or recovery will sweep it.
        log.debug("cleaning_remains", "cannot remove what was begun: %(error)s", error=error)
