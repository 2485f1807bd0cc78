"""One look at the files of a source: what they are now, and the lines that follow what was read.

A look is a listing, and then one file after the other, while files are rotated. So it is compared with a second listing
after everything was read, and then

1. lines count as read only if no copy of their file has appeared or changed meanwhile whose content is not known. A
   copy that appears later was begun after those lines were written, and has them;
2. a file counts as new only if neither it nor a file of which it may be a copy has changed other than by growing, and
   it has not grown either if such a file is missing;
3. what is absent is gone when two looks have not found it, and nothing was renamed in its directory meanwhile. The
   directory must be on the same file system, and it must be possible to list it: one that is not mounted takes nothing
   away.

What does not count is left to the next look.
"""

from __future__ import annotations

import functools
import os
import posixpath
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from einmal.ingest.files.content import EDGE, FileKey, NotAFile
from einmal.ingest.files.decompression import Damaged, Incomplete
from einmal.ingest.files.scan import FileScanner, Scan, ScanChanges, shown
from einmal.ingest.files.tracking import (
    FileCopy,
    Mark,
    Match,
    Matches,
    RelatedPaths,
    SeenFile,
    TrackedFile,
    head_of,
    match,
    stem,
)
from einmal.ingest.source import SourceNotice, SourceRefused

_READ: Final = 1024 * 1024
_BATCH_BYTES: Final = 4 * 1024 * 1024
_LOOKS: Final = 2
"""Until something is gone: its copies may have appeared after the listing of the first one."""


class FilePiece(NamedTuple):
    """Whole lines of one file, from ``offset`` on."""

    path: str
    offset: int
    data: bytes


@dataclass(slots=True)
class FileLook:
    """``tracked``: the files as they are after ``pieces``; ``is_settled``: nothing was left to the next look."""

    notices: list[SourceNotice]
    tracked: list[TrackedFile] = field(default_factory=list)
    pieces: list[FilePiece] = field(default_factory=list)
    is_settled: bool = True


class _Changed(Exception):
    """The file is not the one that was seen."""


class _Read(NamedTuple):
    file: TrackedFile
    piece: FilePiece | None = None


@dataclass(slots=True)
class _Settling:
    """One look, when everything is read."""

    scan: Scan
    look: FileLook
    changes: ScanChanges
    reads: dict[FileKey, _Read]
    waiting: RelatedPaths
    absent: RelatedPaths
    """What may have been renamed while it was looked for."""
    missing: RelatedPaths
    left: set[FileKey] = field(default_factory=set)
    """To the next look."""
    counts: dict[object, int] = field(default_factory=dict)

    def is_doubtful(self, path: str) -> bool:
        """Whether a new file may be one that was read before. A copy that was shorter than what was read when it was
        seen can have grown since."""
        return path in self.absent or (path in self.changes.grown and path in self.missing)


