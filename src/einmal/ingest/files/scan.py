"""Looks at the file system: which files match, what of them is open, and what has changed since a look."""

from __future__ import annotations

import contextlib
import errno
import os
import posixpath
import stat
import time
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from einmal.ingest.files.beginning import wide_encoding
from einmal.ingest.files.content import UNREADABLE, Budget, Content, FileKey, FileState, NotAFile, Unfinished
from einmal.ingest.files.decompression import Damaged, Incomplete, UnsupportedCodec
from einmal.ingest.files.paths import matching
from einmal.ingest.files.tracking import Mark, RelatedPaths, SeenFile, TrackedFile
from einmal.ingest.source import SourceNotice

_OPEN_MAX: Final = 256
"""Files that stay open between two scans, so that what is deleted can be read to its end."""
_PARTLY_READ_MAX: Final = 8
"""Compressed files among these that are closed last: another look would begin with their first bytes again."""
_REMEMBERED_MAX: Final = 50_000
"""Fingerprints in memory."""
_ARRIVING_NS: Final = 60_000_000_000
"""Since the last write to a compressed file that is not complete: until it is reported."""
_REST_NS: Final = 1_000_000_000
"""Since the last write to a large compressed file that was not complete: until all of it is decompressed again."""
_LARGE: Final = 1024 * 1024
_WORK: Final = 32 * 1024 * 1024
"""Bytes that are decompressed, or searched, in one look, beside those that become lines."""
_UNLINKED_S: Final = 60.0
"""Without a change, until what a deleted file has more than whole lines is lost."""
_INCOMPLETE: Final = "incomplete"
_AS_STORED: Final = 'content = "bytes" ingests such files as they are stored'


def shown(path: str) -> str:
    """For messages: names of files are bytes, and need not be text."""
    return path if path.isprintable() else repr(path)


class _Inode(NamedTuple):
    device: int
    inode: int


class _Looked(NamedTuple):
    """An inode as it was when it was opened last. ``seen``: None for a file that cannot be read in this state, where
    ``problem`` is a kind and a text, and ``is_unfinished`` if it is not decompressed to its end yet. ``version``: the
    first state in which it had this content. ``edges``: of a compressed file, as it is stored."""

    state: FileState
    seen: SeenFile | None
    version: FileState
    edges: str = ""
    problem: tuple[str, str] | None = None
    is_unfinished: bool = False


class _Unlinked(NamedTuple):
    """A file without a name that is open, was read to an offset, and has not changed since a time. ``is_lost``: for so
    long that what it has behind the offset, no whole line, is waited for no longer."""

    offset: int
    version: FileState
    since: float
    notice: SourceNotice | None = None
    is_lost: bool = False


class _WideText(Exception):
    """Text whose line feeds have several bytes."""


@dataclass(slots=True)
class Scan:
    """``listing``: inodes and states of all paths that match; ``seen``: of these, and of others that were asked for,
    the files that can be read; ``versions``: which change with the content; ``waiting``: paths of files that exist and
    cannot be read now; ``folders``: times of the directories of what is tracked, before they were listed;
    ``unlisted``: directories that exist and cannot be listed; ``aside``: what will not be read before a human has done
    something; ``failed``: of ``seen``, what turned out to be unreadable now; ``unfinished``: files of which
    this look could not decompress enough; ``is_unfinished``: there are such, or some were not tried; ``is_arriving``:
    large compressed files are not complete, and being written; ``without_line``: files that were read, and of which
    that made no line."""

    listing: dict[str, tuple[_Inode, FileState]] = field(default_factory=dict)
    seen: dict[FileKey, SeenFile] = field(default_factory=dict)
    versions: dict[FileKey, FileState] = field(default_factory=dict)
    waiting: list[str] = field(default_factory=list)
    folders: dict[str, int | None] = field(default_factory=dict)
    unlisted: set[str] = field(default_factory=set)
    notices: list[SourceNotice] = field(default_factory=list)
    aside: list[SourceNotice] = field(default_factory=list)
    failed: set[FileKey] = field(default_factory=set)
    unfinished: set[FileKey] = field(default_factory=set)
    is_unfinished: bool = False
    is_arriving: bool = False
    without_line: set[FileKey] = field(default_factory=set)

    def drop_failed(self) -> bool:
        """Whether there was something to be dropped."""
        for key in self.failed:
            self.seen.pop(key, None)
        is_changed = bool(self.failed)
        self.failed.clear()
        return is_changed


