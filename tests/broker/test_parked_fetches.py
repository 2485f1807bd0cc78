"""What waiting Fetches hold is bounded: the largest is answered early."""

from __future__ import annotations

import random

import pytest

from einmal.broker.resources.parked_fetches import ParkedFetches
from tests.broker.nodes import until


@pytest.mark.slow
async def test_the_largest_end_early_until_the_others_fit() -> None:
    draw = random.Random(20264)
    parked = ParkedFetches(limit=1_000_000)
    ended: list[int] = []
    held: dict[int, int] = {}
    for count in (draw.randint(1, 300) for _ in range(5_000)):
        if held and draw.random() < 0.3:
            gone = draw.choice(list(held))
            del held[gone]
            parked.remove(gone)
        expected = len(ended)
        ticket = parked.add(count, lambda count=count: ended.append(count))  # type: ignore[misc]
        held[ticket] = count
        assert parked.held <= 1_000_000
        while sum(4_000 + 700 * each for each in held.values()) > 1_000_000:
            largest = max(held, key=lambda each: (held[each], -each))
            expected += 1
            del held[largest]
        await until(lambda: len(ended) >= expected)  # noqa: B023
        assert parked.held == sum(4_000 + 700 * each for each in held.values())
    assert len(ended) > 1_000
    for ticket in held:
        parked.remove(ticket)
    assert parked.held == 0