class FileReader:
    """See the module. ``line_bytes``: the longest line; ``fail_on_data_loss``: refuse to continue where lines that were
    seen are gone before they were read; else this is reported."""

    def __init__(self, pattern: str, *, line_bytes: int, fail_on_data_loss: bool) -> None:
        self._scanner = FileScanner(pattern)
        self._line_bytes = line_bytes
        self._fail_on_data_loss = fail_on_data_loss
        self._counts: dict[object, int] = {}
        """Looks in a row that have come to the same conclusion."""

    def restart(self) -> None:
        """Forget what is concluded from earlier looks."""
        self._counts = {}

    def close(self) -> None:
        self._scanner.close()

    def look(self, tracked: list[TrackedFile]) -> FileLook:
        """Raises SourceRefused."""
        scan = self._scanner.scan(tracked)
        fingerprint = functools.partial(self._scanner.fingerprint, scan)
        matches = match(tracked, scan.seen.values(), fingerprint)
        if missing := [each.file for each in matches.missing]:
            self._scanner.look_beside(missing, scan)
            matches = match(tracked, scan.seen.values(), fingerprint)
        reads = self._read_files(matches, scan)
        changes = self._scanner.changes(scan, _marks(reads))
        absent = RelatedPaths(
            location.path
            for each in (*matches.found, *matches.missing)
            for location in each.absent
            if posixpath.dirname(location.path) in changes.folders
        )
        missing_paths = RelatedPaths(each.file.path for each in matches.missing)
        settling = _Settling(
            scan, FileLook(scan.notices), changes, reads, RelatedPaths(scan.waiting), absent, missing_paths
        )
        known = {location.key for file in tracked for location in file.locations()}
        for each in matches.found:
            self._settle_found(each, settling, known)
        for each in matches.missing:
            self._settle_missing(each, matches, settling)
        self._settle_new(matches, settling)
        self._counts = settling.counts
        look = settling.look
        look.pieces = [read.piece for key, read in reads.items() if read.piece is not None and key not in settling.left]
        look.is_settled = not settling.left and not self._counts
        self._scanner.forget(look.tracked, scan)
        return look

    # --- what counts ----------------------------------------------------------------------------------------------

    def _settle_found(self, found: Match, settling: _Settling, known: set[FileKey]) -> None:
        seen, look = found.seen, settling.look
        assert seen is not None
        if found.is_replaced:
            look.notices.append(_notice("replaced", seen.path, "was replaced: the rest of it is read"))
        for copy in found.copies:
            if copy.key not in known:
                look.notices.append(_notice("copy", copy.path, "is a copy of another file, and is left alone"))
        file, piece = settling.reads[seen.key]
        is_new = not found.file.read.offset
        if piece is not None and (seen.path in settling.changes.paths or (is_new and settling.is_doubtful(seen.path))):
            settling.left.add(seen.key)
            file = replace(file, read=found.file.read, head=found.file.head)
        absent = tuple(
            each for each in found.absent if each.key != seen.key and not self._is_gone(each, each, settling)
        )
        file = replace(file, copies=(*file.copies, *absent))
        size = self._scanner.size_of(seen)
        is_shrunk = not absent and size < file.size and not _has_copy(file, settling.scan)
        if is_shrunk and self._is_concluded(("shrunk", seen.key), seen.path, settling):
            look.notices.append(self._lost(replace(file, read=Mark(max(size, file.read.offset), ""))))
            file = replace(file, size=size)
        look.tracked.append(file)

    def _settle_missing(self, missing: Match, matches: Matches, settling: _Settling) -> None:
        """Either nowhere, or only in copies that lack some of what was read."""
        file, look = missing.file, settling.look
        places = file.locations()
        is_elsewhere = any(self._is_elsewhere(each, settling) for each in places)
        # Each of them is counted.
        if is_elsewhere or not all([self._is_concluded((file, each), each.path, settling) for each in places]):  # noqa: C419
            look.tracked.append(file)
            return
        doubtful = [seen for original, seen in matches.doubtful if original == file]
        for seen in doubtful:
            look.notices.append(self._doubt(file, seen))
        if file.size > file.read.offset and not _has_copy(file, settling.scan):
            look.notices.append(self._lost(file))
        fingerprint = functools.partial(self._scanner.fingerprint, settling.scan)
        for seen in (*missing.copies, *doubtful):
            end = fingerprint(seen, seen.size)
            if end is not None:
                read = Mark(seen.size, end)
                look.tracked.append(TrackedFile(seen.path, seen.key, seen.size, read, head_of(seen.first, seen.size)))

    def _settle_new(self, matches: Matches, settling: _Settling) -> None:
        for each in matches.new:
            seen = each.seen
            if seen is None or seen.key not in settling.reads:
                continue
            if seen.path in settling.changes.paths or settling.is_doubtful(seen.path):
                settling.left.add(seen.key)
            else:
                settling.look.tracked.append(settling.reads[seen.key].file)

    def _is_gone(self, what: object, location: FileCopy, settling: _Settling) -> bool:
        if self._is_elsewhere(location, settling):
            return False
        return self._is_concluded(what, location.path, settling)

    def _is_concluded(self, what: object, path: str, settling: _Settling) -> bool:
        """Whether enough looks in a row have found this, without a change of names in the directory meanwhile."""
        count = self._counts.get(what, 0)
        if posixpath.dirname(path) not in settling.changes.folders:
            count += 1
        settling.counts[what] = count
        return count >= _LOOKS

    def _is_elsewhere(self, location: FileCopy, settling: _Settling) -> bool:
        """Whether nothing can be concluded from the file's absence now."""
        folder = posixpath.dirname(location.path)
        if folder in settling.scan.unlisted or location.path in settling.waiting:
            return True
        while not os.path.isdir(folder) and folder != posixpath.dirname(folder):
            folder = posixpath.dirname(folder)
        try:
            # A directory that is not mounted shows what is below the mount point.
            return os.stat(folder).st_dev != location.key.device
        except OSError:
            return True

    def _lost(self, file: TrackedFile) -> SourceNotice:
        return self._refused(
            "data loss",
            file.path,
            f"is gone or has other content, and {file.size - file.read.offset} bytes from offset {file.read.offset} on "
            "were not ingested",
            "restore the file, or set failOnDataLoss = false, which reports it and continues; a last line without a "
            "line feed is one that was not ingested",
        )

    def _doubt(self, file: TrackedFile, seen: SeenFile) -> SourceNotice:
        return self._refused(
            "doubtful copy",
            seen.path,
            f"begins as {shown(file.path)} did, which is gone, and has {seen.size} of the {file.read.offset} bytes "
            "that were ingested of it: it may be a copy that lacks the last lines, or another file",
            "move it out of the directory if it is a copy, or set failOnDataLoss = false, which takes it for one",
        )

    def _refused(self, kind: str, path: str, text: str, hint: str) -> SourceNotice:
        if self._fail_on_data_loss:
            raise SourceRefused(f"{shown(path)} {text}", hint)
        return _notice(kind, path, text)

    # --- reading --------------------------------------------------------------------------------------------------

    def _read_files(self, matches: Matches, scan: Scan) -> dict[FileKey, _Read]:
        """By what was seen, oldest files first. A new file that cannot be read now is not among them."""
        result: dict[FileKey, _Read] = {}
        budget = _BATCH_BYTES
        new = {each.seen.key for each in matches.new if each.seen is not None}
        for file, seen in sorted(
            self._current((*matches.found, *matches.new), scan),
            key=lambda pair: (scan.versions[pair[1].key].modified, pair[1].path),
        ):
            result[seen.key] = _Read(file)
            if file.read.offset >= seen.size or budget <= 0:
                continue
            try:
                result[seen.key] = read = self._read_file(file, seen)
            except (_Changed, Incomplete, Damaged, NotAFile, OSError):
                # The next look finds what it is now.
                if seen.key in new:
                    del result[seen.key]
                continue
            budget -= 0 if read.piece is None else len(read.piece.data)
        return result

    def _current(self, matches: tuple[Match, ...], scan: Scan) -> Iterator[tuple[TrackedFile, SeenFile]]:
        """With the paths and copies of this look."""
        for each in matches:
            copies: list[FileCopy] = []
            for copy in each.copies:
                fingerprint = self._scanner.fingerprint(scan, copy, copy.size)
                if fingerprint is not None:
                    copies.append(FileCopy(copy.path, copy.key, Mark(copy.size, fingerprint)))
            if (seen := each.seen) is not None:
                size = max(each.file.size, seen.size)
                yield replace(each.file, path=seen.path, key=seen.key, size=size, copies=tuple(copies)), seen

    def _read_file(self, file: TrackedFile, seen: SeenFile) -> _Read:
        """Raises _Changed, Incomplete, Damaged, NotAFile, OSError, SourceRefused."""
        content = self._scanner.content(seen)
        offset = file.read.offset
        extract = content.read(offset, max(_READ, self._line_bytes + 1))
        data = extract.data
        end = offset + len(data)
        # The file may have been truncated, and written anew, since it was seen.
        if extract.fingerprint(offset, 0) != file.read.fingerprint or len(extract.head) < min(EDGE, end):
            raise _Changed
        if not offset and len(data) < min(seen.size, max(_READ, self._line_bytes + 1)):
            # Truncated as well: there is no fingerprint of nothing.
            raise _Changed
        is_last = content.codec is not None and end >= seen.size
        whole = len(data) if is_last else data.rfind(b"\n") + 1
        if whole == 0:
            if len(data) > self._line_bytes:
                raise too_long(file.path, offset, self._line_bytes)
            return _Read(file)
        read = Mark(offset + whole, extract.fingerprint(offset, whole))
        size = max(end, file.size)
        following = replace(file, size=size, read=read, head=head_of(extract.head, read.offset))
        return _Read(following, FilePiece(file.path, offset, data[:whole]))


def too_long(path: str, offset: int, line_bytes: int) -> SourceRefused:
    return SourceRefused(
        f"the line at offset {offset} of {shown(path)} has more than {line_bytes} bytes",
        "raise max.line.bytes, and with it kafka.max.request.size and the topic's max.message.bytes",
    )


def _marks(reads: dict[FileKey, _Read]) -> dict[FileKey, Mark]:
    return {location.key: location.mark for read in reads.values() for location in read.file.locations()}


def _has_copy(file: TrackedFile, scan: Scan) -> bool:
    """Whether what a file had, of which nothing was read, can be in another one, which is read as a new one."""
    related = RelatedPaths([file.path])
    return not file.read.offset and any(
        each.size >= file.size and (each.path in related or stem(each.path) == stem(file.path))
        for each in scan.seen.values()
    )


def _notice(kind: str, path: str, text: str) -> SourceNotice:
    return SourceNotice(kind, path, f"{shown(path)} {text}")
