"""What keeps a file from being read keeps no other one from it, is reported with a way past, and the way leads past."""

from __future__ import annotations

import bz2
import gzip
import lzma
import os
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import zstandard

from einmal.ingest.files.beginning import wide_encoding
from einmal.ingest.files.decompression import Incomplete, codec_of
from einmal.ingest.files.source import OFFSET_HEADER
from tests.ingest.files.reader import Reader

LIMIT = 1_000
LONG = "x" * (LIMIT + 1)
HUGE = "x" * 3_000_000
"""Longer than what is read at once."""


def damaged(data: bytes) -> bytes:
    return data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]


class Case(NamedTuple):
    """``options``: the way past, where it is an option; ``lines`` are what is read then."""

    content: bytes
    kind: str
    way: str
    options: dict[str, Any] = {}
    lines: list[str] = []
    before: list[str] = []


SKIP = {"skip_long_lines": True}
AS_STORED = {"is_as_stored": True}
CASES = {
    "long line": Case(f"1\n{LONG}\n2\n".encode(), "long line", "skip.long.lines", SKIP, ["1", "2"], ["1"]),
    "long first line": Case(f"{LONG}\n2\n".encode(), "long line", "skip.long.lines", SKIP, ["2"]),
    "huge line": Case(f"1\n{HUGE}\n2\n".encode(), "long line", "skip.long.lines", SKIP, ["1", "2"], ["1"]),
    "huge compressed line": Case(
        zstandard.compress(f"1\n{HUGE}\n2".encode()), "long line", "skip.long.lines", SKIP, ["1", "2"], ["1"]
    ),
    "raised limit": Case(
        f"1\n{LONG}\n".encode(), "long line", "max.line.bytes", {"line_bytes": 2_000}, ["1", LONG], ["1"]
    ),
    "damaged gzip": Case(damaged(gzip.compress(b"1\n" * 99)), "damaged", "restore it"),
    "damaged bzip2": Case(damaged(bz2.compress(b"1\n" * 99)), "damaged", "restore it"),
    "damaged Zstandard": Case(
        damaged(zstandard.ZstdCompressor(write_checksum=True).compress(bytes(range(256)) * 9)), "damaged", "restore it"
    ),
    "text with all of a magic": Case(
        b"BZh91AY&SY is what it begins with\n2\n",
        "damaged",
        'content = "bytes"',
        AS_STORED,
        ["BZh91AY&SY is what it begins with", "2"],
    ),
    "cut gzip": Case(gzip.compress(b"1\n" * 99)[:-9], "incomplete", "finish it"),
    "xz": Case(lzma.compress(b"1\n"), "not supported", "decompress it"),
    "lz4": Case(b"\x04\x22\x4d\x18" + bytes(20), "not supported", "decompress it"),
    "UTF-16": Case("1\n2\n".encode("utf-16"), "encoding", "convert it to UTF-8"),
    "UTF-16 without a mark": Case("1\n2\n".encode("utf-16-be"), "encoding", "convert it to UTF-8"),
    "UTF-32": Case("1\n2\n".encode("utf-32"), "encoding", "convert it to UTF-8"),
}


