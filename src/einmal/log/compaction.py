"""Log compaction: of each key the last record stays (KIP-98, KIP-354, KIP-534).

A round maps the keys of the dirty part of a log to their last offsets, then rewrites every segment up to there without
the records that a later one supersedes, and merges small segments. Knows no partition and no clock.
"""

# Theory of operation
# ===================
#
#       0                 cleaned offset          end of the map   first uncleanable          log end
#       |----- clean ------------|----- dirty, in this round -----|--- dirty, later ---|--- active ---|
#        each key at most once    keys are mapped to their last offset
# Invariant: below the cleaned offset no key occurs twice, except for records that wait for their delete horizon. A
# round maps the keys from the cleaned offset on, as far as memory allows, and then rewrites *everything* from the start
# of the log to the end of the map: a key in the clean part is superseded by one in the dirty part as well. Offsets
# never change, and a reader at any offset gets the next remaining record; so readers need not know that a round ran.
# Limits of a round. It touches closed segments only, whose transactions are all decided and replicated (below the last
# stable offset), and which are older than `min.compaction.lag.ms`. Records of aborted transactions are removed at once;
# no reader with `read_committed` could see them, and an aborted record must not supersede a committed one
# (`_Transactions.batch`).
# These stay although a later record has their key, or none of their records remains:
#   - *A tombstone* stays until its delete horizon, so that a consumer that is behind still learns of the deletion.
#     The horizon is fixed by the first round that meets the tombstone, written into the batch header itself (KIP-534:
#     the base timestamp, with an attribute bit), and equals that round's time + `delete.retention.ms`. Counting from
#     the segment's modification time, as before KIP-534, would start again with every rewrite, and the tombstone
#     would outlive every round.
#   - *A marker* stays as long as a batch of its transaction is in the log: without it, recovery would consider an ended
#     transaction open, and a reader would hide the producer's next transaction with an aborted one. After that it gets
#     a horizon of its own (KIP-534), since a reader may stand between the batches and the marker.
#   - *The last batch of every producer* that the producer state remembers stays, if need be without records
#     (`encode_empty`): its header has the sequence and the epoch, from which recovery recognizes a duplicate. The same
#     holds for a marker, if nothing else is known of a producer.
#   - *The last batch of every new segment* stays, if need be without records, so that the segment ends where the next
#     one begins; otherwise recovery could not distinguish a compacted end from a lost one.
#
# Order. First `map_keys` to its end, then `rewrite` from the oldest segment on; each new segment is swapped in before
# the next one is written. Oldest first, because a tombstone whose horizon has passed must not be removed before the
# values that it deletes: after a crash in between they would reappear. The cleaned offset moves only when all segments
# of the round are in place. A crash, a stop or a full map loses work, never a record: each swap is valid by itself, and
# the next round repeats the rest.
# Void rounds. While a round works in the background, truncation and retention may remove segments. Both increment
# `Segments.cuts`; a round that began before is void and is discarded (`is_void`), as its map may hold offsets of
# records that no longer exist, which would supersede records that do.
#
# Snapshots. A producer snapshot from below a new segment has transactions as open whose markers the round may have
# removed; replaying from it would leave them open for ever. So the swap removes these snapshots (`durability.py`), and
# recovery replays the compacted batches instead, which yields the same state.

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise, takewhile
from pathlib import PurePosixPath
from typing import Final, NamedTuple

from einmal.log import segment_swap
from einmal.log.aborted_index import AbortedEntry
from einmal.log.batches import pieces
from einmal.log.config import LogConfig
from einmal.log.disk import Disk
from einmal.log.errors import LogCorruption
from einmal.log.offset_index import RELATIVE_OFFSET_MAX
from einmal.log.producer_state import ProducerStates
from einmal.log.segment import Segment, entry_of
from einmal.log.segment_files import LOG
from einmal.log.segments import Segments
from einmal.types import NO_OFFSET, Offset, ProducerEpoch, ProducerId
from einmal.wire.compacted_batch import delete_horizon, encode_empty, encode_retained
from einmal.wire.control_batch import ABORT, COMMIT, control_type
from einmal.wire.errors import WireError
from einmal.wire.record_batch import BatchHeader, Record, decode_records, iter_headers, read_header, validate

SLICE_BYTES: Final = 128 * 1024
"""Bytes of the log per slice: some milliseconds of work."""
_ENTRY_BYTES: Final = 160
"""Overhead of a key in the map, besides its own bytes: two objects, and its share of the table."""


