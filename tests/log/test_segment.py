from __future__ import annotations

from dataclasses import replace

import pytest

from einmal.log.errors import LogCorruption
from einmal.log.partition_log import PartitionLog
from einmal.log.segment import BatchEntry, Segment, entry_of
from einmal.log.segment_files import LOG, file_name
from einmal.types import LeaderEpoch, Offset
from einmal.wire.record_batch import patch, read_header
from tests.log.making import EPOCH, FOLDER, SMALL, START, Machine, append, batch, batches_of, open_log


def grown(count: int = 50, base: int = 100) -> tuple[Machine, Segment, list[bytes]]:
    machine = Machine()
    disk = machine.process()
    disk.make_directory(FOLDER)
    segment = Segment.create(disk, FOLDER, Offset(base), 200)
    written = []
    for number in range(count):
        data = batch(1, value=bytes(number % 40), timestamp=START + number % 7)
        patch(data, 0, Offset(base + number), EPOCH)
        segment.append(data, [entry_of(read_header(data))])
        written.append(bytes(data))
    return machine, segment, written


def test_files_are_named_by_the_base_offset_in_twenty_digits() -> None:
    assert file_name(Offset(1234), LOG) == "00000000000000001234.log"


@pytest.mark.parametrize("max_bytes", [1, 100, 333, 10_000])
def test_reads_are_whole_batches_within_the_limits(max_bytes: int) -> None:
    _, segment, written = grown()
    for number in range(50):
        for below in (number + 1, min(number + 4, 50), 50):
            data = segment.read(Offset(100 + number), max_bytes, Offset(100 + below), True)
            count = next(each for each in range(51) if data == b"".join(written[number : number + each]))
            assert 1 <= count <= below - number
            fits = len(b"".join(written[number : number + count + 1])) <= max_bytes
            assert number + count == below or not fits
            assert len(data) <= max_bytes or count == 1


def test_the_index_has_an_entry_after_each_interval_and_none_for_the_first_batch() -> None:
    _, segment, written = grown()
    entries = list(segment.offset_index)
    assert len(entries) > 10
    positions = [sum(map(len, written[:number])) for number in range(50)]
    assert entries == [(offset, positions[offset - 100]) for offset, _ in entries]
    gaps = [after - before for (_, before), (_, after) in zip(entries, entries[1:], strict=False)]
    assert min(gaps) > 200 and entries[0][1] > 200


def test_truncation_leaves_the_batches_below_and_their_timestamps() -> None:
    for offset in range(100, 151):
        _, segment, written = grown()
        segment.truncate_to(Offset(offset))
        kept = written[: offset - 100]
        assert (segment.size, segment.end_offset) == (sum(map(len, kept)), offset)
        assert segment.max_timestamp == max((read_header(data).max_timestamp for data in kept), default=-1)
        data = batch(timestamp=START + 100)
        patch(data, 0, Offset(offset), EPOCH)
        segment.append(data, [entry_of(read_header(data))])
        assert segment.read(Offset(offset), 10_000, Offset(offset + 1), True) == data
        assert segment.max_timestamp_offset == offset


def test_what_this_process_wrote_is_read_without_being_validated_again() -> None:
    machine, segment, written = grown()
    file = machine.process().open(segment.path(LOG))
    data = bytearray(file.read(0, file.size()))
    fresh = Segment(machine.process(), FOLDER, Offset(100), 200)
    fresh.restore(segment.summary(segment.stored))
    assert fresh.read(Offset(100), 10**6, Offset(150), True) == b"".join(written)
    data[-3] ^= 1
    machine.process().write_file(segment.path(LOG), data)
    fresh = Segment(machine.process(), FOLDER, Offset(100), 200)
    fresh.restore(segment.summary(segment.stored))
    with pytest.raises(LogCorruption):
        fresh.read(Offset(149), 10**6, Offset(150), True)
    assert fresh.read(Offset(100), 500, Offset(150), True)


def test_an_offset_that_was_changed_in_the_file_is_noticed_by_its_neighbours() -> None:
    machine, segment, written = grown()
    for number in (0, 1, 7, 23, 48):
        for change in (-1, 1, 1 << 40):
            data = bytearray(b"".join(written))
            position = sum(map(len, written[:number]))
            patch(memoryview(data), position, Offset(100 + number + change), LeaderEpoch(0))
            disk = machine.process()
            disk.write_file(segment.path(LOG), data)
            changed = Segment(disk, FOLDER, Offset(100), 200)
            changed.restore(segment.summary(segment.stored))
            with pytest.raises(LogCorruption):
                for offset in range(100, 150):
                    changed.read(Offset(offset), 1, Offset(150), True)


def test_old_segments_give_their_memory_and_files_back() -> None:
    machine = Machine()
    log: PartitionLog = open_log(machine.process(), config=replace(SMALL, segment_bytes=500))
    for _ in range(60):
        append(log, batch(value=bytes(50)))
    log.durability.checkpoint_now()
    whole = batches_of(log)
    segments = log.segments.in_order
    held = [segment for segment in segments if segment._file is not None or segment._offset_index is not None]
    assert len(segments) > 10 and len(held) <= 3
    assert batches_of(log) == whole


def test_a_location_is_that_of_the_header() -> None:
    data = batch(3, base_offset=7, leader_epoch=2, timestamp=START)
    entry = BatchEntry(len(data), Offset(7), Offset(9), START + 2, LeaderEpoch(2))
    assert entry_of(read_header(data)) == entry
