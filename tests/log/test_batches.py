from __future__ import annotations

import pytest

from einmal.log.batches import scan, walk
from einmal.log.disk import File
from einmal.types import Offset
from einmal.wire.errors import CorruptBatch, Truncated
from einmal.wire.record_batch import patch
from tests.log.making import EPOCH, FOLDER, Machine, batch


def file_of(sizes: list[int], tail: bytes = b"") -> tuple[File, list[int]]:
    """Batches of one record with values of these sizes; and where they begin, the end included."""
    disk = Machine().process()
    disk.make_directory(FOLDER)
    file = disk.open(FOLDER / "x", create=True)
    positions = []
    for offset, size in enumerate(sizes):
        data = batch(value=bytes(size))
        patch(data, 0, Offset(offset), EPOCH)
        positions.append(file.append(data))
    positions.append(file.size())
    file.append(tail)
    return file, positions


# Around a page, and around the megabyte that a scan reads at once.
SIZES = [0, 10, 3_900, 4_000, 4_100, 9_000, 50, 1_048_400, 1_048_600, 2_200_000, 1, 1]


def test_walk_and_scan_find_every_batch_whatever_its_size() -> None:
    file, positions = file_of(SIZES)
    expected = [(position, offset) for offset, position in enumerate(positions[:-1])]
    for find in (walk, scan):
        for first in (0, 3, len(SIZES)):
            found = [(position, header.base_offset) for position, header in find(file, positions[first], positions[-1])]
            assert found == expected[first:]


@pytest.mark.parametrize("tail", [b"\x00" * 30, batch()[:-1], batch(value=bytes(2_000_000))[:1_500_000]])
def test_a_batch_that_is_not_whole_is_reported_after_the_whole_ones(tail: bytes) -> None:
    file, positions = file_of([10, 20], bytes(tail))
    found = []
    with pytest.raises((CorruptBatch, Truncated)):
        for position, _ in scan(file, 0, file.size()):
            found.append(position)
    assert found == positions[:-1]
    with pytest.raises((CorruptBatch, Truncated)):
        list(walk(file, 0, file.size()))


def test_a_length_that_points_far_beyond_the_file_is_not_believed() -> None:
    file, positions = file_of([10], bytes(batch()[:8] + b"\x7f\xff\xff\xff" + batch()[12:]))
    with pytest.raises(Truncated):
        list(scan(file, positions[-1], file.size()))


def test_only_scan_notices_a_changed_record() -> None:
    file, positions = file_of([10, 10])
    data = bytearray(file.read(0, file.size()))
    data[-1] ^= 1
    file.truncate(0)
    file.append(data)
    assert len(list(walk(file, 0, positions[-1]))) == 2
    with pytest.raises(CorruptBatch):
        list(scan(file, 0, positions[-1]))
