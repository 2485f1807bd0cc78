"""Whatever a crash leaves in the folder, the log follows from its batches: a torn tail is cut off, all else is rebuilt.

Processes end in one of three ways: clean, killed (the page cache stays), or with the power (what is not flushed is
kept, lost or torn).
"""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product
from pathlib import PurePosixPath
from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from einmal.log import checkpoint
from einmal.log.config import LogConfig
from einmal.log.disk import Disk
from einmal.log.errors import LogCorruption
from einmal.log.partition_log import PartitionLog
from einmal.types import ErrorCode, LeaderEpoch, Offset, TopicPartition
from tests.log.making import (
    FOLDER,
    NOW,
    SMALL,
    START,
    TOPIC_PARTITION,
    DyingDisk,
    Machine,
    append,
    batch,
    batches_of,
    done,
    end_transaction,
    offset_for_timestamp,
    open_log,
    producer,
)
from tests.suite.cases import each_case

DERIVED = (".index", ".timeindex", ".txnindex", ".snapshot", "leader-epoch-checkpoint", "recovery-checkpoint")


def fill(log: PartitionLog, batches: int = 60) -> None:
    """Plain, idempotent and transactional batches, commits and aborts, two leader epochs."""
    for number in range(batches):
        epoch = LeaderEpoch(1 + 2 * number // batches)
        of = producer(number % 3)
        sequence = number // 3
        if number % 3 == 0:
            append(log, batch(2, value=b"plain %d" % number, timestamp=START + number), leader_epoch=epoch)
        elif number % 3 == 1:
            append(log, batch(of=of, sequence=sequence, timestamp=START + number), leader_epoch=epoch)
        else:
            append(log, batch(of=of, sequence=sequence, transactional=True), leader_epoch=epoch)
            if number % 4 == 0:
                end_transaction(log, of, committed=number % 8 == 0, leader_epoch=epoch)


def essence(log: PartitionLog) -> dict[str, Any]:
    """All that must not depend on how the process before ended."""
    end = log.log_end_offset
    return {
        "batches": batches_of(log),
        "aborted": [log.segments.aborted_transactions(Offset(first), end) for first in range(0, end, 7)],
        "producers": [each[:3] + each[4:] for each in sorted(log.producers.describe())],
        "stable": log.last_stable_offset,
        "epochs": [log.end_offset_for_epoch(LeaderEpoch(epoch)) for epoch in range(5)],
        "times": [offset_for_timestamp(log, START + each) for each in range(0, 60, 5)],
        "start": log.log_start_offset,
    }


def log_files(disk: Disk) -> list[PurePosixPath]:
    return [FOLDER / name for name in disk.list_directory(FOLDER) if name.endswith(".log")]


def overwrite(disk: Disk, path: PurePosixPath, data: bytes) -> None:
    file = disk.open(path, create=True)
    file.truncate(0)
    file.append(data)
    file.close()


@pytest.mark.parametrize("clean", [True, False])
def test_a_log_is_the_same_after_a_clean_end_and_after_a_kill(clean: bool) -> None:
    machine = Machine()
    log = open_log(machine.process())
    fill(log)
    before = essence(log)
    log.close(clean=clean)
    assert essence(open_log(machine.process())) == before
    assert essence(open_log(machine.process())) == before


# --- torn tails (E63) ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lost_power", [True, False])
def test_wherever_the_last_batches_are_cut_the_whole_ones_before_remain(
    lost_power: bool, caplog: pytest.LogCaptureFixture
) -> None:
    machine = Machine()
    config = LogConfig(index_interval_bytes=200)
    log = open_log(machine.process(), config=config)
    fill(log, 30)
    whole = batches_of(log)
    log.close(clean=False)
    path = log_files(machine.process())[-1]
    data = machine.process().read_file(path)
    kept_bytes = len(data) - sum(len(each) for _, _, each in whole[-3:])
    for size in range(len(data) - 1, kept_bytes - 1, -1):
        disk = machine.process()
        overwrite(disk, path, data[:size])
        caplog.clear()
        log = open_log(disk, config=config, lost_power=lost_power)
        kept = [each for end, each in zip(ends(whole), whole, strict=True) if end <= size]
        assert batches_of(log) == kept
        assert ("torn tail" in caplog.text) == (size not in ends(whole))
        result = append(log, batch(of=producer(99), sequence=0))
        assert result.base_offset == kept[-1][1] + 1
        log.close(clean=False)


@pytest.mark.parametrize("lost_power", [True, False])
def test_a_log_that_has_less_than_its_checkpoint_promises_is_reported_and_not_changed(lost_power: bool) -> None:
    machine = Machine()
    closed_log(machine)
    files = log_files(machine.process())
    for path in (files[0], files[len(files) // 2], files[-1]):
        data = machine.process().read_file(path)
        for size in {0, len(data) // 2, len(data) - 1}:
            disk = machine.process()
            overwrite(disk, path, data[:size])
            before = {name: disk.read_file(FOLDER / name) for name in disk.list_directory(FOLDER)}
            with pytest.raises(LogCorruption, match=f"{size} bytes.* promises {len(data)}.*Restore"):
                open_log(disk, lost_power=lost_power)
            assert {name: disk.read_file(FOLDER / name) for name in disk.list_directory(FOLDER)} == before
        overwrite(machine.process(), path, data)
    open_log(machine.process())


def test_the_segment_of_another_partition_is_not_taken_for_the_own_one() -> None:
    machine = Machine()
    disk = machine.process()
    folders = [PurePosixPath("/data/t-0"), PurePosixPath("/data/t-1")]
    for number, folder in enumerate(folders):
        log = PartitionLog.open(disk, folder, TopicPartition("t", number), SMALL, NOW, topic_id=UUID(int=1))
        for value in range(60):
            append(log, batch(value=b"%d %d" % (number, value)))
        log.close()
    names = [name for name in disk.list_directory(folders[0]) if name.endswith((".log", "checkpoint", ".snapshot"))]
    assert names == [name for name in disk.list_directory(folders[1]) if name in names]
    for name in names:
        first, second = (disk.read_file(folder / name) for folder in folders)
        disk.write_file(folders[0] / name, second)
        if name.endswith(".log") or name == checkpoint.FILE_NAME:
            with pytest.raises(LogCorruption, match="is not the file|is of partition 1"):
                PartitionLog.open(disk, folders[0], TopicPartition("t", 0), SMALL, NOW, topic_id=UUID(int=1))
        else:
            PartitionLog.open(disk, folders[0], TopicPartition("t", 0), SMALL, NOW, topic_id=UUID(int=1)).close()
        disk.write_file(folders[0] / name, first)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_without_a_power_cut_no_damaged_byte_is_taken_for_a_torn_tail(data: st.DataObject) -> None:
    """Nothing was flushed and there is no checkpoint; the process was killed, and a byte has changed since."""
    machine = Machine()
    log = open_log(machine.process())
    fill(log, 30)
    whole = batches_of(log)
    log.close(clean=False)
    disk = machine.process()
    path = data.draw(st.sampled_from(log_files(disk)))
    content = bytearray(disk.read_file(path))
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    overwrite(disk, path, bytes(content))
    try:
        found = batches_of(open_log(disk, lost_power=False))
    except LogCorruption:
        return
    # No CRC covers leader epochs, and nothing follows the last batch that would contradict its offset.
    assert [without_head(each) for each in found] == [without_head(each) for each in whole]
    assert [without_epoch(each) for each in found[:-1]] == [without_epoch(each) for each in whole[:-1]]


def without_head(each: tuple[Offset, Offset, bytes]) -> bytes:
    return each[2][16:]


def ends(batches: list[tuple[Offset, Offset, bytes]]) -> list[int]:
    sizes = [len(data) for _, _, data in batches]
    return [sum(sizes[: number + 1]) for number in range(len(sizes))]


@pytest.mark.parametrize("tail", [b"\x00", bytes(61), bytes(5000), b"\xff" * 100, random.Random(1).randbytes(300)])
@pytest.mark.parametrize("clean", [True, False])
def test_garbage_after_the_last_batch_is_cut_off(tail: bytes, clean: bool) -> None:
    machine = Machine()
    log = open_log(machine.process())
    fill(log)
    before = essence(log)
    log.close(clean=clean)
    disk = machine.process()
    disk.open(log_files(disk)[-1]).append(tail)
    assert essence(open_log(disk)) == before


def test_segments_after_a_torn_one_that_was_never_flushed_go() -> None:
    machine = Machine()
    log = open_log(machine.process())
    fill(log)
    whole = batches_of(log)
    log.close(clean=False)
    disk = machine.process()
    second = log_files(disk)[1]
    size = disk.open(second).size()
    disk.open(second).truncate(size - 10)
    log = open_log(disk)
    found = batches_of(log)
    assert found == whole[: len(found)]
    assert log_files(disk) == log_files(disk)[:2]
    assert append(log, batch()).base_offset == found[-1][1] + 1


@pytest.mark.parametrize("cleanup_policy", ["delete", "compact"])
def test_a_segment_that_ends_too_early_between_two_batches_is_torn_as_well(cleanup_policy: str) -> None:
    config = replace(SMALL, cleanup_policy=cleanup_policy)
    machine = Machine()
    log = open_log(machine.process(), config=config)
    fill(log)
    whole = batches_of(log)
    log.close(clean=False)
    disk = machine.process()
    first = log_files(disk)[0]
    last_whole = max(end for end in ends(whole) if end < disk.open(first).size())
    disk.open(first).truncate(last_whole)
    found = batches_of(open_log(disk, config=config))
    assert found == whole[: len(found)]
    assert len(log_files(disk)) == 1


# --- derived files (E67) -------------------------------------------------------------------------------------------


@each_case(
    ("suffix", "damage", "clean"),
    product(DERIVED, ["removed", "empty", "garbage", "cut", "flipped", "longer"], [True, False]),
)
def test_a_broken_derived_file_is_rebuilt_from_the_log(suffix: str, damage: str, clean: bool) -> None:
    machine = Machine()
    log = open_log(machine.process())
    fill(log)
    before = essence(log)
    log.close(clean=True)
    if not clean:
        log = open_log(machine.process())
        fill_more(log)
        before = essence(log)
        log.close(clean=False)
    disk = machine.process()
    paths = [FOLDER / name for name in disk.list_directory(FOLDER) if name.endswith(suffix)]
    assert paths
    for path in paths:
        data = disk.read_file(path)
        if damage == "removed":
            disk.remove(path)
            continue
        middle = len(data) // 2
        overwrite(
            disk,
            path,
            {
                "empty": b"",
                "garbage": random.Random(5).randbytes(len(data) + 13),
                "cut": data[:middle],
                "flipped": data[:middle] + bytes(byte ^ 4 for byte in data[middle : middle + 1]) + data[middle + 1 :],
                "longer": data + bytes(34),
            }[damage],
        )
    log = open_log(disk)
    assert essence(log) == before
    log.close(clean=True)
    assert essence(open_log(machine.process())) == before


def fill_more(log: PartitionLog) -> None:
    for number in range(10):
        append(log, batch(of=producer(50), sequence=number, transactional=True), leader_epoch=LeaderEpoch(3))
        end_transaction(log, producer(50), committed=number % 2 == 0)


def test_duplicates_are_still_found_when_every_derived_file_is_gone() -> None:
    machine = Machine()
    log = open_log(machine.process())
    for number in range(30):
        append(log, batch(of=producer(5), sequence=number))
    log.close(clean=True)
    disk = machine.process()
    for name in disk.list_directory(FOLDER):
        if not name.endswith(".log"):
            disk.remove(FOLDER / name)
    log = open_log(disk)
    for number in range(25, 30):
        assert append(log, batch(of=producer(5), sequence=number)).base_offset == number
    assert append(log, batch(of=producer(5), sequence=24)).error is ErrorCode.out_of_order_sequence_number


@each_case(("clean", "count"), product([True, False], range(30, 45)))
def test_the_whole_window_of_five_is_known_after_a_restart(clean: bool, count: int) -> None:
    machine = Machine()
    log = open_log(machine.process())
    for number in range(count):
        append(log, batch(of=producer(5), sequence=number, value=bytes(100)))
        if number == count - 3 and log.durability.checkpoint_due:
            log.durability.checkpoint_now()
    log.close(clean=clean)
    log = open_log(machine.process())
    window = range(count - 5, count)
    assert [append(log, batch(of=producer(5), sequence=number)).base_offset for number in window] == list(window)
    assert append(log, batch(of=producer(5), sequence=count)).base_offset == count


def test_files_of_no_segment_are_swept_up() -> None:
    machine = Machine()
    log = open_log(machine.process())
    fill(log)
    before = essence(log)
    log.close(clean=True)
    disk = machine.process()
    strays = ["00000000000000000003.index", "00000000000000000003.txnindex", "x.tmp", "00000000000000099999.snapshot"]
    for name in strays:
        overwrite(disk, FOLDER / name, b"stray")
    assert essence(open_log(disk)) == before
    assert not set(strays) & set(disk.list_directory(FOLDER))


# --- corruption (E66) ----------------------------------------------------------------------------------------------


def closed_log(machine: Machine) -> list[tuple[Offset, Offset, bytes]]:
    log = open_log(machine.process())
    fill(log)
    whole = batches_of(log)
    log.close(clean=True)
    return whole


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_a_bad_batch_in_a_closed_segment_is_reported_and_not_served(has_checkpoint: bool) -> None:
    machine = Machine()
    closed_log(machine)
    disk = machine.process()
    first = log_files(disk)[0]
    data = bytearray(disk.read_file(first))
    data[300] ^= 1
    overwrite(disk, first, bytes(data))
    if not has_checkpoint:
        disk.remove(FOLDER / "recovery-checkpoint")
    with pytest.raises(LogCorruption):
        batches_of(open_log(disk))


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_a_missing_segment_is_reported(has_checkpoint: bool) -> None:
    machine = Machine()
    closed_log(machine)
    disk = machine.process()
    disk.remove(log_files(disk)[1])
    if not has_checkpoint:
        disk.remove(FOLDER / "recovery-checkpoint")
    with pytest.raises(LogCorruption):
        open_log(disk)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_no_change_of_a_byte_is_ever_served(data: st.DataObject) -> None:
    machine = Machine()
    whole = closed_log(machine)
    disk = machine.process()
    paths = log_files(disk)
    path = data.draw(st.sampled_from(paths))
    content = bytearray(disk.read_file(path))
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    overwrite(disk, path, bytes(content))
    if data.draw(st.booleans(), label="the checkpoint is lost"):
        disk.remove(FOLDER / "recovery-checkpoint")
        # Nothing but the checkpoint proves the offset of the very last batch: no CRC and no neighbour does.
        last = len(content) - len(whole[-1][2])
        assume(path != paths[-1] or not last <= place < last + 8)
    max_bytes = data.draw(st.sampled_from([1, 300, 100_000]))
    try:
        found = batches_of(open_log(disk), max_bytes)
    except LogCorruption:
        return
    # The CRC does not cover the leader epoch; and the last segment's bad tail counts as torn without a checkpoint.
    assert [without_epoch(each) for each in found] == [without_epoch(each) for each in whole[: len(found)]]
    assert len(found) == len(whole) or path == paths[-1]


def without_epoch(each: tuple[Offset, Offset, bytes]) -> tuple[Offset, Offset, bytes]:
    first, last, data = each
    return first, last, data[:12] + data[16:]


# --- crashes in the middle of something ----------------------------------------------------------------------------


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("what", ["checkpoint", "truncate", "retain"])
def test_a_crash_at_any_change_of_the_disk_leaves_a_log_that_opens(what: str, power: bool) -> None:
    for changes in range(200):
        machine = Machine(changes)
        machine.process().make_directory(FOLDER)
        machine.process().sync_directory(PurePosixPath("/"))
        machine.process().sync_directory(PurePosixPath("/data"))
        log = open_log(machine.process())
        fill(log)
        log.close(clean=True)
        disk = DyingDisk(machine.process(), 10**6)
        log = open_log(disk)
        fill_more(log)
        whole = batches_of(log)
        target = whole[25][0]
        if what != "truncate":
            done(log.durability.flush())
        disk.left = changes
        has_died = False
        try:
            if what == "checkpoint":
                log.durability.checkpoint_now()
            elif what == "truncate":
                log.truncate_to(target)
            else:
                log.config = replace(SMALL, retention_bytes=3000)
                log.retain(log._now)
                log.durability.checkpoint_now()
        except OSError:
            has_died = True
        if power:
            machine.cut_power()
        log = open_log(machine.process())
        found = batches_of(log)
        if what == "checkpoint":
            assert found == whole
        elif what == "truncate":
            assert found == whole[: len(found)]
            assert len(found) >= 25
            assert has_died or len(found) == 25
            assert log.flushed_offset <= log.log_end_offset
        else:
            assert found == whole[-len(found) :]
        assert append(log, batch(of=producer(77), sequence=0)).error is ErrorCode.none
        if not has_died:
            return
    pytest.fail("it never got through")


# --- how much is read ----------------------------------------------------------------------------------------------


class CountingDisk:
    def __init__(self, disk: Disk) -> None:
        self._disk = disk
        self.bytes_read = 0

    def open(self, path: PurePosixPath, *, create: bool = False) -> Any:
        file: Any = self._disk.open(path, create=create)
        read = file.read

        def counted(position: int, size: int) -> bytes:
            self.bytes_read += size
            return bytes(read(position, size))

        file.read = counted
        return file

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)


def test_after_a_kill_only_what_came_after_the_checkpoint_is_read() -> None:
    machine = Machine()
    config = LogConfig(segment_bytes=1_000_000)
    log = open_log(machine.process(), config=config)
    for _ in range(300):
        append(log, batch(value=bytes(10_000)))
    log.durability.checkpoint_now()
    for _ in range(20):
        append(log, batch(value=bytes(1_000)))
    before = batches_of(log, 10**6)
    log.close(clean=False)
    disk = CountingDisk(machine.process())
    log = open_log(disk, config=config)
    assert log.log_end_offset == 320
    assert disk.bytes_read < 200_000
    assert batches_of(log, 10**6) == before


# --- a model -------------------------------------------------------------------------------------------------------

STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["plain", "plain", "sequenced", "transactional", "commit", "abort", "duplicate", "checkpoint", "flush"]
            + ["clean", "kill", "kill", "power", "truncate", "read"]
        ),
        st.integers(0, 1000),
    ),
    max_size=60,
)