def write(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    os.utime(path, (1, 1))


@pytest.mark.parametrize("name", CASES)
def test_what_stops_one_file_stops_no_other_and_has_a_way_past(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    write(tmp_path / "a", case.content)
    (tmp_path / "b").write_text("other\n")
    reader = Reader(tmp_path / "*", {"line_bytes": LIMIT})
    assert sorted(reader.read()) == sorted([*case.before, "other"])
    assert reader.read() == []
    assert reader.kinds() == [case.kind]
    (aside,) = reader.source.set_aside()
    assert aside == reader.notices[0]
    assert aside.subject == str((tmp_path / "a").resolve())
    assert aside.subject in aside.text
    assert case.way in aside.text
    with (tmp_path / "b").open("a") as file:
        file.write("more\n")
    assert reader.read() == ["more"], "the other file is followed"
    if case.options:
        reader.settings = {"line_bytes": LIMIT} | case.options
        reader.restart()
        reader.read()
        assert sorted(reader.lines) == sorted([*case.lines, "other", "more"])
        assert reader.source.set_aside() == ()
    (tmp_path / "a").unlink()
    again = Reader(tmp_path / "*", {"line_bytes": LIMIT})
    assert again.read() == ["other", "more"], "or it is moved away"
    assert again.source.set_aside() == ()


def test_a_file_that_is_set_aside_is_read_once_it_is_restored(tmp_path: Path) -> None:
    write(tmp_path / "a", damaged(gzip.compress(b"1\n" * 99)))
    reader = Reader(tmp_path / "a")
    assert reader.read() == []
    write(tmp_path / "a", gzip.compress(b"1\n2\n"))
    assert reader.read() == ["1", "2"]
    assert reader.source.set_aside() == ()


def test_a_compressed_file_that_arrives_is_not_reported(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(gzip.compress(b"1\n" * 99)[:-9])
    reader = Reader(tmp_path / "a")
    assert reader.read() == []
    assert reader.notices == []
    assert reader.source.set_aside() == ()


def test_zstandard_that_is_not_installed_stops_no_other_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "a", zstandard.compress(b"1\n"))
    (tmp_path / "b").write_text("2\n")
    monkeypatch.setitem(sys.modules, "zstandard", None)
    reader = Reader(tmp_path / "*")
    assert reader.read() == ["2"]
    (aside,) = reader.source.set_aside()
    assert "zstd" in aside.text


# --- long lines -----------------------------------------------------------------------------------------------------


def test_a_long_line_is_left_out_with_path_offset_and_length(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    log.write_text(f"1\n{LONG}\n2\n{LONG}x\n{HUGE}\n3\n")
    reader = Reader(log, {"line_bytes": LIMIT, "skip_long_lines": True})
    assert reader.read() == ["1", "2", "3"]
    first, second = (notice.text for notice in reader.notices)
    assert first.startswith(f"{log.resolve()} has a line of {LIMIT + 1} bytes at offset 2, and 1 others behind it")
    assert f"has a line of {len(HUGE)} bytes at offset {2 * LIMIT + 9}: more" in second
    assert [each.headers[1].value for each in reader.committed][1:] == [b"1004", b"3002010"]


def test_a_long_line_waits_for_its_end(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    log.write_text("1\n" + HUGE)
    reader = Reader(log, {"line_bytes": LIMIT, "skip_long_lines": True})
    assert reader.read() == ["1"]
    assert reader.notices == []
    with log.open("a") as file:
        file.write("x\n2\n")
    reader.restart()
    assert reader.read() == ["2"]
    assert [notice.kind for notice in reader.notices] == ["skipped line"]


def test_a_bomb_is_left_out_in_bounded_memory(tmp_path: Path) -> None:
    (tmp_path / "bomb").write_bytes(zstandard.compress(b"a" * 100_000_000 + b"\n1\n"))
    tracemalloc.start()
    reader = Reader(tmp_path / "*", {"skip_long_lines": True})
    assert reader.read() == ["1"]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 40_000_000


# --- what is no line ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 999, 1_000, 1_048_576, 5_000_000])
def test_a_hole_after_a_truncation_is_left_out_however_long(size: int, tmp_path: Path) -> None:
    """The writer does not append, but writes at its old offset."""
    log = tmp_path / "app.log"
    with log.open("wb", buffering=0) as writer:
        writer.write(b"x" * (size - 1) + b"\n")
        reader = Reader(log, {"line_bytes": LIMIT, "skip_long_lines": True})
        reader.read()
        reader.committed.clear()
        reader.notices.clear()
        os.truncate(log, 0)
        writer.write(b"1\n2")
        reader.settings = {"line_bytes": LIMIT}
        reader.restart()
        assert reader.read() == ["1"]
        assert reader.kinds() == ["hole"]
        assert f"{size} NUL bytes at offset 0" in reader.notices[0].text
        assert {h.key: h.value for h in reader.committed[0].headers}[OFFSET_HEADER] == b"%d" % size
        writer.write(b"\n3\n")
        assert reader.read() == ["2", "3"]
    assert reader.source.set_aside() == ()
    assert reader.kinds() == ["hole"]


def test_a_hole_is_not_searched_again_before_a_line_follows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "app.log"
    log.write_bytes(bytes(5_000_000) + b"1")
    reads: list[int] = []
    pread = os.pread

    def counted(descriptor: int, size: int, offset: int) -> bytes:
        reads.append(offset)
        return pread(descriptor, size, offset)

    monkeypatch.setattr(os, "pread", counted)
    reader = Reader(log)
    assert reader.read() == []
    assert max(reads) >= 4_000_000
    reads.clear()
    assert reader.read() == []
    assert max(reads, default=0) < 4_000_000
    with log.open("ab") as file:
        file.write(b"\n")
    assert reader.read() == ["1"]


def test_a_hole_after_a_crash_is_left_out_in_the_middle_of_a_file_too(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    log.write_bytes(b"1\n" + bytes(3_000_000) + b"2\n")
    reader = Reader(log, {"line_bytes": LIMIT})
    assert reader.read() == ["1", "2"]
    assert reader.kinds() == ["hole"]


@pytest.mark.parametrize("settings", [{}, {"skip_long_lines": True}])
def test_a_file_that_is_allocated_before_it_is_written_is_followed(settings: dict[str, Any], tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    reader = Reader(log, {"line_bytes": LIMIT, **settings})
    with log.open("wb", buffering=0) as writer:
        writer.truncate(3_000_000)
        assert reader.read() == []
        writer.write(b"1\n")
        assert reader.read() == ["1"]
        writer.write(b"2\n")
        reader.restart()
        assert reader.read() == ["2"]
    assert reader.notices == []
    assert reader.source.set_aside() == ()


def test_a_byte_order_mark_is_left_out(tmp_path: Path) -> None:
    log = tmp_path / "app.log"
    log.write_text("1\n2\n", encoding="utf-8-sig")
    reader = Reader(log)
    assert reader.read() == ["1", "2"]
    assert reader.kinds() == ["byte order mark"]
    assert Reader(log, AS_STORED).read() == ["\ufeff1", "2"]


@pytest.mark.parametrize("text", ["BZh", "BZh9", "BZhello\n1\n", "BZh9\n1\n", "BZh91AY\n", "P\n", "PK\n", "(\n"])
def test_a_text_that_begins_as_a_codec_does_is_text(text: str, tmp_path: Path) -> None:
    (tmp_path / "a").write_text(text, encoding="latin-1")
    reader = Reader(tmp_path / "a")
    assert len(reader.read()) == text.count("\n")
    assert reader.notices == []


@pytest.mark.parametrize(
    ("compress", "codec"),
    [
        (gzip.compress, "gzip"),
        (bz2.compress, "bzip2"),
        (lambda data: bz2.compress(data, 1), "bzip2"),
        (zstandard.compress, "zstd"),
        (lzma.compress, "xz"),
        (lambda data: b"\x5a\x2a\x4d\x18\x00\x00\x00\x00" + zstandard.compress(data), "zstd"),
    ],
)
@pytest.mark.parametrize("data", [b"", b"1\n" * 500])
def test_a_codec_is_recognised_by_what_its_format_fixes(
    compress: Callable[[bytes], bytes], codec: str, data: bytes
) -> None:
    found = compress(data)
    assert codec_of(found) == codec
    with pytest.raises(Incomplete):
        codec_of(found[:3])


def test_a_frame_that_is_skipped_may_precede_those_of_zstandard(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"\x50\x2a\x4d\x18\x02\x00\x00\x00xx" + zstandard.compress(b"1\n"))
    assert Reader(tmp_path / "a").read() == ["1"]


@pytest.mark.parametrize(
    ("first", "encoding"),
    [
        ("ab\n".encode("utf-16"), "UTF-16"),
        ("ab\n".encode("utf-16-le"), "UTF-16"),
        ("ab\n".encode("utf-16-be"), "UTF-16"),
        ("ab\n".encode("utf-32"), "UTF-32"),
        (b"", None),
        (b"a", None),
        (b"a\0", None),
        (bytes(100), None),
        (b"ab\0cd\0\n", None),
        ("ä\n".encode(), None),
    ],
)
def test_a_wide_encoding_is_known_by_its_mark_or_its_nuls(first: bytes, encoding: str | None) -> None:
    assert wide_encoding(first) == encoding


# --- nothing --------------------------------------------------------------------------------------------------------


def test_a_pattern_that_matches_nothing_is_reported(tmp_path: Path) -> None:
    reader = Reader(tmp_path / "*.lgo")
    assert reader.read() == []
    assert reader.kinds() == ["no files"]
    assert str(tmp_path.resolve()) in reader.notices[0].text
    assert reader.source.set_aside() == ()


@pytest.mark.parametrize("pattern", ["*/*.log", "**/*.log", "closed/*.log"])
def test_a_directory_that_may_not_be_listed_is_set_aside(
    pattern: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path.resolve() / "closed"
    for folder in (closed, tmp_path / "open"):
        folder.mkdir()
        (folder / "a.log").write_text(f"{folder.name}\n")
    listed, is_closed = os.scandir, [True]

    def scandir(path: Any = ".") -> Any:
        if is_closed and os.fspath(path).rstrip("/") == str(closed):
            raise PermissionError(13, "Permission denied", path)
        return listed(path)

    # Root may list everything.
    monkeypatch.setattr(os, "scandir", scandir)
    reader = Reader(tmp_path / pattern)
    assert reader.read() == ([] if pattern == "closed/*.log" else ["open"])
    assert reader.kinds() == ["unreadable"]
    assert [each.subject for each in reader.source.set_aside()] == [str(closed)]
    is_closed.clear()
    assert reader.read() == ["closed"]
    assert reader.source.set_aside() == ()


def test_a_directory_that_is_not_there_is_set_aside(tmp_path: Path) -> None:
    reader = Reader(tmp_path / "missing" / "*.log")
    assert reader.read() == []
    assert reader.kinds() == ["unreadable"]
    assert [each.subject for each in reader.source.set_aside()] == [str((tmp_path / "missing").resolve())]
    (tmp_path / "missing").mkdir()
    (tmp_path / "missing" / "a.log").write_text("1\n")
    assert reader.read() == ["1"]
    assert reader.source.set_aside() == ()


def test_a_last_line_without_a_line_feed_is_reported_once_nobody_writes_it_any_more(tmp_path: Path) -> None:
    ended, old, new = (tmp_path / name for name in ("a", "b", "c"))
    ended.write_bytes(b"1\n")
    old.write_bytes(b"2\n34")
    new.write_bytes(b"5\r6\r")
    for path in (ended, old):
        os.utime(path, (1, 1))
    reader = Reader(tmp_path / "*")
    assert sorted(reader.read()) == ["1", "2"]
    (notice,) = reader.notices
    assert (notice.kind, notice.subject) == ("unfinished line", str(old))
    assert "last 2 bytes, from offset 2 on" in notice.text
    assert [each.subject for each in reader.source.unfinished()] == [str(new)]
    assert reader.read() == []
    with old.open("ab") as file:
        file.write(b"\n")
    assert reader.read() == ["34"]
    assert reader.kinds() == ["unfinished line"]
    assert reader.source.set_aside() == ()
    assert list(reader.source.unfinished()) == []


def test_nuls_behind_the_last_line_are_no_line(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"1\n" + bytes(9))
    os.utime(path, (1, 1))
    reader = Reader(path)
    assert reader.read() == ["1"]
    assert reader.kinds() == []
