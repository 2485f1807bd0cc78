"""How new segments replace old ones, so that a crash at any moment leaves either the old or the new ones.

1. The new segment is written and flushed under names that end in ``.cleaned``. Found by recovery: removed.
2. Its files are renamed to ``.swap``, the log last; the folder is synced.
3. A checkpoint that has the new segment instead of the old ones replaces the last one. Now it is decided.
4. The old segments, but for that of the same base offset, get names that end in ``.deleted``. The ``.swap`` files get
   their final names, the log last, over those of the remaining old segment. Then the ``.deleted`` files are removed.

Recovery finishes step 4 if the size and end offset in the checkpoint are those of the swap, and else undoes it.
Segments that lie before the checkpoint's last one but are not in it are old ones. Without a checkpoint every complete
swap is finished, as in Apache Kafka, whose names these are: it can replace its sources at any time.
Knows no log: the caller keeps everybody else off the folder's files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Final

from einmal.log.batches import scan
from einmal.log.checkpoint import Summary, write_from
from einmal.log.disk import Disk
from einmal.log.segment import Segment
from einmal.log.segment_files import ABORTED_INDEX, LOG, OFFSET_INDEX, TIME_INDEX, file_name
from einmal.types import Offset
from einmal.wire.errors import WireError

CLEANED: Final = ".cleaned"
SWAP: Final = ".swap"
DELETED: Final = ".deleted"

_LOG_LAST: Final = (OFFSET_INDEX, TIME_INDEX, ABORTED_INDEX, LOG)
_BASE: Final = re.compile(r"\d{20}")


# --- a new segment ---------------------------------------------------------------------------------------------------


def create(disk: Disk, directory: PurePosixPath, base_offset: Offset, index_interval_bytes: int) -> Segment:
    """An empty segment under its first name. Raises OSError."""
    left_over = directory / file_name(base_offset, LOG + CLEANED)
    if disk.exists(left_over):
        # Not used again: if its sync has failed, the next one would seem to succeed.
        disk.remove(left_over)
    return Segment.create(disk, directory, base_offset, index_interval_bytes, provisional=CLEANED)


def finish(disk: Disk, segment: Segment) -> None:
    """The segment is complete: write its three indexes, and flush. Raises OSError."""
    writes, stored = segment.index_writes()
    contents = {write.name: write.data for write in writes}
    for suffix in (OFFSET_INDEX, TIME_INDEX, ABORTED_INDEX):
        write_from(disk, segment.path(suffix + CLEANED), 0, contents.get(segment.path(suffix).name, b""))
    segment.stored = stored
    segment.sync()


def discard(disk: Disk, segment: Segment) -> None:
    """Remove the segment, unless it is renamed already. Raises OSError."""
    paths = [path for suffix in _LOG_LAST if disk.exists(path := segment.path(suffix + CLEANED))]
    if paths:
        segment.close()
    for path in paths:
        disk.remove(path)


# --- the swap --------------------------------------------------------------------------------------------------------


def prepare(disk: Disk, directory: PurePosixPath, base_offset: Offset) -> None:
    """Step 2, without the sync. Raises OSError."""
    _rename(disk, directory, base_offset, CLEANED, SWAP)


def install(disk: Disk, new: Segment, old: Sequence[Segment]) -> list[PurePosixPath]:
    """Step 4, but for the removal; returns the files to be removed. Raises OSError."""
    files = []
    for segment in old:
        segment.close()
        for suffix in _LOG_LAST if segment.base_offset != new.base_offset else ():
            if disk.exists(segment.path(suffix)):
                files.append(segment.path(suffix + DELETED))
                disk.rename(segment.path(suffix), files[-1])
    _rename(disk, new.path(LOG).parent, new.base_offset, SWAP, "")
    return files


def remove(disk: Disk, files: Sequence[PurePosixPath]) -> None:
    """The end of step 4; blocking. Raises OSError."""
    for path in files:
        disk.remove(path)


def _rename(disk: Disk, directory: PurePosixPath, base_offset: Offset, before: str, after: str) -> None:
    for suffix in _LOG_LAST:
        path = directory / file_name(base_offset, suffix + before)
        if disk.exists(path):
            disk.rename(path, directory / file_name(base_offset, suffix + after))


# --- recovery --------------------------------------------------------------------------------------------------------


def settle(disk: Disk, directory: PurePosixPath, summary: Summary | None) -> None:
    """Finish or undo swaps that a crash has interrupted, and remove unneeded files. Raises OSError."""
    known = {segment.base_offset: segment for segment in summary.segments} if summary else {}
    last = max(known, default=Offset(-1))
    old = [base for base in _bases(disk, directory, LOG) if base < last and base not in known]
    decided = []
    for base in _bases(disk, directory, LOG + SWAP):
        size, end_offset = _extent(disk, directory / file_name(base, LOG + SWAP))
        if summary is None and size:
            old += [offset for offset in _bases(disk, directory, LOG) if base < offset < end_offset]
        # Two swaps can have the same size; their end offsets differ.
        elif base not in known or (size, end_offset) != (known[base].size, known[base].end_offset):
            continue
        decided.append(base)
    # A swap keeps its name until the old segments are gone: the next start may have to resume from here.
    for base in old:
        Segment(disk, directory, base, 0).remove()
    for base in decided:
        _rename(disk, directory, base, SWAP, "")
    for name in disk.list_directory(directory):
        if name.endswith((CLEANED, SWAP, DELETED)):
            disk.remove(directory / name)


def _bases(disk: Disk, directory: PurePosixPath, suffix: str) -> list[Offset]:
    """The base offsets in the names of the files of a kind."""
    stems = [name.removesuffix(suffix) for name in disk.list_directory(directory) if name.endswith(suffix)]
    return [Offset(int(stem)) for stem in stems if _BASE.fullmatch(stem)]


def _extent(disk: Disk, path: PurePosixPath) -> tuple[int, Offset]:
    """Size and end offset of a log file; 0 and 0 for an incomplete one."""
    file = disk.open(path)
    try:
        size, end_offset = file.size(), Offset(0)
        for _, header in scan(file, 0, size):
            if header.base_offset < end_offset:
                return 0, Offset(0)
            end_offset = header.next_offset
    except WireError:
        return 0, Offset(0)
    finally:
        file.close()
    return size, end_offset
