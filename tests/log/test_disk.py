"""The real file system behind the seam."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from pathlib import Path, PurePosixPath

import pytest

from einmal.log.disk import OsDisk


@pytest.fixture
def folder(tmp_path: Path) -> PurePosixPath:
    return PurePosixPath(tmp_path)


def test_what_is_appended_is_read_back_where_it_went(folder: PurePosixPath) -> None:
    file = OsDisk().open(folder / "a", create=True)
    assert [file.append(b"one"), file.append(memoryview(b"two")), file.append(bytearray(b"three"))] == [0, 3, 6]
    assert (file.size(), file.read(3, 3), file.read(8, 100), file.read(50, 1)) == (11, b"two", b"ree", b"")
    file.sync()
    file.close()
    assert OsDisk().open(folder / "a").size() == 11


def test_appends_after_a_truncation_go_to_the_new_end(folder: PurePosixPath) -> None:
    file = OsDisk().open(folder / "a", create=True)
    file.append(b"0123456789")
    file.truncate(4)
    assert file.append(b"x") == 4
    assert file.read(0, 10) == b"0123x"


def test_a_write_that_is_cut_short_leaves_nothing_behind(folder: PurePosixPath) -> None:
    file = OsDisk().open(folder / "a", create=True)
    file.append(b"whole")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, before[1]))
    try:
        with pytest.raises(OSError):
            file.append(b"too long by far")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert (file.size(), file.read(0, 100)) == (5, b"whole")
    assert file.append(b"!") == 5


def test_a_missing_file_is_not_created_by_chance(folder: PurePosixPath) -> None:
    with pytest.raises(FileNotFoundError):
        OsDisk().open(folder / "a")
    assert not OsDisk().exists(folder / "a")


def test_a_small_file_is_replaced_in_one_step(folder: PurePosixPath) -> None:
    disk = OsDisk()
    disk.write_file(folder / "a", b"one")
    disk.write_file(folder / "a", b"second")
    assert disk.read_file(folder / "a") == b"second"
    assert disk.list_directory(folder) == ["a"]


def test_folders_are_made_listed_and_removed(folder: PurePosixPath) -> None:
    disk = OsDisk()
    disk.make_directory(folder / "x" / "y")
    disk.make_directory(folder / "x" / "y")
    disk.write_file(folder / "x" / "b", b"")
    disk.rename(folder / "x" / "b", folder / "x" / "a")
    disk.sync_directory(folder / "x")
    assert disk.list_directory(folder / "x") == ["a", "y"]
    disk.remove(folder / "x" / "y")
    disk.remove(folder / "x" / "a")
    disk.remove(folder / "x")
    assert disk.list_directory(folder) == []


def test_files_are_for_their_owner_only(folder: PurePosixPath) -> None:
    disk = OsDisk()
    disk.open(folder / "a", create=True).close()
    disk.write_file(folder / "b", b"")
    assert {os.stat(folder / name).st_mode & 0o777 for name in ("a", "b")} == {0o600}


def test_a_machine_has_one_name_for_as_long_as_it_runs() -> None:
    assert OsDisk().boot_id() == OsDisk().boot_id()


async def test_blocking_work_does_not_stop_the_loop() -> None:
    seen: list[str] = []
    event = asyncio.Event()
    loop = asyncio.get_running_loop()

    def work() -> str:
        loop.call_soon_threadsafe(event.set)
        return "work"

    task = asyncio.ensure_future(OsDisk().in_background(work))
    await event.wait()
    seen.append("loop")
    seen.append(await task)
    assert seen == ["loop", "work"]
