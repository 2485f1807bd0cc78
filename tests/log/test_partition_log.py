"""What is appended can be read back, and what may not be appended is refused with Kafka's code."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar
from uuid import uuid4

import pytest

from einmal.log import checkpoint
from einmal.log.config import LOG_APPEND_TIME, LogConfig
from einmal.log.disk import Buffer, Disk, OsDisk
from einmal.log.errors import LogCorruption
from einmal.log.partition_log import PartitionLog
from einmal.log.producer_state import AppendOrigin
from einmal.log.segments import SEARCHED_AT_ONCE
from einmal.simulation.disk import DiskFaults
from einmal.types import ErrorCode, LeaderEpoch, Offset, Sequence, TransactionVersion
from einmal.wire.control_batch import encode_marker
from einmal.wire.record_batch import decode_records, iter_headers, read_header, validate
from tests.log.making import (
    EPOCH,
    FOLDER,
    NOW,
    SMALL,
    START,
    TOPIC_PARTITION,
    Machine,
    append,
    at,
    batch,
    batches_of,
    done,
    end_transaction,
    offset_for_timestamp,
    open_log,
    producer,
)

T = TypeVar("T")
LARGE = LogConfig()
P = producer(7)


@pytest.fixture
def machine() -> Machine:
    machine = Machine()
    machine.process().make_directory(FOLDER.parent)
    return machine


@pytest.fixture
def log(machine: Machine) -> Iterator[PartitionLog]:
    yield open_log(machine.process())


def filled(machine: Machine, batches: int = 40, config: LogConfig = SMALL) -> PartitionLog:
    log = open_log(machine.process(), config=config)
    for number in range(batches):
        append(log, batch(1 + number % 3, value=b"%d" % number * (number % 7), timestamp=START + 10 * number))
    return log


# --- appending and reading -----------------------------------------------------------------------------------------


def test_offsets_and_leader_epoch_are_written_into_the_batches(log: PartitionLog) -> None:
    append(log, batch(3))
    data = batch(2)
    result = append(log, data)
    assert (result.error, result.base_offset, result.last_offset) == (ErrorCode.none, 3, 4)
    header = read_header(data)
    assert (header.base_offset, header.partition_leader_epoch) == (3, EPOCH)
    validate(data, 0, header)
    assert log.read(Offset(3), 1000, below=Offset(5)) == data


def test_what_was_appended_is_read_back_over_many_segments_in_reads_of_any_size(machine: Machine) -> None:
    log = filled(machine)
    whole = batches_of(log, 100_000)
    assert [first for first, _, _ in whole] == [0, *(last + 1 for _, last, _ in whole[:-1])]
    assert len(whole) == 40
    for max_bytes in (1, 90, 150, 1000):
        assert batches_of(log, max_bytes) == whole


@pytest.mark.parametrize("max_bytes", [1, 100, 300, 1000])
def test_a_read_begins_with_the_batch_that_holds_the_offset_and_stops_below(machine: Machine, max_bytes: int) -> None:
    log = filled(machine)
    whole = batches_of(log)
    for offset in range(log.log_end_offset):
        for below in {offset + 1, offset + 5, int(log.log_end_offset)}:
            data = log.read(Offset(offset), max_bytes, below=Offset(below))
            headers = [header for _, header in iter_headers(data)]
            holding = next((first, last) for first, last, _ in whole if last >= offset)
            if holding[1] >= below:
                assert not headers
            else:
                assert headers[0].base_offset == holding[0]
                assert headers[-1].last_offset < below
                assert len(data) <= max_bytes or len(headers) == 1
                assert sum(header.size for header in headers) == len(data)


def test_bytes_are_counted_as_they_would_be_read(machine: Machine) -> None:
    log = filled(machine)
    whole = batches_of(log)
    for offset in range(log.log_end_offset):
        for below in {0, offset, offset + 1, offset + 5, int(log.log_end_offset), 2**62}:
            size = sum(len(data) for _first, last, data in whole if offset <= last < below)
            for at_most in (0, 100, 1000, 2**31 - 1):
                assert log.segments.bytes_between(Offset(offset), Offset(below), at_most) == min(size, at_most)


def test_without_min_one_a_batch_that_is_too_large_is_not_read(log: PartitionLog) -> None:
    append(log, batch(5))
    assert log.read(Offset(0), 20, below=Offset(5), min_one=False) == b""
    assert log.read(Offset(0), 20, below=Offset(5)) != b""


def test_reading_at_or_beyond_the_end_gives_nothing(log: PartitionLog) -> None:
    append(log, batch(2))
    assert log.read(Offset(2), 1000, below=Offset(9)) == b""
    assert log.read(Offset(7), 1000, below=Offset(9)) == b""


def test_one_append_of_a_coordinator_may_have_several_batches(log: PartitionLog) -> None:
    result = append(log, batch(2) + batch(3), origin=AppendOrigin.COORDINATOR)
    assert (result.base_offset, result.last_offset) == (0, 4)
    assert [(first, last) for first, last, _ in batches_of(log)] == [(0, 1), (2, 4)]


def test_replicated_batches_keep_their_offsets_and_epochs(log: PartitionLog) -> None:
    data = batch(2, base_offset=10, leader_epoch=3) + batch(1, base_offset=15, leader_epoch=4)
    result = append(log, bytearray(data), origin=AppendOrigin.REPLICATION)
    assert (result.base_offset, result.last_offset) == (10, 15)
    assert log.end_offset_for_epoch(LeaderEpoch(3)) == (3, 15)
    assert log.read(Offset(0), 1000, below=Offset(20)) == data
    repeated = append(log, batch(1, base_offset=15, leader_epoch=4), origin=AppendOrigin.REPLICATION)
    assert repeated.error is ErrorCode.offset_out_of_range


# --- what is refused (A16) -----------------------------------------------------------------------------------------


def changed(data: bytearray, position: int, change: int = 1) -> bytearray:
    data[position] ^= change
    return data


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (bytearray(), ErrorCode.invalid_record),
        (batch()[:-1], ErrorCode.invalid_record),
        (batch() + b"\x00", ErrorCode.invalid_record),
        (changed(batch(), 17), ErrorCode.corrupt_message),
        (changed(batch(), 65), ErrorCode.corrupt_message),
        (changed(batch(), 16), ErrorCode.invalid_record),
        (changed(batch(), 8, 0x80), ErrorCode.corrupt_message),
        (batch() + batch(), ErrorCode.invalid_record),
        (batch(base_offset=5), ErrorCode.invalid_record),
        (batch(of=P, sequence=-1), ErrorCode.invalid_record),
        (batch(timestamp=START + 3_700_000), ErrorCode.invalid_timestamp),
        (
            bytearray(encode_marker(7, 0, committed=True, coordinator_epoch=0, timestamp=START)),
            ErrorCode.invalid_record,
        ),
    ],
)
def test_a_bad_batch_of_a_client_is_refused_and_nothing_is_appended(
    log: PartitionLog, data: bytearray, expected: ErrorCode
) -> None:
    append(log, batch())
    result = append(log, bytearray(data))
    assert (result.error, result.base_offset) == (expected, -1)
    assert log.log_end_offset == 1
    assert append(log, batch()).base_offset == 1


def test_a_batch_above_the_limit_is_refused_for_clients_only(machine: Machine) -> None:
    log = open_log(machine.process(), config=replace(LARGE, max_message_bytes=200))
    assert append(log, batch(value=bytes(300))).error is ErrorCode.message_too_large
    assert append(log, batch(value=bytes(300)), origin=AppendOrigin.COORDINATOR).error is ErrorCode.none


def test_a_batch_larger_than_a_segment_is_refused(log: PartitionLog) -> None:
    assert append(log, batch(value=bytes(3000))).error is ErrorCode.record_list_too_large


def test_a_record_without_a_key_is_refused_on_compacted_topics_only(machine: Machine) -> None:
    log = open_log(machine.process(), config=replace(SMALL, cleanup_policy="compact,delete"))
    assert append(log, batch(key=None)).error is ErrorCode.invalid_record
    assert append(log, batch()).error is ErrorCode.none
    log.config = SMALL
    assert append(log, batch(key=None)).error is ErrorCode.none


# --- producers and transactions ------------------------------------------------------------------------------------


def test_a_duplicate_is_answered_with_the_original_and_not_appended(log: PartitionLog) -> None:
    append(log, batch(2))
    original = append(log, batch(3, of=P, sequence=0))
    again = append(log, batch(3, of=P, sequence=0))
    assert again.is_duplicate and not original.is_duplicate
    assert (again.error, again.base_offset, again.last_offset) == (ErrorCode.none, 2, 4)
    assert log.log_end_offset == 5


def test_the_last_stable_offset_stays_at_the_oldest_open_transaction(log: PartitionLog) -> None:
    append(log, batch())
    append(log, batch(2, of=P, sequence=0, transactional=True))
    append(log, batch(of=producer(8), sequence=0, transactional=True))
    append(log, batch())
    assert (log.last_stable_offset, log.high_watermark) == (1, 5)
    end_transaction(log, P, committed=True)
    assert log.last_stable_offset == 3
    end_transaction(log, producer(8), committed=True)
    assert log.last_stable_offset == log.high_watermark == 7


def test_a_decided_transaction_is_unstable_until_its_marker_is_committed(log: PartitionLog) -> None:
    append(log, batch(of=P, sequence=0, transactional=True))
    marker = log.append_marker(
        P,
        committed=True,
        coordinator_epoch=0,
        leader_epoch=EPOCH,
        now=NOW,
        transaction_version=TransactionVersion.TV_0,
    )
    assert (marker.base_offset, log.last_stable_offset) == (1, 0)
    log.advance_high_watermark(Offset(2))
    assert log.last_stable_offset == 2


def test_the_last_stable_offset_never_passes_the_high_watermark(log: PartitionLog) -> None:
    log.append(batch(3), leader_epoch=EPOCH, now=NOW)
    assert log.last_stable_offset == log.high_watermark == 0


def test_refusals_of_markers_change_nothing(log: PartitionLog) -> None:
    append(log, batch(of=producer(7, 2), sequence=0, transactional=True))
    assert end_transaction(log, producer(7, 1), committed=True).error is ErrorCode.invalid_producer_epoch
    same_epoch = end_transaction(log, producer(7, 2), committed=True, transaction_version=TransactionVersion.TV_2)
    assert same_epoch.error is ErrorCode.invalid_producer_epoch
    assert end_transaction(log, producer(7, 2), committed=True, coordinator_epoch=5).error is ErrorCode.none
    append(log, batch(of=producer(7, 2), sequence=1, transactional=True))
    old = end_transaction(log, producer(7, 2), committed=True, coordinator_epoch=4)
    assert old.error is ErrorCode.transaction_coordinator_fenced
    assert log.log_end_offset == 3


def test_a_first_batch_needs_its_guard_to_be_valid_still(log: PartitionLog) -> None:
    guard = log.producers.begin_verification(P, Sequence(0), TransactionVersion.TV_1)
    end_transaction(log, P, committed=False)
    data = batch(of=P, sequence=0, transactional=True)
    refused = log.append(data, leader_epoch=EPOCH, now=NOW, verification=guard)
    assert refused.error is ErrorCode.invalid_txn_state


def interleaved(log: PartitionLog) -> dict[str, list[int]]:
    """Two producers in turns, every third transaction aborted; the offsets of data by fate."""
    fates: dict[str, list[int]] = {"committed": [], "aborted": []}
    sequences = {7: 0, 8: 0}
    for number in range(60):
        of = producer(7 + number % 2)
        offsets = []
        for _ in range(1 + number % 3):
            result = append(log, batch(of=of, sequence=sequences[of.producer_id], transactional=True))
            sequences[of.producer_id] += 1
            offsets.append(int(result.base_offset))
        if number % 4 == 3:
            append(log, batch())
        fate = "aborted" if number % 3 == 0 else "committed"
        end_transaction(log, of, committed=fate == "committed")
        fates[fate] += offsets
    return fates


def read_committed(log: PartitionLog, start: int, max_bytes: int) -> list[int]:
    """The offsets of transactional data that a reader is left with, by Kafka's rule for readers."""
    seen: list[int] = []
    offset = Offset(start)
    while offset < log.last_stable_offset:
        data = log.read(offset, max_bytes, below=log.last_stable_offset)
        headers = [header for _, header in iter_headers(data)]
        aborted = log.segments.aborted_transactions(offset, headers[-1].next_offset)
        assert aborted == sorted(aborted, key=lambda each: each.first_offset)
        active: set[int] = set()
        for header in headers:
            while aborted and aborted[0].first_offset <= header.last_offset:
                active.add(aborted.pop(0).producer_id)
            if header.is_control:
                active.discard(header.producer_id)
            elif header.is_transactional and header.producer_id not in active:
                seen.append(header.base_offset)
        offset = headers[-1].next_offset
    return seen


