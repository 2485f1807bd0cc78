"""One partition's log: appends are validated against the producer state and written, and can be read.

Appending, reading and shrinking are synchronous, for one event loop; long disk operations are awaited in
``durability``. Knows no replica, no coordinator and no network. Expected refusals are error codes in the result.
"""

# Theory of operation
# ===================
#
# A log is a sequence of record batches in segments. A segment is a file of batches, exactly as producers have sent
# them but for base offset and leader epoch, named after its first offset (``segment.py``); ``segments.py`` finds the
# one that has an offset. Four marks divide the offsets:
#
#       log start offset <= last stable offset <= high watermark <= log end offset
#
#   - before the *log start offset* records are deleted, whether their segment is already gone or not;
#   - before the *last stable offset* every transaction is decided: what a read_committed consumer may see;
#   - before the *high watermark* every in-sync replica has the record: what any consumer may see. Replication moves it
#   (``advance_high_watermark``); this module only keeps it in its bounds;
#   - the *log end offset* is the offset of the next record.
#
# A fifth mark, the *flushed offset* (``durability.py``), lies anywhere up to the end. Where every write is flushed,
# replicas count it instead of the end of their logs, so nothing is visible that a power cut could revoke.
# State beside the batches. Producer state (``producer_state.py``), leader epochs (``leader_epochs.py``) and the
# transactions that were aborted (``aborted_index.py``) are functions of the batches: `_write` changes the log first
# and them afterwards, by the same calls with which recovery replays the log. So a crash between the two loses
# nothing, and two replicas with the same batches agree on which producer is fenced and which transaction is open.
# Only the marks are not in the batches. Log start offset and the offset to which the log is clean are in the
# checkpoint; replication restores the high watermark, and its owner remembers what it has been
# (``broker/replicas/high_watermarks.py``).
#
# Appending. (1) Decide: the batch itself (``admission.py``), then its producer's epoch, sequence and transaction.
# Nothing has changed up to here, so a refusal needs no undoing. (2) Write: all batches of an append with one write,
# which the disk completes or undoes. (3) Replay: epochs, producers, aborted transactions. An error of (2) that is a
# shortage has changed nothing and the next append may succeed; any other leaves bytes of unknown state at the end of
# the file, which no append may follow: the log is offline, and recovery decides. Under REPLICATION there is nothing to
# decide: the leader has, and a follower that refused what its leader has accepted would never catch up.
#
# Durability, checkpoints and recovery. An append is only in the page cache. `flush` makes it survive a power cut, a
# checkpoint makes it quick to recover. ``durability.py`` defines what is durable when, ``checkpoint.py`` what a
# checkpoint promises and in which order it is written, ``recovery.py`` what is trusted after a crash. In short: a batch
# is trusted if its CRC holds and it lies where the checkpoint or its predecessor puts it; everything else is trusted
# only if the checkpoint has its CRC, and is otherwise rebuilt from the batches. So no derived file needs a sync.
#
# Shrinking. Three things remove batches, and each leaves the log so that a crash in the middle finds the old log, the
# new one, or a prefix of the old one that the new one has too:
#   - retention removes whole segments from the start. They leave the log at once, and the disk after a checkpoint that
#     no longer names them, for all that a checkpoint names must exist;
#   - truncation, of a follower that has records its leader lacks (KIP-101, KIP-279), removes the end. First a
#     checkpoint that names only what stays, then the last segment first, then the cut: at any moment the rest is a
#     prefix;
#   - compaction rewrites closed segments beside the log and swaps them in (``compaction.py``, ``segment_swap.py``).
# Truncation also undoes what was replayed from the cut batches: a transaction whose marker is gone is open again, a
# sequence is expected again. State machines do not run backwards, so it is loaded from a snapshot of before the cut
# and replayed (`_reload_producers`); the high watermark falls with the end, the only time that it falls.
#
# Concurrency. Everything here runs on the event loop, from one decision to its effect without an await, so that checks
# still hold when their append is written. Other threads work on files only within flush, checkpoint and swap, which
# take a snapshot first; while they do (`segments.are_in_use`), files are appended to and read, but neither cut, closed
# nor removed.

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath
from typing import NamedTuple
from uuid import UUID

