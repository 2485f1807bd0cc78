"""One segment: a ``.log`` file of record batches, and its three indexes.

Knows no producer and no high watermark.
"""

# Theory of operation
# ===================
#
# The ``.log`` file is batches end to end, offsets rising, appended by one writer. Nothing but appends and the cut of a
# truncation changes it; compaction writes another file. Three indexes derive from it:
#
#   - ``.index`` has an entry (last offset of a batch, position) about every `index.interval.bytes`, so a lookup walks
#     at most that many bytes of headers (`_find`);
#   - ``.timeindex`` has the largest timestamp so far and its offset, at the same batches;
#   - ``.txnindex`` has the aborted transactions whose marker is here (KIP-98). It cannot be rebuilt from this segment
#     alone, as a transaction may have begun in an earlier one: recovery replays producers for it.
#
# While a segment grows its indexes live in memory. A checkpoint appends new entries to their files and records size and
# CRC (`index_writes`); they need no sync, because files that do not match these are rebuilt. So an index is either
# right or absent, and a closed segment need not hold one in memory (`forget_indexes`).
#
# Validation. Every byte is validated once before it is served: when it is appended, when recovery scans it, or,
# for bytes that a checkpoint covers and this process has not read (`restore`), with the first read (`_verify`).
# `_trusted_from` and `_verified` record the progress. The CRC of a batch does not cover its base offset and leader
# epoch, which brokers patch, so these are checked against the neighbours and the index. A failure is LogCorruption:
# such a batch is reported, never served, and never cut off, for it was flushed once and may be the only copy.
# Readers return to the offset at which their last read ended: `_known` remembers where those batches begin, so that a
# consumer that keeps up costs no lookup.

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import Final, NamedTuple, TypeVar

from google_crc32c import extend as extend_crc

from einmal.event_log import EventLog
from einmal.log.aborted_index import ENTRY_SIZE as ABORTED_ENTRY_SIZE
from einmal.log.aborted_index import AbortedIndex
from einmal.log.batches import walk
from einmal.log.disk import Buffer, Disk, File
from einmal.log.errors import LogCorruption, SyncFailed
from einmal.log.offset_index import ENTRY_SIZE as OFFSET_ENTRY_SIZE
from einmal.log.offset_index import OffsetIndex
from einmal.log.segment_files import (
    ABORTED_INDEX,
    INDEXES,
    LOG,
    NOTHING_STORED,
    OFFSET_INDEX,
    TIME_INDEX,
    IndexWrite,
    SegmentSummary,
    Stored,
    StoredIndexes,
    file_name,
    fingerprint_of,
)
from einmal.log.time_index import ENTRY_SIZE as TIME_ENTRY_SIZE
from einmal.log.time_index import TimeIndex
from einmal.log.verified_ranges import VerifiedRanges
from einmal.types import LeaderEpoch, Offset, Position
from einmal.wire.errors import WireError
from einmal.wire.record_batch import HEADER_SIZE, BatchHeader, peek_header, read_header, validate

log = EventLog(__name__)

_KNOWN_POSITIONS: Final = 64

T = TypeVar("T")


class BatchEntry(NamedTuple):
    """The index entry of an appended batch; its offsets are final."""

    size: int
    base_offset: Offset
    last_offset: Offset
    max_timestamp: int
    leader_epoch: LeaderEpoch


def entry_of(header: BatchHeader) -> BatchEntry:
    # A batch without records after compaction cannot be found by its time.
    timestamp = header.max_timestamp if header.record_count else -1
    return BatchEntry(header.size, header.base_offset, header.last_offset, timestamp, header.partition_leader_epoch)