class Cleanable(NamedTuple):
    """How dirty a log is. ``end``: the first offset that may not be cleaned yet."""

    first_dirty: Offset
    end: Offset
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool
    """Some record has been dirty for longer than ``max.compaction.lag.ms``."""

    @property
    def dirty_ratio(self) -> float:
        return self.dirty_bytes / (self.clean_bytes + self.dirty_bytes) if self.dirty_bytes else 0.0

    def is_due(self, config: LogConfig) -> bool:
        return self.dirty_bytes > 0 and (self.is_overdue or self.dirty_ratio > config.min_cleanable_dirty_ratio)


def cleanable(
    segments: Sequence[Segment], config: LogConfig, *, first_dirty: Offset, stable_offset: Offset, wall_ms: int
) -> Cleanable:
    """The part that could be cleaned now. Raises OSError."""
    closed = segments[:-1]
    dirty = [segment for segment in closed if segment.end_offset > first_dirty]
    newest = wall_ms - config.min_compaction_lag_ms if config.min_compaction_lag_ms > 0 else None
    ready = list(
        takewhile(
            lambda segment: segment.end_offset <= stable_offset and (newest is None or segment.max_timestamp <= newest),
            dirty,
        )
    )
    first = len(closed) - len(dirty)
    oldest = wall_ms - config.max_compaction_lag_ms
    return Cleanable(
        first_dirty,
        segments[first + len(ready)].base_offset,
        sum(segment.size for segment in closed[:first]),
        sum(segment.size for segment in ready),
        oldest > 0 and any(0 < (segment.first_timestamp or 0) < oldest for segment in dirty),
    )


class LastBatch(NamedTuple):
    """The last known batch of a producer. ``offset`` -1: only a marker, of this epoch."""

    offset: Offset
    epoch: ProducerEpoch


class CleanedSegment(NamedTuple):
    """A new segment under its provisional name, flushed, and those that it will replace."""

    segment: Segment
    replaced: tuple[Segment, ...]


class _OffsetMap:
    """The last offset of each key of the dirty part, for the records before ``end``."""

    __slots__ = ("_bytes_max", "_offsets", "_size", "end")

    def __init__(self, first_dirty: Offset, bytes_max: int) -> None:
        self._offsets: dict[bytes, Offset] = {}
        self._size = 0
        self._bytes_max = bytes_max
        self.end = first_dirty

    @property
    def is_full(self) -> bool:
        return self._size >= self._bytes_max

    def put(self, records: Iterable[Record]) -> None:
        offsets = self._offsets
        for record in records:
            key = record.key
            if key is not None:
                if key not in offsets:
                    self._size += len(key) + _ENTRY_BYTES
                offsets[key] = record.offset

    def is_superseded(self, record: Record) -> bool:
        """Whether a later record has the same key. A record without a key is meaningless in a compacted log."""
        return record.key is None or self._offsets.get(record.key, NO_OFFSET) > record.offset


class _Transactions:
    """Which batches belong to aborted transactions, and which markers end a transaction without remaining records.

    Observes every batch from some offset on, in order.
    """

    __slots__ = ("_aborted", "_current", "_observed", "_position")

    def __init__(self, aborted: Sequence[AbortedEntry]) -> None:
        self._aborted = sorted(aborted, key=lambda entry: entry.first_offset)
        self._position = 0
        self._current: dict[ProducerId, AbortedEntry] = {}
        self._observed: dict[ProducerId, None] = {}
        """Producers with a batch in their transaction."""

    def batch(self, header: BatchHeader) -> bool:
        """A data batch: whether its transaction was aborted."""
        if not header.is_transactional:
            return False
        self._advance(header.last_offset)
        self._observed[header.producer_id] = None
        entry = self._current.get(header.producer_id)
        return entry is not None and header.last_offset < entry.last_offset

    def marker(self, header: BatchHeader) -> tuple[bool, AbortedEntry | None]:
        """A marker: whether no batch of its transaction remains; if one does, the entry for the aborted index."""
        self._advance(header.last_offset)
        is_over = header.producer_id not in self._observed
        self._observed.pop(header.producer_id, None)
        entry = self._current.pop(header.producer_id, None)
        is_its_own = entry is not None and entry.last_offset == header.last_offset
        return is_over, entry if is_its_own and not is_over else None

    def _advance(self, offset: Offset) -> None:
        aborted, position = self._aborted, self._position
        while position < len(aborted) and aborted[position].first_offset <= offset:
            entry = aborted[position]
            position += 1
            if entry.last_offset >= offset:
                self._current[entry.producer_id] = entry
        self._position = position


