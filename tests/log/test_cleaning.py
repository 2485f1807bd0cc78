"""A round of compaction from beginning to end, and what becomes of it when the log changes in the middle."""

from __future__ import annotations

import asyncio

import pytest

from einmal.log.cleaning import clean
from einmal.log.compaction import CleanedSegment, Cleaning
from einmal.log.config import LogConfig
from einmal.log.errors import LogCorruption
from einmal.log.partition_log import PartitionLog
from einmal.log.segment_files import LOG
from einmal.types import Offset
from tests.log.cleaning import MAP_BYTES, keyed, pairs
from tests.log.making import FOLDER, NOW, Machine, append, open_log

COMPACTED = LogConfig(segment_bytes=400, index_interval_bytes=100, cleanup_policy="compact")
RECORDS = 60


@pytest.fixture
def machine() -> Machine:
    machine = Machine()
    machine.process().make_directory(FOLDER.parent)
    return machine


@pytest.fixture
def log(machine: Machine) -> PartitionLog:
    log = open_log(machine.process(), config=COMPACTED)
    for number in range(RECORDS):
        append(log, keyed((b"key %d" % (number % 3), b"%d" % number)))
    return log


def run(log: PartitionLog, *, slices: int = 10**6, cut_before_swap: bool = False) -> Offset | None:
    """One round of so many slices at most; the log may be cut when its first segment is to be replaced."""
    left = slices

    def may_go_on() -> bool:
        nonlocal left
        left -= 1
        return left >= 0

    async def swap(cleaning: Cleaning, cleaned: CleanedSegment) -> bool:
        if cut_before_swap:
            log.truncate_to(Offset(RECORDS - 20))
        return await log.durability.swap(cleaning, cleaned)

    return asyncio.run(clean(log, NOW, MAP_BYTES, swap=swap, may_go_on=may_go_on))


def left_over(machine: Machine) -> list[str]:
    return [name for name in machine.disk.folder(FOLDER).names if name.endswith((".cleaned", ".swap", ".deleted"))]


def test_a_round_keeps_the_last_record_of_each_key_and_moves_the_cleaned_offset(
    machine: Machine, log: PartitionLog
) -> None:
    active = log.segments.active.base_offset
    assert run(log) == active == log.cleaned_offset
    assert log.durability.checkpoint_due, "the cleaned offset is durable with the next checkpoint only"
    kept = [offset for offset, _, _ in pairs(log) if offset < active]
    assert kept == sorted(kept) and len(kept) <= 3
    assert not left_over(machine)


@pytest.mark.parametrize("slices", range(4))
def test_a_round_that_is_stopped_leaves_the_log_and_the_folder_as_they_were(
    machine: Machine, log: PartitionLog, slices: int
) -> None:
    before = pairs(log)
    assert run(log, slices=slices) is None
    assert (pairs(log), log.cleaned_offset) == (before, 0)
    assert not left_over(machine)


def test_a_round_is_void_when_the_log_is_cut_under_it(machine: Machine, log: PartitionLog) -> None:
    before = pairs(log)
    assert run(log, cut_before_swap=True) is None
    assert (pairs(log), log.cleaned_offset) == (before[: RECORDS - 20], 0)
    assert not left_over(machine)


def test_a_round_over_damaged_bytes_fails_and_replaces_nothing(machine: Machine, log: PartitionLog) -> None:
    before = log.segments.in_order[:]
    path = log.segments.in_order[0].path(LOG)
    machine.disk.inode(path).data[100] ^= 1
    with pytest.raises(LogCorruption):
        run(log)
    assert log.segments.in_order == before
    assert not left_over(machine)


def test_a_closing_log_is_not_cleaned_and_complains_of_nothing(machine: Machine, log: PartitionLog) -> None:
    machine.disk.inode(log.segments.in_order[0].path(LOG)).data[100] ^= 1
    log.durability.is_closing = True
    assert run(log) is None
