"""Lines of one file behind what was read of it, and what is none: long lines, holes, a byte order mark.

What is searched for far away, the end of a hole or of a line that is too long, is searched in several looks: each
continues where the last one was.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Final, NamedTuple

from einmal.ingest.files.beginning import UTF8_MARK, leading_nuls
from einmal.ingest.files.content import EDGE, Budget, Content, Extract, FileKey, FileState, Unfinished
from einmal.ingest.files.scan import shown
from einmal.ingest.files.tracking import Mark, SeenFile, TrackedFile, head_of
from einmal.ingest.source import SourceNotice

_READ: Final = 1024 * 1024


class FilePiece(NamedTuple):
    """Whole lines of one file, from ``offset`` on. ``first_path``: under which it was read first."""

    path: str
    first_path: str
    offset: int
    data: bytes


class FileChanged(Exception):
    """The file is not the one that was seen."""


class FileRead(NamedTuple):
    """``notices``: of bytes before ``file.read`` that are no lines, if that counts."""

    file: TrackedFile
    piece: FilePiece | None = None
    notices: tuple[SourceNotice, ...] = ()


class _Stuck(NamedTuple):
    """Nothing follows an offset of a file as it was in a state. ``aside``: not before a human has done something;
    ``unfinished``: what follows is no whole line; ``is_read_again``: in that state, too, since who writes through a
    mapping (mmap) may change neither size nor times."""

    offset: int
    version: FileState
    aside: SourceNotice | None = None
    unfinished: SourceNotice | None = None
    is_read_again: bool = False


class _Search(NamedTuple):
    """A file that was read to ``offset``, as it was in a state: the end of NULs from ``begin`` on (``is_hole``), or of
    a line that is too long, was not in what is before ``end``. ``fingerprint``: of that, if it is not compressed."""

    offset: int
    version: FileState
    fingerprint: str | None
    is_hole: bool
    begin: int
    end: int


class LineReader:
    """Reads files as long as they do not change. ``budget``: of what is searched in one look; ``line_bytes`` and the
    others: see ``FileReader``."""

    def __init__(self, budget: Budget, *, line_bytes: int, skip_long_lines: bool, is_as_stored: bool) -> None:
        self._budget = budget
        self._line_bytes = line_bytes
        self._most = max(_READ, line_bytes + 1)
        """Bytes that are read of a file at once."""
        self._skips_long_lines = skip_long_lines
        self._is_as_stored = is_as_stored
        self._stuck: dict[FileKey, _Stuck] = {}
        self._searches: dict[FileKey, _Search] = {}

    def forget(self, reads: Mapping[FileKey, FileRead], left: set[FileKey]) -> None:
        """Keep only what is known of these files. ``left``: those whose lines do not count."""
        self._stuck = {
            key: stuck
            for key, stuck in self._stuck.items()
            if key in reads and key not in left and reads[key].file.read.offset == stuck.offset
        }
        self._searches = {key: search for key, search in self._searches.items() if key in reads}

    def aside(self) -> list[SourceNotice]:
        """Return why files are read no further."""
        return [stuck.aside for stuck in self._stuck.values() if stuck.aside is not None]

    def unfinished(self) -> dict[FileKey, tuple[SourceNotice, int]]:
        """Return the files whose last line has no line feed, and when they were written last, in ns."""
        return {
            key: (stuck.unfinished, stuck.version.modified)
            for key, stuck in self._stuck.items()
            if stuck.unfinished is not None
        }

    def is_stuck(self, file: TrackedFile, version: FileState) -> bool:
        known = self._stuck.get(file.key)
        if known is None or known.is_read_again:
            return False
        return (known.offset, known.version) == (file.read.offset, version)

    def _stick(self, file: TrackedFile, version: FileState, aside: SourceNotice | None = None) -> FileRead:
        before = self._stuck.get(file.key)
        self._stuck[file.key] = _Stuck(file.read.offset, version, aside)
        if aside is None or (before is not None and before.aside == aside):
            return FileRead(file)
        return FileRead(file, None, (aside,))

    def read(self, file: TrackedFile, seen: SeenFile, version: FileState, content: Content) -> FileRead:
        """Raises FileChanged, Unfinished, and what keeps a file from being read."""
        read = self._read_lines(file, seen, version, content)
        content.keep(read.file.read.offset)
        return read

    def _read_lines(self, file: TrackedFile, seen: SeenFile, version: FileState, content: Content) -> FileRead:
        offset = file.read.offset
        search = self._searches.pop(seen.key, None)
        if search is not None and (search.offset != offset or (seen.is_compressed and search.version != version)):
            search = None
        if search is not None and seen.is_compressed:
            # It is not decompressed from its beginning again.
            if not search.is_hole:
                return self._read_long_line(file, seen, content, search)
            begin, notices = self._behind_hole(file, seen, content, search)
            if begin == offset:
                return self._stick(file, version)
            return self._read_from(file, seen, content, _Search(offset, version, None, False, begin, begin), notices)
        extract = self._extract(file, seen, content)
        if search is None or search.fingerprint is None or content.fingerprint(search.end) != search.fingerprint:
            search = _Search(offset, version, None, False, offset, offset)
        search = search._replace(version=version)
        begin, notices = self._first_line(file, seen, content, extract, search)
        if search.is_hole or search.begin != begin:
            search = search._replace(is_hole=False, begin=begin, end=begin)
        return self._read_from(file, seen, content, search, notices)

    def _read_from(
        self, file: TrackedFile, seen: SeenFile, content: Content, search: _Search, notices: tuple[SourceNotice, ...]
    ) -> FileRead:
        """Lines from the beginning of the search on, which is for the end of the first one."""
        begin, version = search.begin, search.version
        extract = content.read(begin, self._most)
        data, end = extract.data, begin + len(extract.data)
        is_last = content.codec is not None and end >= seen.size
        whole = len(data) if is_last else data.rfind(b"\n") + 1
        if whole == 0:
            if len(data) <= self._line_bytes:
                # A hole is not searched again before more follows.
                read, unfinished = self._stick(file, version), None
                if leading_nuls(data) < len(data) and content.links():
                    unfinished = _unfinished(file.path, begin, len(data))
                self._stuck[file.key] = self._stuck[file.key]._replace(
                    unfinished=unfinished, is_read_again=begin == file.read.offset
                )
                return read
            if not self._is_as_stored and leading_nuls(data) == len(data):
                return self._stick(file, version)
            if not self._skips_long_lines:
                return self._stick(file, version, self._too_long(file.path, begin))
            return self._read_long_line(file, seen, content, search._replace(end=max(end, search.end)))
        long = [*_long_lines(data[:whole], self._line_bytes)]
        if long and not self._skips_long_lines:
            (whole, _) = long[0]
            if whole == 0:
                return self._stick(file, version, self._too_long(file.path, begin))
        elif long:
            (first, length) = long[0]
            notices = (*notices, self._left_out(file.path, begin + first, length, len(long)))
        mark = Mark(begin + whole, extract.fingerprint(begin, whole))
        following = replace(file, size=max(end, file.size), read=mark, head=head_of(extract.head, mark.offset))
        return FileRead(following, FilePiece(file.path, file.original_path, begin, data[:whole]), notices)

    def _extract(self, file: TrackedFile, seen: SeenFile, content: Content) -> Extract:
        offset = file.read.offset
        extract = content.read(offset, self._most)
        end = offset + len(extract.data)
        # The file may have been truncated, and written anew, since it was seen.
        if extract.fingerprint(offset, 0) != file.read.fingerprint or len(extract.head) < min(EDGE, end):
            raise FileChanged
        if not offset and end < min(seen.size, self._most):
            # Truncated as well: there is no fingerprint of nothing.
            raise FileChanged
        return extract

    def _first_line(
        self, file: TrackedFile, seen: SeenFile, content: Content, extract: Extract, search: _Search
    ) -> tuple[int, tuple[SourceNotice, ...]]:
        """Where the next line begins, behind what is none. ``extract``: from where the file was read to."""
        offset, data = file.read.offset, extract.data
        if self._is_as_stored:
            return offset, ()
        if not offset and data.startswith(UTF8_MARK):
            text = "begins with a byte order mark, which is left out"
            return len(UTF8_MARK), (file_notice("byte order mark", file.path, text),)
        nuls = leading_nuls(data)
        if not nuls or (offset and nuls <= self._line_bytes):
            return offset, ()
        if not search.is_hole and search.begin != offset:
            # Its end was searched before that of the line behind it.
            return search.begin, ()
        if not search.is_hole or nuls < len(data):
            search = search._replace(is_hole=True, begin=offset, end=offset + nuls)
        return self._behind_hole(file, seen, content, search)

    def _behind_hole(
        self, file: TrackedFile, seen: SeenFile, content: Content, search: _Search
    ) -> tuple[int, tuple[SourceNotice, ...]]:
        end = self._searched(seen, content, search, lambda data: leading_nuls(data) if data.strip(b"\0") else -1)
        if end is None:
            # A file that ends with NULs was allocated before it is written.
            return search.offset, ()
        text = (
            f"has {end - search.offset} NUL bytes at offset {search.offset}, which are left out: it was truncated "
            "under its writer, or it lost them in a crash"
        )
        return end, (file_notice("hole", file.path, text),)

    def _read_long_line(self, file: TrackedFile, seen: SeenFile, content: Content, search: _Search) -> FileRead:
        """A line that does not end in what was read of it."""
        end = self._searched(seen, content, search, lambda data: data.find(b"\n"))
        has_line_feed = end is not None
        if end is None and content.codec is None:
            return self._stick(file, search.version)
        end = content.size() if end is None else end + 1
        if (fingerprint := content.fingerprint(end)) is None:
            raise FileChanged
        head = head_of(content.first(), end)
        following = replace(file, size=max(end, file.size), read=Mark(end, fingerprint), head=head)
        notice = self._left_out(file.path, search.begin, end - search.begin - has_line_feed, 1)
        return FileRead(following, None, (notice,))

    def _searched(
        self, seen: SeenFile, content: Content, search: _Search, position: Callable[[bytes], int]
    ) -> int | None:
        """Where something is, from the end of a search on; None if it is nowhere. ``position``: in the data, or -1.
        Raises Unfinished: the next look searches on."""
        end = written = search.end
        try:
            while True:
                # Neither lines nor their ends are in a hole.
                end = content.next_data(end)
                self._budget.spend(_READ)
                data = content.read(end, _READ).data
                if not data:
                    if not search.is_hole and content.codec is None:
                        # A file that grows is searched on from here. NULs may be allocated for what is written next.
                        self._keep_search(seen, content, search, written)
                    return None
                if (at := position(data)) >= 0:
                    return end + at
                if at := len(data.rstrip(b"\0")):
                    written = end + at
                end += len(data)
        except Unfinished:
            self._keep_search(seen, content, search, end)
            raise

    def _keep_search(self, seen: SeenFile, content: Content, search: _Search, end: int) -> None:
        fingerprint = content.fingerprint(end) if content.codec is None else None
        self._searches[seen.key] = search._replace(end=end, fingerprint=fingerprint)

    def _too_long(self, path: str, offset: int) -> SourceNotice:
        text = (
            f"is read no further: its line at offset {offset} has more than {self._line_bytes} bytes; raise "
            "max.line.bytes, and with it kafka.max.request.size and the topic's max.message.bytes; or leave such lines "
            "out: skip.long.lines = true"
        )
        return file_notice("long line", path, text)

    def _left_out(self, path: str, offset: int, length: int, count: int) -> SourceNotice:
        others = f", and {count - 1} others behind it" if count > 1 else ""
        text = f"has a line of {length} bytes at offset {offset}{others}: more than max.line.bytes, and left out"
        return file_notice("skipped line", path, text)


def _long_lines(data: bytes, most: int) -> Iterator[tuple[int, int]]:
    """Begin and length of the lines that have more than ``most`` bytes."""
    begin = 0
    while len(data) - begin > most:
        end = data.rfind(b"\n", begin, begin + most + 1)
        if end < 0:
            end = data.find(b"\n", begin)
            end = len(data) if end < 0 else end
            yield begin, end - begin
        begin = end + 1


def _unfinished(path: str, begin: int, length: int) -> SourceNotice:
    text = (
        f"ends in no line feed: its last {length} bytes, from offset {begin} on, wait for the rest of their line; if "
        "nothing follows, end it with a line feed"
    )
    return file_notice("unfinished line", path, text)


def file_notice(kind: str, path: str, text: str) -> SourceNotice:
    return SourceNotice(kind, path, f"{shown(path)} {text}")
