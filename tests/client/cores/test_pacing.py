"""Claims about retries: their pauses, whatever the settings are."""

from __future__ import annotations

import random

import pytest

from einmal.client.aio.network.backoff import Backoff
from einmal.client.cores.pacing import first_pause_ms, pause_ms


def test_pauses_begin_with_a_tenth_and_grow_up_to_the_longest() -> None:
    pauses = [pause_ms(number, first_pause_ms(100), 1_000) for number in range(20)]
    assert pauses[:3] == [10, 15, 22]
    assert pauses == sorted(pauses)
    assert pauses[-1] == 1_000


@pytest.mark.parametrize(("backoff_ms", "longest_ms"), [(0, 0), (0, 1_000), (1, 0), (9, 1), (2**63 - 1, 2**63 - 1)])
def test_no_retry_follows_at_once(backoff_ms: int, longest_ms: int) -> None:
    """With retry.backoff.ms=0 a client that reached nobody took all of a CPU."""
    backoff = Backoff(random.Random(1), first_pause_ms(backoff_ms), longest_ms)
    assert all(backoff.next_ms() >= 1 for _ in range(200))