@pytest.mark.parametrize("max_bytes", [1, 250, 100_000])
def test_readers_get_exactly_the_committed_records_over_rolls_and_restarts(machine: Machine, max_bytes: int) -> None:
    log = open_log(machine.process())
    fates = interleaved(log)
    assert len(log.read(Offset(0), 100_000, below=log.log_end_offset)) < log.segments.size, "several segments"
    for start in (0, 10, 55):
        expected = [offset for offset in fates["committed"] if offset >= start]
        assert read_committed(log, start, max_bytes) == expected
    for clean in (False, True):
        log.close(clean=clean)
        log = open_log(machine.process())
        assert read_committed(log, 0, max_bytes) == fates["committed"]


def test_readers_of_the_first_segment_see_an_abort_in_a_later_one(machine: Machine) -> None:
    log = open_log(machine.process())
    append(log, batch(of=P, sequence=0, transactional=True))
    for _ in range(40):
        append(log, batch(value=bytes(100)))
    end_transaction(log, P, committed=False)
    assert log.segments.aborted_transactions(Offset(0), Offset(1)) == [(7, 0)]
    assert log.segments.aborted_transactions(Offset(41), Offset(42)) == [(7, 0)]
    assert log.segments.aborted_transactions(Offset(42), Offset(43)) == []


