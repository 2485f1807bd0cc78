"""Which of the files that exist have the lines that were read before. Pure.

What is tracked is a sequence of lines: how far it was read, a fingerprint of that, and the file that has it. Neither
path nor inode proves anything: a rotation renames files, or copies them and truncates the original; inodes are used
again; a compressed file has another inode than its original. So the fingerprint must always be the same, and so must
one of these, in this order:

1. the inode: the file has grown, or was renamed;
2. the path: the file was replaced by one that has the same content so far, as editors and rsync do;
3. the directory and the name of the original, or that under which it was read first, with something appended
   (``app.log``, ``app.log.1``, ``app.log-20261123.gz``) or numbers inserted (``app-2026-11-23.log.gz``): the file is
   gone, or begins anew, and this is a copy of it. It is read on where the original was left. Where numbers are inserted
   and less than ``EDGE`` bytes were read, 4 must hold, too;
4. the directory, whatever the name, if at least ``EDGE`` bytes were read, and a rotation can have made this of the
   original: by compressing what is gone, or by copying what begins anew. It is reported.

Where only the content of a file that is gone is the same, and the name has nothing to do with it, it may have been
delivered twice: such a file is read, and reported.

A file with a name as in 3 whose whole content is the beginning of another file's is a copy in progress, or a finished
one. It is not read, and is tracked with its original: when that is truncated, the copy is read on instead. Nothing else
shows then what of the copy was read.

Every other file is new. This is certain for a file that is shorter than what was read of an original that is gone only
because of an invariant that the source keeps: no lines are recorded as read while a copy may exist that the same look
has not seen (``source``). So a copy that is not tracked was begun after the last lines were recorded, and has them. A
rotation that breaks this, by a copy under another name that is renamed or by lines that are written while a file is
compressed, is refused where the beginnings of both are the same.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from einmal.ingest.files.content import EDGE, FileKey, digest

_COMPRESSED: Final = re.compile(r"\.(?:gz|bz2|zst)\Z")
_ROTATED: Final = re.compile(r"(?:[.-][0-9]+)+\Z")
_SEPARATORS: Final = ".-_~"
"""Between the name of a file and what a rotation appends to it."""
_TEMPORARY: Final = re.compile(r"[0-9]+\.tmp\Z")
"""Behind the name of a file that logback compresses."""
_PARTS: Final = re.compile(f"[{re.escape(_SEPARATORS)}]")
_NUMBER: Final = re.compile(r"[0-9][0-9TtZz]*\Z")
"""A part of a name: a number, a date, or a date with a time."""


class Mark(NamedTuple):
    """A fingerprint of the bytes before an offset."""

    offset: int
    fingerprint: str


NOTHING: Final = Mark(0, digest(b"", b""))


class FileCopy(NamedTuple):
    """``mark``: the end of what is known to be the same as in the original."""

    path: str
    key: FileKey
    mark: Mark


@dataclass(frozen=True, slots=True)
class TrackedFile:
    """A file that was read up to ``read``. ``size``: the largest that was seen; ``head``: see ``head_of``. Offsets and
    sizes of compressed files are decompressed. ``first_path``: under which it was read first; empty: ``path``."""

    path: str
    key: FileKey
    size: int
    read: Mark = NOTHING
    head: str = ""
    copies: tuple[FileCopy, ...] = ()
    first_path: str = ""

    @property
    def original_path(self) -> str:
        return self.first_path or self.path

    def paths(self) -> tuple[str, ...]:
        """Paths that a rotation may derive the names of copies from."""
        return tuple(dict.fromkeys((self.path, self.original_path, _TEMPORARY.sub("", self.path))))

    def locations(self) -> tuple[FileCopy, ...]:
        """The file itself, and its copies."""
        return FileCopy(self.path, self.key, self.read), *self.copies


class SeenFile(NamedTuple):
    """A file that exists. ``first``: its first ``EDGE`` bytes; ``is_wanted``: it may be read as a new one."""

    path: str
    key: FileKey
    size: int
    first: bytes
    is_compressed: bool = False
    is_wanted: bool = True


@dataclass(slots=True)
class Match:
    """``seen``: where ``file`` is read on; None if it is nowhere. ``copies`` of it that were seen; ``absent``: what is
    tracked of it and was not seen; ``is_by_content``: the name of ``seen`` has nothing to do with the original's."""

    file: TrackedFile
    seen: SeenFile | None = None
    copies: list[SeenFile] = field(default_factory=list)
    absent: list[FileCopy] = field(default_factory=list)
    is_replaced: bool = False
    is_by_content: bool = False


