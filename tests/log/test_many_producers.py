"""Clients decide how many producers a partition knows, and how often it rolls: no step of the event loop may have to do
with all of them.

Counted are the lines that are executed, beside few producers and beside many; compiled modules execute none.
"""

from __future__ import annotations

import asyncio
import random
import struct
import sys
from collections.abc import Callable
from pathlib import Path, PurePosixPath
from types import FrameType
from typing import Any, TypeVar

import pytest

from einmal.log.config import LogConfig
from einmal.log.disk import OsDisk
from einmal.log.partition_log import PartitionLog
from einmal.log.producer_state import ProducerStates
from einmal.types import Instant, Offset
from tests.log.making import START, append, at, batch, end_transaction, header_of, open_log, producer

T = TypeVar("T")
FEW, MANY = 220, 2_020
ROLLS_SOON = LogConfig(segment_ms=1)
DAY_MS = 86_400_000


def lines_of(work: Callable[[], object]) -> int:
    """Lines of einmal that ``work`` executes in this thread."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if "einmal" not in frame.f_code.co_filename:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def known(folder: Path, producers: int) -> PartitionLog:
    """A log that knows so many producers, and has stored it."""
    log = open_log(OsDisk(), PurePosixPath(folder / f"t-{producers}"), config=LogConfig())
    for number in range(producers):
        append(log, batch(of=producer(number), sequence=0))
    log.durability.checkpoint_now()
    return log


def rolled(log: PartitionLog) -> int:
    log.config = ROLLS_SOON
    segments = len(log.segments.in_order)
    lines = lines_of(lambda: append(log, batch(timestamp=START + 10), now=at(10)))
    assert len(log.segments.in_order) == segments + 1
    return lines


def checkpointed(log: PartitionLog) -> int:
    """In this thread, not in that of the disk."""
    log.durability.marks_moved()
    stored: list[bool] = []
    lines = lines_of(lambda: stored.append(asyncio.run(log.durability.checkpoint())))
    assert stored == [True]
    return lines


def retained(log: PartitionLog) -> int:
    steps = log.expire_producers(at(2 * DAY_MS))
    lines = lines_of(lambda: log.retain(at(2 * DAY_MS)))
    while len(log.producers):
        lines = max(lines, lines_of(lambda: next(steps)))
    return lines


def marked(log: PartitionLog) -> int:
    append(log, batch(of=producer(7, 1), sequence=0, transactional=True))
    return lines_of(lambda: end_transaction(log, producer(7, 1), committed=True))


@pytest.mark.parametrize(
    "work",
    [
        lambda log: lines_of(lambda: append(log, batch(of=producer(7), sequence=1))),
        marked,
        rolled,
        checkpointed,
        retained,
        lambda log: lines_of(log.producers.held_since_ms),
    ],
    ids=["append", "marker", "roll", "checkpoint", "retention", "monitoring"],
)
def test_no_step_grows_with_the_producers(tmp_path: Path, work: Callable[[PartitionLog], int]) -> None:
    few, many = (work(known(tmp_path, producers)) for producers in (FEW, MANY))
    assert many <= 2 * few


# --- what is packed as it changes is what would be packed at once --------------------------------------------------


def entries_of(snapshot: bytes) -> dict[int, tuple[int, ...]]:
    return {fields[0]: fields for fields in struct.iter_unpack(">qhiqiqiq", snapshot[10:])}


def packed_at_once(states: ProducerStates, wall_zero: int) -> dict[int, tuple[int, ...]]:
    packed: dict[int, tuple[int, ...]] = {}
    for each in states.describe():
        entry = states.entry(each.producer_id)
        assert entry is not None
        last = entry.batches[-1] if entry.batches else None
        packed[int(each.producer_id)] = (
            each.producer_id,
            each.producer_epoch,
            each.last_sequence,
            last.last_offset if last else -1,
            last.last_offset - last.first_offset if last else 0,
            wall_zero + entry.last_seen_ms,
            each.coordinator_epoch,
            each.current_txn_start_offset,
        )
    return packed


@pytest.mark.parametrize("seed", range(4))
def test_a_picture_shows_the_moment_at_which_it_was_taken(seed: int) -> None:
    """Whatever comes after it; some hundreds of producers have more than one chunk."""
    source = random.Random(seed)
    states, now_ms = ProducerStates(), 0
    taken = []
    for end in range(3_000):
        now_ms += source.randrange(3)
        of = producer(source.randrange(700))
        action = source.random()
        entry = states.entry(of.producer_id)
        if action < 0.9:
            has_begun = entry is not None and entry.current_txn_first_offset >= 0
            sequence = 0 if entry is None else entry.last_sequence + 1
            header = header_of(batch(of=of, sequence=sequence, transactional=has_begun or source.random() < 0.1))
            states.replay_batch(header, Offset(end), Offset(end), START, at(now_ms))
        elif action < 0.98:
            states.replay_marker(
                of, committed=True, coordinator_epoch=end, offset=Offset(end), timestamp=START, now=at(now_ms)
            )
        elif action < 0.99:
            steps = states.expire(at(now_ms), 400)
            for _ in range(source.randrange(10)):
                next(steps, None)
        else:
            now = at(now_ms)
            taken.append((states.picture(), packed_at_once(states, now.wall_ms - now.monotonic_ms)))
    assert len(taken) > 10
    for picture, expected in taken:
        data = picture.encode()
        assert entries_of(data) == expected
        again = ProducerStates.decode_snapshot(data, at(now_ms), DAY_MS)
        assert entries_of(again.picture().encode()) == expected


def test_the_ages_in_a_snapshot_are_right_after_the_wall_clock_was_set() -> None:
    """As where a machine starts without the time: its producers have not been idle since 1970."""
    states = ProducerStates()
    for number in range(300):
        states.replay_batch(
            header_of(batch(of=producer(number), sequence=0)), Offset(number), Offset(number), 5, Instant(0, 10)
        )
    states.picture()
    later = Instant(START, 1_010)
    states.replay_batch(header_of(batch(of=producer(300), sequence=0)), Offset(300), Offset(300), 5, later)
    entries = entries_of(states.picture().encode())
    assert [entries[number][5] for number in (0, 299, 300)] == [START - 1_000, START - 1_000, START]