class ScanChanges(NamedTuple):
    """``paths`` with other content than was seen; ``grown`` with more of it; ``folders`` in which something was
    created, renamed or deleted."""

    paths: RelatedPaths
    grown: set[str]
    folders: set[str]


class FileScanner:
    """The files of a pattern (``glob``, with ``**``). Symbolic links are followed; each file counts once."""

    def __init__(self, pattern: str, *, is_as_stored: bool) -> None:
        """``is_as_stored``: nothing is recognised by the first bytes."""
        self._pattern = pattern
        self._is_as_stored = is_as_stored
        self.budget = Budget()
        self._contents: OrderedDict[_Inode, tuple[Content, FileState]] = OrderedDict()
        self._looked: dict[_Inode, _Looked] = {}
        self._reported: dict[str, set[str]] = {}
        """Kinds of the notices that were made of a path, until the file can be read."""
        self._fingerprints: dict[tuple[FileKey, int], tuple[FileState, str | None]] = {}
        """By file and offset, as long as the content has not changed."""
        self._failed: set[FileKey] = set()
        self._failed_before: set[FileKey] = set()
        """In this look, and in the last one."""
        self._unlinked: dict[FileKey, _Unlinked] = {}
        self._without_line: set[FileKey] = set()
        """In the last look."""
        self._unlisted: list[str] = []
        """Directories in which files may match."""

    def scan(self, tracked: Collection[TrackedFile], *, is_first: bool) -> Scan:
        """``is_first``: look for directories that cannot be listed, too, and report that nothing matches."""
        result = Scan()
        self.budget.renew(_WORK)
        self._failed_before, self._failed = self._failed, set()
        if is_first:
            directories = matching(posixpath.join(posixpath.dirname(self._pattern), ""))
            self._unlisted = [folder.rstrip("/") or "/" for folder in directories]
        self._unlisted = [folder for folder in self._unlisted if not self._is_listed(folder, result)]
        folders = {posixpath.dirname(location.path) for file in tracked for location in file.locations()}
        result.folders = {folder: _changed_at(folder) for folder in folders}
        for path in self._matching():
            self._look(path, result, is_wanted=True)
        if not result.listing:
            self._report_nothing(result, is_first=is_first and not tracked)
        self._find_deleted(tracked, result)
        return result

    def restart(self) -> None:
        """Forget what became of the lines of the last look: they may be read again."""
        self._without_line = set()

    def look_beside(self, missing: Iterable[TrackedFile], result: Scan) -> None:
        """Add what a rotation may have made of files that are missing, under names that the pattern does not have."""
        folders: dict[str, list[TrackedFile]] = {}
        for file in missing:
            folders.setdefault(posixpath.dirname(file.path), []).append(file)
        for folder, files in folders.items():
            wanted = {location.key.inode for file in files for location in file.locations()}
            related = RelatedPaths(path for file in files for path in file.paths())
            try:
                for path, inode in _listed(folder):
                    if path not in result.listing and (inode in wanted or path in related):
                        self._look(path, result, is_wanted=False)
            except FileNotFoundError:
                continue
            except OSError as error:
                result.unlisted.add(folder)
                self._set_aside(result, "unreadable", folder, f"cannot be listed: {error.strerror}")

    def changes(self, scan: Scan, marks: Mapping[FileKey, Mark]) -> ScanChanges:
        """Since a scan. ``marks``: of the files that may have grown, what they have for certain."""
        now: dict[str, tuple[_Inode, FileState]] = {}
        for path in self._matching():
            with contextlib.suppress(OSError, NotAFile):
                now[path] = _inspected(path)
        grown = {path for path, status in now.items() if status != scan.listing.get(path)}
        changed = {path for path in grown if not self._is_intact(path, marks)}
        # Under their old names, too, and what has none that was listed.
        intact = {inode for path, (inode, _) in now.items() if path not in changed}
        changed |= {path for path, (inode, _) in scan.listing.items() if inode not in intact}
        names = {(path, inode) for path, (inode, _) in now.items()}
        before = {(path, inode) for path, (inode, _) in scan.listing.items()}
        folders = {posixpath.dirname(path) for path, _ in names ^ before}
        folders |= {folder for folder, time in scan.folders.items() if _changed_at(folder) != time}
        return ScanChanges(RelatedPaths(changed), grown - changed, folders)

    def forget(self, tracked: Iterable[TrackedFile], result: Scan) -> None:
        """Keep only what this scan has seen, and what is open of files that are tracked."""
        self._without_line = result.without_line
        keys = {*result.seen, *result.unfinished, *(location.key for file in tracked for location in file.locations())}
        inodes = {*(_Inode(*key[:2]) for key in keys), *(inode for inode, _ in result.listing.values())}
        self._looked = {inode: looked for inode, looked in self._looked.items() if inode in inodes}
        for inode, (content, _) in list(self._contents.items()):
            if content.key not in keys:
                content.close()
                del self._contents[inode]

    def content(self, seen: SeenFile) -> Content:
        """Raises OSError, NotAFile: the file may be deleted by now, or another one have its path."""
        inode = _Inode(*seen.key[:2])
        if (open_file := self._contents.get(inode)) is not None:
            self._contents.move_to_end(inode)
        content = self._opened(seen.path, None) if open_file is None else open_file[0]
        if content.key != seen.key:
            raise FileNotFoundError(seen.path)
        return content

    def size_of(self, seen: SeenFile) -> int:
        """As it is now; as it was seen, if that cannot be found out."""
        try:
            return seen.size if seen.is_compressed else self.content(seen).size()
        except UNREADABLE:
            return seen.size

    def fingerprint(self, scan: Scan, seen: SeenFile, offset: int) -> str | None:
        """Return the fingerprint of the bytes before an offset; None if there are fewer, or they cannot be read. Then
        the file is among those that failed, and not another one by that."""
        if seen.key in scan.failed:
            return None
        version = scan.versions[seen.key]
        known = self._fingerprints.get((seen.key, offset))
        if known is not None and known[0] == version:
            return known[1]
        try:
            fingerprint = self.content(seen).fingerprint(offset)
        except Unfinished:
            self.postpone(scan, seen)
            return None
        except FileNotFoundError:
            return None
        except OSError as error:
            self.fail(scan, seen, error)
            return None
        except UNREADABLE:
            return None
        self._remember(seen.key, offset, version, fingerprint)
        return fingerprint

    def fail(self, scan: Scan, seen: SeenFile, error: OSError) -> None:
        """Set a file aside that was seen and cannot be read. It is opened again for the next look."""
        text = f"cannot be read: {_reason(error)}; repair the file system, or move it away"
        if seen.key not in self._failed:
            self._set_aside(scan, "unreadable", seen.path, text)
        self._failed.add(seen.key)
        scan.failed.add(seen.key)
        scan.waiting.append(seen.path)
        inode = _Inode(*seen.key[:2])
        if (open_file := self._contents.get(inode)) is not None and not _is_unlinked(open_file[0]):
            del self._contents[inode]
            open_file[0].close()

    def postpone(self, scan: Scan, seen: SeenFile) -> None:
        """Leave a file to the next look, which continues to decompress it."""
        scan.failed.add(seen.key)
        scan.unfinished.add(seen.key)
        scan.is_unfinished = True
        scan.waiting.append(seen.path)

    def close(self) -> None:
        while self._contents:
            self._contents.popitem()[1][0].close()

    # --- one file -------------------------------------------------------------------------------------------------

    def _matching(self) -> Iterable[str]:
        """Paths without links."""
        folders: dict[str, str] = {}
        paths: dict[str, None] = {}
        for path in matching(self._pattern):
            folder, name = posixpath.split(path)
            if folder not in folders:
                folders[folder] = os.path.realpath(folder)
            direct = posixpath.join(folders[folder], name)
            paths[os.path.realpath(direct) if os.path.islink(direct) else direct] = None
        return paths

    def _look(self, path: str, result: Scan, *, is_wanted: bool) -> None:
        try:
            inode, state = _inspected(path)
            if is_wanted:
                result.listing[path] = inode, state
            looked = self._looked.get(inode)
            if looked is None or looked.state != state or looked.is_unfinished:
                if looked is not None and self._must_wait(looked, inode, state, result):
                    result.waiting.append(path)
                    return
                looked = self._open_and_look(path, inode, state, result)
        except FileNotFoundError:
            # Deleted or renamed since it was listed, or a link to nothing.
            return
        except NotAFile:
            if not os.path.isdir(path):
                self._report(result, "no file", path, "is a pipe, a socket or a device, and is not read")
            return
        except OSError as error:
            result.waiting.append(path)
            self._set_aside(result, "unreadable", path, f"cannot be read: {_reason(error)}; permit it, or move it away")
            return
        if looked.seen is None:
            result.waiting.append(path)
            # A time in the future is not that of a write.
            is_arriving = abs(time.time_ns() - looked.state.modified) < _ARRIVING_NS
            if looked.problem is not None and not (looked.problem[0] == _INCOMPLETE and is_arriving):
                self._set_aside(result, looked.problem[0], path, looked.problem[1])
            return
        if looked.seen.key not in self._failed_before:
            self._reported.pop(path, None)
        if looked.seen.key not in result.seen:
            result.seen[looked.seen.key] = looked.seen._replace(path=path, is_wanted=is_wanted)
            result.versions[looked.seen.key] = looked.version

    def _must_wait(self, looked: _Looked, inode: _Inode, state: FileState, result: Scan) -> bool:
        """Whether a file that was not decompressed to its end is not tried in this look."""
        if looked.is_unfinished and self.budget.is_used():
            result.is_unfinished = True
            if (open_file := self._contents.get(inode)) is not None:
                result.unfinished.add(open_file[0].key)
            return True
        is_partial = looked.is_unfinished or (looked.problem is not None and looked.problem[0] == _INCOMPLETE)
        is_written = state != looked.state and abs(time.time_ns() - state.modified) < _REST_NS
        if is_partial and is_written and state.size >= _LARGE:
            result.is_arriving = True
            return True
        return False

    def _open_and_look(self, path: str, inode: _Inode, state: FileState, result: Scan) -> _Looked:
        content = None
        try:
            content = self._opened(path, inode)
            inode, state = _Inode(*content.key[:2]), content.state()
            looked = self._looked.get(inode)
            edges = "" if content.codec is None else content.edges()
            if looked is not None and edges and _is_unchanged(looked, content.key, state, edges):
                looked = looked._replace(state=state)
            else:
                seen = SeenFile(path, content.key, content.size(), content.first(), content.codec is not None)
                if not self._is_as_stored and (encoding := wide_encoding(seen.first)) is not None:
                    raise _WideText(encoding)
                looked = _Looked(state, seen, state, edges)
                if content.codec is not None:
                    # Now that all of it is decompressed.
                    self._remember(seen.key, seen.size, state, content.fingerprint(seen.size))
        except Unfinished:
            assert content is not None
            result.unfinished.add(content.key)
            result.is_unfinished = True
            looked = _Looked(state, None, state, is_unfinished=True)
        except (Incomplete, Damaged, UnsupportedCodec, _WideText) as error:
            looked = _Looked(state, None, state, problem=_problem(error))
            if isinstance(error, Incomplete) and (content.codec is None if content is not None else error.may_be_text):
                # The beginning of a line perhaps; or compressed since it was opened.
                return looked._replace(problem=None)
        self._looked[inode] = looked
        return looked

    def _is_intact(self, path: str, marks: Mapping[FileKey, Mark]) -> bool:
        """Whether a file has at most grown, or was renamed, or cannot be read anyway."""
        try:
            inode, state = _inspected(path)
            looked = self._looked.get(inode)
            content = self._opened(path, inode)
            mark = marks.get(content.key)
            if mark is None:
                return False
            if content.codec is not None or not mark.offset:
                edges = "" if content.codec is None else content.edges()
                return looked is not None and _is_unchanged(looked, content.key, state, edges)
            return content.fingerprint(mark.offset) == mark.fingerprint
        except UNREADABLE:
            return True

    def _opened(self, path: str, inode: _Inode | None) -> Content:
        """Open, or still open and the same. ``inode``: which may be open; it cannot be used again meanwhile."""
        open_file = None if inode is None else self._contents.pop(inode, None)
        if open_file is not None:
            content, known = open_file
            # A changed file may be compressed now, and a compressed one is read anew.
            if content.state() != known and not content.is_plain():
                content.close()
                open_file = None
        content = Content(path, self.budget, is_as_stored=self._is_as_stored) if open_file is None else open_file[0]
        key = _Inode(*content.key[:2])
        if (other := self._contents.pop(key, None)) is not None:
            other[0].close()
        self._contents[key] = content, content.state()
        while len(self._contents) > _OPEN_MAX:
            self._close_one()
        return content

    def _close_one(self) -> None:
        """Close what was not used for the longest time, but for a few files that are partly decompressed."""
        oldest = next(iter(self._contents))
        for count, (inode, (content, _)) in enumerate(self._contents.items()):
            if count == _PARTLY_READ_MAX or not content.is_partly_read():
                oldest = oldest if count == _PARTLY_READ_MAX else inode
                break
        self._contents.pop(oldest)[0].close()

    def _remember(self, key: FileKey, offset: int, version: FileState, fingerprint: str | None) -> None:
        if len(self._fingerprints) > _REMEMBERED_MAX:
            self._fingerprints.clear()
        self._fingerprints[key, offset] = version, fingerprint

    def _report(self, result: Scan, kind: str, path: str, text: str) -> SourceNotice:
        notice = SourceNotice(kind, path, f"{shown(path)} {text}")
        reported = self._reported.setdefault(path, set())
        if kind not in reported:
            reported.add(kind)
            result.notices.append(notice)
        return notice

    def _set_aside(self, result: Scan, kind: str, path: str, text: str) -> None:
        result.aside.append(self._report(result, kind, path, text))

    def _is_listed(self, folder: str, result: Scan) -> bool:
        """A pattern finds nothing in a directory that cannot be listed, without a word."""
        try:
            os.scandir(folder).close()
        except (FileNotFoundError, NotADirectoryError):
            # Moved away since it was found.
            return True
        except OSError as error:
            self._set_aside(result, "unreadable", folder, f"cannot be listed: {error.strerror}; permit it")
            return False
        return True

    def _report_nothing(self, result: Scan, *, is_first: bool) -> None:
        """An empty directory may be meant; one that is not there is misspelt, or not mounted."""
        base = os.path.realpath(base_of(self._pattern))
        if not os.path.isdir(base):
            self._set_aside(result, "unreadable", base, "does not exist, or is no directory; correct path, or mount it")
        elif is_first and not result.aside:
            self._report(result, "no files", self._pattern, "matches no file now; if it should, correct path")

    def _find_deleted(self, tracked: Collection[TrackedFile], result: Scan) -> None:
        """Files without a name that are still open, and have more than was read: until nothing has changed for a time,
        as who writes may still end the last line. Whole lines wait for as long as it takes to read them."""
        # A file that was truncated is tracked twice until it is known where what it had is.
        files = {file.key: file for file in sorted(tracked, key=lambda file: -file.read.offset)}
        unlinked: dict[FileKey, _Unlinked] = {}
        for content, _ in self._contents.values():
            file = files.get(content.key)
            if file is None or content.key in result.seen or content.codec is not None or not _is_unlinked(content):
                continue
            try:
                seen = SeenFile(file.path, content.key, content.size(), content.first(), is_wanted=False)
                now = _Unlinked(file.read.offset, content.state(), time.monotonic())
            except UNREADABLE:
                continue
            if seen.size <= file.read.offset:
                continue
            if (before := self._unlinked.get(seen.key)) is not None and now[:2] == before[:2]:
                # Else other files were read first, or what was read of this one is not recorded.
                is_read = seen.key in self._without_line
                is_lost = before.is_lost or (is_read and now.since - before.since >= _UNLINKED_S)
                now = now._replace(since=before.since if is_read else now.since, notice=before.notice, is_lost=is_lost)
                if is_read and now.notice is None:
                    notice = _unfinished_line(file, seen, content)
                    now = now._replace(notice=notice)
                    result.notices.append(notice)
            unlinked[seen.key] = now
            if not now.is_lost:
                result.seen[seen.key], result.versions[seen.key] = seen, now.version
                result.aside += [] if now.notice is None else [now.notice]
        self._unlinked = unlinked