@dataclass(slots=True)
class Matches:
    """``doubtful``: files that are not read, each with one that is missing and of which it may be a copy that lacks
    some of what was read; ``alike``: what new files have the content of, although their names are others."""

    present: list[Match] = field(default_factory=list)
    missing: list[Match] = field(default_factory=list)
    new: list[Match] = field(default_factory=list)
    doubtful: list[tuple[TrackedFile, SeenFile]] = field(default_factory=list)
    alike: dict[FileKey, TrackedFile] = field(default_factory=dict)


FingerprintOf = Callable[[SeenFile, int], str | None]
"""Function that returns the fingerprint of the bytes of a file before an offset; None if it has fewer, or cannot be
read."""


def head_size(offset: int) -> int:
    """Return how many of the first ``offset`` bytes are in the head: a power of two, so that heads of few sizes
    suffice."""
    return 1 << (min(offset, EDGE).bit_length() - 1) if offset else 0


def head_of(first: bytes, offset: int) -> str:
    """A digest of the beginning of what is before an offset, to find candidates by."""
    return digest(first[: head_size(offset)], b"")


def match(tracked: Iterable[TrackedFile], seen: Iterable[SeenFile], fingerprint: FingerprintOf) -> Matches:
    """``seen`` has no file twice."""
    return _Matching(tracked, {file.key: file for file in seen}, fingerprint).result


