"""Durability of a log: what survives a power cut, and the three operations that make it more: flush, checkpoint and
swap.

Each is one awaited call. It waits for its turn, takes a picture of the log as it is then, works on files in the
background while appends, reads and retention continue, and returns when the result counts. One at a time, under one
lock, because each of them reads, writes or removes files that another one would be using. What cannot be done while
files are in use (truncation, closing) takes the same lock (``exclusive``).

What is durable when:

- *Batches* before ``flushed_offset``. Appending writes to the page cache; ``flush`` and ``checkpoint`` sync it. Only
  what was appended when the sync began counts, so the end is read before and noted after.
- *Names* of new, renamed and removed files once their folder is synced; it is synced with the batches, if a name has
  changed since. Without that a power cut could leave a segment's bytes without its name.
- *Derived state* (indexes, leader epochs, producer snapshots, where the log starts, how far it is clean) with the next
  checkpoint, and then without a sync of its own: see ``checkpoint.py``, also for the order.
- A *swap* of compacted segments when a checkpoint names the new one: see ``segment_swap.py``.

Failures. After a failed sync nobody knows which pages the disk holds, and the kernel may count them as clean, so that
the next sync would seem to succeed ("fsyncgate"; Rebello et al., "Can Applications Recover from fsync Failures?",
USENIX ATC 2020). So the log goes offline for as long as the process lives, and gets no checkpoint: the next start
must find less than was acknowledged, not a promise that was not kept. A full disk that refuses a derived file costs
nothing: the checkpoint is tried again. In a swap there is no way back once names have changed, so any failure is
final."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import PurePosixPath
from typing import Final, Protocol, TypeVar
from uuid import UUID

from einmal.log import leader_epochs, segment_swap
from einmal.log.checkpoint import LogCheckpoint, StoredCheckpoint, Summary, write_summary
from einmal.log.compaction import CleanedSegment, Cleaning
from einmal.log.errors import SHORTAGES, SyncFailed
from einmal.log.leader_epochs import LeaderEpochs
from einmal.log.producer_state import ProducerStates
from einmal.log.recovery import Recovered
from einmal.log.segment import Segment
from einmal.log.segment_files import LOG, NOTHING_STORED, SegmentSummary, Stored
from einmal.log.segments import Segments
from einmal.log.snapshots import Snapshots
from einmal.types import Offset, TopicPartition

T = TypeVar("T")

_CHECKPOINT_BYTES: Final = 32 << 20
_CHECKPOINT_BATCHES: Final = 10_000
"""After so much a checkpoint is due: recovery of one partition then takes a fraction of a second."""
_FINGERPRINTS_AT_ONCE: Final = 64
"""New segments whose files are read on the event loop: a millisecond. A topic's settings decide how many there are."""


class LogState(Protocol):
    """State of a log that a checkpoint records besides its segments."""

    topic_partition: TopicPartition
    topic_id: UUID | None
    log_start_offset: Offset
    clean_below: Offset
    epochs: LeaderEpochs
    producers: ProducerStates


