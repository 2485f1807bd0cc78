"""The record of what is on disk: ``recovery-checkpoint``, and how a new one is made.

A checkpoint has the flushed size of each segment, and the size and CRC-32C of every file that was derived from it
(indexes, leader epochs). Recovery reads the log only from there on, and trusts a derived file only if size and CRC
match the checkpoint; so those need no flush of their own. Without a checkpoint, or with a broken one, all is rebuilt
from the log.

It has its topic's id and its partition: a checkpoint in progress when its topic is deleted may end up in the folder of
the next topic of that name.

All that it names must exist: a log that holds less, or other bytes, is damaged (``recovery.py``). So segments that
retention deletes stay on disk until a checkpoint is stored that does not name them.

The order matters: batches are flushed, then the derived files are written, then the checkpoint replaces the last one.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any, Final
from uuid import UUID

from google_crc32c import value as crc32c

from einmal.event_log import EventLog
from einmal.log.disk import Disk
from einmal.log.producer_snapshot import SnapshotPicture
from einmal.log.segment import Segment
from einmal.log.segment_files import IndexWrite, SegmentSummary, Stored, StoredIndexes
from einmal.types import Offset

log = EventLog(__name__)

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
    """The offset up to which the log is clean (``compaction.py``).

    It is stored here and not in a file of its own, because it must fall with a truncation and must not pass to the next
    topic of the same name. If a key existed twice below it, the earlier record would reappear when the tombstone of the
    key is removed.
    """
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
        """Raises ValueError when the file is incomplete."""
        crc, _, text = data.partition(b"\n")
        text = text.removesuffix(b"\n")
        computed = b"%08x" % crc32c(text)
        if crc != computed:
            raise ValueError(f"expected CRC-32C {crc[:8]!r} of a recovery checkpoint, found {computed!r}")
        fields: dict[str, Any] = json.loads(text)
        if fields["version"] != _VERSION:
            raise ValueError(f"expected a recovery checkpoint of version {_VERSION}, found {fields['version']}")
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
class StoredCheckpoint:
    """A checkpoint that is on disk."""

    summary: Summary
    snapshots: dict[Offset, Stored]
    """Those that it has written."""
    retired: tuple[Segment, ...]
    """Segments that were deleted from the log before: their files may be removed."""

    @property
    def end_offset(self) -> Offset:
        """The recovery point."""
        return self.summary.segments[-1].end_offset


@dataclass(frozen=True, slots=True)
class LogCheckpoint:
    """A log at one moment, to be stored while the log continues to change (``durability.py``)."""

    unflushed: tuple[Segment, ...]
    """To be flushed before anything is written."""
    index_writes: tuple[IndexWrite, ...]
    files: tuple[tuple[PurePosixPath, bytes], ...]
    """Small derived files to be rewritten: leader epochs."""
    snapshots: tuple[tuple[Offset, PurePosixPath, SnapshotPicture], ...]
    """Producer snapshots to be written. They may be long, so even their bytes are made when they are."""
    summary: Summary
    """With the snapshots that are on disk already."""
    retired: tuple[Segment, ...]

    def write(self, disk: Disk, directory: PurePosixPath) -> StoredCheckpoint:
        """The derived files, then the checkpoint itself; the batches are flushed. Raises OSError."""
        for name, position, data in self.index_writes:
            write_from(disk, directory / name, position, data)
        snapshots = {}
        for offset, path, picture in self.snapshots:
            data = picture.encode()
            write_from(disk, path, 0, data)
            snapshots[offset] = Stored.of(data)
        for path, data in self.files:
            write_from(disk, path, 0, data)
        known = dict(self.summary.snapshots or ())
        summary = replace(self.summary, snapshots=tuple({**known, **snapshots}.items()))
        write_summary(disk, directory, summary)
        return StoredCheckpoint(summary, snapshots, self.retired)


def write_summary(disk: Disk, directory: PurePosixPath, summary: Summary) -> None:
    """Replace the last checkpoint. Raises OSError."""
    disk.write_file(directory / FILE_NAME, summary.encode())


def write_from(disk: Disk, path: PurePosixPath, position: int, data: bytes) -> None:
    """Write a file that is not flushed: its first ``position`` bytes, then ``data``. Raises OSError."""
    file = disk.open(path, create=True)
    try:
        if file.size() > position:
            file.truncate(position)
        if data:
            file.append(data)
    finally:
        file.close()


def load(disk: Disk, directory: PurePosixPath) -> Summary | None:
    """The checkpoint of a partition's folder; None: there is no valid one."""
    path = directory / FILE_NAME
    if not disk.exists(path):
        return None
    try:
        return Summary.decode(disk.read_file(path))
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning(
            "checkpoint_invalid",
            "%(path)s is invalid (%(error)s): reading the whole log instead. Records removed by "
            "DeleteRecords may reappear",
            path=path,
            error=error,
        )
        return None