class Cleaning:
    """One round: ``map_keys`` to its end, then ``rewrite`` to its end. Both are iterated in the background."""

    def __init__(
        self,
        segments: Segments,
        config: LogConfig,
        *,
        what: Cleanable,
        last_batches: Mapping[ProducerId, LastBatch],
        wall_ms: int,
        map_bytes_max: int,
    ) -> None:
        self._segments = segments
        self._cuts = segments.cuts
        self._disk = segments.disk
        self._directory = segments.directory
        self._config = config
        self._sources = [
            _Source(segment, segment.base_offset, segment.size, segment.end_offset, following.base_offset)
            for segment, following in pairwise(segments.in_order)
            if segment.base_offset < what.end
        ]
        self._aborted = [
            entry for segment in segments.in_order for entry in segment.aborted_index if entry.first_offset < what.end
        ]
        self._what = what
        self._last_batches = last_batches
        self._now = wall_ms
        self._map = _OffsetMap(what.first_dirty, map_bytes_max)
        self._output: _Output | None = None

    @property
    def is_void(self) -> bool:
        """Whether the log has been truncated, or segments deleted, since the round began."""
        return self._segments.cuts != self._cuts

    @property
    def end(self) -> Offset:
        """The offset up to which the log will be clean, once every new segment is swapped in."""
        return self._map.end

    # --- first: the keys ---------------------------------------------------------------------------------------------

    def map_keys(self) -> Iterator[None]:
        """Fill the map, a slice at a time. Raises LogCorruption or OSError."""
        transactions = _Transactions(self._aborted)
        for source in self._sources:
            if source.next_base <= self._what.first_dirty:
                continue
            for piece in self._pieces(source):
                for position, header in iter_headers(piece):
                    if self._map.is_full:
                        return
                    self._map_batch(transactions, piece, position, header)
                yield
            self._map.end = source.next_base

    def _map_batch(self, transactions: _Transactions, piece: bytes, position: int, header: BatchHeader) -> None:
        if header.is_control:
            transactions.marker(header)
        elif not transactions.batch(header) and header.last_offset >= self._what.first_dirty:
            self._map.put(decode_records(piece, position, header))
        self._map.end = max(self._map.end, header.next_offset)

    def _pieces(self, source: _Source) -> Iterator[bytes]:
        """Whole, valid batches of a segment. Raises LogCorruption or OSError."""
        file = self._disk.open(source.segment.path(LOG))
        expected = source.base_offset
        try:
            for piece in pieces(file, 0, source.size, SLICE_BYTES):
                for position, header in iter_headers(piece):
                    validate(piece, position, header)
                    if not expected <= header.base_offset <= header.last_offset < source.end_offset:
                        raise LogCorruption(
                            f"{source.segment.path(LOG)}: expected offsets from {expected} to {source.end_offset - 1}, "
                            f"found {header.base_offset} to {header.last_offset}"
                        )
                    expected = header.next_offset
                yield piece
        except WireError as error:
            raise LogCorruption(f"{source.segment.path(LOG)}: {error}") from error
        finally:
            file.close()

    # --- then: the segments ------------------------------------------------------------------------------------------

    def rewrite(self) -> Iterator[CleanedSegment | None]:
        """Rewrite the segments; None after a slice of work. Raises LogCorruption or OSError.

        Each new segment must be swapped in before the next step.
        """
        transactions = _Transactions(self._aborted)
        for source in self._sources:
            if source.base_offset >= self._map.end:
                break
            if self._output is not None and not self._output.has_room_for(source, self._config.segment_bytes):
                yield from self._finished()
            if self._output is None:
                self._output = _Output(self._disk, self._directory, source.base_offset, self._config)
            self._output.begin(source)
            for piece in self._pieces(source):
                self._filter(piece, transactions, self._output)
                yield None
        if self._output is not None:
            yield from self._finished()

    def _finished(self) -> Iterator[CleanedSegment | None]:
        assert self._output is not None, "there is a segment to finish"
        cleaned = self._output.finish()
        if cleaned is None:
            self._output.discard()
        yield cleaned
        self._output = None

    def _filter(self, piece: bytes, transactions: _Transactions, output: _Output) -> None:
        for position, header in iter_headers(piece):
            data = piece[position : position + header.size]
            if header.is_control:
                output.add(data, self._marker_left(header, data, transactions, output), data)
            else:
                left = self._batch_left(header, data, is_aborted=transactions.batch(header))
                output.add(data, left, b"" if left else encode_empty(header))
        output.write()

    def _marker_left(self, header: BatchHeader, data: bytes, transactions: _Transactions, output: _Output) -> bytes:
        records = decode_records(data, 0, header)
        if records and control_type(records[0]) not in (ABORT, COMMIT):
            return data
        is_over, entry = transactions.marker(header)
        if entry is not None:
            output.segment.aborted_index.append(entry)
        horizon = delete_horizon(header)
        if is_over and records and horizon is None:
            return encode_retained(header, records, self._now + self._config.delete_retention_ms)
        may_go = is_over and (not records or (horizon is not None and horizon <= self._now))
        return b"" if may_go and not self._is_last_of_producer(header) else data

    def _batch_left(self, header: BatchHeader, data: bytes, *, is_aborted: bool) -> bytes:
        if not is_aborted and header.base_offset >= self._map.end:
            return data
        horizon = delete_horizon(header)
        kept = [] if is_aborted else self._kept(decode_records(data, 0, header), horizon)
        if kept:
            if horizon is None and any(record.value is None for record in kept):
                horizon = self._now + self._config.delete_retention_ms
            elif len(kept) == header.record_count:
                return data
            return encode_retained(header, kept, horizon)
        if not self._is_last_of_producer(header):
            return b""
        return encode_empty(header) if header.record_count else data

    def _kept(self, records: Iterable[Record], horizon: int | None) -> list[Record]:
        end, is_superseded = self._map.end, self._map.is_superseded
        may_tombstones_go = horizon is not None and horizon <= self._now
        return [
            record
            for record in records
            if record.offset >= end or not (is_superseded(record) or (record.value is None and may_tombstones_go))
        ]

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        last = self._last_batches.get(header.producer_id)
        if last is None:
            return False
        if last.offset >= 0:
            return header.last_offset == last.offset
        return header.is_control and header.producer_epoch == last.epoch

    def discard(self) -> None:
        """Remove the unfinished segment, which is not swapped in. Blocking. Raises OSError."""
        if self._output is not None:
            self._output.discard()


