"""Pauses that double."""

from __future__ import annotations

from einmal.pauses import DoublingPauses


def test_pauses_double_up_to_the_longest_however_many_there_are() -> None:
    pauses_s = DoublingPauses(0.5, 3.0)
    assert [pauses_s.after(number) for number in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert pauses_s.after(10**6) == 3.0


def test_pauses_in_whole_milliseconds_stay_whole() -> None:
    assert [str(DoublingPauses(50, 1_000).after(number)) for number in (0, 4, 5)] == ["50", "800", "1000"]