class _Matching:
    def __init__(self, tracked: Iterable[TrackedFile], left: dict[FileKey, SeenFile], same: FingerprintOf) -> None:
        self._left = left
        self._fingerprint = same
        self._devices = {seen.key.device for seen in left.values()}
        self._present_paths = {seen.path for seen in left.values()}
        self._inodes: dict[int, list[SeenFile]] = {}
        for seen in left.values():
            self._inodes.setdefault(seen.key.inode, []).append(seen)
        self._owners: dict[FileKey, Match] = {}
        self.result = Matches()
        # The first of two files with the same content is the one of which more was read.
        files = sorted(tracked, key=lambda file: -file.read.offset)
        matches = [self._by_inode(file) for file in files if file.read.offset]
        self._by_path([file_match for file_match in matches if file_match.seen is None])
        self._by_name([file_match for file_match in matches if file_match.seen is None])
        self._copies_of_copies([file_match for file_match in matches if file_match.seen is None])
        self._by_content([file_match for file_match in matches if file_match.seen is None])
        for file_match in matches:
            self._separate(file_match)
        self._classify(matches)
        self._take_unread([file for file in files if not file.read.offset])

    def _has(self, seen: SeenFile, mark: Mark) -> bool:
        return seen.size >= mark.offset and self._fingerprint(seen, mark.offset) == mark.fingerprint

    def _claim(self, file_match: Match, seen: SeenFile) -> None:
        del self._left[seen.key]
        if file_match.seen is None:
            file_match.seen = seen
        else:
            file_match.copies.append(seen)

    def _claim_copy(self, file_match: Match, seen: SeenFile) -> None:
        del self._left[seen.key]
        file_match.copies.append(seen)

    # --- what was read before ---------------------------------------------------------------------------------------

    def _by_inode(self, file: TrackedFile) -> Match:
        result = Match(file)
        for location in file.locations():
            same = [seen for seen in self._inodes.get(location.key.inode, ()) if self._is_inode(location, seen)]
            if not same:
                result.absent.append(location)
            for seen in same:
                if seen.key not in self._left:
                    continue
                if self._has(seen, file.read):
                    self._claim(result, seen)
                elif self._has(seen, location.mark) and seen.size < file.read.offset:
                    # A copy that has all of its lines from what was read.
                    self._claim_copy(result, seen)
        return result

    def _is_inode(self, location: FileCopy, seen: SeenFile) -> bool:
        # A file system can have another device number after each mount.
        is_same_device = location.key.device == seen.key.device or location.key.device not in self._devices
        generations = {location.key.generation, seen.key.generation}
        # Nothing else distinguishes files of which nothing was read.
        is_known = location.mark.offset or location.path == seen.path or None not in generations
        return bool(is_same_device and is_known and len(generations - {None}) < 2)

    def _by_path(self, matches: list[Match]) -> None:
        paths: dict[str, list[SeenFile]] = {}
        for seen in self._left.values():
            paths.setdefault(seen.path, []).append(seen)
        for file_match in matches:
            for seen in paths.get(file_match.file.path, ()):
                if file_match.seen is None and seen.key in self._left and self._has(seen, file_match.file.read):
                    self._claim(file_match, seen)
                    file_match.is_replaced = True

    def _by_name(self, matches: list[Match]) -> None:
        """One file each: what remains of those with the same content can only be copies."""
        after: dict[tuple[str, str], list[SeenFile]] = {}
        for size in {head_size(file_match.file.read.offset) for file_match in matches}:
            for seen in self._left.values():
                if len(seen.first) >= size:
                    head = digest(seen.first[:size], b"")
                    for name in (*_original_names(seen.path), *_without_numbers(seen.path)):
                        after.setdefault((name, head), []).append(seen)
        for file_match in matches:
            file = file_match.file
            for name in (name for path in file.paths() for name in (path, _any_of(path), _parts_of(path))):
                # app.log.1 before app.log.1.gz: the second one is a copy of the first.
                for seen in sorted(after.get((name, file.head), ()), key=_by_length):
                    if _is_parts(name) and file.read.offset < EDGE and not self._may_be_rotated(file, seen):
                        continue
                    if file_match.seen is None and seen.key in self._left and self._has(seen, file.read):
                        self._claim(file_match, seen)

    def _may_be_rotated(self, file: TrackedFile, seen: SeenFile) -> bool:
        """Whether a file with a new inode can come from a rotation of this one: compressed, or copied while the
        original stays. A file that is only renamed keeps its inode."""
        # By content and names: whoever delivers files compressed may give them any name.
        was_named_so, is_named_so = (_COMPRESSED.search(path) is not None for path in (file.path, seen.path))
        is_recoded = seen.is_compressed and is_named_so and not was_named_so
        is_there = any(
            self._is_inode(location, other)
            for location in file.locations()
            for other in self._inodes.get(location.key.inode, ())
        )
        return is_recoded or is_there or not self._present_paths.isdisjoint(file.paths())

    def _by_content(self, matches: list[Match]) -> None:
        """See 4 at the top."""
        heads: dict[tuple[str, str], list[SeenFile]] = {}
        for size in {head_size(file_match.file.read.offset) for file_match in matches}:
            for seen in self._left.values():
                if len(seen.first) >= size:
                    heads.setdefault((posixpath.dirname(seen.path), digest(seen.first[:size], b"")), []).append(seen)
        for alike in heads.values():
            alike.sort(key=_by_length)
        for file_match in matches:
            file = file_match.file
            for seen in heads.get((posixpath.dirname(file.path), file.head), ()):
                if seen.key not in self._left or not self._has(seen, file.read):
                    continue
                if file_match.seen is None and file.read.offset >= EDGE and self._may_be_rotated(file, seen):
                    self._claim(file_match, seen)
                    file_match.is_by_content = True
                else:
                    self.result.alike[seen.key] = file

    def _copies_of_copies(self, matches: list[Match]) -> None:
        """A copy that lacks lines which were read, and was renamed or compressed itself since it was seen."""
        sizes: dict[tuple[str, int], list[SeenFile]] = {}
        for seen in self._left.values():
            for name in _original_names(seen.path):
                sizes.setdefault((name, seen.size), []).append(seen)
        for file_match in matches:
            for copy in file_match.absent:
                for name in (file_match.file.path, copy.path, _any_of(copy.path)):
                    for seen in sizes.get((name, copy.mark.offset), ()):
                        if copy.mark.offset and seen.key in self._left and self._has(seen, copy.mark):
                            self._claim_copy(file_match, seen)

    def _separate(self, file_match: Match) -> None:
        """Files with the same content so far become different if one of them was truncated, and begins as before."""
        copies, file_match.copies = file_match.copies, []
        for copy in copies:
            if file_match.seen is None or self._is_copy(copy, file_match.seen):
                file_match.copies.append(copy)
            elif copy.size > file_match.seen.size and self._is_copy(file_match.seen, copy):
                file_match.copies.append(file_match.seen)
                file_match.seen = copy
            else:
                self._left[copy.key] = copy

    def _is_copy(self, copy: SeenFile, original: SeenFile) -> bool:
        """Whether everything in the one file is the beginning of the other."""
        if copy.is_compressed and original.is_compressed and copy.size != original.size:
            return False
        fingerprint = self._fingerprint(copy, copy.size)
        return fingerprint is not None and fingerprint == self._fingerprint(original, copy.size)

    def _classify(self, matches: list[Match]) -> None:
        for file_match in matches:
            (self.result.missing if file_match.seen is None else self.result.present).append(file_match)
            for seen in file_match.copies:
                self._owners[seen.key] = file_match
            if file_match.seen is not None:
                self._owners[file_match.seen.key] = file_match

    # --- what was not -----------------------------------------------------------------------------------------------

    def _take_unread(self, tracked: list[TrackedFile]) -> None:
        """Originals before their copies: also a file that was empty can be a copy now."""
        known = _Names()
        paths = {file.key: file.paths() for file in tracked}
        for seen in sorted((*self._left.values(), *self._claimed()), key=_by_length):
            owner = self._owners.get(seen.key)
            known.add(seen, paths.get(seen.key, ()) if owner is None else owner.file.paths())
        shortened = _Shortened(file_match.file for file_match in self.result.missing if not file_match.copies)
        unread: dict[int, list[TrackedFile]] = {}
        for file in tracked:
            unread.setdefault(file.key.inode, []).append(file)
        for seen in sorted(self._left.values(), key=_by_length):
            before = unread.get(seen.key.inode, [])
            # One that is smaller now was truncated.
            same = (file for file in before if self._is_inode(file.locations()[0], seen) and seen.size >= file.size)
            known_as = next(same, None)
            if known_as is not None:
                before.remove(known_as)
            if (owner := self._original(seen, known)) is not None:
                owner.copies.append(seen)
                self._owners[seen.key] = owner
            elif seen.is_wanted and (original := shortened.original(seen, self._may_be_rotated)) is not None:
                self.result.doubtful.append((original, seen))
            elif known_as is not None:
                self._owners[seen.key] = present = Match(known_as, seen)
                self.result.present.append(present)
            elif seen.is_wanted:
                file = TrackedFile(seen.path, seen.key, seen.size, first_path=seen.path)
                self._owners[seen.key] = new = Match(file, seen)
                self.result.new.append(new)
        self.result.missing += [Match(file) for before in unread.values() for file in before]

    def _claimed(self) -> Iterator[SeenFile]:
        for file_match in (*self.result.present, *self.result.missing):
            yield from file_match.copies
            if file_match.seen is not None:
                yield file_match.seen

    def _original(self, seen: SeenFile, known: _Names) -> Match | None:
        if not seen.size:
            return None
        for original in known.before(seen):
            owner = self._owners.get(original.key)
            if owner is not None and original.key != seen.key and self._is_copy(seen, original):
                return owner
        for original in known.alike(seen):
            owner = self._owners.get(original.key)
            if owner is not None and original.key != seen.key and self._is_copy(seen, original):
                if seen.is_compressed != original.is_compressed:
                    return owner
                self.result.alike[seen.key] = owner.file
        return None


