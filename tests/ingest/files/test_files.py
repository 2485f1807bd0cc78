"""Claims about files as a source, each on a real directory."""

from __future__ import annotations

import bz2
import glob
import gzip
import os
import shutil
import sys
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path

import pytest
import zstandard

from einmal.ingest import SourceRefused
from einmal.ingest.files.content import FileKey
from einmal.ingest.files.paths import matching
from einmal.ingest.files.position import encode
from einmal.ingest.files.scan import FileScanner, Scan
from einmal.ingest.files.source import FILE_HEADER, OFFSET_HEADER
from einmal.ingest.files.tracking import TrackedFile
from tests.ingest.files.reader import Reader


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "app.log"


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


@pytest.fixture(params=["same process", "another process"])
def again(request: pytest.FixtureRequest) -> Callable[[Reader], None]:
    """What happens between two reads."""
    return Reader.restart if request.param == "another process" else lambda reader: None


Again = Callable[[Reader], None]


def test_lines_carry_file_and_offset(log: Path) -> None:
    log.write_bytes(b"one\n\ntwo\r\n")
    reader = Reader(log)
    assert reader.read() == ["one", "", "two\r"]
    headers = [{header.key: header.value for header in record.headers} for record in reader.committed]
    assert [each[OFFSET_HEADER] for each in headers] == [b"0", b"4", b"5"]
    assert {each[FILE_HEADER] for each in headers} == {os.fsencode(log.resolve())}
    assert {record.key for record in reader.committed} == {None}


def test_the_file_is_the_key_on_request(log: Path) -> None:
    log.write_text("one\n")
    reader = Reader(log, {"key_by_file": True})
    reader.read()
    assert reader.committed[0].key == os.fsencode(log.resolve())


def test_a_partial_last_line_waits_for_its_end(log: Path, again: Again) -> None:
    log.write_text("one\ntw")
    reader = Reader(log)
    assert reader.read() == ["one"]
    again(reader)
    append(log, "o\nthree")
    assert reader.read() == ["two"]


def test_files_that_arrive_are_read_oldest_first(tmp_path: Path) -> None:
    for name, time in (("b", 1), ("a", 2)):
        (tmp_path / name).write_text(f"{name}\n")
        os.utime(tmp_path / name, (time, time))
    reader = Reader(tmp_path / "*")
    assert reader.read() == ["b", "a"]
    (tmp_path / "c").write_text("c\n")
    assert reader.read() == ["c"]


def test_a_rotation_by_rename_loses_and_repeats_nothing(log: Path, again: Again) -> None:
    log.write_text("1\n")
    reader = Reader(log)
    reader.read()
    append(log, "2\n")
    log.rename(f"{log}.1")
    log.write_text("3\n")
    again(reader)
    assert sorted(reader.read()) == ["2", "3"]
    append(Path(f"{log}.1"), "2b\n")
    Path(f"{log}.1").rename(f"{log}.2")
    log.rename(f"{log}.1")
    log.write_text("4\n")
    again(reader)
    assert sorted(reader.read()) == ["2b", "4"]
    assert reader.notices == []


@pytest.mark.parametrize("pattern", ["app.log", "app.log*"])
def test_a_rotation_by_copytruncate_loses_and_repeats_nothing(log: Path, pattern: str, again: Again) -> None:
    log.write_text("1\n")
    reader = Reader(log.parent / pattern)
    reader.read()
    append(log, "2\n")
    shutil.copy(log, f"{log}.1")
    os.truncate(log, 0)
    again(reader)
    append(log, "3\n")
    assert sorted(reader.read()) == ["2", "3"]
    append(log, "4\n")
    assert reader.read() == ["4"]
    assert reader.notices == []


def test_a_copy_that_is_not_truncated_yet_is_not_read(log: Path, again: Again) -> None:
    log.write_text("1\n2\n")
    reader = Reader(log.parent / "app.log*")
    reader.read()
    shutil.copy(log, f"{log}.1")
    append(log, "3\n")
    again(reader)
    assert reader.read() == ["3"]
    os.truncate(log, 0)
    again(reader)
    append(log, "4\n")
    assert reader.read() == ["4"]


