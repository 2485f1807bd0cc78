import pytest
from hypothesis import given
from hypothesis import strategies as st

from einmal.commit_protocol.source_offsets import (
    PlannedRange,
    Positions,
    from_json,
    limited,
    packed,
    ranges,
    shared_max,
    to_json,
)
from einmal.types import Offset, TopicPartition


def positions(*offsets: int) -> Positions:
    return {TopicPartition("t", partition): Offset(offset) for partition, offset in enumerate(offsets)}


def test_offsets_have_the_shape_of_sparks_kafka_source() -> None:
    value = {"a": {"0": 23, "1": 5}, "b": {"0": 1}}
    assert to_json(from_json(value)) == value


def test_every_partition_gives_in_proportion_to_its_backlog() -> None:
    assert limited(positions(0, 0), positions(300, 100), 40) == positions(30, 10)


def test_a_small_backlog_beside_a_large_one_is_not_starved() -> None:
    assert limited(positions(0, 0), positions(1_000_000, 1), 10)[TopicPartition("t", 1)] == 1


def test_an_end_is_never_before_the_start() -> None:
    assert limited(positions(50), positions(20), 10) == positions(50)


def test_nothing_to_read_makes_no_tasks() -> None:
    assert ranges(positions(5, 9), positions(5, 3), 8) == []


pairs = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 10_000)), min_size=1, max_size=8)


@given(pairs, st.integers(1, 30))
def test_cut_ranges_cover_the_offsets_once_and_in_order(bounds: list[tuple[int, int]], least: int) -> None:
    start = positions(*(low for low, _ in bounds))
    end = positions(*(low + size for low, size in bounds))
    pieces = ranges(start, end, least)
    for topic_partition in start:
        mine = [piece for piece in pieces if piece.topic_partition == topic_partition]
        covered = [offset for piece in mine for offset in range(piece.start, piece.end)]
        assert covered == list(range(start[topic_partition], end[topic_partition]))


@given(pairs, st.integers(1, 10_000))
def test_small_ranges_share_a_task_and_large_ones_have_one_each(bounds: list[tuple[int, int]], task_min: int) -> None:
    start = positions(*(low for low, _ in bounds))
    end = positions(*(low + size for low, size in bounds))
    pieces = ranges(start, end, None)
    tasks = packed(pieces, task_min)
    assert [piece for task in tasks for piece in task] == pieces
    sizes = [sum(piece.end - piece.start for piece in task) for task in tasks]
    assert all(size <= task_min or len(task) == 1 for size, task in zip(sizes, tasks, strict=True))
    following = [task[0].end - task[0].start for task in tasks[1:]]
    assert all(size + next_size > task_min for size, next_size in zip(sizes, following, strict=False))


@pytest.mark.parametrize(
    ("partitions", "offsets", "tasks"),
    [(4, 250, 1), (4, 251, 2), (4, 50_000, 4), (16, 1_000, 8), (100, 1_000, 10), (2_000, 1_000, 200)],
)
def test_many_small_partitions_share_tasks(partitions: int, offsets: int, tasks: int) -> None:
    pieces = [PlannedRange(TopicPartition("t", number), Offset(0), Offset(offsets)) for number in range(partitions)]
    assert len(packed(pieces, shared_max(pieces))) == tasks


@given(pairs, st.integers(1, 5_000))
def test_batches_advance_and_end_at_the_end_offsets(bounds: list[tuple[int, int]], most: int) -> None:
    start = positions(*(low for low, _ in bounds))
    available = positions(*(low + size for low, size in bounds))
    end = limited(start, available, most)
    assert all(start[each] <= end[each] <= available[each] for each in start)
    assert start == available or end != start
    assert sum(end.values()) - sum(start.values()) <= most + len(start)
