from __future__ import annotations

from einmal.spark.source.trigger_pace import TriggerPace


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_without_a_least_number_every_batch_begins() -> None:
    assert TriggerPace(None, 1_000, Clock()).begins(1)


def test_a_small_batch_waits_for_more_or_for_the_delay() -> None:
    clock = Clock()
    pace = TriggerPace(10, 60_000, clock)
    assert pace.begins(1)
    assert not pace.begins(9)
    assert pace.begins(10)
    clock.now += 59
    assert not pace.begins(1)
    clock.now += 1
    assert pace.begins(1)
    assert not pace.begins(1)


def test_an_idle_source_does_not_use_up_the_delay() -> None:
    clock = Clock()
    pace = TriggerPace(10, 60_000, clock)
    assert pace.begins(10)
    clock.now += 60
    assert pace.begins(0)
    assert pace.begins(1)
