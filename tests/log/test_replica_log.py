"""What leading and following ask of a log: epochs without a batch, and a log that is begun anew."""

import pytest

from einmal.log.partition_log import PartitionLog
from einmal.types import ErrorCode, LeaderEpoch, Offset
from tests.log.making import FOLDER, DyingDisk, Machine, append, batch, batches_of, done, open_log, producer

P = producer(7)
NEW_START = Offset(500)


@pytest.fixture
def machine() -> Machine:
    machine = Machine()
    machine.process().make_directory(FOLDER.parent)
    return machine


def filled(log: PartitionLog) -> PartitionLog:
    """Several segments, a checkpoint in the middle, an open transaction at the end."""
    for number in range(40):
        append(log, batch(of=P, sequence=number, value=bytes(40)), leader_epoch=LeaderEpoch(number // 20))
        if number == 20:
            log.durability.checkpoint_now()
    append(log, batch(of=producer(8), sequence=0, transactional=True), leader_epoch=LeaderEpoch(1))
    return log


def test_a_leader_knows_where_its_epoch_begins_before_it_has_written(machine: Machine) -> None:
    log = filled(open_log(machine.process()))
    log.begin_epoch(LeaderEpoch(5))
    assert log.end_offset_for_epoch(LeaderEpoch(5)) == (5, 41)
    assert log.end_offset_for_epoch(LeaderEpoch(4)) == (1, 41)
    append(log, batch(1), leader_epoch=LeaderEpoch(5))
    assert log.end_offset_for_epoch(LeaderEpoch(1)) == (1, 41)
    assert log.end_offset_for_epoch(LeaderEpoch(5)) == (5, 42)


def test_an_epoch_in_which_nothing_was_written_is_none_of_a_followers(machine: Machine) -> None:
    log = filled(open_log(machine.process()))
    log.begin_epoch(LeaderEpoch(5))
    log.forget_empty_epochs()
    assert log.epochs.latest == 1
    assert log.end_offset_for_epoch(LeaderEpoch(1)) == (1, 41)


def test_a_log_begun_anew_is_empty_and_remembers_nothing(machine: Machine) -> None:
    log = filled(open_log(machine.process()))
    log.restart_at(NEW_START)
    for _ in range(2):
        assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (500, 500, 500)
        assert (log.epochs.latest, len(log.producers), log.last_stable_offset) == (-1, 0, 500)
        log.close(clean=False)
        log = open_log(machine.process())
    result = append(log, batch(of=P, sequence=77), leader_epoch=LeaderEpoch(9))
    assert (result.error, result.base_offset) == (ErrorCode.none, 500)
    log.close(clean=False)
    assert [first for first, _last, _data in batches_of(open_log(machine.process()))] == [500]


def test_a_log_may_begin_anew_below_where_it_began(machine: Machine) -> None:
    log = filled(open_log(machine.process()))
    log.restart_at(NEW_START)
    append(log, batch(3))
    log.restart_at(Offset(7))
    log.close(clean=False)
    assert open_log(machine.process()).log_end_offset == 7


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("power", [False, True])
def test_a_crash_in_between_leaves_the_beginning_of_the_old_log_or_the_new_one(seed: int, power: bool) -> None:
    changes = 0
    while True:
        machine = Machine(seed)
        machine.process().make_directory(FOLDER.parent)
        machine.process().sync_directory(FOLDER.parent.parent)
        disk = DyingDisk(machine.process(), 10**6)
        log = filled(open_log(disk))
        done(log.durability.flush())
        before = batches_of(log)
        disk.left = changes
        try:
            log.restart_at(NEW_START)
            is_whole = True
        except OSError:
            is_whole = False
        if power:
            machine.cut_power()
        found = open_log(machine.process())
        if is_whole:
            assert (found.log_start_offset, found.log_end_offset) == (500, 500)
            break
        assert batches_of(found) == before[: len(batches_of(found))]
        assert found.log_end_offset <= 500
        changes += 1
    assert changes > 10
