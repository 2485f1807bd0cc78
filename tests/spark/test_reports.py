"""Claims about the arithmetic of a batch's report."""

from __future__ import annotations

from typing import Any

from einmal.commit_protocol.source_offsets import SourcePosition
from einmal.spark.output.reports import WRITTEN, BatchReport, lag_behind, lost_between, offsets_between
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


def test_offsets_that_were_lost_are_counted_and_not_gone_over() -> None:
    def between(first: SourcePosition, last: SourcePosition) -> tuple[int | None, int]:
        start, end = (first.to_json(),), (last.to_json(),)
        return offsets_between(start, end), lost_between(start, end)

    begin = SourcePosition(ends(t=5), {"t": "x"})
    assert between(begin, SourcePosition(ends(t=20), {"t": "x"}, starts=ends(t=12))) == (8, 7)
    assert between(begin, SourcePosition(ends(t=3), {"t": "y"}, starts=ends(t=0))) == (3, 0), "another topic"
    begin_again = SourcePosition(ends(t=9), {"t": "x"}, starts=ends(t=5))
    assert between(begin_again, begin_again) == (0, 0), "a batch without new offsets"


def test_reports_show_offsets_without_identity() -> None:
    position = SourcePosition(ends(t=5), {"t": "x"}, "c").to_json()
    report = BatchReport(
        pipeline="p", batch_id=1, outcome=WRITTEN, input=1, records=1, duration_ms=1, phases_ms={}, aborts=0,
        start=None, end=(position, "7"),
    )  # fmt: skip
    assert (report.fields()["start"], report.fields()["end"]) == (None, ({"t": {"0": 5}}, "7"))
