"""Claims about which file is which, without a file system."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from einmal.ingest.files.content import EDGE, FileKey, digest
from einmal.ingest.files.tracking import (
    FileCopy,
    Mark,
    RelatedPaths,
    SeenFile,
    TrackedFile,
    head_of,
    head_size,
    match,
)

MANY = 10_000


def fingerprint_of(content: bytes, offset: int) -> str:
    return digest(content[: min(offset, EDGE)], content[max(0, offset - EDGE) : offset])


@dataclass
class Disk:
    """Contents by path. ``asked``: for how many fingerprints."""

    contents: dict[str, bytes]
    asked: int = 0

    def seen(self, path: str, inode: int) -> SeenFile:
        content = self.contents[path]
        return SeenFile(path, FileKey(1, inode, 1), len(content), content[:EDGE], path.endswith(".gz"))

    def fingerprint(self, seen: SeenFile, offset: int) -> str | None:
        self.asked += 1
        content = self.contents[seen.path]
        return fingerprint_of(content, offset) if offset <= len(content) else None


def tracked(path: str, inode: int, content: bytes, *copies: FileCopy) -> TrackedFile:
    size = len(content)
    read = Mark(size, fingerprint_of(content, size))
    return TrackedFile(path, FileKey(1, inode, 1), size, read, head_of(content[:EDGE], size), copies)


def lines(number: int) -> bytes:
    return f"2026-11-23T12:00:00 the same beginning, event {number}\n".encode() * 20


def test_many_files_that_have_not_changed_cost_a_fingerprint_each() -> None:
    disk = Disk({f"/log/app.log.{number}": lines(number) for number in range(MANY)})
    files = [tracked(path, inode, content) for inode, (path, content) in enumerate(disk.contents.items())]
    seen = [disk.seen(path, inode) for inode, path in enumerate(disk.contents)]
    found = match(files, seen, disk.fingerprint)
    assert (len(found.present), len(found.new), len(found.missing)) == (MANY, 0, 0)
    assert disk.asked <= MANY


@pytest.mark.parametrize("name", ["app.log.{}", "app.log.{}.gz", "app-{}.log.gz", "{}.csv"])
def test_many_new_files_with_related_names_are_not_compared_in_pairs(name: str) -> None:
    disk = Disk({f"/log/{name.format(number)}": lines(number) for number in range(MANY)})
    found = match([], [disk.seen(path, inode) for inode, path in enumerate(disk.contents)], disk.fingerprint)
    assert len(found.new) == MANY
    assert disk.asked <= 5 * MANY


def test_many_files_that_were_compressed_are_found_without_comparing_pairs() -> None:
    contents = {f"/log/app.log.{number}": lines(number) for number in range(MANY)}
    files = [tracked(path, inode, content) for inode, (path, content) in enumerate(contents.items())]
    disk = Disk({f"{path}.gz": content for path, content in contents.items()})
    found = match(files, [disk.seen(path, MANY + inode) for inode, path in enumerate(disk.contents)], disk.fingerprint)
    assert len(found.present) == MANY
    assert all(each.seen is not None and each.seen.path == f"{each.file.path}.gz" for each in found.present)
    assert disk.asked <= 5 * MANY


def test_a_copy_is_read_on_where_its_original_was_left() -> None:
    disk = Disk({"/log/app.log": b"new\n", "/log/app.log.1": b"1\n2\n3\n"})
    file = tracked("/log/app.log", 1, b"1\n2\n")
    found = match([file], [disk.seen("/log/app.log", 1), disk.seen("/log/app.log.1", 2)], disk.fingerprint)
    assert [(each.file, each.seen and each.seen.path) for each in found.present] == [(file, "/log/app.log.1")]
    assert [each.file.path for each in found.new] == ["/log/app.log"]


def test_a_copy_is_one_also_while_its_original_shares_the_path_with_a_file_that_has_lost_its_name() -> None:
    contents = {1: b"old\n", 2: b"1\n2\n", 3: b"1\n2\n"}
    paths = {1: "/log/app.log", 2: "/log/app.log", 3: "/log/app.log.1"}

    def fingerprint(seen: SeenFile, offset: int) -> str | None:
        content = contents[seen.key.inode]
        return fingerprint_of(content, offset) if offset <= len(content) else None

    seen = [SeenFile(paths[n], FileKey(1, n, 1), len(contents[n]), contents[n]) for n in (1, 2, 3)]
    file = tracked("/log/app.log", 1, contents[1])
    for order in (seen, seen[::-1]):
        found = match([file], order, fingerprint)
        assert [each.file for each in found.present] == [file]
        (new,) = found.new
        assert (new.file.key.inode, [each.key.inode for each in new.copies]) == (2, [3])


def test_a_tracked_copy_that_lacks_lines_that_were_read_is_still_one() -> None:
    disk = Disk({"/log/app.log": b"", "/log/app.log.1": b"1\n2\n"})
    copy = FileCopy("/log/app.log.1", FileKey(1, 2, 1), Mark(2, fingerprint_of(b"1\n", 2)))
    file = tracked("/log/app.log", 1, b"1\n2\n3\n", copy)
    found = match([file], [disk.seen("/log/app.log", 1), disk.seen("/log/app.log.1", 2)], disk.fingerprint)
    assert [[each.path for each in missing.copies] for missing in found.missing] == [["/log/app.log.1"]]
    assert [each.file.path for each in found.new] == ["/log/app.log"]


def test_a_copy_that_nobody_saw_and_that_lacks_lines_is_doubtful() -> None:
    disk = Disk({"/log/app.log": b"", "/log/app.log.1": b"1\n2\n3\n4\n"})
    file = tracked("/log/app.log", 1, b"1\n2\n3\n4\n5\n")
    found = match([file], [disk.seen("/log/app.log", 1), disk.seen("/log/app.log.1", 2)], disk.fingerprint)
    assert [(original, seen.path) for original, seen in found.doubtful] == [(file, "/log/app.log.1")]


def test_files_that_begin_in_the_same_way_are_separated_where_one_begins_anew() -> None:
    """The log was truncated, and begins with the heading that was all that was read."""
    disk = Disk({"/log/app.log": b"heading\nnew\n", "/log/app.log.1": b"heading\nold\n"})
    copy = FileCopy("/log/app.log.1", FileKey(1, 2, 1), Mark(8, fingerprint_of(b"heading\n", 8)))
    file = tracked("/log/app.log", 1, b"heading\n", copy)
    found = match([file], [disk.seen("/log/app.log", 1), disk.seen("/log/app.log.1", 2)], disk.fingerprint)
    assert [each.seen and each.seen.path for each in found.present] == ["/log/app.log"]
    assert [each.file.path for each in found.new] == ["/log/app.log.1"]


def test_files_with_the_same_content_and_unrelated_names_are_two() -> None:
    disk = Disk({"/in/a.csv": b"1\n", "/in/b.csv": b"1\n"})
    found = match([], [disk.seen("/in/a.csv", 1), disk.seen("/in/b.csv", 2)], disk.fingerprint)
    assert len(found.new) == 2


@pytest.mark.parametrize(("offset", "size"), [(0, 0), (1, 1), (3, 2), (1023, 512), (1024, 1024), (5000, 1024)])
def test_a_head_is_a_power_of_two(offset: int, size: int) -> None:
    assert head_size(offset) == size


@pytest.mark.parametrize(
    ("one", "other", "is_related"),
    [
        ("/a/app.log", "/a/app.log.1", True),
        ("/a/app.log.1", "/a/app.log", True),
        ("/a/app.log.1", "/a/app.log.3.gz", True),
        ("/a/app.log.3.gz", "/a/app.log.1", True),
        ("/a/app.log", "/b/app.log.1", False),
        ("/a/app.log", "/a/app.logger", False),
        ("/a/app.log.1", "/a/app.log.2", False),
        ("/a/app.log", "/a/app-2026-11-23.log.gz", True),
        ("/a/app-2026-11-23.log", "/a/app.log", True),
        ("/a/app-8080.log", "/a/app-8080-2026-11-23.log", True),
        ("/a/app-2026-11-23.log", "/a/app-2026-11-24.log", False),
        ("/a/app.log", "/a/app-old.log", False),
        ("/a/app.log", "/b/app-2026-11-23.log", False),
    ],
)
def test_names_are_related_in_both_directions(one: str, other: str, is_related: bool) -> None:
    assert (one in RelatedPaths([other])) == is_related


@pytest.mark.parametrize("path", ["/log/app.log.1.gz", "/log/app.log.2.gz"])
def test_a_copy_of_a_copy_is_one_although_both_lack_lines_that_were_read(path: str) -> None:
    disk = Disk({path: b"1\n", "/log/app.log": b""})
    copy = FileCopy("/log/app.log.1", FileKey(1, 2, 1), Mark(2, fingerprint_of(b"1\n", 2)))
    file = tracked("/log/app.log", 1, b"1\n2\n", copy)
    found = match([file], [disk.seen(path, 3), disk.seen("/log/app.log", 1)], disk.fingerprint)
    assert [(each.file, [seen.path for seen in each.copies]) for each in found.missing] == [(file, [path])]
    assert [each.file.path for each in found.new] == ["/log/app.log"]