# --- time ----------------------------------------------------------------------------------------------------------


def test_log_append_time_replaces_the_producers_timestamps(machine: Machine) -> None:
    log = open_log(machine.process(), config=replace(SMALL, timestamp_type=LOG_APPEND_TIME))
    result = append(log, batch(2, timestamp=START + 10**9), now=at(50))
    assert result.log_append_time == START + 50
    data = log.read(Offset(0), 1000, below=Offset(2))
    header = read_header(data)
    validate(data, 0, header)
    assert {record.timestamp for record in decode_records(data, 0, header)} == {START + 50}


def test_a_search_by_time_finds_the_first_record_that_is_not_older(machine: Machine) -> None:
    log = open_log(machine.process())
    timestamps = [START + (number * 37) % 500 for number in range(100)]
    for timestamp in timestamps:
        append(log, batch(timestamp=timestamp))
    for clean in (None, True, False):
        if clean is not None:
            log.close(clean=clean)
            log = open_log(machine.process())
        for wanted in range(START - 5, START + 510, 3):
            found = offset_for_timestamp(log, wanted)
            expected = next((number for number, each in enumerate(timestamps) if each >= wanted), None)
            assert (found.offset if found else None) == expected
            assert found is None or (found.timestamp, found.leader_epoch) == (timestamps[found.offset], EPOCH)
    assert log.segments.max_timestamp == max(timestamps)


