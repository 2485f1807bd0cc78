"""Files that share fewer descriptors than there are files."""

from __future__ import annotations

import errno
import os
import random
import resource
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path, PurePosixPath

import pytest

from einmal.log.descriptors import OpenFile
from einmal.log.disk import File, OsDisk


@pytest.fixture
def folder(tmp_path: Path) -> PurePosixPath:
    return PurePosixPath(tmp_path)


def made(disk: OsDisk, path: PurePosixPath, content: bytes = b"") -> OpenFile:
    file = disk.open(path, create=True)
    assert isinstance(file, OpenFile)
    file.append(content)
    return file


def many(disk: OsDisk, folder: PurePosixPath, count: int) -> list[File]:
    """Files with their numbers as content."""
    return [made(disk, folder / str(number), b"%d" % number) for number in range(count)]


def open_below(folder: PurePosixPath) -> int:
    """How many descriptors of this process are of files in the folder."""
    count = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{number}").startswith(f"{folder}/")
        except FileNotFoundError:
            continue
    return count


def test_any_number_of_files_is_used_with_few_descriptors(folder: PurePosixPath) -> None:
    choice = random.Random(20264)
    disk, written = OsDisk(4), {number: b"%d" % number for number in range(50)}
    files = many(disk, folder, 50)
    for _ in range(2_000):
        number = choice.randrange(50)
        match choice.randrange(4):
            case 0:
                assert files[number].append(b"more") == len(written[number])
                written[number] += b"more"
            case 1:
                written[number] = written[number][: choice.randrange(9)]
                files[number].truncate(len(written[number]))
            case 2:
                files[number].sync()
        assert files[number].read(0, 10_000) == written[number]
        assert files[number].size() == len(written[number])
        assert open_below(folder) <= 4
    for file in files:
        file.close()
    assert open_below(folder) == 0
    assert {number: Path(folder / str(number)).read_bytes() for number in range(50)} == written


def test_no_thread_reads_from_another_file(folder: PurePosixPath) -> None:
    disk = OsDisk(3)
    files = many(disk, folder, 64)

    def use(seed: int) -> None:
        choice = random.Random(seed)
        for _ in range(500):
            number = choice.randrange(64)
            assert files[number].read(0, 2) == b"%d" % number
            if choice.randrange(8) == 0:
                files[number].sync()

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(use, range(8)))
    assert open_below(folder) <= 3


def test_a_file_that_is_closed_while_it_is_flushed_is_closed_after_that(
    folder: PurePosixPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = made(OsDisk(1), folder / "a", b"x")
    flush = os.fdatasync

    def flush_late(fd: int) -> None:
        file.close()
        flush(fd)

    monkeypatch.setattr(os, "fdatasync", flush_late)
    file.sync()
    assert open_below(folder) == 0
    with pytest.raises(ValueError, match="is closed"):
        file.read(0, 1)


def test_a_renamed_file_is_found_under_its_new_name(folder: PurePosixPath) -> None:
    disk = OsDisk(1)
    disk.make_directory(folder / "before")
    file = made(disk, folder / "before" / "a", b"content")
    disk.rename(folder / "before" / "a", folder / "before" / "b")
    disk.rename(folder / "before", folder / "after")
    made(disk, folder / "other")
    assert (file.fd, file.read(0, 10)) == (-1, b"content")
    disk.rename(folder / "after" / "b", folder / "after" / "c")
    assert file.append(b"!") == 7
    assert disk.read_file(folder / "after" / "c") == b"content!"


def test_a_file_without_a_name_is_still_read(folder: PurePosixPath) -> None:
    disk = OsDisk(1)
    removed, replaced = made(disk, folder / "a", b"removed"), made(disk, folder / "b", b"replaced")
    made(disk, folder / "c", b"new").close()
    disk.remove(folder / "a")
    disk.rename(folder / "c", folder / "b")
    many(disk, folder, 3)
    assert (removed.read(0, 10), replaced.read(0, 10)) == (b"removed", b"replaced")
    removed.close()
    replaced.close()
    assert open_below(folder) == 1


def test_a_file_that_somebody_else_has_replaced_is_not_used(folder: PurePosixPath) -> None:
    disk = OsDisk(1)
    file = made(disk, folder / "a", b"ours")
    made(disk, folder / "b")
    Path(folder / "new").write_bytes(b"theirs")
    Path(folder / "new").rename(folder / "a")
    with pytest.raises(OSError, match="a was replaced by another file") as failure:
        file.read(0, 10)
    assert failure.value.errno == errno.ESTALE
    Path(folder / "a").unlink()
    with pytest.raises(FileNotFoundError):
        file.append(b"x")


def test_unflushed_files_stay_open_for_longest(folder: PurePosixPath) -> None:
    disk = OsDisk(3)
    unflushed = [made(disk, folder / name, b"x") for name in "ab"]
    for number in range(10):
        made(disk, folder / str(number), b"x").sync()
    assert [file.fd >= 0 for file in unflushed] == [True, True]


def test_the_flush_before_a_descriptor_is_closed_reports_its_error_later(
    folder: PurePosixPath, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = OsDisk(1)
    file = made(disk, folder / "a", b"x")

    def fail(fd: int) -> None:
        raise OSError(errno.EIO, "the disk fails")

    monkeypatch.setattr(os, "fdatasync", fail)
    other = made(disk, folder / "b")
    monkeypatch.undo()
    assert file.fd == -1
    other.sync()
    for _ in range(2):
        with pytest.raises(OSError, match="the disk fails"):
            file.sync()


@contextmanager
def no_descriptor_left(folder: PurePosixPath) -> Iterator[None]:
    taken: list[int] = []
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (100 + len(os.listdir("/proc/self/fd")), before[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for fd in taken:
            os.close(fd)


def test_where_others_have_taken_all_descriptors_those_of_files_are_used(folder: PurePosixPath) -> None:
    disk = OsDisk()
    files = many(disk, folder, 3)
    with no_descriptor_left(folder):
        assert disk.read_file(folder / "0") == b"0"
        disk.write_file(folder / "small", b"one")
        disk.sync_directory(folder)
        assert made(disk, folder / "new", b"x").read(0, 1) == b"x"
        assert [file.read(0, 1) for file in files] == [b"0", b"1", b"2"]
        assert disk.list_directory(folder) == ["0", "1", "2", "new", "small"]
