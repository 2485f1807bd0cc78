"""Claims about the arithmetic of what is told of a batch."""

from __future__ import annotations

from typing import Any

from einmal.spark.reports import lag_behind, offsets_between
from einmal.types import Offset, TopicPartition


def ends(**topics: int) -> dict[TopicPartition, Offset]:
    """One partition each."""
    return {TopicPartition(topic, 0): Offset(end) for topic, end in topics.items()}


def test_offsets_are_counted_where_every_source_has_them() -> None:
    def count(start: Any, end: Any) -> int | None:
        return offsets_between(start, end)

    assert count(({"t": {"0": 5, "1": 1}},), ({"t": {"0": 8, "1": 1, "2": 9}},)) == 3
    assert count(None, ({"t": {"0": 5}},)) is None
    assert count((7,), (8,)) is None


def test_lag_is_counted_by_topic_over_all_sources() -> None:
    reached = ({"a": {"0": 5}, "b": {"0": 2}}, {"a": {"0": 1}})
    assert lag_behind(reached, (ends(a=8, b=2), ends(a=2))) == {"a": 4, "b": 0}


def test_lag_is_not_negative_where_the_ends_were_asked_before_the_batch() -> None:
    assert lag_behind(({"a": {"0": 5, "1": 7}},), (ends(a=3),)) == {"a": 0}


def test_lag_is_not_known_before_the_first_batch_or_where_nobody_answers() -> None:
    assert lag_behind(None, (ends(a=3),)) is None
    assert lag_behind(({"a": {"0": 5}},), None) is None
