"""A rotation that renames and compresses, or copies and truncates, gives the copy a name of its own choice: each line
is read once where the content decides, and where it does not, the file is read and reported."""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.ingest.files.reader import Reader

Again = Callable[[Reader], None]
LINES = [f"2026-11-29T12:00:00 event {number}" for number in range(100)]
ROLLED = [
    "app.log.2026-11-29.gz",
    "app-2026-11-29.log.gz",
    "app.2026-11-29.0.log.gz",
    "app-20261129T000000.log.gz",
    "2026-11-29-app.log.gz",
]
"""Names that logrotate, logback and log4j2 give."""


@pytest.fixture(params=["same process", "another process"])
def again(request: pytest.FixtureRequest) -> Again:
    """What happens between two reads."""
    return Reader.restart if request.param == "another process" else lambda reader: None


def text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def append(path: Path, lines: list[str]) -> None:
    with path.open("a") as file:
        file.write(text(lines))


def read_log(folder: Path, lines: list[str] = LINES) -> tuple[Path, Reader]:
    log = folder / "app.log"
    log.write_text(text(lines))
    reader = Reader(folder / "*")
    assert reader.read() == lines
    return log, reader


def compress(log: Path, target: str) -> None:
    (log.parent / target).write_bytes(gzip.compress(log.read_bytes()))
    log.unlink()


@pytest.mark.parametrize("lines", [LINES, ["short"]])
@pytest.mark.parametrize("rolled", ROLLED)
def test_a_file_that_is_renamed_and_compressed_in_one_step_is_read_once(
    tmp_path: Path, rolled: str, lines: list[str], again: Again
) -> None:
    log, reader = read_log(tmp_path, lines)
    append(log, ["unread"])
    compress(log, rolled)
    log.write_text("new\n")
    again(reader)
    assert sorted(reader.read()) == ["new", "unread"]
    assert set(reader.kinds()) <= {"copy"}


@pytest.mark.parametrize("lines", [LINES, ["short"]])
def test_it_is_read_once_whatever_the_reader_sees_of_the_steps(tmp_path: Path, lines: list[str], again: Again) -> None:
    log, reader = read_log(tmp_path, lines)
    temporary = tmp_path / "app.log8213.tmp"
    rolled = tmp_path / "app-2026-11-29.log.gz"
    append(log, ["unread"])
    compressed = gzip.compress(log.read_bytes())
    log.rename(temporary)
    again(reader)
    assert reader.read() == ["unread"]
    rolled.write_bytes(compressed[:20])
    log.write_text("new\n")
    again(reader)
    assert reader.read() == ["new"]
    rolled.write_bytes(compressed)
    again(reader)
    assert reader.read() == []
    temporary.unlink()
    again(reader)
    assert reader.read() == []
    append(log, ["more"])
    assert reader.read() == ["more"]


@pytest.mark.parametrize("is_seen", [True, False])
@pytest.mark.parametrize("copied", ["app-20261129.log", "app.1.log", "app_2026-11-29_12-00.log"])
def test_a_copy_is_one_where_numbers_are_inserted_into_the_name(
    tmp_path: Path, copied: str, is_seen: bool, again: Again
) -> None:
    log, reader = read_log(tmp_path)
    append(log, ["unread"])
    shutil.copy(log, tmp_path / copied)
    if is_seen:
        again(reader)
        assert reader.read() == ["unread"]
    os.truncate(log, 0)
    append(log, ["new"])
    again(reader)
    assert sorted(reader.read()) == (["new"] if is_seen else ["new", "unread"])
    assert "data loss" not in reader.kinds()


def test_content_identifies_a_copy_whatever_its_name(tmp_path: Path, again: Again) -> None:
    log, reader = read_log(tmp_path)
    append(log, ["unread"])
    compress(log, "yesterday.gz")
    log.write_text("new\n")
    again(reader)
    assert sorted(reader.read()) == ["new", "unread"]
    assert set(reader.kinds()) == {"copy"}


def test_content_identifies_a_copy_of_what_was_truncated_whatever_its_name(tmp_path: Path, again: Again) -> None:
    log, reader = read_log(tmp_path)
    shutil.copy(log, tmp_path / "yesterday")
    log.write_text("new\n")
    again(reader)
    assert reader.read() == ["new"]
    assert reader.kinds() == ["copy"]