def test_a_search_by_time_reads_few_batches_at_once(machine: Machine) -> None:
    """Where later batches are older the time index has no entries."""
    log = open_log(machine.process(), config=LARGE)
    append(log, batch(timestamp=START + 10))
    for _ in range(3 * SEARCHED_AT_ONCE):
        append(log, batch(timestamp=START))
    append(log, batch(timestamp=START + 20))
    places, search = [], log.search_by_time(START + 15, Offset(0))
    while isinstance(search, int):
        places.append(search)
        search = log.search_by_time(START + 15, search)
    assert search is not None and search.position is not None
    assert places == [SEARCHED_AT_ONCE * number for number in (1, 2, 3)]
    assert search.position.offset == 3 * SEARCHED_AT_ONCE + 1


def test_a_search_by_time_looks_inside_batches(log: PartitionLog) -> None:
    append(log, batch(10, timestamp=START))
    found = offset_for_timestamp(log, START + 4)
    assert found is not None and found.offset == 4


def test_an_empty_log_has_no_record_at_any_time(log: PartitionLog) -> None:
    assert offset_for_timestamp(log, 0) is None
    assert log.segments.max_timestamp == -1


# --- segments ------------------------------------------------------------------------------------------------------


def names(machine: Machine, suffix: str) -> list[str]:
    return [name for name in machine.process().list_directory(FOLDER) if name.endswith(suffix)]


