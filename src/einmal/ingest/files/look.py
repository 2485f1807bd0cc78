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
from typing import Final

from einmal.ingest.files.content import UNREADABLE, FileKey, Unfinished
from einmal.ingest.files.lines import FileChanged, FilePiece, FileRead, LineReader, file_notice
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

_BATCH_BYTES: Final = 4 * 1024 * 1024
_LOOKS: Final = 2
"""Until something is gone: its copies may have appeared after the listing of the first one."""


@dataclass(slots=True)
class FileLook:
    """``tracked``: the files as they are after ``pieces``; ``is_settled``: nothing was left to the next look;
    ``is_unfinished``: large files take several looks; ``left``: files whose lines do not count, because something
    changed meanwhile; ``aside``: what will not be read before a human has done something; ``unfinished``: files whose
    last line has no line feed, and when they were written last, in ns."""

    notices: list[SourceNotice]
    aside: list[SourceNotice]
    tracked: list[TrackedFile] = field(default_factory=list)
    pieces: list[FilePiece] = field(default_factory=list)
    is_settled: bool = True
    is_unfinished: bool = False
    left: list[str] = field(default_factory=list)
    unfinished: dict[FileKey, tuple[SourceNotice, int]] = field(default_factory=dict)


@dataclass(slots=True)
class _Settling:
    """One look, when everything is read."""

    scan: Scan
    look: FileLook
    changes: ScanChanges
    reads: dict[FileKey, FileRead]
    waiting: RelatedPaths
    absent: RelatedPaths
    """Paths of files that may have been renamed while they were looked for."""
    missing: RelatedPaths
    left: set[FileKey] = field(default_factory=set)
    """To the next look."""
    counts: dict[object, int] = field(default_factory=dict)

    def is_doubtful(self, path: str) -> bool:
        """Whether a new file may be one that was read before. A copy that was shorter than what was read when it was
        seen can have grown since."""
        return path in self.absent or (path in self.changes.grown and path in self.missing)