class _Names:
    """Files, by what copies of them are named after."""

    _HEAD: Final = 64

    def __init__(self) -> None:
        # A file that is deleted and still open keeps its path, which another one may have now.
        self._paths: dict[str, list[SeenFile]] = {}
        self._stems: dict[tuple[str, int, bytes], list[SeenFile]] = {}
        self._contents: dict[tuple[str, int, bytes], list[SeenFile]] = {}

    def add(self, seen: SeenFile, paths: Iterable[str]) -> None:
        """``paths``: further ones that the names of copies may come from."""
        for path in {seen.path, _TEMPORARY.sub("", seen.path), *paths}:
            self._paths.setdefault(path, []).append(seen)
            self._paths.setdefault(_parts_of(path), []).append(seen)
        if seen.size >= EDGE:
            self._contents.setdefault((posixpath.dirname(seen.path), seen.size, seen.first), []).append(seen)
        # A compressed copy of a compressed file is as large as that. Files that are short may have grown since.
        size = seen.size if seen.is_compressed else -1
        head = seen.first[: self._HEAD] if seen.is_compressed or len(seen.first) >= self._HEAD else b""
        self._stems.setdefault((_any_of(seen.path), size, head), []).append(seen)

    def before(self, seen: SeenFile) -> Iterator[SeenFile]:
        """Files of which this one may be a copy."""
        for name in (*_original_names(seen.path), *_without_numbers(seen.path)):
            yield from self._paths.get(name, ())
        if _COMPRESSED.search(seen.path):
            head = seen.first[: self._HEAD]
            for size, beginning in ((seen.size, head), (-1, head), (-1, b"")):
                yield from self._stems.get((_any_of(seen.path), size, beginning), ())

    def alike(self, seen: SeenFile) -> Iterable[SeenFile]:
        """Files in its directory that are as large, and begin in the same way."""
        return self._contents.get((posixpath.dirname(seen.path), seen.size, seen.first), ())


