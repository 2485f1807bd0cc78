"""What is proved to be on disk: ``recovery-checkpoint``, and how a new one is made.

A checkpoint says how much of each segment has been flushed, and the size and CRC-32C of every file that was derived
from it (indexes, leader epochs). Recovery reads the log from there on only, and believes a derived file only if it is
the one that the checkpoint means; so those need no flush of their own. Without a checkpoint, or with a broken one,
all is rebuilt from the log.

It bears its topic's id and its partition: a checkpoint that was on its way when its topic was deleted may end up in
the folder of the next topic of that name.

What it names must be there: a log that holds less, or something else, is damaged (``recovery.py``). So segments that
retention deletes stay on disk until a checkpoint is stored that does not name them.

The order matters: batches are flushed, then the derived files are written, then the checkpoint replaces the last one.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final
from uuid import UUID

from google_crc32c import value as crc32c

from einmal.log.disk import Disk
from einmal.log.errors import SHORTAGES, SyncFailed
from einmal.log.segment import IndexWrite, Segment, SegmentSummary, Stored, StoredIndexes
from einmal.types import Offset

log = logging.getLogger(__name__)

FILE_NAME: Final = "recovery-checkpoint"
_VERSION: Final = 0


@dataclass(frozen=True, slots=True)
class Summary:
    """The content of the file. The recovery point is the end of the last segment named."""

    log_start_offset: Offset
    segments: tuple[SegmentSummary, ...]
    leader_epochs: Stored
    topic_id: UUID | None = None
    cleaned_offset: Offset = Offset(0)
    """Where the log is clean up to (``compaction.py``)."""
    partition: int | None = None
    snapshots: tuple[tuple[Offset, Stored], ...] | None = None
    """The producer snapshots that belong to this log; None: unknown."""

    def encode(self) -> bytes:
        segments = [
            [*segment[:5], *(number for stored in segment.stored for number in stored), segment.fingerprint]
            for segment in self.segments
        ]
        fields = {
            "version": _VERSION,
            "topic_id": self.topic_id and self.topic_id.hex,
            "partition": self.partition,
            "log_start_offset": self.log_start_offset,
            "cleaned_offset": self.cleaned_offset,
            "leader_epochs": self.leader_epochs,
            "snapshots": None if self.snapshots is None else [[offset, *stored] for offset, stored in self.snapshots],
            "segments": segments,
        }
        text = json.dumps(fields, separators=(",", ":")).encode()
        return b"%08x\n%s\n" % (crc32c(text), text)

    @classmethod
    def decode(cls, data: bytes) -> Summary:
        """Raises ValueError when the file is not whole."""
        crc, _, text = data.partition(b"\n")
        text = text.removesuffix(b"\n")
        if crc != b"%08x" % crc32c(text):
            raise ValueError("not a recovery checkpoint")
        fields: dict[str, Any] = json.loads(text)
        if fields["version"] != _VERSION:
            raise ValueError("a recovery checkpoint of another version")
        return cls(
            Offset(fields["log_start_offset"]),
            tuple(_segment_summary(numbers) for numbers in fields["segments"]),
            Stored(*fields["leader_epochs"]),
            fields["topic_id"] and UUID(hex=fields["topic_id"]),
            Offset(fields.get("cleaned_offset", 0)),
            fields.get("partition"),
            _snapshots(fields.get("snapshots")),
        )


def _snapshots(entries: list[list[int]] | None) -> tuple[tuple[Offset, Stored], ...] | None:
    if entries is None:
        return None
    return tuple((Offset(offset), Stored(size, crc)) for offset, size, crc in entries)


def _segment_summary(numbers: list[int]) -> SegmentSummary:
    base, size, end, max_timestamp, max_timestamp_offset, *stored = numbers
    # Checkpoints of earlier versions have no fingerprints.
    fingerprint = stored[6] if len(stored) > 6 else None
    indexes = StoredIndexes(Stored(*stored[0:2]), Stored(*stored[2:4]), Stored(*stored[4:6]))
    return SegmentSummary(
        Offset(base), size, Offset(end), max_timestamp, Offset(max_timestamp_offset), indexes, fingerprint
    )


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A log at one moment, to be stored while the log goes on."""

    disk: Disk
    directory: PurePosixPath
    unflushed: tuple[Segment, ...]
    index_writes: tuple[IndexWrite, ...]
    files: tuple[tuple[PurePosixPath, bytes], ...]
    """Small derived files to be written anew: snapshots, leader epochs."""
    summary: Summary
    snapshots: dict[Offset, Stored]
    """Those among the files."""
    retired: tuple[Segment, ...]
    """Segments that were deleted from the log before: their files may go once this is stored."""
    sync_names: Callable[[], None]
    failed: Callable[[bool], None]
    """Called when ``store`` fails; True: nothing is lost, the next checkpoint may succeed."""
    prepare: Callable[[], None] | None = None
    """What is to be done before."""

    @property
    def end_offset(self) -> Offset:
        """The recovery point."""
        return self.summary.segments[-1].end_offset

    def store(self) -> None:
        """Flush and write; blocking. Raises OSError: then the log is offline, unless there was only a shortage."""
        try:
            self._store()
        except OSError as error:
            # What is derived is written again. But a swap that has begun must be finished, and a failed flush is final.
            self.failed(error.errno in SHORTAGES and self.prepare is None and not isinstance(error, SyncFailed))
            raise

    def _store(self) -> None:
        if self.prepare is not None:
            self.prepare()
        for segment in self.unflushed:
            segment.sync()
        self.sync_names()
        for path, position, data in self.index_writes:
            write_from(self.disk, path, position, data)
        for path, data in self.files:
            write_from(self.disk, path, 0, data)
        self.disk.write_file(self.directory / FILE_NAME, self.summary.encode())


def write_from(disk: Disk, path: PurePosixPath, position: int, data: bytes) -> None:
    """Make a file that is not flushed: its first ``position`` bytes, then ``data``. Raises OSError."""
    file = disk.open(path, create=True)
    try:
        if file.size() > position:
            file.truncate(position)
        if data:
            file.append(data)
    finally:
        file.close()


def load(disk: Disk, directory: PurePosixPath) -> Summary | None:
    """The checkpoint of a partition's folder; None when there is none that can be believed."""
    path = directory / FILE_NAME
    if not disk.exists(path):
        return None
    try:
        return Summary.decode(disk.read_file(path))
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning(
            "%s cannot be believed (%s): the whole log is read instead. Records removed by DeleteRecords may be there "
            "again",
            path,
            error,
        )
        return None
