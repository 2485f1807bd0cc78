"""What tasks read for the dead letters of rejected rows: their records, once each, and no others' by far."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from einmal.options.source import source_options
from einmal.pipeline.dead_letters import RejectedRow
from einmal.schemas.settings import ErrorSettings
from einmal.spark.sinks.kafka.sink import KafkaFrameSink
from einmal.spark.sinks.rejected_letters import RejectedLetters, RejectingSink

CLIENT = {"bootstrap.servers": "127.0.0.1:1"}
OPTIONS = source_options({"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "in"}, streaming=True)
SINK = RejectingSink("loading", ErrorSettings(tolerates=True, topic="bad"), "a.Sink")
LETTERS = RejectedLetters(sink=KafkaFrameSink(CLIENT), name="loading/rejected", sources={1: OPTIONS}, sinks={0: SINK})
END = ({"other": {"0": 10}}, {"in": {"0": 100_000, "1": 50}})

positions = st.tuples(st.sampled_from(["in", "other"]), st.integers(0, 2), st.integers(-1, 120_000))


@given(st.sets(positions, max_size=60))
def test_every_record_is_in_one_task_and_read_only_where_a_source_has_it(rejected: set[tuple[str, int, int]]) -> None:
    rows = [RejectedRow(*position, "x.bad", "") for position in rejected]
    tasks = LETTERS._tasks(END, LETTERS._rejected({0: rows}))
    made = Counter(letter.row for task in tasks for letter in task.letters)
    assert made == Counter(rows)
    for task in tasks:
        ranges = () if task.piece is None else task.piece.ranges
        for letter in task.letters:
            (place, offset) = letter.position
            is_here = place.topic == "in" and 0 <= offset < END[1]["in"].get(str(place.partition), 0)
            inside = [each for each in ranges if each.topic_partition == place and each.start <= offset < each.end]
            assert len(inside) == is_here
        for each in ranges:
            assert 0 <= each.start < each.end <= END[1]["in"][str(each.topic_partition.partition)]


def test_records_that_are_far_apart_are_read_apart_by_few_tasks() -> None:
    rows = [RejectedRow("in", 0, offset, "x.bad", "") for offset in range(0, 100_000, 5_000)]
    (task,) = LETTERS._tasks(END, LETTERS._rejected({0: rows}))
    assert task.piece is not None
    assert [(each.start, each.end) for each in task.piece.ranges] == [(row.offset, row.offset + 1) for row in rows]


def test_a_record_that_two_sinks_reject_is_read_once() -> None:
    row = RejectedRow("in", 0, 5, "x.bad", "")
    letters = LETTERS._rejected({0: [row, row]})
    (task,) = LETTERS._tasks(END, letters)
    assert len(task.letters) == 2 and task.piece is not None and len(task.piece.ranges) == 1