class _Shortened:
    """Files that are missing, to find one that begins as another file does, which has less than what was read."""

    def __init__(self, missing: Iterable[TrackedFile]) -> None:
        self._files: dict[tuple[str, str], list[TrackedFile]] = {}
        self._sizes: set[int] = set()
        for file in missing:
            self._sizes.add(head_size(file.read.offset))
            for name in (name for path in file.paths() for name in (path, _any_of(path), _parts_of(path))):
                self._files.setdefault((name, file.head), []).append(file)

    def original(self, seen: SeenFile, may_be_rotated: Callable[[TrackedFile, SeenFile], bool]) -> TrackedFile | None:
        for size in self._sizes:
            head = digest(seen.first[:size], b"") if len(seen.first) >= size else ""
            for name in (*_original_names(seen.path), *_without_numbers(seen.path)):
                for file in self._files.get((name, head), ()):
                    is_named_so = not _is_parts(name) or may_be_rotated(file, seen)
                    if seen.size < file.read.offset and seen.key != file.key and is_named_so:
                        return file
        return None


def _by_length(seen: SeenFile) -> tuple[bool, int, str]:
    return _COMPRESSED.search(seen.path) is not None, len(seen.path), seen.path


# --- names ----------------------------------------------------------------------------------------------------------


def stem(path: str) -> str:
    """Without the numbers and dates of rotations."""
    return _ROTATED.sub("", _COMPRESSED.sub("", path))


def _any_of(path: str) -> str:
    """A key like a path, for all paths with its stem."""
    return f"{stem(path)}\0"


def _original_names(path: str) -> Iterator[str]:
    """The paths, and the stems, of files of which this one may be a copy, by its name."""
    begin = len(posixpath.dirname(path)) + 1
    for index in range(len(path) - 1, begin, -1):
        if path[index] in _SEPARATORS:
            yield path[:index]
    if _COMPRESSED.search(path):
        # A compressed file has a new inode, and the next rotations give it the next numbers.
        yield _any_of(path)


def _parts_of(path: str) -> str:
    """A key like a path, by the parts of its name."""
    folder, name = posixpath.split(path)
    return "\1".join((folder, *_PARTS.split(_COMPRESSED.sub("", name))))


def _is_parts(name: str) -> bool:
    return "\1" in name


def _without_numbers(path: str) -> Iterator[str]:
    """The parts of files of which this one may be a copy: app-2026-11-23.log.gz, and app.2026-11-23.1.log, of app.log.
    What is appended is not among them."""
    folder, *parts = _parts_of(path).split("\1")
    for begin in range(len(parts)):
        for end in range(begin + 1, len(parts)):
            if not _NUMBER.match(parts[end - 1]):
                break
            yield "\1".join((folder, *parts[:begin], *parts[end:]))


class RelatedPaths:
    """Paths that may be a copy of one of several files, or its original."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = set(paths)
        self._originals = {name for path in self._paths for name in (*_original_names(path), *_without_numbers(path))}
        self._stems = {name for path in self._paths for name in (_any_of(path), _parts_of(path))}

    def __contains__(self, path: str) -> bool:
        names = {*_original_names(path), *_without_numbers(path)}
        return (
            path in self._paths
            or path in self._originals
            or not self._originals.isdisjoint((_any_of(path), _parts_of(path)))
            or not names.isdisjoint(self._paths | self._stems)
        )
