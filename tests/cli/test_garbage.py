"""Old garbage is collected when memory has grown, else rarely; young garbage as always."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress

from einmal.cli.garbage import GROWN_BYTES, LOOKS_MAX, OldGarbage, collect_in_time


def test_old_garbage_is_collected_when_memory_has_grown() -> None:
    old = OldGarbage()
    old.collected(100_000_000)
    assert not old.is_due(100_000_000 + GROWN_BYTES - 1)
    assert not old.is_due(20_000_000)
    assert old.is_due(100_000_000 + GROWN_BYTES)
    old.collected(200_000_000)
    assert not old.is_due(200_000_000 + GROWN_BYTES - 1)


def test_old_garbage_is_collected_although_memory_has_not_grown() -> None:
    old = OldGarbage()
    for _ in range(2):
        old.collected(100_000_000)
        assert [old.is_due(100_000_000) for _ in range(LOOKS_MAX)] == [False] * (LOOKS_MAX - 1) + [True]


async def test_a_request_of_many_elements_does_not_look_through_all_objects() -> None:
    thresholds = gc.get_threshold()
    collecting = collect_in_time()
    try:
        before = [each["collections"] for each in gc.get_stats()]
        held = [[number] for number in range(1_000_000)]
        after = [each["collections"] for each in gc.get_stats()]
        assert len(held) == 1_000_000
        assert after[0] > before[0] and after[2] == before[2]
    finally:
        gc.unfreeze()
        gc.set_threshold(*thresholds)
        collecting.cancel()
        with suppress(asyncio.CancelledError):
            await collecting
