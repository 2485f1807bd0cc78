"""A look does a bounded amount of work, so that no file keeps another one waiting; and each file that is not read is
reported, for whatever reason."""

from __future__ import annotations

import bz2
import errno
import gzip
import os
import random
import time
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

from einmal.ingest import SourceBusy, SourceRefused
from einmal.ingest.files.decompression import Decompression
from einmal.ingest.files.scan import FileScanner, Scan
from einmal.ingest.files.tracking import TrackedFile
from tests.ingest.files.reader import Reader

MIB = 1024 * 1024
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gz": lambda data: gzip.compress(data, 1),
    "bz2": lambda data: bz2.compress(data, 1),
    "zst": zstandard.compress,
}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "app.log"


@pytest.fixture
def decompressed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of what is decompressed."""
    sizes: list[int] = []
    read = Decompression.read

    def counted(self: Decompression, size: int) -> bytes:
        data = read(self, size)
        sizes.append(len(data))
        return data

    monkeypatch.setattr(Decompression, "read", counted)
    return sizes


@pytest.fixture
def little_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look ends after the first piece."""
    monkeypatch.setattr("einmal.ingest.files.scan._WORK", 1)


def numbered(size: int) -> list[str]:
    return [f"{number:099d}" for number in range(size // 100)]


def text(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode()


# --- compressed files -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_compressed_file_is_decompressed_twice_however_many_batches_it_has(
    tmp_path: Path, suffix: str, decompressed: list[int]
) -> None:
    lines = numbered(6 * MIB)
    (tmp_path / f"a.{suffix}").write_bytes(COMPRESS[suffix](text(lines)))
    assert Reader(tmp_path / "*").read() == lines
    assert sum(decompressed) < 2.1 * 6 * MIB


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.usefixtures("little_work")
def test_other_files_are_read_before_a_large_compressed_one_is_decompressed(tmp_path: Path, suffix: str) -> None:
    lines = numbered(5 * MIB)
    for name, some in (("a", lines[::2]), ("b", lines[1::2])):
        (tmp_path / f"{name}.{suffix}").write_bytes(COMPRESS[suffix](text(some)))
    (tmp_path / "hot.log").write_text("1\n")
    reader = Reader(tmp_path / "*")
    batch = reader.next_batch()
    assert batch is not None
    reader.commit(batch)
    assert reader.lines == ["1"]
    assert sorted(reader.read()) == lines
    assert reader.notices == []


@pytest.mark.usefixtures("little_work")
def test_a_compressed_file_is_read_on_after_a_restart_in_several_looks(tmp_path: Path) -> None:
    lines = numbered(5 * MIB)
    (tmp_path / "a.gz").write_bytes(gzip.compress(text(lines), 1))
    reader = Reader(tmp_path / "*")
    while (batch := reader.next_batch()) is not None:
        reader.commit(batch)
        reader.restart()
    assert reader.lines == lines


def test_a_large_compressed_file_that_is_being_written_is_not_decompressed_with_each_look(
    tmp_path: Path, decompressed: list[int]
) -> None:
    source = random.Random(1)
    lines = [source.randbytes(50).hex() for _ in range(50_000)]
    data = gzip.compress(text(lines), 1)
    assert len(data) > 2 * MIB
    path, hot = tmp_path / "a.gz", tmp_path / "hot.log"
    path.write_bytes(data[: MIB + MIB // 2])
    hot.write_text("0\n")
    reader = Reader(tmp_path / "*")
    batch = reader.next_batch()
    assert batch is not None
    reader.commit(batch)
    before = sum(decompressed)
    for number in range(1, 5):
        with path.open("ab") as file:
            file.write(data[MIB + MIB // 2 + number : MIB + MIB // 2 + number + 1])
        with hot.open("a") as file:
            file.write(f"{number}\n")
        batch = reader.next_batch()
        assert batch is not None
        reader.commit(batch)
    assert sum(decompressed) == before
    assert reader.lines == ["0", "1", "2", "3", "4"]
    path.write_bytes(data)
    assert reader.read() == lines, "as soon as nobody writes it any more"


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.usefixtures("little_work")
def test_a_large_compressed_file_is_read_however_many_other_files_grow(
    tmp_path: Path, suffix: str, decompressed: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("einmal.ingest.files.scan._OPEN_MAX", 16)
    lines = numbered(6 * MIB)
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(COMPRESS[suffix](text(lines)))
    os.utime(path, (1, 1))
    hot = [tmp_path / f"{number}.log" for number in range(20)]
    scan, looks = FileScanner.scan, iter(range(100))

    def grow_and_scan(self: FileScanner, tracked: Collection[TrackedFile], *, is_first: bool) -> Scan:
        number = next(looks)
        for log in hot:
            with log.open("a") as file:
                file.write(f"{number}\n")
        return scan(self, tracked, is_first=is_first)

    monkeypatch.setattr(FileScanner, "scan", grow_and_scan)
    reader = Reader(tmp_path / "*")
    while sum(len(line) > 9 for line in reader.lines) < len(lines):
        batch = reader.next_batch()
        assert batch is not None
        reader.commit(batch)
    assert [line for line in reader.lines if len(line) > 9] == lines
    assert sum(decompressed) < 2.1 * 6 * MIB


# --- holes and endless lines ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("settings", [{}, {"skip_long_lines": True}, {"skip_long_lines": True, "is_as_stored": True}])
def test_a_hole_of_a_tebibyte_keeps_no_other_file_waiting(log: Path, settings: dict[str, Any]) -> None:
    log.write_bytes(b"1\n")
    os.truncate(log, 1 << 40)
    (log.parent / "b.log").write_text("2\n")
    reader = Reader(log.parent / "*", settings)
    assert sorted(reader.read()) == ["1", "2"]
    with log.open("ab") as file:
        file.write(b"\n3\n" if settings.get("is_as_stored") else b"3\n")
    assert reader.read() == ["3"]
    assert reader.kinds() == (["skipped line"] if settings.get("is_as_stored") else ["hole"])


@pytest.mark.parametrize("compress", [bytes, gzip.compress, zstandard.compress])
@pytest.mark.parametrize(
    ("content", "kinds"),
    [
        (b"1\n" + bytes(7 * MIB) + b"2\n", ["hole"]),
        (b"1\n" + b"x" * 7 * MIB + b"\n2\n", ["skipped line"]),
        (bytes(3 * MIB) + b"1\n" + b"x" * 3 * MIB + b"\n2\n", ["hole", "skipped line"]),
        (b"1\n" + bytes(3 * MIB) + b"x" * 3 * MIB + b"\n2\n", ["skipped line"]),
        (b"1\n2\n" + bytes(4 * MIB), []),
    ],
)
@pytest.mark.usefixtures("little_work")
def test_what_is_searched_in_many_looks_is_searched_once(
    tmp_path: Path, compress: Callable[[bytes], bytes], content: bytes, kinds: list[str], decompressed: list[int]
) -> None:
    (tmp_path / "a").write_bytes(compress(content))
    reader = Reader(tmp_path / "*", {"skip_long_lines": True})
    assert reader.read() == ["1", "2"]
    assert sum(decompressed) < 3.5 * len(content)
    assert reader.read() == []
    assert set(reader.kinds()) == set(kinds)


def test_a_line_without_an_end_that_grows_is_searched_once(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log.write_bytes(b"1\n" + b"x" * 8 * MIB)
    reader = Reader(log, {"skip_long_lines": True})
    assert reader.read() == ["1"]
    offsets: list[int] = []
    pread = os.pread

    def counted(descriptor: int, size: int, offset: int) -> bytes:
        data = pread(descriptor, size, offset)
        if size >= MIB:
            offsets.append(offset)
        return data

    monkeypatch.setattr(os, "pread", counted)
    with log.open("ab", buffering=0) as writer:
        for _ in range(5):
            writer.write(b"x")
            assert reader.read() == []
        assert offsets
        assert not [offset for offset in offsets if 2 * MIB < offset < 7 * MIB]
        writer.write(b"x\n2\n")
        assert reader.read() == ["2"]
    assert reader.kinds() == ["skipped line"]
    assert f"a line of {8 * MIB + 6} bytes" in reader.notices[0].text


@pytest.mark.parametrize("is_as_stored", [False, True])
def test_the_end_of_a_long_line_that_is_written_to_allocated_space_is_seen(log: Path, is_as_stored: bool) -> None:
    reader = Reader(log, {"skip_long_lines": True, "is_as_stored": is_as_stored})
    with log.open("wb", buffering=0) as writer:
        writer.write(b"x" * 2 * MIB)
        writer.truncate(6 * MIB)
        assert reader.read() == []
        writer.write(b"x" * MIB)
        assert reader.read() == []
        writer.write(b"\n1\n")
        assert reader.read() == ["1"]
    assert reader.kinds() == ["skipped line"]


def test_the_end_of_a_long_line_is_searched_from_the_beginning_of_other_content(log: Path) -> None:
    log.write_bytes(b"x" * 4 * MIB)
    reader = Reader(log, {"skip_long_lines": True})
    assert reader.read() == []
    log.write_bytes(b"x" * 2 * MIB + b"\n1\n" + b"y" * 3 * MIB)
    assert reader.read() == ["1"]


@pytest.mark.usefixtures("little_work")
def test_a_look_that_is_not_finished_returns_so_that_the_ingester_can_be_stopped(log: Path) -> None:
    log.write_bytes(bytes(5 * MIB) + b"1\n")
    parts = Reader(log).source.read(None)
    assert sum(isinstance(part, SourceBusy) for part in iter(lambda: next(parts), None)) >= 3


# --- what is not read is reported -----------------------------------------------------------------------------------


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, tuple[int, int]]]:
    """Offsets of files that cannot be read, and errors."""
    bad: dict[str, tuple[int, int]] = {}
    pread = os.pread

    def read(descriptor: int, size: int, offset: int) -> bytes:
        name = os.path.basename(os.readlink(f"/proc/self/fd/{descriptor}"))
        at, number = bad.get(name, (-1, 0))
        if offset <= at < offset + size:
            raise OSError(number, os.strerror(number))
        return pread(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", read)
    yield bad


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="the names of open files are needed")
@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
@pytest.mark.parametrize(("read_before", "at"), [(0, 50_000), (100, 50_000), (90_000, 89_990), (90_000, 95_000)])
def test_a_file_that_cannot_be_read_behind_its_beginning_is_set_aside_and_read_once(
    tmp_path: Path, number: int, read_before: int, at: int, broken: dict[str, tuple[int, int]]
) -> None:
    lines = numbered(100_000)
    path = tmp_path / "a.log"
    reader = Reader(tmp_path / "*.log")
    if read_before:
        path.write_bytes(text(lines)[:read_before])
        reader.read()
    broken["a.log"] = at, number
    path.write_bytes(text(lines))
    (tmp_path / "b.log").write_text("other\n")
    for _ in range(3):
        reader.restart()
        reader.read()
    assert reader.lines[-1] == "other"
    assert [each.subject for each in reader.source.set_aside()] == [str(path.resolve())]
    assert errno.errorcode[number] in reader.source.set_aside()[0].text
    count = len(reader.notices)
    reader.read()
    assert len(reader.notices) == count, "it is reported once"
    broken.clear()
    reader.read()
    assert sorted(reader.lines) == [*lines, "other"]
    assert reader.source.set_aside() == ()


@pytest.mark.parametrize(
    ("data", "age"),
    [(gzip.compress(bytes(99), mtime=0)[:20], -86_400), (b"\x1f\x8b", 3_600), (b"\x28\xb5\x2f", 3_600)],
    ids=["of tomorrow", "two bytes", "three bytes"],
)
def test_a_compressed_file_that_ends_too_early_is_reported_whatever_its_time_and_size(
    tmp_path: Path, data: bytes, age: int
) -> None:
    (tmp_path / "a").write_bytes(data)
    os.utime(tmp_path / "a", (time.time() - age, time.time() - age))
    reader = Reader(tmp_path / "*")
    assert reader.read() == []
    assert reader.kinds() == ["incomplete"]
    assert len(reader.source.set_aside()) == 1


@pytest.mark.parametrize("data", [b"B", b"BZh", b"P", b"("])
def test_a_line_that_is_not_ended_is_none_of_these(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a").write_bytes(data)
    os.utime(tmp_path / "a", (1, 1))
    reader = Reader(tmp_path / "*")
    assert reader.read() == []
    assert reader.notices == []


def test_a_deleted_file_with_a_line_that_is_not_ended_is_reported_and_read_when_that_ends(log: Path) -> None:
    with log.open("wb", buffering=0) as writer:
        writer.write(b"1\n2")
        reader = Reader(log)
        assert reader.read() == ["1"]
        log.unlink()
        while not reader.notices:
            assert reader.read() == []
        assert reader.kinds() == ["deleted"]
        assert [each.kind for each in reader.source.set_aside()] == ["deleted"]
        log.write_text("new\n")
        assert reader.read() == ["new"]
        assert reader.kinds() == ["deleted"]
        writer.write(b"2\n")
        assert reader.read() == ["22"]
    assert reader.source.set_aside() == ()


def test_a_deleted_file_with_a_line_that_is_not_ended_is_lost_after_a_time(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("einmal.ingest.files.scan._UNLINKED_S", 0.2)
    log.write_bytes(b"1\n2")
    reader, lenient = Reader(log), Reader(log, {"fail_on_data_loss": False})
    assert reader.read() == lenient.read() == ["1"]
    log.unlink()
    with pytest.raises(SourceRefused, match="1 bytes from offset 2 on were not ingested"):
        while True:
            reader.read()
    while "data loss" not in lenient.kinds():
        assert lenient.read() == []
    assert lenient.source.set_aside() == ()
    lenient.read()
    assert lenient.position["files"] == []


class LateClock:
    """``time``, but for a monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.late_s = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def monotonic(self) -> float:
        return time.monotonic() + self.late_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> LateClock:
    """Of what looks at the files."""
    result = LateClock()
    monkeypatch.setattr("einmal.ingest.files.scan.time", result)
    return result


@pytest.mark.parametrize("fail_on_data_loss", [True, False])
def test_whole_lines_of_a_deleted_file_are_read_however_long_transactions_fail(
    log: Path, fail_on_data_loss: bool, clock: LateClock
) -> None:
    log.write_text("1\n")
    reader = Reader(log, {"fail_on_data_loss": fail_on_data_loss})
    assert reader.read() == ["1"]
    with log.open("a") as file:
        file.write("2\n3\n4")
    assert reader.next_batch() is not None
    log.unlink()
    for _ in range(4):
        reader.reopen()
        assert reader.next_batch() is not None, "which fails"
        clock.late_s += 61
    reader.reopen()
    assert reader.read() == ["2", "3"]
    assert "data loss" not in reader.kinds()


def test_whole_lines_of_a_deleted_file_are_read_however_long_others_are_read_first(
    log: Path, clock: LateClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("einmal.ingest.files.look._BATCH_BYTES", 1)
    log.write_text("1\n")
    reader = Reader(log.parent / "*")
    assert reader.read() == ["1"]
    for number in range(9):
        (log.parent / f"{number}.old").write_text(f"old {number}\n")
        os.utime(log.parent / f"{number}.old", (number, number))
    with log.open("a") as file:
        file.write("2\n")
    batch = reader.next_batch()
    assert batch is not None
    log.unlink()
    while batch is not None:
        reader.commit(batch)
        clock.late_s += 61
        batch = reader.next_batch()
    assert reader.lines == ["1", *[f"old {number}" for number in range(9)], "2"]


def test_the_minute_of_an_unfinished_line_begins_when_the_lines_before_it_are_read(log: Path, clock: LateClock) -> None:
    log.write_text("1\n")
    reader = Reader(log)
    assert reader.read() == ["1"]
    with log.open("ab", buffering=0) as writer:
        writer.write(b"2\n3")
        assert reader.next_batch() is not None
        log.unlink()
        reader.reopen()
        assert reader.next_batch() is not None, "which fails"
        clock.late_s += 61
        reader.reopen()
        assert reader.read() == ["2"]
        writer.write(b"3\n")
        assert reader.read() == ["33"]


def test_a_file_that_waits_for_others_that_change_all_the_time_is_set_aside(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("einmal.ingest.files.source._UNSETTLED_S", 0.0)
    log.write_text("1\n")
    scan, numbers = FileScanner.scan, iter(range(100_000))
    is_rewritten = [True]

    def scan_and_rewrite(self: FileScanner, tracked: Collection[TrackedFile], *, is_first: bool) -> Scan:
        result = scan(self, tracked, is_first=is_first)
        if is_rewritten:
            Path(f"{log}.position").write_text("x" * (next(numbers) % 9))
        return result

    monkeypatch.setattr(FileScanner, "scan", scan_and_rewrite)
    reader = Reader(log.parent / "*")
    for _ in range(2):
        assert reader.read() == []
        assert str(log.resolve()) in [each.subject for each in reader.source.set_aside()]
    assert [each.subject for each in reader.notices].count(str(log.resolve())) == 1
    is_rewritten.clear()
    assert reader.read() == ["1"]
    assert reader.source.set_aside() == ()