from einmal.event_log import EventLog
from einmal.log import checkpoint, compaction, partition_metadata
from einmal.log.admission import NONE, Admission, assign_offsets, trusted_headers, validated_headers
from einmal.log.compaction import Cleanable
from einmal.log.config import LOG_APPEND_TIME, LogConfig
from einmal.log.disk import Disk
from einmal.log.durability import Durability
from einmal.log.errors import SHORTAGES, LogCorruption
from einmal.log.leader_epochs import LeaderEpochs
from einmal.log.producer_state import (
    CLIENT,
    REPLICATION,
    AppendOrigin,
    BatchMetadata,
    ProducerStates,
    VerificationGuard,
)
from einmal.log.recovery import Recovered, load_state, recover, replay_control_batch
from einmal.log.retention import expired_segments
from einmal.log.segment import BatchEntry, entry_of
from einmal.log.segment_files import Stored
from einmal.log.segments import Segments
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
from einmal.wire.record_batch import CONTROL, BatchHeader, read_header

log = EventLog(__name__)


class AppendResult(NamedTuple):
    """``base_offset`` and ``last_offset`` are -1 with an error; ``log_append_time`` is -1 under CreateTime.

    ``message`` and ``record_errors``, which are (index in batch, text): why a batch was refused.
    """

    error: ErrorCode
    base_offset: Offset
    last_offset: Offset
    log_append_time: int
    log_start_offset: Offset
    is_duplicate: bool = False
    message: str | None = None
    record_errors: Sequence[tuple[int, str]] = ()

    @classmethod
    def refusal(cls, error: ErrorCode, log_start_offset: Offset = NO_OFFSET) -> AppendResult:
        return cls(error, NO_OFFSET, NO_OFFSET, -1, log_start_offset)

    @classmethod
    def duplicate(cls, original: BatchMetadata, log_start_offset: Offset) -> AppendResult:
        """Nothing was appended, and the answer is that of the first copy."""
        _first_sequence, _last_sequence, first_offset, last_offset, timestamp = original
        return cls(NONE, first_offset, last_offset, timestamp, log_start_offset, is_duplicate=True)


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
        self.topic_partition = topic_partition
        self.topic_id = topic_id
        self.config = config
        self.log_start_offset = recovered.log_start_offset
        self.high_watermark = recovered.log_start_offset
        self.clean_below = recovered.cleaned_offset
        """The remaining batches after compaction; may be below the log start offset."""
        self.epochs = recovered.epochs
        self.producers: ProducerStates = recovered.producers
        """Replaced, not changed, when the log is truncated."""
        self.segments = Segments(disk, directory, recovered.segments)
        self.durability = Durability(self.segments, self, recovered)
        self._directory = directory
        self._now = now
        self._lacks_room = False
        """The last append was refused; logged once."""

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
        """Recover the log in ``directory``, which is created if missing. Raises LogCorruption or OSError.

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
            log.durability.flush_now()
            log.durability.flushed_offset = log.log_end_offset
        return log

    # --- where it is -----------------------------------------------------------------------------------------

    @property
    def log_end_offset(self) -> Offset:
        return self.segments.active.end_offset

    @property
    def last_stable_offset(self) -> Offset:
        """Below it no transaction is undecided: what a ``read_committed`` reader may see."""
        first_unstable = self.producers.first_unstable_offset
        if first_unstable is None or first_unstable >= self.high_watermark:
            return self.high_watermark
        assert self.log_start_offset <= self.high_watermark, "else stable records would lie above the high watermark"
        return max(first_unstable, self.log_start_offset)

    @property
    def flushed_offset(self) -> Offset:
        """Batches before it survive a power cut."""
        return self.durability.flushed_offset

    @property
    def is_offline(self) -> bool:
        """Nothing can be written until the process ends."""
        return self.durability.is_offline

    def advance_high_watermark(self, offset: Offset) -> None:
        assert self.high_watermark <= offset <= self.log_end_offset, "the high watermark only moves up"
        self.high_watermark = offset
        self.producers.advance_high_watermark(offset)

    def begin_epoch(self, epoch: LeaderEpoch) -> None:
        """This replica leads: appends from now on have ``epoch``, which is recorded even without any."""
        self.epochs.assign(epoch, self.log_end_offset)

    def forget_empty_epochs(self) -> None:
        """This replica follows: only the epochs of its batches count when its log is compared with the leader's."""
        self.epochs.truncate_to(self.log_end_offset)

    # --- appending -------------------------------------------------------------------------------------------

    def append(
        self,
        batches: bytearray | memoryview,
        *,
        leader_epoch: LeaderEpoch,
        now: Instant,
        origin: AppendOrigin = CLIENT,
        verification: VerificationGuard | None = None,
        admission: Admission | None = None,
    ) -> AppendResult:
        """Validate and write whole batches; their offset and leader epoch are written into ``batches``.

        A client's append is one batch; ``admission`` is its validation, if that is done already. Replicated batches
        keep their offsets and epochs.
        """
        if self.durability.is_offline:
            return AppendResult.refusal(ErrorCode.kafka_storage_error, self.log_start_offset)
        if origin is CLIENT:
            admission = admission or Admission(batches, self.config, now.wall_ms)
            if not admission.is_decided:
                admission.decide()
            if admission.error is not NONE:
                refused = AppendResult.refusal(admission.error, self.log_start_offset)
                return refused._replace(message=admission.message, record_errors=admission.record_errors)
            admission.correct()
            headers = admission.headers
        else:
            next_offset = self.log_end_offset if origin is REPLICATION else None
            outcome = trusted_headers(batches, next_offset=next_offset, segment_bytes=self.config.segment_bytes)
            if isinstance(outcome, ErrorCode):
                return AppendResult.refusal(outcome, self.log_start_offset)
            headers = outcome
        for header in headers:
            if header.producer_id >= 0 and not header.attributes & CONTROL:
                verdict = self.producers.check(header, origin, verification)
                if verdict is not NONE:
                    if isinstance(verdict, BatchMetadata):
                        return AppendResult.duplicate(verdict, self.log_start_offset)
                    return AppendResult.refusal(verdict, self.log_start_offset)
        return self._write(batches, headers, leader_epoch, now, origin)

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
        if self.durability.is_offline:
            return AppendResult.refusal(ErrorCode.kafka_storage_error, self.log_start_offset)
        error = self.producers.check_marker(producer, coordinator_epoch, transaction_version)
        if error is not ErrorCode.none:
            return AppendResult.refusal(error, self.log_start_offset)
        marker = encode_marker(
            *producer, committed=committed, coordinator_epoch=coordinator_epoch, timestamp=now.wall_ms
        )
        batches = bytearray(marker)
        return self._write(batches, validated_headers(batches), leader_epoch, now, AppendOrigin.COORDINATOR)

    def _write(
        self,
        batches: bytearray | memoryview,
        headers: list[BatchHeader],
        leader_epoch: LeaderEpoch,
        now: Instant,
        origin: AppendOrigin,
    ) -> AppendResult:
        self._now = now
        append_time = -1
        segments = self.segments
        if origin is REPLICATION:
            entries = [entry_of(header) for header in headers]
        else:
            if self.config.timestamp_type == LOG_APPEND_TIME:
                append_time = now.wall_ms
            entries = assign_offsets(batches, headers, segments.active.end_offset, leader_epoch, append_time)
        try:
            if segments.must_roll(len(batches), entries, self.config):
                self._roll()
            segments.active.append(batches, entries)
        except OSError as error:
            return self._storage_error(error)
        if self._lacks_room:
            self._lacks_room = False
            log.info("log_writable_again", "%(path)s can be written to again", path=self._directory)
        self.durability.appended(len(batches), len(headers))
        self._replay(batches, headers, entries, now)
        return AppendResult(NONE, entries[0].base_offset, entries[-1].last_offset, append_time, self.log_start_offset)

    def _replay(
        self, batches: bytearray | memoryview, headers: list[BatchHeader], entries: list[BatchEntry], now: Instant
    ) -> None:
        """Update epochs and producer state by the written batches."""
        position = 0
        for header, (size, base_offset, last_offset, timestamp, epoch) in zip(headers, entries, strict=True):
            if epoch > self.epochs.latest:
                self.epochs.assign(epoch, base_offset)
            if header.producer_id >= 0:
                if header.attributes & CONTROL:
                    data = memoryview(batches)[position : position + size]
                    aborted = replay_control_batch(self.producers, data, read_header(data), now)
                    if aborted is not None:
                        self.segments.active.aborted_index.append(aborted)
                else:
                    # A batch that compaction has emptied at the leader has its producer's time in the header only.
                    seen = timestamp if timestamp >= 0 else header.max_timestamp
                    self.producers.replay_batch(header, base_offset, last_offset, seen, now)
            position += size

    def _roll(self) -> None:
        """Begin a new segment. Raises OSError."""
        self.segments.roll(self.config)
        self.durability.rolled()

    def _storage_error(self, error: OSError) -> AppendResult:
        if error.errno not in SHORTAGES:
            self.durability.is_offline = True
            offline = "%(path)s cannot be written to and is offline: %(error)s"
            log.error("log_offline", offline, path=self._directory, error=error)
        elif not self._lacks_room:
            # Nothing was written, so the log may continue once the disk has space.
            self._lacks_room = True
            refused = "%(path)s cannot be written to, records are refused until it can: %(error)s"
            log.error("log_unwritable", refused, path=self._directory, error=error)
        return AppendResult.refusal(ErrorCode.kafka_storage_error, self.log_start_offset)

    # --- reading ---------------------------------------------------------------------------------------------

    def read(self, offset: Offset, max_bytes: int, *, below: Offset, min_one: bool = True) -> bytes:
        """See ``Segments.read``."""
        return self.segments.read(offset, max_bytes, below=below, min_one=min_one)

    def search_by_time(self, timestamp: int, start: Offset) -> TimeSearch | Offset | None:
        """See ``Segments.search_by_time``; deleted records are not found."""
        return self.segments.search_by_time(timestamp, max(start, self.log_start_offset))

    def end_offset_for_epoch(self, epoch: LeaderEpoch) -> tuple[LeaderEpoch, Offset]:
        """The largest epoch here that is not above ``epoch``, and its end (KIP-101, KIP-279); else (-1, -1)."""
        return self.epochs.end_offset_for(epoch, self.log_end_offset)

    # --- shrinking -------------------------------------------------------------------------------------------

    def expire_producers(self, now: Instant) -> Iterator[None]:
        """See ``ProducerStates.expire``."""
        self._now = now
        return self.producers.expire(now, self.config.producer_id_expiration_ms)

    def retain(self, now: Instant) -> int:
        """Delete old segments, as far as the high watermark; returns how many were removed. Raises OSError."""
        self._now = now
        count = expired_segments(
            self.segments.in_order,
            self.config,
            wall_ms=now.wall_ms,
            log_start_offset=self.log_start_offset,
            limit=self.high_watermark,
        )
        if count == len(self.segments.in_order):
            try:
                self._roll()
            except OSError as error:
                # After a shortage nothing has changed.
                self.durability.is_offline |= error.errno not in SHORTAGES
                raise
        if count:
            gone = self.segments.drop_first(count)
            self._start_at(self.segments.in_order[0].base_offset)
            self.durability.retire(gone)
        self.durability.free_indexes()
        return count

    def delete_records_before(self, offset: Offset) -> None:
        """Move the log start offset up (DeleteRecords); survives a crash once a checkpoint is stored, which is due."""
        assert offset <= self.high_watermark, "records may be deleted below the high watermark only"
        if offset > self.log_start_offset:
            self._start_at(offset)
            self.durability.marks_moved()

    def _start_at(self, offset: Offset) -> None:
        self.log_start_offset = max(self.log_start_offset, offset)
        self.high_watermark = max(self.high_watermark, self.log_start_offset)
        assert self.high_watermark <= self.log_end_offset, "no log starts, and nothing is committed, behind its end"
        self.epochs.advance_start(self.log_start_offset)

    def truncate_to(self, offset: Offset) -> None:
        """Truncate everything at or after ``offset``, as a follower does. Raises OSError or LogCorruption.

        The high watermark falls with it. Only while ``durability.exclusive`` is held.
        """
        assert not self.segments.are_in_use, "no truncation during a flush"
        if offset >= self.log_end_offset:
            return
        self.durability.guarded(lambda: self._truncate(max(offset, self.segments.in_order[0].base_offset)))

    def _truncate(self, offset: Offset) -> None:
        self.segments.cuts += 1
        self.clean_below = min(self.clean_below, offset)
        self.durability.sync()
        # First a checkpoint without the truncated part, so that after a crash in between it contradicts nothing.
        self.durability.promise_only(self.segments.before(offset))
        self.segments.truncate_to(offset)
        end = self.log_end_offset
        self.log_start_offset = min(self.log_start_offset, end)
        self.high_watermark = min(self.high_watermark, end)
        self.epochs.truncate_to(end)
        self.durability.was_cut(self._reload_producers())

    def restart_at(self, offset: Offset) -> None:
        """Delete all records: the log is empty and begins at ``offset``. Raises OSError.

        Only while ``durability.exclusive`` is held.
        """
        assert not self.segments.are_in_use, "the log is not replaced during a flush"
        self.durability.guarded(lambda: self._restart(offset))

    def _restart(self, offset: Offset) -> None:
        self.segments.cuts += 1
        self.clean_below = offset
        # A crash in between leaves the beginning of the old log, which contradicts nothing.
        self.durability.promise_nothing()
        self.segments.restart_at(offset, self.config)
        self.log_start_offset = self.high_watermark = offset
        self.epochs = LeaderEpochs()
        self.producers = ProducerStates()
        self.durability.was_replaced()

    def _reload_producers(self) -> dict[Offset, Stored | None]:
        """Rebuild producer state and aborted indexes, from a remaining snapshot of before the cut."""
        recovered = Recovered(
            segments=self.segments.in_order,
            log_start_offset=self.log_start_offset,
            flushed_offset=self.flushed_offset,
            epochs=self.epochs,
            producers=ProducerStates(),
            snapshots=self.durability.snapshots.known,
            aborted_from={segment.base_offset: segment.end_offset for segment in self.segments.in_order},
        )
        load_state(self.segments.disk, self._directory, self.config, recovered, self._now)
        self.producers = recovered.producers
        self.producers.advance_high_watermark(self.high_watermark)
        return recovered.snapshots

    # --- compaction ------------------------------------------------------------------------------------------

    @property
    def cleaned_offset(self) -> Offset:
        """Below it no key occurs twice in the log, except for records that wait for their delete horizon."""
        return max(self.clean_below, self.log_start_offset)

    def cleanable(self, now: Instant) -> Cleanable:
        """How dirty the log is. Raises OSError."""
        return compaction.cleanable(
            self.segments.in_order,
            self.config,
            first_dirty=self.cleaned_offset,
            stable_offset=self.last_stable_offset,
            wall_ms=now.wall_ms,
        )

    def mark_clean(self, offset: Offset) -> None:
        """Every new segment of a round that ended at ``offset`` is swapped in."""
        if offset > self.clean_below:
            self.clean_below = offset
            self.durability.marks_moved()

    def close(self, *, clean: bool = True) -> None:
        """See ``Durability.close``."""
        self.durability.close(clean=clean)