def between_look_and_read(monkeypatch: pytest.MonkeyPatch, action: Callable[[], None]) -> None:
    """Once, when the files were seen, and before they are compared and read."""
    scan, actions = FileScanner.scan, [action]

    def scan_and_act(self: FileScanner, tracked: Collection[TrackedFile], *, is_first: bool) -> Scan:
        found = scan(self, tracked, is_first=is_first)
        if actions:
            actions.pop()()
        return found

    monkeypatch.setattr(FileScanner, "scan", scan_and_act)


def test_a_new_file_that_is_truncated_before_it_is_read_is_read_from_its_copy(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.write_text("1\n2\n3\n")

    def rotate() -> None:
        shutil.copy(log, f"{log}.1")
        log.write_text("4\n")

    reader = Reader(log.parent / "app.log*")
    between_look_and_read(monkeypatch, rotate)
    assert sorted(reader.read()) == ["1", "2", "3", "4"]


def test_a_copy_that_is_completed_while_it_is_compared_has_lost_nothing(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.write_text("1\n2\n")
    reader = Reader(log.parent / "app.log*")
    reader.read()
    append(log, "3\n4\n")
    copy = Path(f"{log}.1")
    copy.write_text("1\n2\n3\n")

    def finish() -> None:
        append(copy, "4\n")
        os.truncate(log, 0)

    between_look_and_read(monkeypatch, finish)
    assert sorted(reader.read()) == ["3", "4"]


def test_a_copy_and_its_compressed_copy_are_read_once(log: Path, again: Again) -> None:
    log.write_text("1\n")
    reader = Reader(log.parent / "app.log*")
    reader.read()
    append(log, "2\n")
    shutil.copy(log, f"{log}.1")
    os.truncate(log, 0)
    Path(f"{log}.1.gz").write_bytes(gzip.compress(b"1\n2\n"))
    again(reader)
    assert reader.read() == ["2"]
    Path(f"{log}.1").unlink()
    append(log, "3\n")
    again(reader)
    assert reader.read() == ["3"]


def test_a_truncated_file_that_has_grown_beyond_its_old_size_is_a_new_one(log: Path, again: Again) -> None:
    log.write_text("1\n")
    reader = Reader(log)
    reader.read()
    log.write_text("2\n3\n4\n")
    again(reader)
    assert reader.read() == ["2", "3", "4"]


def test_the_same_beginning_does_not_make_two_files_one(log: Path, again: Again) -> None:
    """A long heading, and another line than before behind it."""
    heading = "#" * 5_000 + "\n"
    log.write_text(heading + "1\n")
    reader = Reader(log)
    reader.read()
    log.write_text(heading + "2\n")
    again(reader)
    assert reader.read() == [heading[:-1], "2"]


COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "zst": zstandard.compress,
}


@pytest.mark.parametrize("suffix", COMPRESS)
def test_a_compressed_file_is_read_when_it_is_complete(tmp_path: Path, suffix: str, again: Again) -> None:
    text = "".join(f"{number}\n" for number in range(50_000)) + "last"
    data = COMPRESS[suffix](text.encode())
    arriving = tmp_path / f"data.{suffix}"
    reader = Reader(tmp_path / "*")
    for size in (0, 2, len(data) // 2, len(data) - 1):
        arriving.write_bytes(data[:size])
        assert reader.read() == []
        again(reader)
    arriving.write_bytes(data)
    assert reader.read() == text.split("\n")
    again(reader)
    assert reader.read() == []


@pytest.mark.parametrize("suffix", COMPRESS)
def test_several_members_are_one_file(tmp_path: Path, suffix: str) -> None:
    (tmp_path / "data").write_bytes(COMPRESS[suffix](b"1\n2") + COMPRESS[suffix](b"3\n"))
    assert Reader(tmp_path / "data").read() == ["1", "23"]


@pytest.mark.parametrize("suffix", COMPRESS)
@pytest.mark.parametrize("pattern", ["app.log", "app.log*"])
def test_a_file_that_is_compressed_is_read_on_where_it_was(log: Path, suffix: str, pattern: str, again: Again) -> None:
    log.write_text("1\n")
    reader = Reader(log.parent / pattern)
    reader.read()
    append(log, "2\n")
    Path(f"{log}.1.{suffix}").write_bytes(COMPRESS[suffix](log.read_bytes()))
    assert reader.read() == ["2"]
    append(log, "3\n")
    Path(f"{log}.1.{suffix}").write_bytes(COMPRESS[suffix](log.read_bytes()))
    log.unlink()
    log.write_text("4\n")
    again(reader)
    assert sorted(reader.read()) == ["3", "4"]


@pytest.mark.parametrize("pattern", ["app.log", "app.log*"])
def test_rotations_while_nobody_looked_lose_and_repeat_nothing(log: Path, pattern: str) -> None:
    log.write_text("1\n")
    reader = Reader(log.parent / pattern)
    reader.read()
    log.rename(f"{log}.1")
    log.write_text("2\n")
    assert reader.read() == ["2"]
    # Two nights without an ingester: the older one is compressed, and both get the next number.
    Path(f"{log}.2.gz").write_bytes(gzip.compress(Path(f"{log}.1").read_bytes()))
    log.rename(f"{log}.1")
    log.write_text("3\n")
    Path(f"{log}.2.gz").rename(f"{log}.3.gz")
    Path(f"{log}.2.gz").write_bytes(gzip.compress(Path(f"{log}.1").read_bytes()))
    Path(f"{log}.1").unlink()
    log.rename(f"{log}.1")
    log.write_text("4\n")
    reader.restart()
    found = reader.read()
    # Lines that nobody has seen are in a file by now that this pattern does not match.
    assert sorted(found) == (["3", "4"] if pattern == "app.log*" else ["4"])


def test_a_damaged_compressed_file_is_reported_and_the_others_are_read(tmp_path: Path) -> None:
    data = bytearray(gzip.compress(b"1\n" * 1000))
    data[-6] ^= 1
    (tmp_path / "a").write_bytes(data)
    (tmp_path / "b").write_text("2\n")
    reader = Reader(tmp_path / "*")
    assert reader.read() == ["2"]
    assert reader.kinds() == ["damaged"]
    assert reader.read() == []
    assert reader.kinds() == ["damaged"]


def test_a_deleted_file_is_forgotten_if_all_of_it_was_read(log: Path, again: Again) -> None:
    log.write_text("1\n")
    reader = Reader(log.parent / "*")
    reader.read()
    log.unlink()
    again(reader)
    assert reader.read() == []
    (log.parent / "other").write_text("2\n")
    assert reader.read() == ["2"]
    assert [entry[0] for entry in reader.position["files"]] == [str((log.parent / "other").resolve())]


def test_a_file_that_is_deleted_while_it_is_open_is_read_to_its_end(log: Path) -> None:
    log.write_text("1\n")
    reader = Reader(log)
    reader.read()
    append(log, "2\n")
    log.unlink()
    log.write_text("3\n")
    assert sorted(reader.read()) == ["2", "3"]


def with_unread_bytes(log: Path, **settings: bool) -> Reader:
    """A file that is gone, of which more was known than was read."""
    log.write_text("1\n2")
    reader = Reader(log, dict(settings))
    reader.read()
    reader.source.close()
    log.unlink()
    reader.restart()
    return reader


def test_bytes_that_are_gone_stop_the_ingester(log: Path) -> None:
    with pytest.raises(SourceRefused, match="1 bytes from offset 2 on were not ingested"):
        with_unread_bytes(log).read()


def test_without_fail_on_data_loss_they_are_reported(log: Path) -> None:
    reader = with_unread_bytes(log, fail_on_data_loss=False)
    assert reader.read() == []
    assert reader.kinds() == ["data loss"]


def test_a_file_that_is_replaced_by_a_longer_copy_of_itself_is_read_on(log: Path, again: Again) -> None:
    """As editors and rsync do."""
    log.write_text("1\n")
    reader = Reader(log)
    reader.read()
    other = log.with_name("tmp")
    other.write_text("1\n2\n")
    other.rename(log)
    again(reader)
    assert reader.read() == ["2"]
    assert reader.kinds() == ["replaced"]


def test_a_file_that_is_replaced_by_another_one_is_read_from_its_beginning(log: Path, again: Again) -> None:
    log.write_text("1\n")
    reader = Reader(log)
    reader.read()
    other = log.with_name("tmp")
    other.write_text("2\n3\n")
    other.rename(log)
    again(reader)
    assert reader.read() == ["2", "3"]


def test_an_inode_that_is_used_again_is_another_file(tmp_path: Path) -> None:
    reader = Reader(tmp_path / "*.csv")
    for day in range(10):
        path = tmp_path / f"day-{day}.csv"
        path.write_text("heading\nsame\n")
        reader.restart()
        assert reader.read() == ["heading", "same"], day
        # Whether the next file gets this inode is up to the file system; its generation differs.
        reader.source.close()
        path.unlink()


def test_links_to_one_file_are_one_file(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a").write_text("1\n")
    (folder / "b").symlink_to(folder / "a")
    os.link(folder / "a", folder / "c")
    (folder / "broken").symlink_to(folder / "nothing")
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "up").symlink_to(folder)
    assert Reader(folder / "*").read() == ["1"]


def test_what_is_no_file_is_reported_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "a").write_text("1\n")
    reader = Reader(tmp_path / "*")
    assert reader.read() == ["1"]
    reader.read()
    assert reader.kinds() == ["no file"]


def test_the_writer_of_a_pipe_waits_for_a_reader_as_before(tmp_path: Path) -> None:
    """To open a pipe, even without reading it, lets its writer write, and then takes its reader away."""
    os.mkfifo(tmp_path / "pipe")
    opened: list[str] = []

    def note(event: str, values: tuple[object, ...]) -> None:
        if event == "open" and isinstance(values[0], str):
            opened.append(values[0])

    sys.addaudithook(lambda event, values: note(event, values) if is_noted else None)
    is_noted = True
    assert Reader(tmp_path / "*").read() == []
    is_noted = False
    assert str((tmp_path / "pipe").resolve()) not in opened


def test_links_that_lead_back_are_followed_once(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    (folder / "1.log").write_text("1\n")
    (tmp_path / "2.log").write_text("2\n")
    (tmp_path / "a" / ".hidden").mkdir()
    (tmp_path / "a" / ".hidden" / "3.log").write_text("3\n")
    for name in ("x", "y", "z"):
        (tmp_path / name).symlink_to(".")
        (folder / name).symlink_to(tmp_path)
    assert sorted(Reader(tmp_path / "**" / "*.log").read()) == ["1", "2"]
    assert Reader(tmp_path / "**" / "b" / "*.log").read() == ["1"]
    assert Reader(tmp_path / "**" / "a" / "**" / "*.log").read() == ["1", "2"]
    assert sorted(Reader(tmp_path / "**").read()) == ["1", "2"]


@pytest.mark.parametrize(
    "pattern",
    [
        "*.log",
        "**/*.log",
        "**",
        "*/**",
        "**/b/*.log",
        "a/**/*.log",
        "**/c",
        "**/",
        "*/",
        "a/**/",
        "**/**/1.log",
        "no/**",
    ],
)
def test_a_pattern_matches_what_the_standard_library_matches(tmp_path: Path, pattern: str) -> None:
    for name in ("1.log", "a/1.log", "a/b/1.log", "a/b/c", "a/.h/1.log", ".h/1.log", "a[b]/1.log"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1\n")
    whole = os.path.join(tmp_path, pattern)
    expected = {os.path.join(path, "") if os.path.isdir(path) else path for path in glob.glob(whole, recursive=True)}
    found = [os.path.join(path, "") if os.path.isdir(path) else path for path in matching(whole)]
    assert {path for path in found if os.path.isfile(path)} == {path for path in expected if os.path.isfile(path)}
    if pattern.endswith("/"):
        assert set(found) == expected


def test_a_directory_behind_a_link_stays_the_same_source_when_the_link_leads_elsewhere(tmp_path: Path) -> None:
    for release in ("1", "2"):
        (tmp_path / release / "log").mkdir(parents=True)
        (tmp_path / release / "log" / "app.log").write_text(f"release {release}\n")
    current = tmp_path / "current"
    current.symlink_to("1")
    reader = Reader(current / "log" / "*.log")
    assert reader.read() == ["release 1"]
    origin = reader.source.origin()
    assert reader.source.former_origins() == (f"files in {(tmp_path / '1' / 'log').resolve()}",)
    current.unlink()
    current.symlink_to("2")
    append(tmp_path / "1" / "log" / "app.log", "still release 1\n")
    reader.restart()
    assert reader.source.origin() == origin
    assert sorted(reader.read()) == ["release 2", "still release 1"]


def test_a_name_that_is_no_text_is_read(tmp_path: Path) -> None:
    path = os.path.join(os.fsencode(tmp_path), b"\xff\n.log")
    with open(path, "wb") as file:
        file.write(b"1\n")
    reader = Reader(tmp_path / "*.log")
    assert reader.read() == ["1"]
    assert reader.committed[0].headers[0].value == os.path.realpath(path)
    reader.restart()
    assert reader.read() == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_is_reported_and_read_later(log: Path) -> None:
    log.write_text("1\n")
    log.chmod(0)
    reader = Reader(log)
    assert reader.read() == []
    assert reader.kinds() == ["unreadable"]
    log.chmod(0o600)
    assert reader.read() == ["1"]


def test_a_file_that_cannot_be_opened_is_reported_and_read_later(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log.write_text("1\n")
    reader = Reader(log.parent / "*")
    opened = os.open

    def refuse(path: str, *others: int) -> int:
        if path == str(log.resolve()):
            raise PermissionError(13, "Permission denied", path)
        return opened(path, *others)

    with monkeypatch.context() as patched:
        patched.setattr(os, "open", refuse)
        assert reader.read() == []
        assert reader.kinds() == ["unreadable"]
    assert reader.read() == ["1"]


def test_a_line_of_just_the_limit_is_read(log: Path) -> None:
    log.write_text("x" * 100 + "\n")
    assert Reader(log, {"line_bytes": 100}).read() == ["x" * 100]


def test_a_directory_that_is_not_mounted_takes_nothing_away(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log.write_text("1\n")
    reader = Reader(log)
    reader.read()
    # What a mount point shows: an empty directory of another device.
    for entry in reader.position["files"]:
        entry[1] += 1
    hidden = log.rename(log.parent.parent / "hidden.log")
    reader.restart()
    assert reader.read() == []
    hidden.rename(log)
    append(log, "2\n")
    assert reader.read() == ["2"]


def test_a_file_system_with_another_device_number_has_the_same_files(log: Path) -> None:
    log.write_text("1\n")
    reader = Reader(log)
    reader.read()
    for entry in reader.position["files"]:
        entry[1] += 1
    log.rename(f"{log}.1")
    append(Path(f"{log}.1"), "2\n")
    reader.restart()
    assert reader.read() == ["2"]


def test_a_directory_that_is_deleted_with_its_files_is_forgotten(tmp_path: Path) -> None:
    folder = tmp_path / "day"
    folder.mkdir()
    (folder / "a").write_text("1\n")
    (tmp_path / "b").write_text("2\n")
    reader = Reader(tmp_path / "**")
    reader.read()
    shutil.rmtree(folder)
    reader.restart()
    append(tmp_path / "b", "3\n")
    reader.read()
    append(tmp_path / "b", "4\n")
    reader.read()
    assert len(reader.position["files"]) == 1
    assert sorted(reader.lines) == ["1", "2", "3", "4"]


def test_too_many_files_for_a_position_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("einmal.ingest.files.position._POSITION_MAX", 1_000)
    for number in range(10):
        (tmp_path / str(number)).write_text("1\n")
    with pytest.raises(SourceRefused, match="10 files are too many for one ingester"):
        Reader(tmp_path / "*").read()


@pytest.mark.parametrize("first_path", ["", "/log/0", "/log/first"])
def test_the_size_of_a_position_has_the_paths_that_are_recorded(
    first_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("einmal.ingest.files.position._POSITION_MAX", 166 if first_path != "/log/first" else 176)
    file = TrackedFile("/log/0", FileKey(2**63, 2**63, 2**31), 2**40, first_path=first_path)
    encode([file])
    with pytest.raises(SourceRefused, match="too many"):
        encode([replace(file, path="/log/00", first_path=first_path and f"{first_path}0")])


@pytest.mark.parametrize(
    "position", [{}, {"files": 1}, {"files": [[1]]}, {"files": [["a", 1, 2, None, "x", 3, "", "", []]]}]
)
def test_a_position_of_something_else_is_refused(tmp_path: Path, position: object) -> None:
    with pytest.raises(SourceRefused, match="not one in files"):
        Reader(tmp_path / "*", position=position).read()


def test_large_files_are_read_in_several_batches(log: Path) -> None:
    log.write_text("".join(f"{number:099d}\n" for number in range(100_000)))
    reader = Reader(log)
    batches = 0
    while (batch := reader.next_batch()) is not None:
        reader.commit(batch)
        batches += 1
    assert reader.lines == [f"{number:099d}" for number in range(100_000)]
    assert batches > 1
