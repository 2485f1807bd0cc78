"""One partition's log: what is appended is validated against the producer state, written, and can be read back.

Synchronous, for one event loop; only ``flush`` and ``Checkpoint.store`` may run in another thread meanwhile, one at a
time. Knows no replica, no coordinator and no network. Expected refusals are error codes in the result.

Invariants: log start offset <= last stable offset <= high watermark <= log end offset. State changes only after the
bytes are written. After an I/O error other than a shortage (full disk, no file descriptors) the log is offline: what
the disk holds is then unknown, and only recovery may say.
"""

from __future__ import annotations

import errno
import logging
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final, NamedTuple, TypeVar
from uuid import UUID

from einmal.log import checkpoint, compaction, leader_epochs, partition_metadata, segment_swap
from einmal.log.aborted_index import AbortedTransaction
from einmal.log.admission import NONE, Admission, place, trusted_headers, validated_headers
from einmal.log.checkpoint import Checkpoint
from einmal.log.compaction import Cleanable, CleanedSegment, Cleaning
from einmal.log.config import LOG_APPEND_TIME, LogConfig
from einmal.log.disk import Disk
from einmal.log.errors import SHORTAGES, LogCorruption
from einmal.log.leader_epochs import LeaderEpochs
from einmal.log.offset_index import RELATIVE_OFFSET_MAX
from einmal.log.producer_state import CLIENT, REPLICATION, BatchMetadata, Origin, ProducerStates, VerificationGuard
from einmal.log.recovery import Recovered, load_state, recover, replay_control_batch
from einmal.log.retention import expired_segments
from einmal.log.segment import (
    LOG,
    NOTHING_STORED,
    SNAPSHOT,
    BatchPlace,
    Segment,
    SegmentSummary,
    Stored,
    file_name,
    place_of,
)
from einmal.log.time_search import TimeSearch
from einmal.types import (
    NO_OFFSET,
    ErrorCode,
    Instant,
    LeaderEpoch,
    Offset,
    ProducerIdAndEpoch,
    TopicPartition,
    TransactionVersion,
)
from einmal.wire.control_batch import encode_marker
from einmal.wire.record_batch import (
    CONTROL,
    BatchHeader,
    read_header,
)

log = logging.getLogger(__name__)

T = TypeVar("T")

_CHECKPOINT_BYTES: Final = 32 << 20
_CHECKPOINT_BATCHES: Final = 10_000
"""After so much a checkpoint is due: recovery of one partition then takes a fraction of a second."""
_WARM_SEGMENTS: Final = 2
"""Old segments whose file stays open, and whose indexes stay in memory, after a read."""
_ROLL_SNAPSHOTS: Final = 2
"""Snapshots taken at a roll that may wait in memory for the next checkpoint."""


class AppendResult(NamedTuple):
    """``base_offset`` and ``last_offset`` are -1 with an error; ``log_append_time`` is -1 under CreateTime.

    ``message`` and ``record_errors``, which are (index in batch, text), say why a batch was refused.
    """

    error: ErrorCode
    base_offset: Offset
    last_offset: Offset
    log_append_time: int
    log_start_offset: Offset
    is_duplicate: bool = False
    message: str | None = None
    record_errors: Sequence[tuple[int, str]] = ()