class _Source(NamedTuple):
    """A segment as it was when the round began."""

    segment: Segment
    base_offset: Offset
    size: int
    end_offset: Offset
    next_base: Offset
    """Where the segment after it begins."""


class _Output:
    """A new segment while it is written."""

    def __init__(self, disk: Disk, directory: PurePosixPath, base_offset: Offset, config: LogConfig) -> None:
        self._disk = disk
        self._directory = directory
        self.segment = segment_swap.create(disk, directory, base_offset, config.index_interval_bytes)
        self._replaced: list[Segment] = []
        self._has_changed = False
        self._unwritten: list[bytes] = []
        # The last batch, if nothing of it had to stay, and its remainder if no other follows.
        self._last: tuple[bytes, bytes] | None = None

    def has_room_for(self, source: _Source, segment_bytes: int) -> bool:
        is_near = source.end_offset - 1 - self.segment.base_offset <= RELATIVE_OFFSET_MAX
        return is_near and (not self.segment.size or self.segment.size + source.size <= segment_bytes)

    def begin(self, source: _Source) -> None:
        self._has_changed |= len(self._replaced) > 0
        self._replaced.append(source.segment)

    def add(self, batch: bytes, left: bytes, left_if_last: bytes) -> None:
        """The next batch, and its remainder."""
        self._has_changed |= self._last is not None
        self._last = None
        if left:
            self._has_changed |= left is not batch
            self._unwritten.append(left)
        else:
            self._last = (batch, left_if_last)

    def write(self) -> None:
        if self._unwritten:
            entries = [entry_of(read_header(batch)) for batch in self._unwritten]
            self.segment.append(b"".join(self._unwritten), entries)
            self._unwritten = []

    def finish(self) -> CleanedSegment | None:
        """None: it is the same as its source."""
        if self._last is not None:
            batch, left = self._last
            self._has_changed |= left != batch
            self._unwritten.append(left)
            self.write()
        if not self._has_changed:
            return None
        segment_swap.finish(self._disk, self.segment)
        return CleanedSegment(self.segment, tuple(self._replaced))

    def discard(self) -> None:
        segment_swap.discard(self._disk, self.segment)


def last_batches(producers: ProducerStates) -> dict[ProducerId, LastBatch]:
    """Return the last batch of every known producer."""
    batches = {}
    for producer in producers.describe():
        entry = producers.entry(producer.producer_id)
        last_offset = entry.batches[-1].last_offset if entry is not None and entry.batches else NO_OFFSET
        batches[producer.producer_id] = LastBatch(last_offset, producer.producer_epoch)
    return batches