class Segment:
    __slots__ = (
        "_bytes_since_entry",
        "_directory",
        "_disk",
        "_file",
        "_fingerprint",
        "_first_timestamp",
        "_index_interval_bytes",
        "_known",
        "_offset_index",
        "_time_index",
        "_trusted_from",
        "_verified",
        "aborted_index",
        "base_offset",
        "end_offset",
        "is_dirty",
        "max_timestamp",
        "max_timestamp_offset",
        "size",
        "stored",
    )

    def __init__(self, disk: Disk, directory: PurePosixPath, base_offset: Offset, index_interval_bytes: int) -> None:
        self._disk = disk
        self._directory = directory
        self._index_interval_bytes = index_interval_bytes
        self.base_offset = base_offset
        self.end_offset = base_offset
        self.size = 0
        self.max_timestamp = -1
        self.max_timestamp_offset = base_offset
        self.is_dirty = False
        """Whether there may be unflushed bytes."""
        self.stored = StoredIndexes()
        self.aborted_index = AbortedIndex()
        self._offset_index: OffsetIndex | None = OffsetIndex(base_offset)
        self._time_index: TimeIndex | None = TimeIndex(base_offset)
        self._file: File | None = None
        self._first_timestamp: int | None = None
        self._bytes_since_entry = 0
        self._fingerprint: tuple[int, int | None] = (-1, None)
        # Where some batches begin: a reader returns to the offset at which its last read ended.
        self._known: dict[Offset, int] = {}
        # From here to the end every byte was validated when it was written or recovered; before it, ranges were
        # validated one by one.
        self._trusted_from = 0
        self._verified = VerifiedRanges()

    @classmethod
    def create(
        cls,
        disk: Disk,
        directory: PurePosixPath,
        base_offset: Offset,
        index_interval_bytes: int,
        *,
        provisional: str = "",
    ) -> Segment:
        """A new, empty segment. ``provisional``: how its log's name ends until it gets its own. Raises OSError."""
        segment = cls(disk, directory, base_offset, index_interval_bytes)
        segment._file = disk.open(segment.path(LOG + provisional), create=True)
        segment._file.truncate(0)
        return segment

    def path(self, suffix: str) -> PurePosixPath:
        return self._directory / file_name(self.base_offset, suffix)

    @property
    def file(self) -> File:
        if self._file is None:
            self._file = self._disk.open(self.path(LOG))
        return self._file

    def restore(self, summary: SegmentSummary) -> None:
        """Restore the state in a checkpoint; the offset and time indexes are loaded on demand."""
        self.size = summary.size
        self.end_offset = summary.end_offset
        self.max_timestamp, self.max_timestamp_offset = summary.max_timestamp, summary.max_timestamp_offset
        self.stored = summary.stored
        self._fingerprint = (summary.size, summary.fingerprint)
        self._trusted_from = summary.size
        self._offset_index = self._time_index = None

    def summary(self, stored: StoredIndexes) -> SegmentSummary:
        """The segment as it is now, with that much of its indexes stored."""
        return SegmentSummary(
            self.base_offset,
            self.size,
            self.end_offset,
            self.max_timestamp,
            self.max_timestamp_offset,
            stored,
            self.fingerprint(),
        )

    def fingerprint(self) -> int | None:
        """Return the fingerprint of the whole file, which is read where it has grown since the last call; None: the
        disk fails."""
        size, fingerprint = self._fingerprint
        if size != self.size or fingerprint is None:
            try:
                fingerprint = fingerprint_of(self.file, self.size)
            except OSError:
                # The flush that follows reports the disk's error.
                fingerprint = None
            self._fingerprint = (self.size, fingerprint)
        return fingerprint

    # --- growing ---------------------------------------------------------------------------------------------

    def append(self, data: Buffer, batches: list[BatchEntry]) -> None:
        """Write whole, validated batches. Raises OSError, and then nothing has changed."""
        assert batches[0].base_offset >= self.end_offset, "offsets rise: a lookup walks until it has passed one"
        position = (self._file or self.file).append(data)
        self.is_dirty = True
        self.include(position, batches)
        assert self.size == position + len(data), "every byte of the file belongs to a batch that is known"

    def include(self, position: int, batches: list[BatchEntry]) -> None:
        """Valid batches are in the file, right after those known so far: appended, or found by recovery."""
        assert position == self.size, "a segment has one writer"
        for size, _, last_offset, max_timestamp, _ in batches:
            if max_timestamp > self.max_timestamp:
                self.max_timestamp = max_timestamp
                self.max_timestamp_offset = last_offset
            if self._bytes_since_entry > self._index_interval_bytes:
                self.offset_index.append(last_offset, Position(position))
                self.time_index.maybe_append(self.max_timestamp, self.max_timestamp_offset)
                self._bytes_since_entry = 0
            self._bytes_since_entry += size
            position += size
        self.size = position
        self.end_offset = Offset(last_offset + 1)

    def sync(self) -> None:
        """Flush; blocking. Raises SyncFailed."""
        # Cleared first: a concurrent append makes the segment dirty again.
        self.is_dirty = False
        try:
            self.file.sync()
        except OSError as error:
            raise SyncFailed(*error.args) from error

    @property
    def first_timestamp(self) -> int | None:
        """The largest timestamp of the first batch: a segment's age is counted from it. None: empty."""
        if self._first_timestamp is None and self.size:
            self._first_timestamp = peek_header(self.file.read(0, HEADER_SIZE)).max_timestamp
        return self._first_timestamp

    # --- reading ---------------------------------------------------------------------------------------------

    def position_of(self, offset: Offset) -> int:
        """The position of the first batch that ends at or after ``offset``. Raises LogCorruption."""
        if offset >= self.end_offset:
            return self.size
        if offset <= self.base_offset:
            return 0
        known = self._known.get(offset)
        if known is not None:
            return known
        return _naming(self, lambda: self._find(offset))

    def _find(self, offset: Offset) -> int:
        start, entry_offset = self.offset_index.lookup(offset)
        for position, header in walk(self.file, start, self.size):
            # The CRC does not cover a batch's offset: it is compared with the index and the neighbours.
            if header.base_offset < self.base_offset:
                raise self._unexpected(f"offset >= {self.base_offset}", position, header.base_offset)
            if position == start > 0 and header.last_offset != entry_offset:
                raise self._unexpected(f"last offset {entry_offset}", position, header.last_offset)
            if header.last_offset >= offset:
                self.remember(header.base_offset, position)
                return position
        raise LogCorruption(f"{self.path(LOG)}: offset {offset} is missing")

    def read(self, offset: Offset, max_bytes: int, below: Offset, min_one: bool) -> bytes:
        """Whole batches from the one that contains ``offset``, all of them below ``below``.

        At most ``max_bytes``, but with ``min_one`` at least one batch. Raises LogCorruption or OSError.
        """
        start = self.position_of(offset)
        end = self.position_of(below)
        next_offset = min(below, self.end_offset)
        if end - start > max_bytes:
            end, next_offset = _naming(self, lambda: self._boundary(start, start + max_bytes, min_one))
        if end <= start:
            return b""
        data = self.file.read(start, end - start)
        if start < self._trusted_from and not self._verified.cover(start, end):
            _naming(self, lambda: self._verify(data, start, end))
        self.remember(next_offset, end)
        return data

    def _boundary(self, start: int, limit: int, min_one: bool) -> tuple[int, Offset]:
        """The last end of a batch up to position ``limit``, and the offset there."""
        boundary = max(start, self.offset_index.floor(limit))
        next_offset: Offset | None = None
        for position, header in walk(self.file, boundary, self.size):
            following = position + header.size
            if following > limit:
                if position == start and min_one:
                    return following, header.next_offset
                return position, header.base_offset
            boundary, next_offset = following, header.next_offset
        return boundary, next_offset or self.end_offset

    def remember(self, offset: Offset, position: int) -> None:
        """The batch that begins there has this offset, or a higher one: somebody may come back for it."""
        known = self._known
        if offset not in known and len(known) >= _KNOWN_POSITIONS:
            del known[next(iter(known))]
        known[offset] = position

    # --- validity --------------------------------------------------------------------------------------------

    def _verify(self, data: bytes, start: int, end: int) -> None:
        """Check batches that this process has not written: the CRC, and the offsets, which it does not cover."""
        if len(data) != end - start:
            raise self._unexpected(f"{end - start} bytes", start, len(data))
        position, expected = 0, self.base_offset
        while position < len(data):
            header = read_header(data, position)
            validate(data, position, header)
            if header.base_offset < expected:
                raise self._unexpected(f"offset >= {expected}", start + position, header.base_offset)
            position, expected = position + header.size, header.next_offset
        following = peek_header(self.file.read(end, HEADER_SIZE)).base_offset if end < self.size else self.end_offset
        if following < expected:
            raise self._unexpected(f"offset >= {expected}", end, following)
        self._verified.add(start, end)

    def _unexpected(self, expected: str, position: int, actual: int) -> LogCorruption:
        return LogCorruption(f"{self.path(LOG)}: expected {expected} at byte {position}, found {actual}")

    def headers(self, start: int, end: int | None = None) -> Iterator[tuple[int, BatchHeader]]:
        """(position, header) of the batches from ``start`` to ``end``, where batches begin. Raises LogCorruption."""
        try:
            yield from walk(self.file, start, self.size if end is None else end)
        except WireError as error:
            raise LogCorruption(f"{self.path(LOG)}: {error}") from error

    # --- indexes ---------------------------------------------------------------------------------------------

    @property
    def offset_index(self) -> OffsetIndex:
        if self._offset_index is None:
            self._load_indexes()
        assert self._offset_index is not None
        return self._offset_index

    @property
    def time_index(self) -> TimeIndex:
        if self._time_index is None:
            self._load_indexes()
        assert self._time_index is not None
        return self._time_index

    def forget_indexes(self) -> None:
        """Free the memory of indexes that are stored and do not grow."""
        if self._offset_index is not None and len(self._offset_index) * OFFSET_ENTRY_SIZE == self.stored.offsets.size:
            self._offset_index = self._time_index = None

    def _load_indexes(self) -> None:
        offsets = _load(self._disk, self.path(OFFSET_INDEX), self.stored.offsets)
        times = _load(self._disk, self.path(TIME_INDEX), self.stored.times)
        if offsets is None or times is None:
            sentence = "%(path)s: an index does not match the checkpoint: rebuilt"
            log.warning("index_rebuilt", sentence, path=self.path(LOG))
            self.rebuild_indexes()
            return
        self._offset_index = OffsetIndex.decode(self.base_offset, offsets)
        self._time_index = TimeIndex.decode(self.base_offset, times)
        self._bytes_since_entry = self.size - self._offset_index.floor(self.size)

    def load_aborted_index(self) -> bool:
        """False: the file does not match the checkpoint, the caller has to replay the segment's markers."""
        data = _load(self._disk, self.path(ABORTED_INDEX), self.stored.aborted)
        if data is not None:
            self.aborted_index = AbortedIndex.decode(data)
        else:
            self.stored = self.stored._replace(aborted=NOTHING_STORED)
        return data is not None

    def rebuild_indexes(self) -> None:
        """Rebuild both indexes from the batches' headers. Raises LogCorruption or OSError; then nothing has changed."""
        rebuilt = Segment(self._disk, self._directory, self.base_offset, self._index_interval_bytes)
        for position, header in self.headers(0):
            rebuilt.include(position, [entry_of(header)])
        self._offset_index, self._time_index = rebuilt._offset_index, rebuilt._time_index
        self._bytes_since_entry = rebuilt._bytes_since_entry
        self.max_timestamp, self.max_timestamp_offset = rebuilt.max_timestamp, rebuilt.max_timestamp_offset
        self.stored = StoredIndexes(aborted=self.stored.aborted)

    def index_writes(self) -> tuple[list[IndexWrite], StoredIndexes]:
        """The entries missing in the index files, and the stored state once they are written."""
        offsets, times, aborted = self.stored
        if self._offset_index is None and len(self.aborted_index) * ABORTED_ENTRY_SIZE == aborted.size:
            return [], self.stored
        parts = [(ABORTED_INDEX, aborted, self.aborted_index.encode(aborted.size // ABORTED_ENTRY_SIZE))]
        if self._offset_index is not None and self._time_index is not None:
            self._time_index.maybe_append(self.max_timestamp, self.max_timestamp_offset)
            parts = [
                (OFFSET_INDEX, offsets, self._offset_index.encode(offsets.size // OFFSET_ENTRY_SIZE)),
                (TIME_INDEX, times, self._time_index.encode(times.size // TIME_ENTRY_SIZE)),
                *parts,
            ]
        writes = []
        after = dict(zip(INDEXES, self.stored, strict=True))
        for suffix, stored, data in parts:
            # Apache Kafka wants the first two files even when they are empty.
            if data or (not stored.size and suffix != ABORTED_INDEX):
                writes.append(IndexWrite(file_name(self.base_offset, suffix), stored.size, data))
            after[suffix] = Stored(stored.size + len(data), extend_crc(stored.crc, data))
        return writes, StoredIndexes(*after.values())

    # --- shrinking -------------------------------------------------------------------------------------------

    def truncate_to(self, offset: Offset) -> None:
        """Truncate the batches that end at or after ``offset``. Raises OSError or LogCorruption."""
        position = self.position_of(offset)
        kept = list(self.headers(self.offset_index.floor(position - 1), position))
        self.cut(position)
        self._known.clear()
        self._trusted_from = min(self._trusted_from, position)
        self.end_offset = kept[-1][1].next_offset if kept else self.base_offset
        self.offset_index.truncate_to(self.end_offset)
        self.time_index.truncate_to(self.end_offset)
        self.aborted_index.truncate_to(self.end_offset)
        self._bytes_since_entry = self.size - self.offset_index.floor(self.size)
        self.max_timestamp, self.max_timestamp_offset = self.time_index.last()
        for _, header in self.headers(self.position_of(self.max_timestamp_offset), position):
            timestamp = entry_of(header).max_timestamp
            if timestamp > self.max_timestamp:
                self.max_timestamp, self.max_timestamp_offset = timestamp, header.last_offset
        self.stored = StoredIndexes()

    def cut(self, size: int) -> None:
        """Truncate the file to ``size`` bytes, where a batch ends. Raises OSError."""
        self.file.truncate(size)
        self.size = size
        self.is_dirty = True
        self._first_timestamp = None
        self._fingerprint = (-1, None)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def remove(self) -> None:
        """Close, and delete the segment's files. Raises OSError."""
        self.close()
        # The log first: an index without its log is removed when the partition is opened.
        if self._disk.exists(self.path(LOG)):
            self._disk.remove(self.path(LOG))
        self.remove_indexes()

    def remove_indexes(self) -> None:
        """Delete the files that can be rebuilt from the batches. Raises OSError."""
        for suffix in INDEXES:
            path = self.path(suffix)
            if self._disk.exists(path):
                self._disk.remove(path)


def _naming(segment: Segment, work: Callable[[], T]) -> T:
    """Convert a WireError to LogCorruption that names the file."""
    try:
        return work()
    except WireError as error:
        raise LogCorruption(f"{segment.path(LOG)}: {error}") from error


def _load(disk: Disk, path: PurePosixPath, stored: Stored) -> bytes | None:
    """The checkpointed part of an index file; None: it does not match the checkpoint."""
    if not stored.size:
        return b""
    try:
        data = disk.read_file(path)[: stored.size]
    except OSError:
        return None
    return data if Stored.of(data) == stored else None