class PartitionLog:
    def __init__(
        self,
        disk: Disk,
        directory: PurePosixPath,
        topic_partition: TopicPartition,
        config: LogConfig,
        now: Instant,
        topic_id: UUID | None,
        lost_power: bool,
    ) -> None:
        partition = topic_partition.partition
        recovered = recover(disk, directory, config, now, topic_id, partition=partition, lost_power=lost_power)
        self._disk = disk
        self._directory = directory
        self._now = now
        self.config = config
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.producers: ProducerStates = recovered.producers
        """Replaced, not changed, when the log is truncated."""
        self._epochs = recovered.epochs
        self._segments = recovered.segments
        self._bases = [segment.base_offset for segment in self._segments]
        self._active = self._segments[-1]
        self._log_start_offset = recovered.log_start_offset
        self._high_watermark = recovered.log_start_offset
        self._flushed_offset = recovered.flushed_offset
        self._snapshots = recovered.snapshots
        self._roll_snapshots: dict[Offset, bytes] = {}
        self._stored_epochs = recovered.stored_epochs
        self._unstored_bytes = self._active.end_offset - self._flushed_offset
        self._unstored_batches = 0
        self._has_changed = not recovered.matches_checkpoint and self.size() > 0
        # Names count up where they change and are noted where they are synced, perhaps in another thread.
        self._names = 1
        self._synced_names = 1 if recovered.matches_checkpoint else 0
        self._marks_moved = False
        self._is_busy = False
        self._is_offline = False
        self._lacks_room = False
        """The last append was refused; said once."""
        self._retired: list[Segment] = []
        self._warm: list[Segment] = []
        self._cleaned_offset = recovered.cleaned_offset
        self._cuts = 0
        """How often segments were cut or deleted: a round of cleaning that was begun before is void."""

    @classmethod
    def open(
        cls,
        disk: Disk,
        directory: PurePosixPath,
        topic_partition: TopicPartition,
        config: LogConfig,
        now: Instant,
        *,
        topic_id: UUID | None = None,
        lost_power: bool = True,
    ) -> PartitionLog:
        """Recover the log in ``directory``, which is made when it is not there. Raises LogCorruption or OSError.

        ``lost_power``: the machine may have lost its power since the log was written to.
        """
        disk.make_directory(directory)
        path = directory / partition_metadata.FILE_NAME
        if topic_id is not None:
            metadata = partition_metadata.encode(topic_id)
            if not disk.exists(path) or disk.read_file(path) != metadata:
                checkpoint.write_from(disk, path, 0, metadata)
        elif disk.exists(path):
            try:
                topic_id = partition_metadata.decode(disk.read_file(path))
            except ValueError as error:
                raise LogCorruption(f"{path}: {error}") from error
        log = cls(disk, directory, topic_partition, config, now, topic_id, lost_power)
        if config.flush_each:
            log.flush()
            log.mark_flushed(log.log_end_offset)
        return log

    # --- where it is -----------------------------------------------------------------------------------------

    @property
    def log_start_offset(self) -> Offset:
        return self._log_start_offset

    @property
    def log_end_offset(self) -> Offset:
        return self._active.end_offset

    @property
    def high_watermark(self) -> Offset:
        return self._high_watermark

    @property
    def last_stable_offset(self) -> Offset:
        """Below it no transaction is undecided: what a ``read_committed`` reader may see."""
        first_unstable = self.producers.first_unstable_offset
        if first_unstable is None or first_unstable >= self._high_watermark:
            return self._high_watermark
        return max(first_unstable, self._log_start_offset)

    @property
    def flushed_offset(self) -> Offset:
        return self._flushed_offset

    @property
    def is_offline(self) -> bool:
        return self._is_offline

    @property
    def latest_epoch(self) -> LeaderEpoch:
        return self._epochs.latest

    def size(self) -> int:
        """Bytes in all segments."""
        return sum(segment.size for segment in self._segments)

    def advance_high_watermark(self, offset: Offset) -> None:
        assert self._high_watermark <= offset <= self._active.end_offset, "the high watermark only moves up"
        self._high_watermark = offset
        self.producers.advance_high_watermark(offset)

    def begin_epoch(self, epoch: LeaderEpoch) -> None:
        """This replica leads: what is appended from now on is of ``epoch``, also if nothing ever is."""
        self._epochs.assign(epoch, self.log_end_offset)

    def forget_empty_epochs(self) -> None:
        """This replica follows: only the epochs of its batches count when its log is compared with the leader's."""
        self._epochs.truncate_to(self.log_end_offset)

    # --- appending -------------------------------------------------------------------------------------------

    def append(
        self,
        batches: bytearray | memoryview,
        *,
        leader_epoch: LeaderEpoch,
        now: Instant,
        origin: Origin = CLIENT,
        verification: VerificationGuard | None = None,
        admission: Admission | None = None,
    ) -> AppendResult:
        """Validate and write whole batches; their offset and leader epoch are written into ``batches``.

        A client's append is one batch; ``admission`` is the verdict on it where that was given before. Replicated
        batches keep the offsets and epochs that they have.
        """
        if self._is_offline:
            return self._refuse(ErrorCode.kafka_storage_error)
        if origin is CLIENT:
            admission = admission or self.admit(batches, now)
            if not admission.is_decided:
                admission.decide()
            if admission.error is not NONE:
                refused = self._refuse(admission.error)
                return refused._replace(message=admission.message, record_errors=admission.record_errors)
            admission.correct()
            headers = admission.headers
        else:
            next_offset = self._active.end_offset if origin is REPLICATION else None
            found = trusted_headers(batches, next_offset=next_offset, segment_bytes=self.config.segment_bytes)
            if isinstance(found, ErrorCode):
                return self._refuse(found)
            headers = found
        for header in headers:
            if header.producer_id >= 0 and not header.attributes & CONTROL:
                verdict = self.producers.check(header, origin, verification)
                if verdict is not NONE:
                    if isinstance(verdict, BatchMetadata):
                        return self._duplicate(verdict)
                    return self._refuse(verdict)
        return self._write(batches, headers, leader_epoch, now, origin)

    def admit(self, batches: bytearray | memoryview, now: Instant) -> Admission:
        """What is to be said of a client's batch, which is decided at once unless that takes long."""
        return Admission(batches, self.config, now.wall_ms)

    def append_marker(
        self,
        producer: ProducerIdAndEpoch,
        *,
        committed: bool,
        coordinator_epoch: int,
        leader_epoch: LeaderEpoch,
        now: Instant,
        transaction_version: TransactionVersion,
    ) -> AppendResult:
        """End the producer's transaction here. A marker without a transaction is written too, as it fences."""
        if self._is_offline:
            return self._refuse(ErrorCode.kafka_storage_error)
        error = self.producers.check_marker(producer, coordinator_epoch, transaction_version)
        if error is not ErrorCode.none:
            return self._refuse(error)
        marker = encode_marker(
            *producer, committed=committed, coordinator_epoch=coordinator_epoch, timestamp=now.wall_ms
        )
        batches = bytearray(marker)
        return self._write(batches, validated_headers(batches), leader_epoch, now, Origin.COORDINATOR)

    def _write(
        self,
        batches: bytearray | memoryview,
        headers: list[BatchHeader],
        leader_epoch: LeaderEpoch,
        now: Instant,
        origin: Origin,
    ) -> AppendResult:
        self._now = now
        append_time = -1
        active = self._active
        if origin is REPLICATION:
            places = [place_of(header) for header in headers]
        else:
            if self.config.timestamp_type == LOG_APPEND_TIME:
                append_time = now.wall_ms
            places = place(batches, headers, active.end_offset, leader_epoch, append_time)
        try:
            if active.size and self._must_roll(len(batches), places):
                self._roll()
                active = self._active
            active.append(batches, places)
        except OSError as error:
            return self._storage_error(error)
        if self._lacks_room:
            self._lacks_room = False
            log.info("%s can be written to again", self._directory)
        self._unstored_bytes += len(batches)
        self._unstored_batches += len(headers)
        self._has_changed = True
        self._replay(batches, headers, places, now)
        return AppendResult(NONE, places[0].base_offset, places[-1].last_offset, append_time, self._log_start_offset)

    def _replay(
        self, batches: bytearray | memoryview, headers: list[BatchHeader], places: list[BatchPlace], now: Instant
    ) -> None:
        """Let epochs and producer state follow what was written."""
        position = 0
        for header, (size, base_offset, last_offset, timestamp, epoch) in zip(headers, places, strict=True):
            if epoch > self._epochs.latest:
                self._epochs.assign(epoch, base_offset)
            if header.producer_id >= 0:
                if header.attributes & CONTROL:
                    data = memoryview(batches)[position : position + size]
                    aborted = replay_control_batch(self.producers, data, read_header(data), now)
                    if aborted is not None:
                        self._active.aborted_index.append(aborted)
                else:
                    # A batch that compaction has emptied at the leader has its producer's time in the header only.
                    seen = timestamp if timestamp >= 0 else header.max_timestamp
                    self.producers.replay_batch(header, base_offset, last_offset, seen, now)
            position += size

    def _must_roll(self, size: int, places: list[BatchPlace]) -> bool:
        active, config = self._active, self.config
        first_timestamp = active.first_timestamp
        return (
            active.size + size > config.segment_bytes
            or places[-1].last_offset - active.base_offset > RELATIVE_OFFSET_MAX
            or (first_timestamp is not None and places[0].max_timestamp - first_timestamp > config.segment_ms)
        )

    def _roll(self) -> None:
        """Begin a new segment. Raises OSError."""
        base = self.log_end_offset
        segment = Segment.create(self._disk, self._directory, base, self.config.index_interval_bytes)
        self._has_changed = True
        self._names += 1
        self._roll_snapshots[base] = self.producers.encode_snapshot()
        if len(self._roll_snapshots) > _ROLL_SNAPSHOTS:
            del self._roll_snapshots[next(iter(self._roll_snapshots))]
        self._segments.append(segment)
        self._bases.append(base)
        self._active = segment

    def _roll_if_there_is_room(self) -> None:
        """Raises OSError; after a shortage nothing has changed."""
        try:
            self._roll()
        except OSError as error:
            self._is_offline = self._is_offline or error.errno not in SHORTAGES
            raise

    def check_directory(self) -> None:
        """Somebody may have deleted the files of a running broker. Raises OSError: then the log is offline."""
        path = self._active.path(LOG)
        if not self._is_offline and not self._disk.exists(path):
            self._is_offline = True
            raise OSError(errno.ENOENT, f"{path} was deleted while the broker ran")

    def _refuse(self, error: ErrorCode) -> AppendResult:
        return AppendResult(error, NO_OFFSET, NO_OFFSET, -1, self._log_start_offset)

    def _duplicate(self, original: BatchMetadata) -> AppendResult:
        return AppendResult(
            ErrorCode.none,
            original.first_offset,
            original.last_offset,
            original.timestamp,
            self._log_start_offset,
            is_duplicate=True,
        )

    def _storage_error(self, error: OSError) -> AppendResult:
        if error.errno not in SHORTAGES:
            self._is_offline = True
            log.error("%s cannot be written to and is offline: %s", self._directory, error)
        elif not self._lacks_room:
            # Nothing was written, so the log may go on once there is room.
            self._lacks_room = True
            log.error("%s cannot be written to, records are refused until it can: %s", self._directory, error)
        return self._refuse(ErrorCode.kafka_storage_error)

    # --- reading ---------------------------------------------------------------------------------------------

    def read(self, offset: Offset, max_bytes: int, *, below: Offset, min_one: bool = True) -> bytes:
        """Whole batches of one segment, from the one that holds ``offset``, none of which reaches ``below``.

        At most ``max_bytes``, but with ``min_one`` at least one batch. Empty when there is nothing to read. Raises
        LogCorruption for bytes that are not the batches that were written, or OSError.
        """
        below = min(below, self.log_end_offset)
        number = bisect_right(self._bases, offset) - 1
        if offset >= below or number < 0:
            return b""
        segment = self._segments[number]
        while segment.end_offset <= offset:
            # Compaction may have emptied the end of a segment.
            number += 1
            segment = self._segments[number]
        data = segment.read(offset, max_bytes, below, min_one)
        if segment is not self._active:
            self._keep_warm(segment)
        return data

    def bytes_between(self, offset: Offset, below: Offset, at_most: int) -> int:
        """What the batches take from the one that holds ``offset`` up to ``below``; not counted beyond ``at_most``.

        Raises LogCorruption or OSError.
        """
        below = min(below, self.log_end_offset)
        if offset >= below:
            return 0
        first = max(0, bisect_right(self._bases, offset) - 1)
        last = bisect_right(self._bases, below) - 1
        total = -self._segments[first].position_of(offset)
        for segment in self._segments[first:last]:
            total += segment.size
            if total >= at_most:
                return at_most
        return min(at_most, total + self._segments[last].position_of(below))

    def _keep_warm(self, segment: Segment) -> None:
        if segment in self._warm:
            return
        self._warm.append(segment)
        if len(self._warm) > _WARM_SEGMENTS:
            self._cool(self._warm.pop(0))

    def _cool(self, segment: Segment) -> None:
        """Give back what an old segment holds besides its name; not while a flush may be using its file."""
        segment.forget_indexes()
        if not self._is_busy and not segment.is_dirty:
            segment.close()

    def aborted_transactions(self, first: Offset, end: Offset) -> list[AbortedTransaction]:
        """The aborted transactions with records between ``first`` and before ``end``, by first offset.

        Those whose marker is in a later segment are among them.
        """
        found: list[AbortedTransaction] = []
        for segment in self._segments[max(0, bisect_right(self._bases, first) - 1) :]:
            if segment.aborted_index.collect(first, end, found):
                break
        return sorted(found, key=lambda transaction: transaction.first_offset)

    @property
    def max_timestamp(self) -> int:
        """The largest of all records; -1: there is none."""
        return max((segment.max_timestamp for segment in self._segments), default=-1)

    def search_by_time(self, timestamp: int, start: Offset) -> TimeSearch | None:
        """In the first batch from ``start`` on that says that it has a record which is not older than ``timestamp``.

        Raises LogCorruption or OSError.
        """
        start = max(start, self._log_start_offset)
        for segment in self._segments:
            if segment.max_timestamp < timestamp or segment.end_offset <= start:
                continue
            first = max(segment.time_index.lookup(timestamp), start)
            for _position, header in segment.headers_from(segment.position_of(first)):
                if header.max_timestamp >= timestamp:
                    data = segment.read(header.base_offset, header.size, segment.end_offset, True)
                    return TimeSearch(data, header, timestamp, first)
        return None

    def end_offset_for_epoch(self, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset]:
        """The largest epoch here that is not above ``epoch``, and where it ends (KIP-101, KIP-279); else (-1, -1)."""
        return self._epochs.end_offset_for(epoch, self.log_end_offset)

    def epoch_of_offset(self, offset: Offset) -> LeaderEpoch:
        """The leader epoch that ``offset`` belongs to; -1 when unknown."""
        return self._epochs.epoch_of(offset)

    # --- shrinking -------------------------------------------------------------------------------------------

    def retain(self, now: Instant) -> int:
        """Forget idle producers and delete old segments, as far as the high watermark; returns how many went.

        Raises OSError.
        """
        self._now = now
        self.producers.expire(now, self.config.producer_id_expiration_ms)
        count = expired_segments(
            self._segments,
            self.config,
            wall_ms=now.wall_ms,
            log_start_offset=self._log_start_offset,
            limit=self._high_watermark,
        )
        if count == len(self._segments):
            self._roll_if_there_is_room()
        if count:
            self._delete(count)
        if not self._is_busy:
            # At once: on a full disk they make room for the checkpoint after which the segments themselves may go.
            for segment in self._retired:
                self._guarded(segment.remove_indexes)
        return count

    def delete_records_before(self, offset: Offset) -> None:
        """Move the log start offset up (DeleteRecords); survives a crash once a checkpoint is stored, which is due."""
        assert offset <= self._high_watermark, "records may be deleted below the high watermark only"
        if offset > self._log_start_offset:
            self._start_at(offset)
            self._marks_moved = True

    def _start_at(self, offset: Offset) -> None:
        self._log_start_offset = max(self._log_start_offset, offset)
        self._high_watermark = max(self._high_watermark, self._log_start_offset)
        self._epochs.advance_start(self._log_start_offset)
        self._has_changed = True

    def _delete(self, count: int) -> None:
        self._cuts += 1
        gone, self._segments, self._bases = self._segments[:count], self._segments[count:], self._bases[count:]
        self._warm = [segment for segment in self._warm if segment not in gone]
        self._start_at(self._segments[0].base_offset)
        # Not removed at once: what the last checkpoint names must be there, and a flush may still hold their files.
        self._retired += gone
        self._marks_moved = True

    def truncate_to(self, offset: Offset) -> None:
        """Cut off all that is at or after ``offset``, as a follower does. Raises OSError or LogCorruption.

        The high watermark falls with it. Not while a flush or a checkpoint is under way.
        """
        assert not self._is_busy, "no truncation during a flush"
        if offset >= self.log_end_offset:
            return
        self._guarded(lambda: self._truncate(max(offset, self._segments[0].base_offset)))

    def _truncate(self, offset: Offset) -> None:
        self._cuts += 1
        self._cleaned_offset = min(self._cleaned_offset, offset)
        kept = max(1, bisect_right(self._bases, offset))
        self._flush_now()
        # First a checkpoint that knows nothing of what goes, so that after a crash in between it contradicts nothing.
        before = tuple(segment.summary(segment.stored) for segment in self._segments[: kept - 1])
        summary = self._summary(before, self._stored_epochs)
        self._disk.write_file(self._directory / checkpoint.FILE_NAME, summary.encode())
        for segment in reversed(self._segments[kept:]):
            segment.remove()
        self._segments, self._bases = self._segments[:kept], self._bases[:kept]
        self._active = self._segments[-1]
        self._active.truncate_to(offset)
        end = self.log_end_offset
        self._log_start_offset = min(self._log_start_offset, end)
        self._high_watermark = min(self._high_watermark, end)
        self._flushed_offset = min(self._flushed_offset, end)
        self._epochs.truncate_to(end)
        self._reload_producers()
        self._store_checkpoint()

    def restart_at(self, offset: Offset) -> None:
        """Forget everything: the log is empty and begins at ``offset``. Raises OSError.

        Not while a flush or a checkpoint is under way.
        """
        assert not self._is_busy, "the log is not replaced during a flush"
        self._guarded(lambda: self._restart(offset))

    def _restart(self, offset: Offset) -> None:
        self._cuts += 1
        self._cleaned_offset = offset
        # What is left after a crash in between is the beginning of the old log, which contradicts nothing.
        summary = self._summary((), NOTHING_STORED)
        self._disk.write_file(self._directory / checkpoint.FILE_NAME, summary.encode())
        for snapshot in self._snapshots:
            path = self._directory / file_name(snapshot, SNAPSHOT)
            if self._disk.exists(path):
                self._disk.remove(path)
        for segment in reversed(self._segments):
            segment.remove()
        self._active = Segment.create(self._disk, self._directory, offset, self.config.index_interval_bytes)
        self._segments, self._bases = [self._active], [offset]
        self._log_start_offset = self._high_watermark = self._flushed_offset = offset
        self._epochs = LeaderEpochs()
        self.producers, self._snapshots = ProducerStates(), {}
        self._roll_snapshots.clear()
        self._warm.clear()
        self._names += 1
        self._store_checkpoint()

    def _reload_producers(self) -> None:
        recovered = Recovered(
            segments=self._segments,
            log_start_offset=self._log_start_offset,
            flushed_offset=self._flushed_offset,
            epochs=self._epochs,
            producers=ProducerStates(),
            snapshots=self._snapshots,
            aborted_from={segment.base_offset: segment.end_offset for segment in self._segments},
        )
        load_state(self._disk, self._directory, self.config, recovered, self._now)
        self.producers, self._snapshots = recovered.producers, recovered.snapshots
        self.producers.advance_high_watermark(self._high_watermark)
        self._roll_snapshots.clear()
        self._warm.clear()

    # --- compaction ------------------------------------------------------------------------------------------

    @property
    def cleaned_offset(self) -> Offset:
        """Below it no key is twice in the log, except for what is still to go after its delete horizon."""
        return max(self._cleaned_offset, self._log_start_offset)

    def cleanable(self, now: Instant) -> Cleanable:
        """How dirty the log is. Raises OSError."""
        return compaction.cleanable(
            self._segments,
            self.config,
            first_dirty=self.cleaned_offset,
            stable_offset=self.last_stable_offset,
            wall_ms=now.wall_ms,
        )

    def begin_cleaning(self, now: Instant, map_bytes_max: int) -> Cleaning:
        """A round over what is cleanable now. Its work may be done in another thread."""
        return Cleaning(
            self._disk,
            self._directory,
            self._segments,
            self.config,
            what=self.cleanable(now),
            last_batches=compaction.last_batches(self.producers),
            wall_ms=now.wall_ms,
            map_bytes_max=map_bytes_max,
            cuts=self._cuts,
        )

    def is_void(self, cleaning: Cleaning) -> bool:
        """Whether the log has been truncated, or segments deleted, since the round began."""
        return cleaning.cuts != self._cuts

    def begin_swap(self, cleaning: Cleaning, cleaned: CleanedSegment) -> Checkpoint | None:
        """Put a new segment in the place of those that it was made from; None: they are not there any more.

        It is read from now on. The checkpoint is to be stored and then finished by ``finish_swap``; not while a flush
        or another checkpoint is under way.
        """
        segment, replaced = cleaned.segment, list(cleaned.replaced)
        first = bisect_right(self._bases, segment.base_offset) - 1
        last = first + len(replaced)
        if self._is_offline or self.is_void(cleaning):
            return None
        assert self._segments[first:last] == replaced, "only a cut changes closed segments"
        self._segments[first:last] = [segment]
        self._bases[first:last] = [segment.base_offset]
        self._warm = [each for each in self._warm if each not in replaced]
        # They remember transactions as open whose markers may be gone.
        stale = [offset for offset in self._snapshots if offset < segment.end_offset]
        self._snapshots = {offset: stored for offset, stored in self._snapshots.items() if offset >= segment.end_offset}
        self._roll_snapshots = {
            offset: data for offset, data in self._roll_snapshots.items() if offset >= segment.end_offset
        }
        self._names += 1

        def prepare() -> None:
            segment_swap.prepare(self._disk, self._directory, segment.base_offset)
            for offset in stale:
                path = self._directory / file_name(offset, SNAPSHOT)
                if self._disk.exists(path):
                    self._disk.remove(path)

        return self.begin_checkpoint(prepare)

    def finish_swap(self, cleaned: CleanedSegment, stored: Checkpoint) -> list[PurePosixPath]:
        """``stored`` is on disk; returns files that are to be removed, in the background. Raises OSError."""
        # Whatever comes of it, the checkpoint is over.
        self._is_busy = False
        files = self._guarded(lambda: segment_swap.install(self._disk, cleaned.segment, cleaned.replaced))
        self._names += 1
        self.finish_checkpoint(stored)
        return files

    def finish_cleaning(self, cleaning: Cleaning) -> None:
        """Every new segment of the round is in its place: the log is clean up to there."""
        if not self.is_void(cleaning) and cleaning.end > self._cleaned_offset:
            self._cleaned_offset = cleaning.end
            self._has_changed = self._marks_moved = True

    # --- durability ------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Make what was appended before the call survive a power cut. Blocking: may run in another thread.

        Then ``mark_flushed`` with the log end offset from before the call. Raises OSError: the log is offline, for
        nobody knows what the disk has dropped.
        """
        assert not self._is_busy, "one flush or checkpoint at a time"
        self._is_busy = True
        try:
            self._guarded(self._flush_now)
        finally:
            self._is_busy = False

    def _flush_now(self) -> None:
        for segment in [segment for segment in self._segments if segment.is_dirty]:
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

    def _guarded(self, work: Callable[[], T]) -> T:
        if self._is_offline:
            raise OSError(errno.EIO, f"{self.topic_partition} is offline")
        try:
            return work()
        except OSError:
            self._is_offline = True
            raise

    def mark_flushed(self, offset: Offset) -> None:
        self._flushed_offset = max(self._flushed_offset, offset)

    @property
    def checkpoint_due(self) -> bool:
        """Whether recovery would have so much to read that a checkpoint is worth its flush."""
        if self._is_offline:
            # It would promise what a failed flush may have dropped, and the next start would miss that.
            return False
        return (
            self._marks_moved
            or self._unstored_bytes >= _CHECKPOINT_BYTES
            or self._unstored_batches >= _CHECKPOINT_BATCHES
            or bool(self._roll_snapshots)
        )

    def begin_checkpoint(self, prepare: Callable[[], None] | None = None) -> Checkpoint:
        """The log as it is now. Its ``store`` may run in another thread; if that succeeds, ``finish_checkpoint`` it."""
        assert not self._is_busy, "one flush or checkpoint at a time"
        assert not self._is_offline, "what the disk has of it is not known"
        self._is_busy = True
        writes, summaries = [], []
        for segment in self._segments:
            index_writes, stored = segment.index_writes()
            writes += index_writes
            summaries.append(segment.summary(stored))
        end = self.log_end_offset
        epochs = self._epochs.encode()
        snapshots = {**self._roll_snapshots, end: self.producers.encode_snapshot()}
        stored_snapshots = {offset: Stored.of(data) for offset, data in snapshots.items()}
        files = [(self._directory / file_name(offset, SNAPSHOT), data) for offset, data in snapshots.items()]
        if Stored.of(epochs) != self._stored_epochs:
            files.append((self._directory / leader_epochs.FILE_NAME, epochs))
        self._unstored_bytes = self._unstored_batches = 0
        self._has_changed = self._marks_moved = False
        self._roll_snapshots.clear()
        return Checkpoint(
            disk=self._disk,
            directory=self._directory,
            unflushed=tuple(segment for segment in self._segments if segment.is_dirty),
            index_writes=tuple(writes),
            files=tuple(files),
            summary=self._summary(tuple(summaries), Stored.of(epochs), {**self._snapshots, **stored_snapshots}),
            snapshots=stored_snapshots,
            retired=tuple(self._retired),
            sync_names=self._sync_names,
            failed=self._checkpoint_failed,
            prepare=prepare,
        )

    def _summary(
        self,
        segments: tuple[SegmentSummary, ...],
        epochs: Stored,
        snapshots: Mapping[Offset, Stored | None] | None = None,
    ) -> checkpoint.Summary:
        return checkpoint.Summary(
            self._log_start_offset,
            segments,
            epochs,
            self.topic_id,
            self._cleaned_offset,
            self.topic_partition.partition,
            None
            if snapshots is None
            else tuple((offset, stored) for offset, stored in snapshots.items() if stored is not None),
        )

    def _checkpoint_failed(self, may_try_again: bool) -> None:
        self._is_busy = False
        if may_try_again:
            self._has_changed = self._marks_moved = True
        else:
            self._is_offline = True

    def finish_checkpoint(self, stored: Checkpoint) -> None:
        """``stored`` is on disk. Raises OSError when what it made superfluous cannot be removed."""
        self._is_busy = False
        summary = stored.summary
        segments = {segment.base_offset: segment for segment in self._segments}
        for known in summary.segments:
            if known.base_offset in segments:
                segments[known.base_offset].stored = known.stored
        for segment in self._segments[:-1]:
            if segment not in self._warm:
                self._cool(segment)
        self._stored_epochs = summary.leader_epochs
        self.mark_flushed(stored.end_offset)
        self._guarded(lambda: self._remove_retired(stored.retired))
        self._guarded(lambda: self._sweep_snapshots(stored.snapshots))

    def _remove_retired(self, segments: Sequence[Segment]) -> None:
        for segment in segments:
            segment.remove()
            self._retired.remove(segment)

    def _sweep_snapshots(self, added: Mapping[Offset, Stored]) -> None:
        """Of the snapshots keep the newest and those at the beginning of a segment. Raises OSError."""
        newest = max(added)
        known = dict(sorted({**self._snapshots, **added}.items()))
        self._snapshots = {
            offset: stored for offset, stored in known.items() if offset == newest or offset in self._bases
        }
        for offset in known:
            if offset not in self._snapshots:
                path = self._directory / file_name(offset, SNAPSHOT)
                if self._disk.exists(path):
                    self._disk.remove(path)

    def _store_checkpoint(self) -> None:
        current = self.begin_checkpoint()
        current.store()
        self.finish_checkpoint(current)

    def close(self, clean: bool = True) -> None:
        """Close the files; ``clean``: with a checkpoint first, so that nothing has to be recovered. Raises OSError."""
        try:
            if clean and not self._is_offline and self._has_changed:
                self._guarded(self._store_checkpoint)
        finally:
            for segment in [*self._segments, *self._retired]:
                segment.close()
