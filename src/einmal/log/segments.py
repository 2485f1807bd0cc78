"""All segments of one log, oldest first: where an offset is, what is read, and which files stay open.

Only the last one, ``active``, grows; the others are closed, and change as a whole: retention drops the first,
truncation the last, compaction replaces some in the middle. A reader keeps no position here, it comes with an offset
every time. So none of this is ever in a reader's way, and every change is over within one turn of the event loop.

Of the closed segments the last few that were read stay *warm*: their file is open, their indexes are in memory. All
others hold nothing but their summary. A partition with ten thousand segments costs two file descriptors.
Knows no producer, no high watermark and no checkpoint.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import islice
from pathlib import PurePosixPath
from typing import Final

from einmal.log.config import LogConfig
from einmal.log.disk import Disk
from einmal.log.offset_index import RELATIVE_OFFSET_MAX
from einmal.log.segment import BatchEntry, Segment
from einmal.log.time_search import TimeSearch
from einmal.types import Offset
from einmal.wire.fetch import AbortedTransaction

_WARM_SEGMENTS: Final = 2
"""Old segments whose file stays open, and whose indexes stay in memory, after a read."""


SEARCHED_AT_ONCE: Final = 1_000
"""Batches whose headers one turn of a search by time reads: a few milliseconds."""


class Segments:
    def __init__(self, disk: Disk, directory: PurePosixPath, segments: list[Segment]) -> None:
        self.disk = disk
        self.directory = directory
        self.in_order = segments
        """Never empty. Changed by the methods of this class only."""
        self.active = segments[-1]
        self.cuts = 0
        """How often segments were cut or deleted: a round of cleaning that began before is void."""
        self.are_in_use = False
        """Whether another thread may be using the files: until it is done none is closed, cut or removed."""
        self._bases = [segment.base_offset for segment in segments]
        self._warm: list[Segment] = []

    @property
    def size(self) -> int:
        """Bytes of batches in all segments."""
        return sum(segment.size for segment in self.in_order)

    @property
    def max_timestamp(self) -> int:
        """The largest of all records; -1: there is none."""
        return max((segment.max_timestamp for segment in self.in_order), default=-1)

    def has_base(self, offset: Offset) -> bool:
        """Whether a segment begins at ``offset``."""
        number = bisect_right(self._bases, offset) - 1
        return number >= 0 and self._bases[number] == offset

    # --- reading -----------------------------------------------------------------------------------------------------

    def read(self, offset: Offset, max_bytes: int, *, below: Offset, min_one: bool = True) -> bytes:
        """Whole batches of one segment, from the one that holds ``offset``, none of which reaches ``below``.

        At most ``max_bytes``, but with ``min_one`` at least one batch. Empty when there is nothing to read. Raises
        LogCorruption for bytes that are not the batches that were written, or OSError.
        """
        below = min(below, self.active.end_offset)
        number = bisect_right(self._bases, offset) - 1
        if offset >= below or number < 0:
            return b""
        segment = self.in_order[number]
        while segment.end_offset <= offset:
            # Compaction may have emptied the end of a segment.
            number += 1
            segment = self.in_order[number]
        data = segment.read(offset, max_bytes, below, min_one)
        if segment is not self.active:
            self._keep_warm(segment)
        return data

    def bytes_between(self, offset: Offset, below: Offset, at_most: int) -> int:
        """Return the bytes of the batches from the one that holds ``offset`` up to ``below``; not counted beyond
        ``at_most``.

        Raises LogCorruption or OSError.
        """
        below = min(below, self.active.end_offset)
        if offset >= below:
            return 0
        first = max(0, bisect_right(self._bases, offset) - 1)
        last = bisect_right(self._bases, below) - 1
        total = -self.in_order[first].position_of(offset)
        for segment in self.in_order[first:last]:
            total += segment.size
            if total >= at_most:
                return at_most
        return min(at_most, total + self.in_order[last].position_of(below))

    def aborted_transactions(self, first: Offset, end: Offset) -> list[AbortedTransaction]:
        """The aborted transactions with records between ``first`` and before ``end``, by first offset.

        A transaction is in the index of the segment that has its marker, so later segments are looked through too,
        until one shows that no transaction of before ``end`` is still open.
        """
        transactions: list[AbortedTransaction] = []
        for segment in self.in_order[max(0, bisect_right(self._bases, first) - 1) :]:
            if segment.aborted_index.collect(first, end, transactions):
                break
        return sorted(transactions, key=lambda transaction: transaction.first_offset)

    def search_by_time(self, timestamp: int, start: Offset) -> TimeSearch | Offset | None:
        """In the first batch from ``start`` on whose header promises a record that is not older than ``timestamp``.

        An offset: there is none before it, and the search continues from there in another turn. A time index has no
        entries where later batches are older than earlier ones. Raises LogCorruption or OSError.
        """
        passed = 0
        for segment in islice(self.in_order, max(0, bisect_right(self._bases, start) - 1), None):
            if segment.max_timestamp < timestamp or segment.end_offset <= start:
                continue
            first = max(segment.time_index.lookup(timestamp), start)
            for position, header in segment.headers(segment.position_of(first)):
                if header.max_timestamp >= timestamp:
                    data = segment.read(header.base_offset, header.size, segment.end_offset, True)
                    return TimeSearch(data, header, timestamp, first)
                passed += 1
                if passed == SEARCHED_AT_ONCE:
                    segment.remember(header.next_offset, position + header.size)
                    return header.next_offset
        return None

    # --- growing -----------------------------------------------------------------------------------------------------

    def must_roll(self, size: int, entries: list[BatchEntry], config: LogConfig) -> bool:
        """Whether ``size`` bytes of batches belong into a new segment: by size, by age, or by the range of an index."""
        active = self.active
        if not active.size:
            return False
        first_timestamp = active.first_timestamp
        return (
            active.size + size > config.segment_bytes
            or entries[-1].last_offset - active.base_offset > RELATIVE_OFFSET_MAX
            or (first_timestamp is not None and entries[0].max_timestamp - first_timestamp > config.segment_ms)
        )

    def roll(self, config: LogConfig) -> None:
        """Begin a new segment at the end. Raises OSError, and then nothing has changed."""
        base = self.active.end_offset
        assert base > self._bases[-1], "a segment's file has the name of its base: another one would be overwritten"
        self.active = Segment.create(self.disk, self.directory, base, config.index_interval_bytes)
        self.in_order.append(self.active)
        self._bases.append(base)

    # --- shrinking ---------------------------------------------------------------------------------------------------

    def drop_first(self, count: int) -> list[Segment]:
        """Take the oldest segments out, and return them; their files stay."""
        assert count < len(self.in_order), "the active segment stays, as the log ends where it does"
        self.cuts += 1
        gone, self.in_order, self._bases = self.in_order[:count], self.in_order[count:], self._bases[count:]
        self._warm = [segment for segment in self._warm if segment not in gone]
        return gone

    def before(self, offset: Offset) -> list[Segment]:
        """The segments that a truncation to ``offset`` leaves as they are; the next one is cut."""
        return self.in_order[: max(1, bisect_right(self._bases, offset)) - 1]

    def truncate_to(self, offset: Offset) -> None:
        """Cut off the batches that end at or after ``offset``. Raises OSError or LogCorruption."""
        kept = len(self.before(offset)) + 1
        for segment in reversed(self.in_order[kept:]):
            # The last first: a crash in between leaves no hole.
            segment.remove()
        self.in_order, self._bases = self.in_order[:kept], self._bases[:kept]
        self.active = self.in_order[-1]
        self.active.truncate_to(offset)
        self._warm.clear()

    def restart_at(self, offset: Offset, config: LogConfig) -> None:
        """Remove all segments and begin with an empty one. Raises OSError."""
        for segment in reversed(self.in_order):
            segment.remove()
        self.active = Segment.create(self.disk, self.directory, offset, config.index_interval_bytes)
        self.in_order, self._bases = [self.active], [offset]
        self._warm.clear()

    def replace(self, old: Sequence[Segment], new: Segment) -> None:
        """Replace segments by one that was made from them. It is read from now on."""
        replaced = list(old)
        first = bisect_right(self._bases, new.base_offset) - 1
        last = first + len(replaced)
        assert self.in_order[first:last] == replaced, "only a cut changes closed segments"
        assert last < len(self.in_order), "the active segment grows while others are compacted"
        assert new.end_offset <= replaced[-1].end_offset, "compaction removes records, and adds none"
        self.in_order[first:last] = [new]
        self._bases[first:last] = [new.base_offset]
        self._warm = [segment for segment in self._warm if segment not in replaced]

    # --- files and memory --------------------------------------------------------------------------------------------

    def _keep_warm(self, segment: Segment) -> None:
        if segment in self._warm:
            return
        self._warm.append(segment)
        if len(self._warm) > _WARM_SEGMENTS:
            self._cool(self._warm.pop(0))

    def cool_closed(self) -> None:
        """Give back what closed segments hold besides their summary; after a checkpoint, as that needs their files."""
        for segment in self.in_order[:-1]:
            if segment not in self._warm:
                self._cool(segment)

    def _cool(self, segment: Segment) -> None:
        segment.forget_indexes()
        if not self.are_in_use and not segment.is_dirty:
            segment.close()
