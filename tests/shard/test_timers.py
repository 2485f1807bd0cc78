"""Claims about deadlines that move."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from einmal.shard.timers import Timers


def test_a_key_is_popped_once_and_in_the_order_of_deadlines() -> None:
    timers: Timers[str] = Timers()
    timers.watch("b", 20)
    timers.watch("a", 10)
    timers.watch("c", 10)
    assert timers.next_deadline() == 10
    assert timers.pop_due(20) == ["a", "c", "b"]
    assert timers.next_deadline() is None
    assert timers.pop_due(100) == []


def test_an_earlier_deadline_replaces_a_later_one_and_a_later_one_changes_nothing() -> None:
    timers: Timers[str] = Timers()
    timers.watch("a", 20)
    timers.watch("a", 10)
    timers.watch("a", 30)
    assert timers.pop_due(15) == ["a"]
    assert timers.pop_due(100) == []


@pytest.mark.parametrize("again", [11, 10, 0])
def test_a_key_that_is_watched_again_while_it_is_popped_is_for_the_next_time(again: int) -> None:
    timers: Timers[str] = Timers()
    timers.watch("a", 10)
    popped: list[str] = []
    for key in timers.pop_due(10):
        assert len(popped) < 10, "that would not end"
        popped.append(key)
        timers.watch(key, again)
    assert popped == ["a"]
    assert timers.next_deadline() == again


def test_deadlines_that_are_replaced_take_no_memory_until_they_would_have_come() -> None:
    """A member whose rebalance timeout is weeks, and a little less each time, left an entry with every JoinGroup."""
    timers: Timers[str] = Timers()
    timers.watch("other", 5)
    for deadline in range(2**31, 2**31 - 20_000, -1):
        timers.watch("key", deadline)
        assert len(timers._heap) < 2_000
    assert timers.pop_due(2**31) == ["other", "key"]
    assert timers.next_deadline() is None


def test_a_deadline_that_is_set_anew_counts_and_the_old_one_does_not() -> None:
    timers: Timers[str] = Timers()
    timers.set("a", 10)
    timers.set("a", 20)
    assert timers.next_deadline() == 20
    assert timers.pop_due(19) == []
    timers.set("a", 10)
    assert timers.pop_due(30) == ["a"]
    assert timers.next_deadline() is None


def test_a_dropped_key_is_not_popped_and_may_be_set_again() -> None:
    timers: Timers[str] = Timers()
    timers.set("a", 10)
    timers.drop("a")
    timers.drop("never set")
    assert (timers.next_deadline(), timers.pop_due(100)) == (None, [])
    timers.set("a", 10)
    assert timers.pop_due(10) == ["a"]


def test_deadlines_that_are_dropped_take_no_memory_until_they_would_have_come() -> None:
    timers: Timers[int] = Timers()
    for key in range(20_000):
        timers.set(key, 2**31 + key)
        timers.drop(key)
        assert len(timers._heap) < 2_000


@given(st.lists(st.tuples(st.integers(0, 3), st.none() | st.integers(0, 20)), max_size=30))
def test_a_key_is_popped_at_the_deadline_that_was_set_last(changes: list[tuple[int, int | None]]) -> None:
    timers: Timers[int] = Timers()
    deadlines: dict[int, int] = {}
    for key, deadline in changes:
        if deadline is None:
            timers.drop(key)
            deadlines.pop(key, None)
        else:
            timers.set(key, deadline)
            deadlines[key] = deadline
        assert timers.next_deadline() == min(deadlines.values(), default=None)
    assert {key: now for now in range(21) for key in timers.pop_due(now)} == deadlines


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 20)), max_size=30))
def test_no_key_is_popped_later_than_its_earliest_watch(watches: list[tuple[int, int]]) -> None:
    timers: Timers[int] = Timers()
    earliest: dict[int, int] = {}
    for key, deadline in watches:
        timers.watch(key, deadline)
        earliest[key] = min(earliest.get(key, deadline), deadline)
    popped = {key: now for now in range(21) for key in timers.pop_due(now)}
    assert popped == earliest