class Durability:
    def __init__(self, segments: Segments, state: LogState, recovered: Recovered) -> None:
        self._disk = segments.disk
        self._directory = segments.directory
        self._segments = segments
        self._state = state
        self.flushed_offset = recovered.flushed_offset
        """Batches before it survive a power cut."""
        self.is_offline = False
        """After a failed write or sync: only recovery can find out what the disk holds."""
        self.is_closing = False
        """Begin nothing more: the folder may be another topic's soon."""
        self._lock = asyncio.Lock()
        self.snapshots = Snapshots(segments.disk, segments.directory, recovered.snapshots)
        self._stored_epochs = recovered.stored_epochs
        self._unstored_bytes = segments.active.end_offset - recovered.flushed_offset
        self._unstored_batches = 0
        self._has_changed = not recovered.matches_checkpoint and segments.size > 0
        self._have_marks_moved = False
        # Names count up where they change and are noted where they are synced, perhaps in another thread.
        self._names = 1
        self._synced_names = 1 if recovered.matches_checkpoint else 0
        self._retired: list[Segment] = []

    # --- what the log reports ----------------------------------------------------------------------------------------

    def appended(self, size: int, count: int) -> None:
        """So many bytes in so many batches are in the page cache."""
        self._unstored_bytes += size
        self._unstored_batches += count
        self._has_changed = True

    def rolled(self) -> None:
        """A segment begins at the end of the log: there, recovery and truncation can use a snapshot best."""
        self._has_changed = True
        self._names += 1
        self.snapshots.take(self._segments.active.base_offset, self._state.producers.picture())

    def marks_moved(self) -> None:
        """The log starts later, or is clean further: this is in the checkpoint only, so one is due at once."""
        self._has_changed = self._have_marks_moved = True

    def retire(self, segments: list[Segment]) -> None:
        """They are no longer in the log. What the last checkpoint names must be there, so their files stay until a
        checkpoint does not name them; and a flush may still hold them."""
        self._retired += segments
        self.marks_moved()

    def free_indexes(self) -> None:
        """Remove what no checkpoint promises of retired segments. Raises OSError.

        At once: on a full disk this makes room for the checkpoint after which the segments themselves may go.
        """
        if not self._segments.are_in_use:
            for segment in self._retired:
                self.guarded(segment.remove_indexes)

    @property
    def newest_file(self) -> PurePosixPath:
        """The one that is appended to."""
        return self._segments.active.path(LOG)

    def check_directory(self) -> None:
        """Somebody may have deleted the files of a running broker. Raises OSError: then the log is offline."""
        if not self.is_offline and not self._disk.exists(self.newest_file):
            self.is_offline = True
            raise OSError(errno.ENOENT, f"{self.newest_file} was deleted while the broker ran")

    def guarded(self, work: Callable[[], T]) -> T:
        """Do what leaves the log offline when it raises OSError."""
        if self.is_offline:
            raise OSError(errno.EIO, f"{self._state.topic_partition} is offline")
        try:
            return work()
        except OSError:
            self.is_offline = True
            raise

    # --- the operations ----------------------------------------------------------------------------------------------

    @property
    def exclusive(self) -> asyncio.Lock:
        """Hold it to have the files for yourself: flush, checkpoint and swap wait meanwhile."""
        return self._lock

    async def flush(self) -> Offset | None:
        """Make everything appended by now survive a power cut; returns where that ends. None: the log is closing.

        Raises OSError: then the log is offline.
        """
        async with self._lock:
            if self.is_closing:
                return None
            end = self._segments.active.end_offset
            await self._disk.in_background(self.flush_now)
            self.flushed_offset = max(self.flushed_offset, end)
            assert self.flushed_offset <= self._segments.active.end_offset, "no cut has come between, see `exclusive`"
            return end

    @property
    def checkpoint_due(self) -> bool:
        """Whether recovery would have so much to read that a checkpoint is worth its flush."""
        if self.is_offline:
            # It would promise what a failed flush may have dropped, and the next start would miss that.
            return False
        return (
            self._have_marks_moved
            or self._unstored_bytes >= _CHECKPOINT_BYTES
            or self._unstored_batches >= _CHECKPOINT_BATCHES
            or bool(self.snapshots.waiting)
        )

    async def checkpoint(self) -> bool:
        """Write down how far recovery need not look, if that is due; returns whether it was.

        Raises OSError: then the log is offline, unless there was only a shortage, or what the new checkpoint made
        superfluous could not be removed.
        """
        async with self._lock:
            if self.checkpoint_due:
                await self._fingerprint_many()
            if self.is_closing or not self.checkpoint_due:
                return False
            current = self._begin()
            self._finish(await self._disk.in_background(partial(self._store, current)))
            return True

    async def _fingerprint_many(self) -> None:
        """Read what a checkpoint needs of new segments, where they are so many that it would take long at once."""
        new = [segment for segment in self._segments.in_order[:-1] if segment.is_dirty]
        if len(new) <= _FINGERPRINTS_AT_ONCE:
            return
        self._segments.are_in_use = True
        try:
            await self._disk.in_background(lambda: [segment.fingerprint() for segment in new])
        finally:
            self._segments.are_in_use = False

    async def swap(self, cleaning: Cleaning, cleaned: CleanedSegment) -> bool:
        """Replace segments by the compacted one that was made from them. False: they are not there any more.

        Readers have it at once; it is durable when this returns. Raises OSError: the log is offline, unless only the
        removal of the old files has failed.
        """
        new, old = cleaned
        async with self._lock:
            if self.is_closing or self.is_offline or cleaning.is_void:
                return False
            self._segments.replace(old, new)
            stale = self.snapshots.forget_below(new.end_offset)
            self._names += 1
            current = self._begin()
            rename = partial(self._rename_new, new, stale)
            stored = await self._disk.in_background(partial(self._store, current, rename))
            if self.is_closing:
                # The folder may be another topic's by now; where it is not, recovery does the rest.
                self._store_failed(may_try_again=False)
                return False
            self._segments.are_in_use = False
            left_over = self.guarded(partial(segment_swap.install, self._disk, new, old))
            self._names += 1
            self._finish(stored)
            await self._disk.in_background(partial(segment_swap.remove, self._disk, left_over))
            return True

    def _rename_new(self, segment: Segment, stale_snapshots: Sequence[Offset]) -> None:
        segment_swap.prepare(self._disk, self._directory, segment.base_offset)
        self.snapshots.remove(stale_snapshots)

    # --- the same, at once -------------------------------------------------------------------------------------------

    def flush_now(self) -> None:
        """Blocking; in another thread, or while ``exclusive`` is held. Raises OSError: then the log is offline."""
        assert not self._segments.are_in_use, "one flush or checkpoint at a time"
        self._segments.are_in_use = True
        try:
            self.guarded(self.sync)
        finally:
            self._segments.are_in_use = False

    def sync(self) -> None:
        """Sync the batches and names that are not synced yet. Raises OSError."""
        for segment in [segment for segment in self._segments.in_order if segment.is_dirty]:
            segment.sync()
        self._sync_names()

    def _sync_names(self) -> None:
        names = self._names
        if self._synced_names != names:
            if not self._synced_names:
                # The folder may be new itself.
                self._disk.sync_directory(self._directory.parent)
            self._disk.sync_directory(self._directory)
            self._synced_names = names

    def checkpoint_now(self) -> None:
        """Whether it is due or not; blocking. Raises OSError."""
        self._finish(self._store(self._begin()))

    def close(self, *, clean: bool) -> None:
        """Close the files; ``clean``: with a checkpoint first, so that nothing has to be recovered. Raises OSError."""
        try:
            if clean and not self.is_offline and self._has_changed:
                self.guarded(self.checkpoint_now)
        finally:
            for segment in [*self._segments.in_order, *self._retired]:
                segment.close()

    # --- a checkpoint ------------------------------------------------------------------------------------------------

    def _begin(self) -> LogCheckpoint:
        """The log as it is now. Everything that changes from here on is for the next checkpoint."""
        assert not self._segments.are_in_use, "one flush or checkpoint at a time"
        assert not self.is_offline, "what the disk has of it is not known"
        self._segments.are_in_use = True
        writes, summaries = [], []
        for segment in self._segments.in_order:
            index_writes, stored = segment.index_writes()
            writes += index_writes
            summaries.append(segment.summary(stored))
        end = self._segments.active.end_offset
        assert self._state.log_start_offset <= end, "recovery would find a log that starts behind its end"
        epochs = self._state.epochs.encode()
        snapshots = {**self.snapshots.waiting, end: self._state.producers.picture()}
        files = []
        if Stored.of(epochs) != self._stored_epochs:
            files.append((self._directory / leader_epochs.FILE_NAME, epochs))
        self._unstored_bytes = self._unstored_batches = 0
        self._has_changed = self._have_marks_moved = False
        self.snapshots.waiting.clear()
        return LogCheckpoint(
            unflushed=tuple(segment for segment in self._segments.in_order if segment.is_dirty),
            index_writes=tuple(writes),
            files=tuple(files),
            summary=self._summary(summaries, Stored.of(epochs), self.snapshots.known),
            snapshots=tuple((offset, self.snapshots.path(offset), snapshot) for offset, snapshot in snapshots.items()),
            retired=tuple(self._retired),
        )

    def _summary(
        self,
        segments: Sequence[SegmentSummary],
        epochs: Stored,
        snapshots: Mapping[Offset, Stored | None] | None = None,
    ) -> Summary:
        state = self._state
        return Summary(
            state.log_start_offset,
            tuple(segments),
            epochs,
            state.topic_id,
            state.clean_below,
            state.topic_partition.partition,
            None
            if snapshots is None
            else tuple((offset, stored) for offset, stored in snapshots.items() if stored is not None),
        )

    def _store(self, current: LogCheckpoint, prepare: Callable[[], None] | None = None) -> StoredCheckpoint:
        """Flush and write, after ``prepare``; blocking. Raises OSError."""
        try:
            if prepare is not None:
                prepare()
            for segment in current.unflushed:
                segment.sync()
            self._sync_names()
            return current.write(self._disk, self._directory)
        except OSError as error:
            # Derived files are written again. But a swap that has begun must be finished, and a failed flush is final.
            is_shortage = error.errno in SHORTAGES and not isinstance(error, SyncFailed)
            self._store_failed(may_try_again=is_shortage and prepare is None)
            raise

    def _store_failed(self, *, may_try_again: bool) -> None:
        self._segments.are_in_use = False
        if may_try_again:
            self._has_changed = self._have_marks_moved = True
        else:
            self.is_offline = True

    def _finish(self, stored: StoredCheckpoint) -> None:
        """``stored`` is on disk. Raises OSError when what it made superfluous cannot be removed."""
        self._segments.are_in_use = False
        known = {summary.base_offset: summary.stored for summary in stored.summary.segments}
        for segment in self._segments.in_order:
            if segment.base_offset in known:
                segment.stored = known[segment.base_offset]
        self._segments.cool_closed()
        self._stored_epochs = stored.summary.leader_epochs
        self.flushed_offset = max(self.flushed_offset, stored.end_offset)
        self.guarded(partial(self._remove_retired, stored.retired))
        self.guarded(partial(self.snapshots.stored, stored.snapshots, self._segments))

    def _remove_retired(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            segment.remove()
            self._retired.remove(segment)

    # --- while the log is cut ----------------------------------------------------------------------------------------

    def promise_only(self, segments: Sequence[Segment]) -> None:
        """A checkpoint that names these segments and no others, before the others are removed. Raises OSError.

        After a crash in between, the remaining files contradict nothing.
        """
        summaries = [segment.summary(segment.stored) for segment in segments]
        write_summary(self._disk, self._directory, self._summary(summaries, self._stored_epochs))

    def promise_nothing(self) -> None:
        """The same before all segments are removed, and the snapshots with them. Raises OSError."""
        write_summary(self._disk, self._directory, self._summary((), NOTHING_STORED))
        self.snapshots.remove(self.snapshots.known)

    def was_cut(self, snapshots: dict[Offset, Stored | None]) -> None:
        """The log ends earlier, and of the snapshots these are left. Raises OSError."""
        self.flushed_offset = min(self.flushed_offset, self._segments.active.end_offset)
        self.snapshots.replace(snapshots)
        self.checkpoint_now()

    def was_replaced(self) -> None:
        """The log begins anew, and is empty. Raises OSError."""
        self.flushed_offset = self._segments.active.end_offset
        self.snapshots.replace({})
        self._names += 1
        self.checkpoint_now()
