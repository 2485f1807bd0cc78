from __future__ import annotations

import random

import pytest

from einmal.log.checkpoint import FILE_NAME, Summary, load, write_from
from einmal.log.segment_files import SegmentSummary, Stored, StoredIndexes
from einmal.types import Offset
from tests.log.making import FOLDER, Machine
from tests.suite.cases import each_case

SUMMARY = Summary(
    Offset(3),
    (
        SegmentSummary(
            Offset(0), 900, Offset(9), 77, Offset(8), StoredIndexes(Stored(8, 1), Stored(12, 2), Stored(34, 3))
        ),
        SegmentSummary(Offset(9), 100, Offset(12), -1, Offset(9), StoredIndexes()),
    ),
    Stored(8, 99),
)


def test_a_summary_is_read_back() -> None:
    assert Summary.decode(SUMMARY.encode()) == SUMMARY


@each_case("seed", range(40))
def test_a_changed_or_cut_file_is_not_believed(seed: int) -> None:
    source = random.Random(seed)
    data = bytearray(SUMMARY.encode())
    # The last byte is the line's end: without it the content is whole still.
    place = source.randrange(len(data) - 1)
    broken = bytes(data[:place]) if seed % 2 else bytes([*data[:place], data[place] ^ 1, *data[place + 1 :]])
    with pytest.raises(ValueError):
        Summary.decode(broken)
    disk = Machine().process()
    disk.make_directory(FOLDER)
    disk.write_file(FOLDER / FILE_NAME, broken)
    assert load(disk, FOLDER) is None


def test_no_file_is_no_checkpoint() -> None:
    disk = Machine().process()
    disk.make_directory(FOLDER)
    assert load(disk, FOLDER) is None


def test_a_file_is_written_from_a_position_on() -> None:
    disk = Machine().process()
    disk.make_directory(FOLDER)
    write_from(disk, FOLDER / "x", 0, b"hello")
    write_from(disk, FOLDER / "x", 2, b"y")
    assert disk.read_file(FOLDER / "x") == b"hey"
    write_from(disk, FOLDER / "x", 0, b"")
    assert disk.read_file(FOLDER / "x") == b""
