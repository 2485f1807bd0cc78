"""Files that arrive or grow as a source: one record per line, each line once, whatever happens to the files.

A line ends with a line feed. What follows the last one is no line yet, unless the file is compressed: a compressed file
is read when it is complete. ``tracking`` decides which file is which, and ``look`` what counts as read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from typing import Final

from einmal.ingest.files.content import FileKey
from einmal.ingest.files.lines import FilePiece
from einmal.ingest.files.look import FileReader
from einmal.ingest.files.position import decode, encode
from einmal.ingest.files.scan import base_of, shown
from einmal.ingest.files.tracking import Mark, TrackedFile
from einmal.ingest.source import IngestBatch, IngestRecord, Position, RecordSource, SourceBusy, SourceNotice
from einmal.types import Header

FILE_HEADER: Final = "einmal.file"
OFFSET_HEADER: Final = "einmal.offset"
_LINE_BYTES: Final = 1_000_000
_IDLE_LOOKS: Final = 2
"""In a row, until nothing is new: a file that is renamed while a directory is listed may be in no list."""
_LOOK_S: Final = 0.05
"""Between two looks that find nothing."""
_UNSETTLED_S: Final = 2.0
_REST_NS: Final = 60_000_000_000
"""Since the last write to a file: until it is reported that its last line has no line feed."""
_UNSETTLED_LOOKS: Final = 10
"""Without a line that counts, while files change all the time: until nothing is new."""


class FilesSource(RecordSource):
    """See the module."""

    def __init__(
        self,
        path: str,
        topic: str,
        *,
        key_by_file: bool = False,
        line_bytes: int = _LINE_BYTES,
        skip_long_lines: bool = False,
        fail_on_data_loss: bool = True,
        is_as_stored: bool = False,
    ) -> None:
        """``path``: a pattern, with ``*``, ``?``, ``[...]`` and ``**``. ``key_by_file``: the path under
        which a file was read first is the key, which keeps its lines in one partition, also after rotations.
        ``line_bytes``: the longest line; a longer one is left out (``skip_long_lines``), or its file is set aside.
        ``fail_on_data_loss``: refuse to continue where a file is gone that had more than was read. ``is_as_stored``:
        nothing is decompressed, nor recognised by the first bytes."""
        self._base = base_of(os.path.abspath(path))
        self._topic = topic
        self._key_by_file = key_by_file
        self._line_bytes = line_bytes
        self._reader = FileReader(
            os.path.abspath(path),
            line_bytes=line_bytes,
            skip_long_lines=skip_long_lines,
            fail_on_data_loss=fail_on_data_loss,
            is_as_stored=is_as_stored,
        )
        self._aside: Sequence[SourceNotice] = ()
        self._changing: set[str] = set()
        """Files that were reported, because their lines do not count."""
        self._unfinished: dict[FileKey, tuple[SourceNotice, int]] = {}
        """See ``FileLook``, in the last look."""
        self._reported: set[FileKey] = set()
        """Files that were reported, because their last line has no line feed. Once: writers may have buffers."""

    def origin(self) -> str:
        return f"files in {self._base}"

    def former_origins(self) -> Sequence[str]:
        """Earlier versions recorded the directory behind symbolic links."""
        return (f"files in {os.path.realpath(self._base)}",)

    def read(self, position: Position | None) -> Iterator[IngestBatch | SourceNotice | SourceBusy | None]:
        tracked = decode(position)
        self._reader.restart()
        recorded = _recorded(tracked)
        idle, unsettled, since = 0, 0, time.monotonic()
        while True:
            look = self._reader.look(tracked)
            yield from look.notices
            tracked, self._aside, self._unfinished = look.tracked, tuple(look.aside), look.unfinished
            idle, unsettled = (idle + 1, 0) if look.is_settled and not look.pieces else (0, unsettled + 1)
            # Names are recorded even where nothing was read: the next rotation starts from them.
            state = _recorded(tracked)
            if look.pieces or state != recorded:
                recorded = state
                yield IngestBatch(self._records(look.pieces), encode(tracked))
                unsettled, since = 0, time.monotonic()
            elif look.is_unfinished:
                yield SourceBusy()
                unsettled, since = 0, time.monotonic()
            elif idle >= _IDLE_LOOKS or (unsettled >= _UNSETTLED_LOOKS and time.monotonic() - since >= _UNSETTLED_S):
                yield from self._report_changing(look.left)
                yield from self._report_unfinished(_REST_NS)
                yield None
                unsettled, since = 0, time.monotonic()
            else:
                time.sleep(_LOOK_S)

    def set_aside(self) -> Sequence[SourceNotice]:
        return self._aside

    def unfinished(self) -> Iterator[SourceNotice]:
        return self._report_unfinished(0)

    def close(self) -> None:
        self._reader.close()

    def _report_changing(self, paths: list[str]) -> Iterator[SourceNotice]:
        """Lines wait while files change that may be copies."""
        notices = {path: _changing(path) for path in paths}
        self._aside = (*self._aside, *notices.values())
        yield from (notice for path, notice in notices.items() if path not in self._changing)
        self._changing = set(paths)

    def _report_unfinished(self, rest_ns: int) -> Iterator[SourceNotice]:
        """Report files that were not written for so long. A time in the future is not that of a write."""
        now = time.time_ns()
        for key, (notice, modified) in self._unfinished.items():
            if key not in self._reported and abs(now - modified) >= rest_ns:
                self._reported.add(key)
                yield notice

    def _records(self, pieces: list[FilePiece]) -> Iterator[IngestRecord]:
        for path, first_path, offset, data in pieces:
            name = os.fsencode(path)
            key = os.fsencode(first_path) if self._key_by_file else None
            file = Header(FILE_HEADER, name)
            begin = 0
            while begin < len(data):
                end = data.find(b"\n", begin)
                end = len(data) if end < 0 else end
                # Longer ones are in a piece only where they are skipped.
                if end - begin <= self._line_bytes:
                    at = Header(OFFSET_HEADER, b"%d" % (offset + begin))
                    yield IngestRecord(self._topic, data[begin:end], key, (file, at))
                begin = end + 1


def _changing(path: str) -> SourceNotice:
    text = (
        f"{shown(path)} waits: it or files whose names show copies of it change all the time, other than by growing; "
        "give those names that do not begin with its own, or leave them out of path"
    )
    return SourceNotice("changing", path, text)


def _recorded(tracked: list[TrackedFile]) -> set[tuple[str, FileKey, Mark, frozenset[tuple[str, FileKey]]]]:
    """Return what a later start has to find. Marks of copies may lag behind."""
    return {
        (file.path, file.key, file.read, frozenset((copy.path, copy.key) for copy in file.copies)) for file in tracked
    }
