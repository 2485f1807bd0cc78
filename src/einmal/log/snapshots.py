"""The ``.snapshot`` files of a log: producer state at some offsets, from which a replay of the batches may begin.

Kept are the newest, from which recovery begins, and those where a segment begins, from which it begins when the newest
cannot be believed, and a truncation when the newest lies beyond the cut. Compaction removes those below a new segment:
they remember transactions as open whose markers may be gone, and nothing in the log would ever close them again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePosixPath
from typing import Final

from einmal.log.disk import Disk
from einmal.log.producer_snapshot import SnapshotPicture
from einmal.log.segment_files import SNAPSHOT, Stored, file_name
from einmal.log.segments import Segments
from einmal.types import Offset

_WAITING_MAX: Final = 2
"""Snapshots taken at a roll that may wait in memory for the next checkpoint."""


class Snapshots:
    def __init__(self, disk: Disk, directory: PurePosixPath, known: dict[Offset, Stored | None]) -> None:
        self._disk = disk
        self._directory = directory
        self.known = known
        """Those on disk, rising; None: no checkpoint has the CRC of the file."""
        self.waiting: dict[Offset, SnapshotPicture] = {}
        """Taken since the last checkpoint."""

    def take(self, offset: Offset, taken: SnapshotPicture) -> None:
        """To be written with the next checkpoint; the oldest of too many is dropped."""
        self.waiting[offset] = taken
        if len(self.waiting) > _WAITING_MAX:
            del self.waiting[next(iter(self.waiting))]

    def path(self, offset: Offset) -> PurePosixPath:
        return self._directory / file_name(offset, SNAPSHOT)

    def stored(self, added: Mapping[Offset, Stored], segments: Segments) -> None:
        """A checkpoint has written these; remove those that nobody needs any more. Raises OSError."""
        newest = max(added)
        known = dict(sorted({**self.known, **added}.items()))
        self.known = {
            offset: stored for offset, stored in known.items() if offset == newest or segments.has_base(offset)
        }
        self.remove(offset for offset in known if offset not in self.known)

    def forget_below(self, limit: Offset) -> list[Offset]:
        """Those on disk whose files are to be removed."""
        gone = [offset for offset in self.known if offset < limit]
        self.known = {offset: stored for offset, stored in self.known.items() if offset >= limit}
        self.waiting = {offset: taken for offset, taken in self.waiting.items() if offset >= limit}
        return gone

    def replace(self, known: dict[Offset, Stored | None]) -> None:
        """The log was cut, and these are left on disk."""
        self.known = known
        self.waiting = {}

    def remove(self, offsets: Iterable[Offset]) -> None:
        """Delete their files, if they are there. Raises OSError."""
        for offset in offsets:
            if self._disk.exists(self.path(offset)):
                self._disk.remove(self.path(offset))