def test_a_segment_is_rolled_when_the_next_batch_does_not_fit(machine: Machine) -> None:
    log = open_log(machine.process(), config=replace(LARGE, segment_bytes=500))
    for _ in range(10):
        append(log, batch(value=bytes(100)))
    log.close(clean=True)
    assert names(machine, ".log") == [f"{2 * number:020d}.log" for number in range(5)]


def test_a_segment_is_rolled_when_its_first_batch_is_too_old(machine: Machine) -> None:
    log = open_log(machine.process(), config=replace(LARGE, segment_ms=1000))
    for later in (0, 1000, 1001):
        append(log, batch(timestamp=START + later), now=at(later))
    log.close(clean=True)
    assert names(machine, ".log") == ["00000000000000000000.log", "00000000000000000002.log"]


def test_retention_deletes_old_segments_below_the_high_watermark(machine: Machine) -> None:
    log = filled(machine)
    old = batches_of(log)
    log.config = replace(SMALL, retention_ms=1000)
    assert log.retain(at(1000)) == 0
    assert log.retain(at(1000 + 300)) > 0
    start = log.log_start_offset
    assert 0 < start < log.log_end_offset
    assert batches_of(log) == [each for each in old if each[0] >= start]
    log.close(clean=True)
    log = open_log(machine.process())
    assert log.log_start_offset == start
    assert batches_of(log) == [each for each in old if each[0] >= start]


def test_retention_by_size_keeps_at_least_that_much(machine: Machine) -> None:
    log = filled(machine, 80)
    before = log.segments.size
    log.config = replace(SMALL, retention_bytes=2500)
    assert log.retain(NOW) > 0
    assert 2500 <= log.segments.size < before


def test_when_everything_is_old_a_new_empty_segment_remains(machine: Machine) -> None:
    log = filled(machine)
    end = log.log_end_offset
    log.retain(at(10**12))
    assert (log.log_start_offset, log.log_end_offset, log.segments.size) == (end, end, 0)
    assert append(log, batch()).base_offset == end
    assert len(log_names(machine)) > 1
    log.close(clean=True)
    assert len(log_names(machine)) == 1
    log = open_log(machine.process())
    assert (log.log_start_offset, log.log_end_offset) == (end, end + 1)


def log_names(machine: Machine) -> list[str]:
    return [name for name in machine.disk.folder(FOLDER).names if name.endswith(".log")]