class Model:
    """A log beside a list of the batches it should hold."""

    def __init__(self, seed: int) -> None:
        self.machine = Machine(seed)
        disk = self.machine.process()
        disk.make_directory(FOLDER.parent)
        disk.sync_directory(PurePosixPath("/"))
        self.log = open_log(disk)
        self.batches: list[bytes] = []
        self.next_sequence: dict[int, int] = {}

    def step(self, what: str, number: int) -> None:
        getattr(self, what)(number)
        assert [data for _, _, data in batches_of(self.log, 1 + number)] == self.batches

    def _append(self, data: bytearray) -> None:
        assert append(self.log, data).error is ErrorCode.none
        self.batches.append(bytes(data))

    def _sequences(self) -> dict[int, int]:
        return {each.producer_id: each.last_sequence for each in self.log.producers.describe()}

    def plain(self, number: int) -> None:
        self._append(batch(1 + number % 4, value=bytes(number % 97)))

    def sequenced(self, number: int, transactional: bool = False) -> None:
        of = producer(number % 3 + (10 if transactional else 0))
        last = self._sequences().get(of.producer_id, -1)
        self._append(batch(1 + number % 2, of=of, sequence=last + 1, transactional=transactional))

    def transactional(self, number: int) -> None:
        self.sequenced(number, transactional=True)

    def commit(self, number: int, committed: bool = True) -> None:
        of = producer(number % 3 + 10)
        start = self.log.log_end_offset
        end_transaction(self.log, of, committed=committed)
        self.batches.append(self.log.read(start, 10_000, below=self.log.log_end_offset))

    def abort(self, number: int) -> None:
        self.commit(number, committed=False)

    def duplicate(self, number: int) -> None:
        for entry in self.log.producers.describe():
            state = self.log.producers.entry(entry.producer_id)
            assert state is not None
            for known in state.batches:
                if known.first_sequence < 0:
                    continue
                count = known.last_offset - known.first_offset + 1
                of = producer(entry.producer_id)
                again = append(self.log, batch(count, of=of, sequence=known.first_sequence))
                assert (again.is_duplicate, again.base_offset) == (True, known.first_offset)

    def checkpoint(self, number: int) -> None:
        self.log.durability.checkpoint_now()

    def flush(self, number: int) -> None:
        done(self.log.durability.flush())

    def clean(self, number: int) -> None:
        self._restart(clean=True)

    def kill(self, number: int) -> None:
        self._restart(clean=False)

    def _restart(self, *, clean: bool) -> None:
        before = essence(self.log)
        self.log.close(clean=clean)
        self.log = open_log(self.machine.process(), lost_power=False)
        assert essence(self.log) == before

    def power(self, number: int) -> None:
        flushed = self.log.flushed_offset
        self.machine.cut_power()
        self.log = open_log(self.machine.process())
        assert self.log.log_end_offset >= flushed
        kept = len(batches_of(self.log))
        assert kept <= len(self.batches)
        del self.batches[kept:]

    def truncate(self, number: int) -> None:
        if self.log.log_end_offset:
            target = Offset(self.log.log_end_offset - number % min(20, self.log.log_end_offset))
            first = [each for each, last, _ in batches_of(self.log) if last >= target]
            self.log.truncate_to(target)
            assert self.log.log_end_offset == (first[0] if first else target)
            del self.batches[len(self.batches) - len(first) :]

    def read(self, number: int) -> None:
        whole = batches_of(self.log)
        for first, last, data in whole[number % 7 :: 7]:
            assert self.log.read(last, 1, below=self.log.log_end_offset) == data
            assert self.log.read(first, len(data), below=Offset(last + 1)) == data


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**16), STEPS)
def test_a_log_behaves_as_a_list_of_batches_through_every_kind_of_end(seed: int, steps: list[tuple[str, int]]) -> None:
    model = Model(seed)
    for what, number in steps:
        model.step(what, number)


