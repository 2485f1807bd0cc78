"""Of each key the last record stays; what readers, producers and recovery rest on stays too."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

import pytest

from einmal.log.cleaning import begin
from einmal.log.config import LogConfig
from einmal.log.errors import LogCorruption
from einmal.log.partition_log import PartitionLog
from einmal.log.producer_state import AppendOrigin
from einmal.simulation.disk import DiskFaults
from einmal.types import ErrorCode, Instant, Offset
from einmal.wire.compacted_batch import delete_horizon
from einmal.wire.compression import Compression
from tests.log.cleaning import clean, headers, keyed, pairs, visible
from tests.log.making import (
    FOLDER,
    NOW,
    START,
    DyingDisk,
    Machine,
    append,
    at,
    batches_of,
    done,
    end_transaction,
    offset_for_timestamp,
    open_log,
    producer,
)

HOUR: Final = 3_600_000
CONFIG: Final = LogConfig(
    segment_bytes=400, index_interval_bytes=100, cleanup_policy="compact", delete_retention_ms=HOUR
)
DERIVED: Final = (".index", ".timeindex", ".txnindex", ".snapshot", "leader-epoch-checkpoint", "recovery-checkpoint")


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def log(machine: Machine) -> Iterator[PartitionLog]:
    yield open_log(machine.process(), config=CONFIG)


def put(log: PartitionLog, *records: tuple[str, str | None], **options: Any) -> Offset:
    encoded = [(key.encode(), None if value is None else value.encode()) for key, value in records]
    result = append(log, keyed(*encoded, **options))
    assert result.error is ErrorCode.none
    return result.base_offset


def roll(log: PartitionLog, now: Instant = NOW) -> None:
    """Close the segment that is written: what is in it may be cleaned then."""
    append(log, keyed((b"filler", bytes(log.config.segment_bytes - 200))), now=now)
    append(log, keyed((b"filler", bytes(log.config.segment_bytes - 200))), now=now)


def contents(log: PartitionLog) -> dict[str, str | None]:
    """The last value of each key that a reader of everything ends up with."""
    return {
        (key or b"").decode(): None if value is None else value.decode()
        for _, key, value in pairs(log)
        if key != b"filler"
    }


def reopen(machine: Machine, log: PartitionLog, *, without: tuple[str, ...] = (), clean: bool = True) -> PartitionLog:
    config = log.config
    log.close(clean=clean)
    disk = machine.process()
    for name in disk.list_directory(FOLDER):
        if name.endswith(without):
            disk.remove(FOLDER / name)
    return open_log(disk, config=config)


def names(machine: Machine) -> list[str]:
    return machine.process().list_directory(FOLDER)


# --- records -------------------------------------------------------------------------------------------------------


def test_of_each_key_the_last_record_stays_at_its_offset(log: PartitionLog) -> None:
    for number in range(40):
        put(log, (f"key {number % 3}", f"value {number}"), ("always", str(number)))
    roll(log)
    before = pairs(log)
    cleaning = clean(log)
    kept = pairs(log)
    assert set(kept) <= set(before)
    below = [(key, value) for offset, key, value in kept if offset < cleaning.end and key != b"filler"]
    assert sorted(below) == [
        (b"always", b"39"),
        (b"key 0", b"value 39"),
        (b"key 1", b"value 37"),
        (b"key 2", b"value 38"),
    ]
    assert log.cleaned_offset == cleaning.end
    assert log.log_start_offset == 0


def test_a_second_cleaning_changes_nothing_and_a_later_one_resumes_there(log: PartitionLog) -> None:
    for number in range(20):
        put(log, ("key", str(number)), ("other", str(number)))
    roll(log)
    clean(log)
    once = batches_of(log)
    assert not log.cleanable(NOW).dirty_bytes
    clean(log)
    assert batches_of(log) == once
    put(log, ("key", "new"))
    roll(log)
    assert log.cleanable(NOW).dirty_bytes
    clean(log)
    assert contents(log) == {"key": "new", "other": "19"}
    assert [key for _, key, _ in pairs(log)].count(b"key") == 1


def test_the_segment_that_is_written_is_never_cleaned(log: PartitionLog) -> None:
    put(log, ("key", "1"))
    put(log, ("key", "2"))
    clean(log)
    assert [value for _, _, value in pairs(log)] == [b"1", b"2"]


def test_small_segments_are_merged_and_each_ends_where_the_next_begins(machine: Machine, log: PartitionLog) -> None:
    for number in range(200):
        put(log, (f"key {number % 30}", "x" * 20))
    roll(log)
    segments = len(log.segments.in_order)
    clean(log)
    ends = [segment.end_offset for segment in log.segments.in_order[:-1]]
    assert ends == [segment.base_offset for segment in log.segments.in_order[1:]]
    assert len(log.segments.in_order) < segments / 3
    assert all(segment.size <= CONFIG.segment_bytes for segment in log.segments.in_order)
    log.close()
    assert not [name for name in names(machine) if name.endswith((".cleaned", ".swap", ".deleted"))]


def test_a_batch_of_which_nothing_goes_stays_as_it_is_byte_for_byte(log: PartitionLog) -> None:
    for number in range(12):
        put(log, (f"a {number}", "x" * 30), (f"b {number % 2}", "y" * 30), compression=Compression.GZIP)
    roll(log)
    before = {base: data for base, _, data in batches_of(log)}
    clean(log)
    after = batches_of(log)
    whole = [base for base, _, data in after if before[base] == data]
    changed = [header for header in headers(log) if header.base_offset not in whole]
    assert len(whole) >= 2
    assert changed
    assert {header.compression for header in changed} == {Compression.GZIP}
    assert all(header.last_offset_delta == 1 and header.record_count == 1 for header in changed)


def test_records_without_a_key_go(log: PartitionLog) -> None:
    log.config = replace(CONFIG, cleanup_policy="delete")
    append(log, keyed((None, b"means nothing"), (b"key", b"value")))
    log.config = CONFIG
    roll(log)
    clean(log)
    assert (1, b"key", b"value") in pairs(log)
    assert None not in [key for _, key, _ in pairs(log)]


def test_what_does_not_fit_into_the_map_is_cleaned_by_the_next_round(log: PartitionLog) -> None:
    for number in range(60):
        put(log, (f"key {number % 20}", str(number)))
    roll(log)
    whole = log.cleanable(NOW).end
    ends = []
    while log.cleanable(NOW).dirty_bytes:
        ends.append(clean(log, map_bytes=1000).end)
    assert len(ends) > 2
    assert ends == sorted(set(ends))
    assert ends[-1] == whole
    assert contents(log) == {f"key {number % 20}": str(number) for number in range(40, 60)}
    assert len([key for offset, key, _ in pairs(log) if offset < whole and key != b"filler"]) == 20


def test_what_is_younger_than_the_lag_stays(log: PartitionLog) -> None:
    log.config = replace(CONFIG, min_compaction_lag_ms=HOUR)
    put(log, ("key", "1"), timestamp=START)
    put(log, ("key", "2"), timestamp=START)
    roll(log)
    put(log, ("key", "3"), timestamp=START + HOUR)
    put(log, ("key", "4"), timestamp=START + HOUR)
    roll(log)
    assert log.cleanable(NOW).dirty_bytes == 0
    clean(log, at(HOUR + 1))
    assert [value for _, key, value in pairs(log) if key == b"key"] == [b"2", b"3", b"4"]


def test_a_log_is_due_when_dirty_enough_or_dirty_for_long_enough(log: PartitionLog) -> None:
    for number in range(40):
        put(log, (f"key {number}", "x" * 50))
    roll(log)
    assert log.cleanable(NOW).is_due(log.config)
    clean(log)
    put(log, ("key 1", "y"), timestamp=START)
    roll(log)
    found = log.cleanable(NOW)
    assert 0 < found.dirty_ratio < 0.5
    assert not found.is_due(log.config)
    assert found.is_due(replace(CONFIG, min_cleanable_dirty_ratio=0.01))
    log.config = replace(CONFIG, max_compaction_lag_ms=HOUR)
    assert not log.cleanable(at(HOUR)).is_due(log.config)
    assert log.cleanable(at(HOUR + 1)).is_due(log.config)


# --- tombstones ----------------------------------------------------------------------------------------------------


def test_a_tombstone_stays_until_its_horizon_and_takes_the_values_before_it_along(log: PartitionLog) -> None:
    put(log, ("gone", "1"), ("kept", "1"))
    put(log, ("gone", None), ("other", "1"))
    roll(log)
    clean(log)
    assert contents(log) == {"gone": None, "kept": "1", "other": "1"}
    (header,) = [header for header in headers(log) if delete_horizon(header) is not None]
    assert delete_horizon(header) == START + HOUR
    roll(log)
    clean(log, at(HOUR - 1))
    assert contents(log)["gone"] is None
    assert [delete_horizon(each) for each in headers(log) if each.base_offset == header.base_offset] == [START + HOUR]
    roll(log)
    clean(log, at(HOUR))
    assert contents(log) == {"kept": "1", "other": "1"}


def test_a_tombstone_that_is_to_stay_for_ever_stays(machine: Machine) -> None:
    log = open_log(machine.process(), config=replace(CONFIG, delete_retention_ms=2**63 - 1))
    put(log, ("gone", "1"), ("kept", "1"))
    put(log, ("gone", None))
    roll(log)
    clean(log)
    roll(log)
    clean(log, at(1_000 * HOUR))
    assert contents(log) == {"gone": None, "kept": "1"}


def test_timestamps_stay_when_a_batch_gets_a_horizon(log: PartitionLog) -> None:
    put(log, ("a", None), ("b", "1"), timestamp=START + 5)
    roll(log)
    clean(log)
    found = [(record.key, record.timestamp) for record in visible(log) if record.key != b"filler"]
    assert found == [(b"a", START + 5), (b"b", START + 6)]
    result = offset_for_timestamp(log, START + 6)
    assert result is not None
    assert (result.offset, result.timestamp) == (1, START + 6)


def test_a_tombstone_is_superseded_as_any_record(log: PartitionLog) -> None:
    put(log, ("key", None))
    put(log, ("key", "again"))
    roll(log)
    clean(log)
    assert [value for _, key, value in pairs(log) if key == b"key"] == [b"again"]


# --- transactions --------------------------------------------------------------------------------------------------


def test_aborted_records_go_and_do_not_supersede(machine: Machine, log: PartitionLog) -> None:
    put(log, ("key", "committed"))
    put(log, ("key", "aborted"), of=producer(1), sequence=0, transactional=True)
    put(log, ("key", "aborted too"), of=producer(1), sequence=1, transactional=True)
    end_transaction(log, producer(1), committed=False)
    roll(log)
    clean(log)
    assert contents(log) == {"key": "committed"}
    # A reader that has fetched them before may still need the marker.
    assert log.segments.aborted_transactions(Offset(0), log.log_end_offset) == [(1, 1)]
    assert b"aborted" not in b"".join(data for _, _, data in batches_of(log))
    log = reopen(machine, log, without=DERIVED, clean=False)
    assert contents(log) == {"key": "committed"}


def test_nothing_is_cleaned_beyond_the_first_undecided_transaction(log: PartitionLog) -> None:
    put(log, ("key", "1"))
    put(log, ("key", "2"))
    roll(log)
    undecided = put(log, ("key", "3"), of=producer(1), sequence=0, transactional=True)
    roll(log)
    clean(log)
    assert log.cleaned_offset <= undecided
    assert log.last_stable_offset == undecided
    assert [value for _, key, value in pairs(log) if key == b"key"] == [b"2"]
    end_transaction(log, producer(1), committed=True)
    clean(log)
    assert log.cleaned_offset > undecided
    assert contents(log) == {"key": "3"}


def test_nothing_is_cleaned_above_the_high_watermark(machine: Machine) -> None:
    log = open_log(machine.process(), config=CONFIG)
    put(log, ("key", "1"))
    roll(log)
    high_watermark = log.high_watermark
    for value in (b"2", b"3"):
        for _ in range(10):
            log.append(keyed((b"key", value)), leader_epoch=log.epochs.latest, now=NOW, origin=AppendOrigin.CLIENT)
    clean(log)
    assert log.cleaned_offset <= high_watermark


@pytest.mark.parametrize("committed", [True, False])
def test_a_marker_outlives_its_transaction_by_a_horizon(machine: Machine, log: PartitionLog, committed: bool) -> None:
    def markers() -> list[int | None]:
        return [delete_horizon(header) for header in headers(log) if header.is_control]

    def round_at(milliseconds: int) -> None:
        nonlocal log
        roll(log)
        clean(log, at(milliseconds))
        log = reopen(machine, log, without=(".index", ".txnindex"))

    put(log, ("key", "in a transaction"), of=producer(1), sequence=0, transactional=True)
    end_transaction(log, producer(1), committed=committed)
    # The producer continues elsewhere, so that nothing of this has to stay for its sake.
    put(log, ("filler", "x"), of=producer(1, 1), sequence=0)
    put(log, ("key", "later"))
    round_at(0)
    assert markers() == [None]
    round_at(1)
    assert markers() == [START + 1 + HOUR]
    assert not log.segments.aborted_transactions(Offset(0), log.log_end_offset)
    round_at(HOUR)
    assert markers() == [START + 1 + HOUR]
    round_at(HOUR + 1)
    assert markers() == []
    assert contents(log) == {"key": "later"}


# --- producers -----------------------------------------------------------------------------------------------------


def known(log: PartitionLog) -> dict[int, tuple[int, int, int]]:
    return {
        each.producer_id: (each.producer_epoch, each.last_sequence, each.current_txn_start_offset)
        for each in log.producers.describe()
    }


@pytest.mark.parametrize("without", [(), (".snapshot",), DERIVED])
def test_a_retry_is_recognised_although_its_record_was_superseded(
    machine: Machine, log: PartitionLog, without: tuple[str, ...]
) -> None:
    for sequence in range(8):
        put(log, ("key", str(sequence)), of=producer(1), sequence=sequence)
    offset = log.log_end_offset - 1
    put(log, ("key", "of another"), of=producer(2), sequence=0)
    roll(log)
    before = known(log)
    clean(log)
    (left,) = [header for header in headers(log) if header.producer_id == 1]
    assert (left.record_count, left.base_sequence, left.base_offset) == (0, 7, offset)
    log = reopen(machine, log, without=without, clean=False)
    assert known(log) == before
    again = append(log, keyed((b"key", b"7"), of=producer(1), sequence=7))
    assert (again.is_duplicate, again.base_offset) == (True, offset)
    gap = append(log, keyed((b"key", b"9"), of=producer(1), sequence=9))
    assert gap.error is ErrorCode.out_of_order_sequence_number


def test_the_epoch_of_a_producer_outlives_everything_that_it_has_written(machine: Machine, log: PartitionLog) -> None:
    put(log, ("key", "1"), of=producer(1, 4), sequence=0, transactional=True)
    end_transaction(log, producer(1, 5), committed=True)
    put(log, ("key", "2"))
    for hours in range(4):
        roll(log)
        clean(log, at(hours * HOUR))
    log = reopen(machine, log, without=DERIVED, clean=False)
    assert known(log) == {1: (5, -1, -1)}
    zombie = append(log, keyed((b"key", b"x"), of=producer(1, 4), sequence=1))
    assert zombie.error is ErrorCode.invalid_producer_epoch


def test_no_snapshot_brings_a_transaction_back_whose_marker_is_gone(machine: Machine, log: PartitionLog) -> None:
    put(log, ("key", "1"), of=producer(1), sequence=0, transactional=True)
    # So much that stays that the first segment is full, and the next one begins where a snapshot was taken.
    for number in range(3):
        put(log, (f"kept {number}", "x" * 60))
    log.durability.checkpoint_now()
    end_transaction(log, producer(1), committed=True)
    put(log, ("key", "2"), of=producer(1, 1), sequence=0)
    for hours in range(4):
        roll(log)
        clean(log, at(hours * HOUR))
    assert not [header for header in headers(log) if header.is_control]
    newest = sorted(name for name in log.segments.disk.list_directory(FOLDER) if name.endswith(".snapshot"))[1:]
    log = reopen(machine, log, without=tuple(newest), clean=False)
    assert log.last_stable_offset == log.log_end_offset


# --- beside everything else ----------------------------------------------------------------------------------------


def test_a_reader_in_the_middle_continues_across_a_swap(log: PartitionLog) -> None:
    for number in range(100):
        put(log, (f"key {number % 7}", str(number)))
    roll(log)
    for start in range(0, log.log_end_offset, 9):
        before = {base: data for base, _, data in batches_of(log)}
        first = log.read(Offset(start), 300, below=log.log_end_offset)
        assert first
        if start == 45:
            clean(log)
        rest = [last for base, last, _ in batches_of(log) if last >= start]
        assert rest == sorted(rest)
        data = log.read(Offset(start), 300, below=log.log_end_offset)
        assert data
        for header in headers(log):
            assert header.base_offset in before


def test_an_offset_in_a_gap_is_read_from_the_next_record_on(log: PartitionLog) -> None:
    for number in range(30):
        put(log, ("key", str(number)))
    roll(log)
    clean(log)
    left = headers(log)
    assert left[0].base_offset > 3
    for offset in range(log.log_end_offset):
        data = log.read(Offset(offset), 1, below=log.log_end_offset)
        following = next(header for header in left if header.last_offset >= offset)
        assert data == {base: each for base, _, each in batches_of(log)}[following.base_offset]
    assert log.read(Offset(0), 10_000, below=left[0].base_offset) == b""


def test_a_truncation_makes_a_round_void_and_the_log_dirty_from_there(machine: Machine, log: PartitionLog) -> None:
    for number in range(60):
        put(log, (f"key {number % 3}", str(number)))
    roll(log)
    clean(log)
    cleaned = log.cleaned_offset
    for number in range(60):
        put(log, (f"key {number % 3}", str(number)))
    roll(log)
    cleaning = begin(log, NOW, 10**6)
    list(cleaning.map_keys())
    rewriting = cleaning.rewrite()
    first = next(each for each in rewriting if each is not None)
    log.truncate_to(Offset(cleaned - 1))
    assert cleaning.is_void
    assert not done(log.durability.swap(cleaning, first))
    cleaning.discard()
    assert log.cleaned_offset <= cleaned - 1
    log = reopen(machine, log, clean=False)
    assert log.cleaned_offset <= cleaned - 1
    assert not [name for name in names(machine) if name.endswith((".cleaned", ".swap"))]


def test_retention_in_the_middle_of_a_round_makes_its_segments_void(log: PartitionLog) -> None:
    log.config = replace(CONFIG, cleanup_policy="compact,delete", retention_ms=HOUR)
    for number in range(60):
        put(log, (f"key {number % 3}", str(number)))
    roll(log)
    cleaning = begin(log, NOW, 10**6)
    list(cleaning.map_keys())
    first = next(each for each in cleaning.rewrite() if each is not None)
    assert log.retain(at(3 * HOUR))
    assert cleaning.is_void
    assert not done(log.durability.swap(cleaning, first))
    cleaning.discard()
    put(log, ("key", "after"))
    assert contents(log) == {"key": "after"}


def test_with_both_policies_old_segments_go_and_the_others_are_cleaned(machine: Machine, log: PartitionLog) -> None:
    log.config = replace(CONFIG, cleanup_policy="compact,delete", retention_ms=10 * HOUR)
    for number in range(30):
        put(log, (f"old {number % 15}", str(number)), timestamp=START - 9 * HOUR)
    for number in range(30):
        put(log, (f"key {number % 3}", str(number)), timestamp=START)
    roll(log)
    clean(log)
    assert len(contents(log)) == 18
    assert log.retain(at(2 * HOUR))
    assert log.log_start_offset > 15
    log = reopen(machine, log)
    assert {"key 0": "27", "key 1": "28", "key 2": "29"}.items() <= contents(log).items()


def test_a_cleaned_topic_may_become_one_that_is_not(machine: Machine, log: PartitionLog) -> None:
    for number in range(60):
        put(log, ("key", str(number)))
    roll(log)
    clean(log)
    before = batches_of(log)
    log.config = replace(CONFIG, cleanup_policy="delete")
    log = reopen(machine, log, without=("recovery-checkpoint",), clean=False)
    assert batches_of(log) == before


def test_a_search_by_time_steps_over_what_is_gone(log: PartitionLog) -> None:
    for number in range(60):
        put(log, ("key" if number % 10 else f"kept {number}", "x"), timestamp=START + number * 10)
    roll(log)
    clean(log)
    for wanted in range(0, 500, 7):
        found = offset_for_timestamp(log, START + wanted)
        expected = min(record.offset for record in visible(log) if record.timestamp >= START + wanted)
        assert found is not None
        assert found.offset == expected


def test_a_damaged_segment_is_reported_and_not_cleaned(machine: Machine, log: PartitionLog) -> None:
    for number in range(60):
        put(log, ("key", str(number)))
    roll(log)
    log.close()
    disk = machine.process()
    path = FOLDER / names(machine)[0].replace(names(machine)[0], f"{0:020d}.log")
    disk = machine.process()
    data = bytearray(disk.read_file(path))
    data[200] ^= 1
    log = open_log(disk, config=CONFIG)
    disk.write_file(path, data)
    cleaning = begin(log, NOW, 10**6)
    with pytest.raises(LogCorruption):
        list(cleaning.map_keys())


# --- crashes ---------------------------------------------------------------------------------------------------------


def test_a_new_segment_that_could_not_be_flushed_is_not_used_and_not_written_again() -> None:
    for seed in range(20):
        machine = Machine(seed)
        disk = machine.process()
        disk.make_directory(FOLDER.parent)
        disk.sync_directory(FOLDER.parent.parent)
        log = open_log(disk, config=CONFIG)
        put(log, ("alive", "in the first segment"))
        fill(log)
        done(log.durability.flush())
        expected = contents(log)
        cleaning = begin(log, NOW, 10**6)
        list(cleaning.map_keys())
        rewriting = cleaning.rewrite()
        machine.disk.faults = DiskFaults(sync_error=1.0)
        with pytest.raises(OSError, match="input/output error"):
            list(rewriting)
        machine.disk.faults = DiskFaults()
        if seed % 2:
            cleaning.discard()
        assert not log.is_offline
        clean(log)
        assert contents(log) == expected
        machine.cut_power()
        log = open_log(machine.process(), config=CONFIG)
        assert contents(log) == expected


def fill(log: PartitionLog) -> None:
    sequence = 0
    for number in range(22):
        put(log, (f"key {number % 5}", str(number)))
        if number % 3 == 0:
            put(log, (f"txn {number % 4}", str(number)), of=producer(1), sequence=sequence, transactional=True)
            sequence += 1
        if number % 9 == 0:
            end_transaction(log, producer(1), committed=number % 2 == 0)
        if number % 7 == 0:
            put(log, (f"key {number % 5}", None))
    end_transaction(log, producer(1), committed=True)
    roll(log)


@pytest.mark.parametrize("power", [True, False])
@pytest.mark.parametrize("lost", [(), pytest.param(("recovery-checkpoint",), marks=pytest.mark.long), DERIVED])
@pytest.mark.representatives(1)
def test_a_crash_at_any_change_of_the_disk_leaves_every_key_its_last_value(power: bool, lost: tuple[str, ...]) -> None:
    """Where the checkpoint is lost as well, only a kill: then nobody knows how far the log had been flushed."""
    if power and lost:
        pytest.skip("two faults at a time")
    for changes in range(400):
        machine = Machine(changes)
        machine.process().make_directory(FOLDER)
        machine.process().sync_directory(FOLDER.parent.parent)
        machine.process().sync_directory(FOLDER.parent)
        disk = DyingDisk(machine.process(), 10**6)
        log = open_log(disk, config=CONFIG)
        fill(log)
        done(log.durability.flush())
        expected, producers, end = contents(log), known(log), log.log_end_offset
        disk.left = changes
        has_died = False
        try:
            clean(log)
        except OSError:
            has_died = True
        if power:
            machine.cut_power()
        after = machine.process()
        for name in after.list_directory(FOLDER):
            if name.endswith(lost or "nothing"):
                after.remove(FOLDER / name)
        log = open_log(after, config=CONFIG)
        assert contents(log) == expected
        assert known(log) == producers
        assert log.log_end_offset == end
        offsets = [offset for offset, _, _ in pairs(log)]
        assert offsets == sorted(set(offsets))
        left = [name for name in names(machine) if name.endswith((".cleaned", ".swap", ".deleted"))]
        assert not left
        log = open_log(machine.process(), config=CONFIG)
        clean(log)
        assert contents(log) == expected
        if not has_died:
            assert changes > 10
            return
    pytest.fail("it never got through")