def test_deleted_segments_stay_on_disk_until_a_checkpoint_does_not_name_them(machine: Machine) -> None:
    log = filled(machine)
    log.close(clean=True)
    log = open_log(machine.process())
    before = batches_of(log)
    log.retain(at(10**12))
    log.close(clean=False)
    log = open_log(machine.process())
    assert batches_of(log) == before
    log.retain(at(10**12))
    assert log.durability.checkpoint_due
    log.durability.checkpoint_now()
    assert len(log_names(machine)) == 1
    log.close(clean=False)
    assert batches_of(open_log(machine.process())) == []


@pytest.mark.parametrize("full", [True, False])
def test_a_checkpoint_that_a_full_disk_refuses_is_made_later(machine: Machine, full: bool) -> None:
    log = filled(machine)
    machine.disk.faults = DiskFaults(full=1.0)
    with pytest.raises(OSError, match="no space"):
        log.durability.checkpoint_now()
    machine.disk.faults = DiskFaults()
    assert not log.is_offline and log.durability.checkpoint_due
    expected = batches_of(log)
    if full:
        log.close(clean=True)
    else:
        log.close(clean=False)
    assert batches_of(open_log(machine.process())) == expected


def test_retention_leaves_what_is_not_committed(machine: Machine) -> None:
    log = open_log(machine.process())
    for _ in range(40):
        log.append(batch(value=bytes(50)), leader_epoch=EPOCH, now=NOW)
    assert log.retain(at(10**12)) == 0


def test_a_producer_whose_records_are_deleted_may_continue(machine: Machine) -> None:
    log = open_log(machine.process())
    append(log, batch(of=P, sequence=0))
    for _ in range(40):
        append(log, batch(value=bytes(50)))
    log.config = replace(SMALL, retention_bytes=0)
    log.retain(NOW)
    assert log.log_start_offset > 0
    assert append(log, batch(of=P, sequence=1)).error is ErrorCode.none


@pytest.mark.parametrize("clean", [True, False])
def test_a_retry_is_recognised_after_a_restart_although_its_data_is_gone(machine: Machine, clean: bool) -> None:
    log = open_log(machine.process())
    for _ in range(40):
        append(log, batch(value=bytes(50)))
    append(log, batch(of=P, sequence=5))
    log.config = replace(SMALL, retention_ms=1000)
    log.retain(at(5000))
    assert log.segments.size == 0
    log.durability.checkpoint_now()
    log.close(clean=clean)
    log = open_log(machine.process())
    again = append(log, batch(of=P, sequence=5))
    assert again.is_duplicate and again.base_offset == 40


def test_deleted_records_stay_deleted_after_a_restart(machine: Machine) -> None:
    log = filled(machine)
    log.delete_records_before(Offset(5))
    assert log.log_start_offset == 5 and log.durability.checkpoint_due
    log.close(clean=True)
    log = open_log(machine.process())
    assert log.log_start_offset == 5
    log.delete_records_before(log.log_end_offset)
    log.retain(NOW)
    assert log.segments.size == 0