@pytest.mark.parametrize("lines", [LINES, ["heading"]])
def test_a_delivery_with_the_content_of_one_that_was_deleted_is_read_and_reported(
    tmp_path: Path, lines: list[str], again: Again
) -> None:
    log, reader = read_log(tmp_path, lines)
    log.unlink()
    (tmp_path / "next.csv").write_text(text([*lines, "more"]))
    again(reader)
    assert reader.read() == [*lines, "more"]
    assert reader.kinds() == ["possible copy"]
    assert reader.read() == []
    assert reader.kinds() == ["possible copy"]


@pytest.mark.parametrize(
    ("name", "other", "is_compressed", "settings"),
    [
        ("a.gzip", "b.gzip", True, {}),
        ("a.tgz", "b.tgz", True, {}),
        ("a.GZ", "b.GZ", True, {}),
        ("a.gz", "b.gz", True, {}),
        ("a.gz", "b.gz", False, {}),
        ("a.gz", "b.gz", False, {"is_as_stored": True}),
        ("a.csv", "b.csv.gz", False, {}),
        ("a.csv.gz", "b.csv", False, {}),
    ],
)
def test_a_second_delivery_is_read_whatever_its_name_makes_of_its_content(
    tmp_path: Path, name: str, other: str, is_compressed: bool, settings: dict[str, Any], again: Again
) -> None:
    data = text(LINES).encode()
    data = gzip.compress(data) if is_compressed else data
    (tmp_path / name).write_bytes(data)
    reader = Reader(tmp_path / "*", settings)
    assert reader.read() == LINES
    # In this order, so that it has another inode.
    (tmp_path / "other").write_bytes(data)
    (tmp_path / name).unlink()
    (tmp_path / "other").rename(tmp_path / other)
    again(reader)
    assert reader.read() == LINES
    assert reader.kinds() == ["possible copy"]


def test_a_short_content_does_not_identify_a_copy_of_another_name(tmp_path: Path, again: Again) -> None:
    log, reader = read_log(tmp_path, ["heading"])
    log.unlink()
    (tmp_path / "next.csv.gz").write_bytes(gzip.compress(b"heading\n1\n"))
    again(reader)
    assert reader.read() == ["heading", "1"]
    assert reader.kinds() == ["possible copy"]


@pytest.mark.parametrize("name", ["app-2026-11-30.log.gz", "other.gz"])
def test_the_same_beginning_identifies_no_copy(tmp_path: Path, name: str, again: Again) -> None:
    heading = "#" * 2_000
    log, reader = read_log(tmp_path, [heading, *LINES])
    log.unlink()
    lines = [heading, *[line.replace("11-29", "11-30") for line in LINES], "more"]
    (tmp_path / name).write_bytes(gzip.compress(text(lines).encode()))
    again(reader)
    assert reader.read() == lines


def test_a_copy_with_numbers_in_its_name_that_lacks_lines_is_doubtful(tmp_path: Path) -> None:
    log, reader = read_log(tmp_path)
    reader.settings = {"fail_on_data_loss": False}
    reader.restart()
    log.unlink()
    (tmp_path / "app-2026-11-29.log.gz").write_bytes(gzip.compress(text(LINES[:90]).encode()))
    assert reader.read() == []
    assert reader.kinds() == ["doubtful copy"]


# --- the key --------------------------------------------------------------------------------------------------------


def keys(reader: Reader) -> dict[str, str]:
    return {(each.value or b"").decode(): Path(os.fsdecode(each.key or b"")).name for each in reader.committed}


def test_the_key_of_a_file_is_the_same_after_its_rotations(tmp_path: Path, again: Again) -> None:
    log = tmp_path / "app.log"
    log.write_text("1\n")
    reader = Reader(tmp_path / "app*", {"key_by_file": True})
    reader.read()
    append(log, ["2"])
    log.rename(tmp_path / "app.log.1")
    log.write_text("3\n")
    again(reader)
    reader.read()
    append(tmp_path / "app.log.1", ["4"])
    (tmp_path / "app.log.1").rename(tmp_path / "app.log.2")
    again(reader)
    reader.read()
    append(tmp_path / "app.log.2", ["5"])
    compress(tmp_path / "app.log.2", "app.log.3.gz")
    again(reader)
    reader.read()
    assert keys(reader) == dict.fromkeys("12345", "app.log")


def test_a_position_from_before_there_were_first_paths_is_read_on(tmp_path: Path) -> None:
    log, reader = read_log(tmp_path)
    log.rename(tmp_path / "app.log.1")
    reader.read()
    for entry in reader.position["files"]:
        assert entry[9:] == [str(log.resolve())]
        del entry[9:]
    reader.restart()
    append(tmp_path / "app.log.1", ["more"])
    assert reader.read() == ["more"]