class FileReader:
    """See the module. ``line_bytes``: the longest line; ``skip_long_lines``: leave longer ones out, which is reported;
    else their file is read no further. ``fail_on_data_loss``: refuse to continue where lines that were seen are gone
    before they were read; else this is reported. ``is_as_stored``: nothing is recognised by the first bytes."""

    def __init__(
        self, pattern: str, *, line_bytes: int, skip_long_lines: bool, fail_on_data_loss: bool, is_as_stored: bool
    ) -> None:
        self._scanner = FileScanner(pattern, is_as_stored=is_as_stored)
        self._lines = LineReader(
            self._scanner.budget, line_bytes=line_bytes, skip_long_lines=skip_long_lines, is_as_stored=is_as_stored
        )
        self._is_first = True
        self._fail_on_data_loss = fail_on_data_loss
        self._counts: dict[object, int] = {}
        """Looks in a row that have come to the same conclusion."""

    def restart(self) -> None:
        """Forget what is concluded from earlier looks."""
        self._counts = {}
        self._is_first = True
        self._scanner.restart()

    def close(self) -> None:
        self._scanner.close()

    def look(self, tracked: list[TrackedFile]) -> FileLook:
        """Raises SourceRefused."""
        scan = self._scanner.scan(tracked, is_first=self._is_first)
        self._is_first = False
        matches = self._matched(tracked, scan)
        if missing := [file_match.file for file_match in matches.missing]:
            self._scanner.look_beside(missing, scan)
            matches = self._matched(tracked, scan)
        reads = self._read_files(matches, scan)
        changes = self._scanner.changes(scan, _marks(reads))
        absent = RelatedPaths(
            path
            for file_match in (*matches.present, *matches.missing)
            for location in file_match.absent
            if posixpath.dirname(location.path) in changes.folders
            for path in (location.path, file_match.file.original_path)
        )
        missing_paths = RelatedPaths(path for file_match in matches.missing for path in file_match.file.paths())
        settling = _Settling(
            scan, FileLook(scan.notices, scan.aside), changes, reads, RelatedPaths(scan.waiting), absent, missing_paths
        )
        known = {location.key for file in tracked for location in file.locations()}
        for file_match in matches.present:
            self._settle_present(file_match, settling, known)
        for file_match in matches.missing:
            self._settle_missing(file_match, matches, settling)
        self._settle_new(matches, settling)
        self._counts = settling.counts
        look = settling.look
        for key, read in reads.items():
            if key not in settling.left:
                look.notices += read.notices
                look.pieces += [] if read.piece is None else [read.piece]
        look.left = [read.file.path for key, read in reads.items() if key in settling.left]
        look.is_unfinished = scan.is_unfinished
        look.is_settled = not (settling.left or self._counts or scan.is_unfinished or scan.is_arriving)
        self._lines.forget(reads, settling.left)
        look.aside += self._lines.aside()
        look.unfinished = self._lines.unfinished()
        self._scanner.forget(look.tracked, scan)
        return look

    def _matched(self, tracked: list[TrackedFile], scan: Scan) -> Matches:
        """Without the files that turn out to be unreadable: these are not other ones by that."""
        while True:
            matches = match(tracked, scan.seen.values(), functools.partial(self._scanner.fingerprint, scan))
            if not scan.drop_failed():
                return matches

    # --- what counts ----------------------------------------------------------------------------------------------

    def _settle_present(self, file_match: Match, settling: _Settling, known: set[FileKey]) -> None:
        seen, look = file_match.seen, settling.look
        assert seen is not None
        if file_match.is_replaced:
            look.notices.append(file_notice("replaced", seen.path, "was replaced: the rest of it is read"))
        if file_match.is_by_content:
            text = (
                f"begins with all {file_match.file.read.offset} bytes that were read of {shown(file_match.file.path)}, "
                "which is gone or begins anew: it is a copy of that, and the rest of it is read"
            )
            look.notices.append(file_notice("copy", seen.path, text))
        for copy in file_match.copies:
            if copy.key not in known:
                look.notices.append(file_notice("copy", copy.path, "is a copy of another file, and is left alone"))
        file, piece, _ = settling.reads[seen.key]
        is_new = not file_match.file.read.offset
        if piece is not None and (seen.path in settling.changes.paths or (is_new and settling.is_doubtful(seen.path))):
            settling.left.add(seen.key)
            file = replace(file, read=file_match.file.read, head=file_match.file.head)
        absent = tuple(
            location
            for location in file_match.absent
            if location.key != seen.key and not self._is_gone(location, location, settling)
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
        locations = file.locations()
        is_elsewhere = any(self._is_elsewhere(location, settling) for location in locations)
        # Each of them is counted.
        if is_elsewhere or not all(
            [self._is_concluded((file, location), location.path, settling) for location in locations]  # noqa: C419
        ):
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
                head, first_path = head_of(seen.first, seen.size), file.original_path
                look.tracked.append(TrackedFile(seen.path, seen.key, seen.size, read, head, first_path=first_path))

    def _settle_new(self, matches: Matches, settling: _Settling) -> None:
        for file_match in matches.new:
            seen = file_match.seen
            if seen is None or seen.key not in settling.reads:
                continue
            if seen.path in settling.changes.paths or settling.is_doubtful(seen.path):
                settling.left.add(seen.key)
            else:
                settling.look.tracked.append(settling.reads[seen.key].file)
                if (original := matches.alike.get(seen.key)) is not None:
                    settling.look.notices.append(_alike(seen, original))

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
        return file_notice(kind, path, text)

    # --- reading --------------------------------------------------------------------------------------------------

    def _read_files(self, matches: Matches, scan: Scan) -> dict[FileKey, FileRead]:
        """By what was seen, oldest files first. A new file that cannot be read now is not among them."""
        result: dict[FileKey, FileRead] = {}
        budget = _BATCH_BYTES
        new = {file_match.seen.key for file_match in matches.new if file_match.seen is not None}
        for file, seen in sorted(
            self._current((*matches.present, *matches.new), scan),
            key=lambda pair: (scan.versions[pair[1].key].modified, pair[1].path),
        ):
            result[seen.key] = FileRead(file)
            if file.read.offset >= seen.size or budget <= 0:
                continue
            if self._lines.is_stuck(file, scan.versions[seen.key]):
                scan.without_line.add(seen.key)
                continue
            try:
                content = self._scanner.content(seen)
                result[seen.key] = read = self._lines.read(file, seen, scan.versions[seen.key], content)
            except Unfinished:
                scan.unfinished.add(seen.key)
                scan.is_unfinished = True
                continue
            except (FileChanged, *UNREADABLE) as error:
                if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
                    self._scanner.fail(scan, seen, error)
                # The next look finds what it is now.
                if seen.key in new:
                    del result[seen.key]
                continue
            if read.file.read == file.read:
                scan.without_line.add(seen.key)
            budget -= 0 if read.piece is None else len(read.piece.data)
        return result

    def _current(self, matches: tuple[Match, ...], scan: Scan) -> Iterator[tuple[TrackedFile, SeenFile]]:
        """With the paths and copies of this look."""
        for file_match in matches:
            copies: list[FileCopy] = []
            for copy in file_match.copies:
                fingerprint = self._scanner.fingerprint(scan, copy, copy.size)
                if fingerprint is not None:
                    copies.append(FileCopy(copy.path, copy.key, Mark(copy.size, fingerprint)))
            if (seen := file_match.seen) is not None:
                size = max(file_match.file.size, seen.size)
                file = replace(file_match.file, first_path=file_match.file.original_path)
                yield replace(file, path=seen.path, key=seen.key, size=size, copies=tuple(copies)), seen


def _marks(reads: dict[FileKey, FileRead]) -> dict[FileKey, Mark]:
    return {location.key: location.mark for read in reads.values() for location in read.file.locations()}


def _has_copy(file: TrackedFile, scan: Scan) -> bool:
    """Whether what a file had, of which nothing was read, can be in another one, which is read as a new one."""
    related = RelatedPaths(file.paths())
    return not file.read.offset and any(
        seen.size >= file.size and (seen.path in related or stem(seen.path) == stem(file.path))
        for seen in scan.seen.values()
    )


def _alike(seen: SeenFile, original: TrackedFile) -> SourceNotice:
    text = (
        f"has the same content as {shown(original.path)} has, or had, and a name that does not show a copy of that: it "
        "is read as another file. If a rotation made it, its lines are in the topic twice: let it append to the name"
    )
    return file_notice("possible copy", seen.path, text)