@pytest.mark.parametrize("fraction", [0.0, 0.3, 0.6, 0.95])
def test_truncation_cuts_data_epochs_and_producers(machine: Machine, fraction: float) -> None:
    log = open_log(machine.process())
    for number in range(60):
        append(log, batch(of=P, sequence=number, value=bytes(40)), leader_epoch=LeaderEpoch(number // 20))
        if number == 30:
            log.durability.checkpoint_now()
    whole = batches_of(log)
    target = int(60 * fraction)
    log.truncate_to(Offset(target))
    assert (log.log_end_offset, log.high_watermark) == (target, target)
    assert batches_of(log) == whole[:target]
    assert log.epochs.latest == (target - 1) // 20
    assert append(log, batch(of=P, sequence=target), leader_epoch=LeaderEpoch(7)).error is ErrorCode.none
    again = append(log, batch(of=P, sequence=target))
    assert again.is_duplicate
    after = batches_of(log)
    for clean in (False, True):
        log.close(clean=clean)
        log = open_log(machine.process())
        assert batches_of(log) == after
        assert append(log, batch(of=P, sequence=target)).is_duplicate


def test_truncation_opens_a_transaction_again_whose_marker_it_cuts_off(log: PartitionLog) -> None:
    append(log, batch(of=P, sequence=0, transactional=True))
    end_transaction(log, P, committed=False)
    assert log.segments.aborted_transactions(Offset(0), Offset(1)) == [(7, 0)]
    log.truncate_to(Offset(1))
    assert log.producers.has_open_transaction(P)
    assert (log.last_stable_offset, log.segments.aborted_transactions(Offset(0), Offset(1))) == (0, [])
    end_transaction(log, P, committed=False)
    assert log.segments.aborted_transactions(Offset(0), Offset(1)) == [(7, 0)]


# --- flushing and faults -------------------------------------------------------------------------------------------


class FaultyFile:
    def __init__(self, file: Any, disk: FaultyDisk) -> None:
        self._file = file
        self._disk = disk

    def append(self, data: Buffer) -> int:
        self._disk.fail_if("append")
        return int(self._file.append(data))

    def sync(self) -> None:
        self._disk.fail_if("sync")
        self._file.sync()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class FaultyDisk:
    """A real disk on which the calls in ``failing`` fail with an error number."""

    def __init__(self) -> None:
        self._disk = OsDisk()
        self.failing: dict[str, int] = {}

    def fail_if(self, call: str) -> None:
        if call in self.failing:
            raise OSError(self.failing[call], f"{call} fails")

    def open(self, path: PurePosixPath, *, create: bool = False) -> FaultyFile:
        return FaultyFile(self._disk.open(path, create=create), self)

    async def in_background(self, work: Callable[[], T]) -> T:
        return work()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)


@pytest.fixture
def faulty() -> Any:
    return FaultyDisk()


def test_a_full_disk_refuses_appends_until_there_is_space(faulty: Any, tmp_path: Path) -> None:
    log = open_log(faulty, tmp_path / "t-0")
    append(log, batch(of=P, sequence=0))
    faulty.failing = {"append": errno.ENOSPC}
    assert append(log, batch(of=P, sequence=1)).error is ErrorCode.kafka_storage_error
    faulty.failing = {}
    assert append(log, batch(of=P, sequence=1)).base_offset == 1
    assert len(batches_of(log)) == 2


def test_another_write_error_takes_the_log_offline(faulty: Any, tmp_path: Path) -> None:
    log = open_log(faulty, tmp_path / "t-0")
    faulty.failing = {"append": errno.EIO}
    assert append(log, batch()).error is ErrorCode.kafka_storage_error
    faulty.failing = {}
    assert log.is_offline
    assert append(log, batch()).error is ErrorCode.kafka_storage_error
    assert end_transaction(log, P, committed=True).error is ErrorCode.kafka_storage_error


def test_a_failed_flush_is_never_taken_for_done(faulty: Any, tmp_path: Path) -> None:
    log = open_log(faulty, tmp_path / "t-0")
    append(log, batch())
    faulty.failing = {"sync": errno.EIO}
    with pytest.raises(OSError):
        done(log.durability.flush())
    faulty.failing = {}
    assert log.is_offline and log.flushed_offset == 0
    with pytest.raises(OSError):
        done(log.durability.flush())


def test_after_a_failed_flush_no_checkpoint_promises_what_was_not_flushed(faulty: Any, tmp_path: Path) -> None:
    log = open_log(faulty, tmp_path / "t-0")
    append(log, batch())
    append(log, batch())
    done(log.durability.flush())
    log.delete_records_before(Offset(1))
    append(log, batch())
    assert log.durability.checkpoint_due
    faulty.failing = {"sync": errno.EIO}
    with pytest.raises(OSError):
        done(log.durability.flush())
    assert not log.durability.checkpoint_due
    assert not done(log.durability.checkpoint())
    with pytest.raises(AssertionError):
        log.durability.checkpoint_now()
    log.close()
    assert checkpoint.load(OsDisk(), PurePosixPath(tmp_path / "t-0")) is None


def test_a_failed_checkpoint_takes_the_log_offline(faulty: Any, tmp_path: Path) -> None:
    log = open_log(faulty, tmp_path / "t-0")
    append(log, batch())
    faulty.failing = {"sync": errno.EIO}
    with pytest.raises(OSError):
        log.durability.checkpoint_now()
    assert log.is_offline and log.flushed_offset == 0


def test_what_was_appended_before_a_flush_counts_as_flushed_after_it(machine: Machine) -> None:
    disk = machine.process()
    log = open_log(disk)
    append(log, batch(3))
    disk.meanwhile = lambda: append(log, batch())
    assert done(log.durability.flush()) == log.flushed_offset == 3 < log.log_end_offset


def test_with_flush_each_a_reopened_log_is_flushed(machine: Machine) -> None:
    log = filled(machine)
    log.close(clean=False)
    log = open_log(machine.process(), config=replace(SMALL, flush_each=True))
    assert log.flushed_offset == log.log_end_offset
    machine.cut_power()
    assert open_log(machine.process()).log_end_offset == log.log_end_offset


async def test_appends_rolls_and_retention_continue_while_another_thread_flushes(tmp_path: Path) -> None:
    disk = OsDisk()
    log = open_log(disk, tmp_path / "t-0", replace(SMALL, retention_bytes=6000))
    for number in range(150):
        work: asyncio.Future[Any]
        if number % 5:
            work = asyncio.ensure_future(log.durability.flush())
        else:
            log.durability.marks_moved()
            work = asyncio.ensure_future(log.durability.checkpoint())
        # What is appended meanwhile is flushed by the next one: without a bound each flush takes longer than the last.
        for _ in range(40):
            append(log, batch(of=P, sequence=log.log_end_offset, value=bytes(100)))
            log.retain(NOW)
            await asyncio.sleep(0)
            if work.done():
                break
        assert await work
    assert not log.is_offline and log.log_start_offset > 0
    expected, last = batches_of(log), log.log_end_offset - 1
    log.close(clean=False)
    log = open_log(disk, tmp_path / "t-0")
    assert batches_of(log)[-len(expected) :] == expected
    assert append(log, batch(of=P, sequence=last, value=bytes(100))).is_duplicate


def test_a_checkpoint_is_due_after_a_roll_and_not_after_itself(machine: Machine) -> None:
    disk = machine.process()
    log = open_log(disk)
    append(log, batch())
    assert not log.durability.checkpoint_due
    for _ in range(30):
        append(log, batch(value=bytes(50)))
    assert log.durability.checkpoint_due
    disk.meanwhile = lambda: append(log, batch())
    assert done(log.durability.checkpoint())
    assert not log.durability.checkpoint_due
    assert log.flushed_offset == log.log_end_offset - 1


def test_a_log_that_did_not_change_is_closed_without_a_write(machine: Machine) -> None:
    log = filled(machine)
    log.close(clean=True)
    disk = machine.process()
    before = disk.read_file(FOLDER / "recovery-checkpoint")
    disk.remove(FOLDER / "recovery-checkpoint")
    disk.write_file(FOLDER / "recovery-checkpoint", before)
    log = open_log(disk)
    disk.remove(FOLDER / "recovery-checkpoint")
    log.close(clean=True)
    assert not disk.exists(FOLDER / "recovery-checkpoint")


# --- identity ------------------------------------------------------------------------------------------------------


def test_the_topic_id_is_kept_in_the_folder(machine: Machine) -> None:
    topic_id = uuid4()
    PartitionLog.open(machine.process(), FOLDER, TOPIC_PARTITION, SMALL, NOW, topic_id=topic_id).close()
    disk: Disk = machine.process()
    assert open_log(disk).topic_id == topic_id
    disk.write_file(FOLDER / "partition.metadata", b"garbage")
    with pytest.raises(LogCorruption):
        open_log(disk)
    PartitionLog.open(disk, FOLDER, TOPIC_PARTITION, SMALL, NOW, topic_id=topic_id).close()
    assert open_log(machine.process()).topic_id == topic_id
