from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

from einmal.log.disk import Disk
from einmal.log.dump import dump
from einmal.wire.compression import Compression
from tests.log.making import (
    FOLDER,
    SMALL,
    START,
    Machine,
    append,
    batch,
    end_transaction,
    open_log,
    producer,
)

BASE = FOLDER / "00000000000000000000.log"


@pytest.fixture
def disk() -> Iterator[Disk]:
    machine = Machine()
    log = open_log(machine.process(), config=replace(SMALL, segment_bytes=100_000))
    for number in range(10):
        append(log, batch(3, of=producer(5, 2), sequence=3 * number, transactional=True, compression=Compression.ZSTD))
    end_transaction(log, producer(5, 2), committed=False, coordinator_epoch=4)
    append(log, batch(timestamp=START + 50))
    log.close(clean=True)
    yield machine.process()


def test_batches_and_records_are_listed_in_order(disk: Disk) -> None:
    batches = list(dump(disk, BASE))
    assert [(each["base_offset"], each["last_offset"]) for each in batches[-3:]] == [(27, 29), (30, 30), (31, 31)]
    second = batches[1]
    assert (second["base_sequence"], second["last_sequence"], second["compression"]) == (3, 5, Compression.ZSTD)
    assert (second["producer_id"], second["producer_epoch"], second["is_transactional"]) == (5, 2, True)
    assert [(each["offset"], each["key"], each["value"]) for each in second["records"]] == [
        (offset, b"key", b"value") for offset in (3, 4, 5)
    ]
    assert sum(each["size"] for each in batches) == disk.open(BASE).size()


def test_markers_are_named(disk: Disk) -> None:
    marker = list(dump(disk, BASE))[10]
    assert marker["is_control"]
    assert (marker["records"][0]["marker"], marker["records"][0]["coordinator_epoch"]) == ("ABORT", 4)


def test_index_files_and_snapshots_are_listed(disk: Disk) -> None:
    positions = {each["last_offset"]: each["position"] for each in dump(disk, BASE)}
    offsets = list(dump(disk, BASE.with_suffix(".index")))
    assert offsets and all(positions[each["offset"]] == each["position"] for each in offsets)
    assert list(dump(disk, BASE.with_suffix(".timeindex")))[-1] == {"timestamp": START + 50, "offset": 31}
    aborted = {"producer_id": 5, "first_offset": 0, "last_offset": 30, "last_stable_offset": 31}
    assert list(dump(disk, BASE.with_suffix(".txnindex"))) == [aborted]
    snapshot = list(dump(disk, FOLDER / "00000000000000000032.snapshot"))
    assert [(each["producer_id"], each["last_sequence"], each["coordinator_epoch"]) for each in snapshot] == [
        (5, 29, 4)
    ]


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
def test_zeros_behind_an_index_are_no_entries(disk: Disk, suffix: str) -> None:
    """Apache Kafka makes the index of the segment that it writes as large as it may become."""
    path = BASE.with_suffix(suffix)
    entries = list(dump(disk, path))
    for data, expected in ((bytes(disk.read_file(path)), entries), (b"", [])):
        disk.write_file(path, bytearray(data + bytes(12 * 8 * 100)))
        assert list(dump(disk, path)) == expected


@pytest.mark.parametrize("size", [10, 61, 98])
def test_a_torn_batch_is_listed_last_and_marked(disk: Disk, size: int) -> None:
    whole = list(dump(disk, BASE))
    disk.open(BASE).truncate(whole[3]["position"] + size)
    found = list(dump(disk, BASE))
    assert found[:3] == whole[:3]
    assert len(found) == 4 and found[3]["error"]


def test_a_changed_byte_is_named(disk: Disk) -> None:
    data = bytearray(disk.read_file(BASE))
    data[70] ^= 1
    disk.write_file(BASE, data)
    [only] = dump(disk, BASE)
    assert re.fullmatch("expected CRC-32C [0-9a-f]{8}, found [0-9a-f]{8}", only["error"])


def test_another_file_is_refused(disk: Disk) -> None:
    with pytest.raises(ValueError):
        dump(disk, FOLDER / "00000000000000000000.txt")