def test_a_checkpoint_of_a_deleted_topic_of_the_same_name_is_not_believed() -> None:
    """Its store may have been under way in the background when the folder got its successor."""
    machine = Machine()
    disk = machine.process()
    old, new = PurePosixPath("/data/old"), FOLDER
    log = PartitionLog.open(disk, old, TOPIC_PARTITION, SMALL, NOW, topic_id=UUID(int=1))
    append(log, batch(7, value=b"of another length"))
    log.close()
    log = PartitionLog.open(disk, new, TOPIC_PARTITION, SMALL, NOW, topic_id=UUID(int=2))
    for _ in range(10):
        append(log, batch())
    written = batches_of(log)
    disk.write_file(new / checkpoint.FILE_NAME, disk.read_file(old / checkpoint.FILE_NAME))
    log.close(clean=False)
    log = PartitionLog.open(disk, new, TOPIC_PARTITION, SMALL, NOW, topic_id=UUID(int=2))
    assert batches_of(log) == written


# --- indexes of earlier versions -----------------------------------------------------------------------------------

SPARSE = LogConfig(segment_bytes=700_000, index_interval_bytes=2**31 - 1)
"""Earlier versions took any `index.interval.bytes`: each lookup in such a segment reads it from its beginning."""


def test_an_index_with_few_entries_is_filled_up_once(caplog: pytest.LogCaptureFixture) -> None:
    machine = Machine()
    log = open_log(machine.process(), config=SPARSE)
    for number in range(12_000):
        append(log, batch(timestamp=START + number))
    count = len(log.segments.in_order)
    log.close(clean=True)
    for expected in (count - 1, 0):
        caplog.clear()
        log = open_log(machine.process(), config=LogConfig())
        assert caplog.text.count("its index has few entries") == expected
        assert all(len(segment.offset_index) > 100 for segment in log.segments.in_order[:-1])
        for offset in range(0, 12_000, 999):
            found = offset_for_timestamp(log, START + offset)
            assert found is not None and found.offset == offset
        assert len(batches_of(log)) == 12_000
        log.close(clean=True)


def test_an_index_that_cannot_be_filled_up_costs_no_other_records() -> None:
    machine = Machine()
    log = open_log(machine.process(), config=SPARSE)
    for _ in range(8_000):
        append(log, batch())
    log.close(clean=True)
    disk = machine.process()
    path = log_files(disk)[0]
    data = bytearray(disk.read_file(path))
    position = len(data) // 2 // (len(data) // 8_000) * (len(data) // 8_000)
    data[position + 8 : position + 12] = bytes(4)
    overwrite(disk, path, bytes(data))
    log = open_log(disk, config=LogConfig())
    assert log.log_end_offset == 8_000
    assert log.read(Offset(0), 10_000, below=Offset(100))
    with pytest.raises(LogCorruption):
        log.read(Offset(7_999), 10_000, below=Offset(8_000))
