"""Each object is looked through once, soon after it was made; all of them when memory has grown much, else rarely."""

from __future__ import annotations

import asyncio
import gc
from contextlib import suppress

import pytest

from einmal.cli.start import garbage
from einmal.cli.start.garbage import (
    GROWN_BYTES,
    LOOKS_AT_ALL_BLIND,
    LOOKS_AT_ALL_MAX,
    LOOKS_MAX,
    Collect,
    OldGarbage,
    collect_in_time,
)
from tests.suite.patience import patient

MB = 1024 * 1024


def test_what_is_new_is_collected_when_memory_has_grown() -> None:
    old = OldGarbage(100 * MB)
    assert old.due(100 * MB + GROWN_BYTES - 1) is Collect.NOTHING
    assert old.due(20 * MB) is Collect.NOTHING
    assert old.due(100 * MB + GROWN_BYTES) is Collect.NEW
    old.collected(Collect.NEW, 200 * MB)
    assert old.due(200 * MB + GROWN_BYTES - 1) is Collect.NOTHING


def test_what_is_new_is_collected_although_memory_has_not_grown() -> None:
    old = OldGarbage(100 * MB)
    for _ in range(2):
        found = [old.due(100 * MB) for _ in range(LOOKS_MAX)]
        assert found == [Collect.NOTHING] * (LOOKS_MAX - 1) + [Collect.NEW]
        old.collected(Collect.NEW, 100 * MB)


@pytest.mark.parametrize(("before", "grown"), [(100 * MB, 256 * MB), (400 * MB, 400 * MB), (1_000 * MB, 512 * MB)])
def test_everything_is_collected_when_memory_has_grown_much(before: int, grown: int) -> None:
    old = OldGarbage(before)
    for resident in range(before, before + grown, 50 * MB):
        assert old.due(resident) is not Collect.ALL
        old.collected(Collect.NEW, resident)
    assert old.due(before + grown) is Collect.ALL
    old.collected(Collect.ALL, before + grown)
    assert old.due(before + grown) is Collect.NOTHING


def test_memory_that_was_given_back_counts_as_grown_when_it_grows_again() -> None:
    old = OldGarbage(100 * MB)
    old.collected(Collect.ALL, 2_000 * MB)
    assert old.due(300 * MB) is not Collect.ALL
    assert old.due(600 * MB) is Collect.ALL


@pytest.mark.parametrize(("resident", "looks"), [(100 * MB, LOOKS_AT_ALL_MAX), (0, LOOKS_AT_ALL_BLIND)])
def test_everything_is_collected_every_few_hours(resident: int, looks: int) -> None:
    old = OldGarbage(resident)
    found = []
    for _ in range(looks):
        found.append(old.due(resident))
        if found[-1] is not Collect.NOTHING:
            old.collected(found[-1], resident)
    assert found.count(Collect.ALL) == 1 and found[-1] is Collect.ALL


async def test_a_collection_does_not_look_through_what_an_earlier_one_has_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(garbage, "_LOOK_SECONDS", 0.001)
    thresholds = gc.get_threshold()
    collecting = collect_in_time()
    try:
        held = [[number] for number in range(1_000_000)]
        async with asyncio.timeout(patient(30)):
            # What is not set aside is what the next collection looks through.
            while len(gc.get_objects()) > 100_000:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert len(held) == 1_000_000
    finally:
        gc.set_threshold(*thresholds)
        collecting.cancel()
        with suppress(asyncio.CancelledError):
            await collecting


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
        gc.set_threshold(*thresholds)
        collecting.cancel()
        with suppress(asyncio.CancelledError):
            await collecting