def base_of(pattern: str) -> str:
    """The directory below which a pattern can match, as it is written: a symbolic link may lead elsewhere later."""
    base = pattern
    while any(wildcard in base for wildcard in "*?["):
        base = posixpath.dirname(base)
    return base if base != pattern else posixpath.dirname(pattern)


def _problem(error: Exception) -> tuple[str, str]:
    """Why a file is not read, and what to do."""
    match error:
        case Incomplete():
            return _INCOMPLETE, f"ends too early for a compressed file; finish it, or move it away; {_AS_STORED}"
        case Damaged():
            return "damaged", f"cannot be decompressed: {error}; restore it, or move it away; {_AS_STORED}"
        case UnsupportedCodec():
            return "not supported", f"{error}; {_AS_STORED}"
        case _:
            return "encoding", f"is text in {error}, whose lines are not found; convert it to UTF-8; {_AS_STORED}"


def _is_unlinked(content: Content) -> bool:
    try:
        return not content.links()
    except OSError:
        # On a file server, such a descriptor is stale.
        return False


def _unfinished_line(file: TrackedFile, seen: SeenFile, content: Content) -> SourceNotice:
    text = (
        f"{shown(file.path)} was deleted, and its last {seen.size - file.read.offset} bytes are not ingested: they end "
        f"in no line feed. If nothing follows within a minute, they are lost; to restore it until then: "
        f"cp /proc/{os.getpid()}/fd/{content.descriptor()}"
    )
    return SourceNotice("deleted", file.path, text)


def _reason(error: OSError) -> str:
    name = errno.errorcode.get(error.errno or 0, "")
    return f"{error.strerror} ({name})" if name else str(error)


def _is_unchanged(looked: _Looked, key: FileKey, state: FileState, edges: str) -> bool:
    """Whether at most the name has changed: that changes the time of the inode, too."""
    same = (looked.state.size, looked.state.modified) == (state.size, state.modified)
    return looked.seen is not None and looked.seen.key == key and same and looked.edges == edges


def _inspected(path: str) -> tuple[_Inode, FileState]:
    """Raises OSError, and NotAFile: a pipe must not be opened, as its writer would take that for its reader."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise NotAFile(path)
    state = FileState(status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return _Inode(status.st_dev, status.st_ino), state


def _changed_at(folder: str) -> int | None:
    """The time of the last creation, deletion or renaming."""
    try:
        return os.stat(folder).st_mtime_ns
    except OSError:
        return None


def _listed(folder: str) -> Iterator[tuple[str, int]]:
    """Paths and inodes of what is in a directory, without links."""
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(FileNotFoundError):
                if entry.is_file(follow_symlinks=False):
                    yield entry.path, entry.inode()
