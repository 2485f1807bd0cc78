"""One replica of this broker: a partition's log, and whether it leads or follows.

Knows no network and no controller. A ``Commitment`` decides what is committed: the leader of a partition reports its
log end to it and gets the high watermark. That only grows while the process lives, except where a follower truncates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final, Protocol
from uuid import UUID

from einmal.broker.replicas.awaited_log import AwaitedLog
from einmal.broker.resources.counts import TopicCounts
from einmal.event_log import EventLog
from einmal.log.admission import NONE, Admission
from einmal.log.cleaning import clean
from einmal.log.compaction import CleanedSegment, Cleaning
from einmal.log.config import LogConfig
from einmal.log.errors import SHORTAGES, LogCorruption
from einmal.log.partition_log import AppendResult, PartitionLog
from einmal.log.producer_state import AppendOrigin, VerificationGuard
from einmal.metadata.records import NO_LEADER
from einmal.replication.leader import Leader
from einmal.seams import Clock
from einmal.types import (
    NO_LEADER_EPOCH,
    BrokerId,
    ErrorCode,
    Instant,
    LeaderEpoch,
    Offset,
    ProducerIdAndEpoch,
    TransactionVersion,
)
from einmal.wire.produce import Records

log = EventLog(__name__)
_NO_CHECKPOINT: Final = "cannot write a checkpoint of %(partition)s, will retry: %(error)s"

_RESIGN_EVERY_MS: Final = 60_000
"""A replica that has resigned for damage, and leads again, does not resign again sooner."""
_NOT_LEADER: Final = AppendResult.refusal(ErrorCode.not_leader_or_follower)


class Commitment(Protocol):
    """Determines what is committed in a partition that is led here."""

    def resign(self) -> None:
        """Let another replica lead, if there is one: this one cannot read its log."""

    def local_end_moved(self, end: Offset) -> Offset:
        """The leader's own end, as far as it counts (flushed, where each write is flushed): the high watermark."""


class Partition(AwaitedLog):
    def __init__(
        self,
        partition_log: PartitionLog,
        topic_id: UUID,
        clock: Clock,
        *,
        broker_id: BrokerId,
        flush_each: bool,
    ) -> None:
        super().__init__(partition_log, flush_each=flush_each)
        self.topic_id = topic_id
        self.leader_epoch = NO_LEADER_EPOCH
        """The newest known."""
        self.leader = NO_LEADER
        self.epoch_start = Offset(0)
        """End of a leader's log when its epoch began. Below it an earlier leader may have exposed more to readers."""
        self.replication: Leader | None = None
        """A leader's knowledge of its followers. None if another ``Commitment`` determines what is committed."""
        self.min_insync_replicas = 1
        self.is_closed = False
        self.before_cut: Callable[[Offset], None] = lambda offset: None
        """Called before the log is cut at an offset. May raise OSError."""
        self.bytes_appended = 0
        """Since this process began."""
        self.counts = TopicCounts()
        """The counts of its topic on this broker."""
        self._clock = clock
        self._broker_id = broker_id
        self._commitment: Commitment | None = None
        self._lacks_checkpoint = False
        self._reported = ""
        self._resigned_ms: int | None = None

    @property
    def has_enough_replicas(self) -> bool:
        """Whether a write with acks=all may begin."""
        return self.replication is None or self.replication.has_enough_replicas

    @property
    def knows_high_watermark(self) -> bool:
        """Whether the high watermark is at least the one that an earlier leader has exposed to clients."""
        return self._log.high_watermark >= self.epoch_start

    @property
    def segment_bytes(self) -> int:
        """Maximum size of an appended batch."""
        return self._log.config.segment_bytes

    def check_leader_epoch(self, current: int) -> ErrorCode:
        """The error for a request with this leader epoch, -1: none (KIP-320). Also an error unless this broker
        leads."""
        if self.is_leader and (current < 0 or current == self.leader_epoch):
            return ErrorCode.none
        if self.is_closed or current < 0 or current == self.leader_epoch:
            return ErrorCode.not_leader_or_follower
        return ErrorCode.fenced_leader_epoch if current < self.leader_epoch else ErrorCode.unknown_leader_epoch

    # --- roles -------------------------------------------------------------------------------------------------------

    def lead(self, commitment: Commitment, leader_epoch: LeaderEpoch) -> None:
        """This broker leads from now on. Requests that wait for a commit keep waiting if it has led before."""
        self._log.begin_epoch(leader_epoch)
        self.leader_epoch = leader_epoch
        self.leader = self._broker_id
        self.is_leader = True
        self.epoch_start = self._log.log_end_offset
        self._commitment = commitment
        self.replication = commitment if isinstance(commitment, Leader) else None
        # Now, not with the next append. A flushed log of a single broker is committed up to its end when it is opened,
        # and a coordinator that loads it sends no response until the high watermark is there.
        self._local_end_moved()
        self.wake()

    def follow(self, leader: BrokerId, leader_epoch: LeaderEpoch) -> None:
        """Another broker leads, or none (-1): waiting requests get not_leader_or_follower."""
        self.leader_epoch = leader_epoch
        self.leader = leader
        self._lead_no_longer()
        self._log.forget_empty_epochs()

    def _lead_no_longer(self) -> None:
        self.is_leader = False
        self._commitment = self.replication = None
        self._fail(ErrorCode.not_leader_or_follower)
        self.wake()

    # --- writing as leader -------------------------------------------------------------------------------------------

    def append(
        self,
        batches: bytearray | memoryview,
        now: Instant,
        origin: AppendOrigin = AppendOrigin.CLIENT,
        verification: VerificationGuard | None = None,
        admission: Admission | None = None,
    ) -> AppendResult:
        """Append as leader; the batches are patched in place. Refusals are in the result."""
        if not self.is_leader:
            return _NOT_LEADER
        result = self._log.append(
            batches,
            leader_epoch=self.leader_epoch,
            now=now,
            origin=origin,
            verification=verification,
            admission=admission,
        )
        counts = self.counts
        counts.produces += 1
        if result.error is not NONE:
            counts.failed_produces += 1
            counts.gaps += result.error is ErrorCode.out_of_order_sequence_number
            counts.fenced += result.error is ErrorCode.invalid_producer_epoch
        elif result.is_duplicate:
            counts.duplicates += 1
        else:
            counts.messages_in += result.last_offset - result.base_offset + 1
            self._appended(len(batches))
        return result

    def append_marker(
        self,
        producer: ProducerIdAndEpoch,
        now: Instant,
        *,
        committed: bool,
        coordinator_epoch: int,
        transaction_version: TransactionVersion,
    ) -> AppendResult:
        """Append the marker that ends a transaction here. Refusals are in the result."""
        if not self.is_leader:
            return _NOT_LEADER
        result = self._log.append_marker(
            producer,
            committed=committed,
            coordinator_epoch=coordinator_epoch,
            leader_epoch=self.leader_epoch,
            now=now,
            transaction_version=transaction_version,
        )
        if result.error is ErrorCode.none and not result.is_duplicate:
            self.counts.markers += 1
            self._appended(0)
        return result

    def _appended(self, size: int) -> None:
        self.bytes_appended += size
        self.counts.bytes_in += size
        if self._flush_each:
            self.flush_soon()
        elif self._commitment is not None:
            self.advance(self._commitment.local_end_moved(self._log.log_end_offset))
        if self._end_watchers:
            for watcher in list(self._end_watchers.values()):
                watcher()

    def _local_end_moved(self) -> None:
        if self._commitment is not None:
            end = self._log.flushed_offset if self._flush_each else self._log.log_end_offset
            self.advance(self._commitment.local_end_moved(end))

    def admit(self, batches: bytearray | memoryview, now: Instant) -> Admission:
        """The validation of a client's batch, done at once unless it takes long."""
        return Admission(batches, self._log.config, now.wall_ms)

    def delete_records_before(self, offset: Offset) -> None:
        """Move the log start offset up; followers do the same when they learn of it."""
        self._log.delete_records_before(offset)
        self.wake()

    @property
    def low_watermark(self) -> Offset:
        """Offset below which no eligible replica has records, as far as a leader knows."""
        start = self._log.log_start_offset
        return start if self.replication is None else self.replication.low_watermark(start)

    def advance(self, high_watermark: Offset) -> None:
        """Move the high watermark up, and complete the requests that waited for it. A lower one changes nothing."""
        if high_watermark <= self._log.high_watermark:
            return
        self._log.advance_high_watermark(high_watermark)
        if self._committing:
            self._committing.release(high_watermark)
        if self._watchers:
            self.wake()

    # --- writing as follower -----------------------------------------------------------------------------------------

    async def replicate(self, batches: Records, leader_high_watermark: Offset, leader_log_start: Offset) -> ErrorCode:
        """Append the leader's records, if any, and adopt its high watermark.

        Returns when it counts: flushed, where each write is flushed. Offsets and epochs stay as they are.
        """
        epoch = self.leader_epoch
        error = self.append_replicated(batches)
        if error is NONE:
            error = await self.flushed()
        if error is NONE:
            self.settle(leader_high_watermark, leader_log_start, epoch)
        return error

    def append_replicated(self, batches: Records) -> ErrorCode:
        """Append as follower. The records may have to be flushed before they count: see ``is_flushed``."""
        if self.is_leader or self.is_closed:
            return ErrorCode.not_leader_or_follower
        if not batches:
            return NONE
        result = self._log.append(
            bytearray(batches), leader_epoch=self.leader_epoch, now=self._clock.now(), origin=AppendOrigin.REPLICATION
        )
        self.bytes_appended += len(batches)
        self.counts.replication_bytes_in += len(batches)
        return result.error

    def settle(self, leader_high_watermark: Offset, leader_log_start: Offset, leader_epoch: LeaderEpoch) -> None:
        """Adopt the high watermark and log start offset of the leader of ``leader_epoch``."""
        if self.is_leader or self.is_closed or leader_epoch != self.leader_epoch:
            return
        self.advance(min(leader_high_watermark, self._log.log_end_offset))
        start = min(leader_log_start, self._log.high_watermark)
        if start > self._log.log_start_offset:
            self._log.delete_records_before(start)

    async def truncate_to(self, offset: Offset) -> None:
        """Truncate records that the leader does not have. Raises OSError or LogCorruption."""

        def truncate() -> None:
            self.before_cut(offset)
            self._log.truncate_to(offset)

        await self._as_follower(truncate)

    async def restart_at(self, offset: Offset) -> None:
        """Delete all records; the log is then empty and continues at ``offset``. Raises OSError."""

        def restart() -> None:
            self.before_cut(offset)
            self._log.restart_at(offset)

        await self._as_follower(restart)

    async def _as_follower(self, change: Callable[[], None]) -> None:
        """Nothing happens if the leader epoch for which the change was decided is over by then."""
        epoch = self.leader_epoch
        async with self._log.durability.exclusive:
            if self.is_leader or self.is_closed or epoch != self.leader_epoch:
                return
            try:
                change()
            except (OSError, LogCorruption) as error:
                self._go_offline(error)
                raise

    # --- the log's files ---------------------------------------------------------------------------------------------

    async def checkpoint(self) -> None:
        """Write a checkpoint, if that is due."""
        try:
            if await self._log.durability.checkpoint():
                self._lacks_checkpoint = False
        except OSError as error:
            if self._log.is_offline:
                self._go_offline(error)
            elif not self._lacks_checkpoint and not self.is_closed:
                self._lacks_checkpoint = True
                log.error("checkpoint_failed", _NO_CHECKPOINT, partition=self.topic_partition, error=error)

    async def clean(self, now: Instant, map_bytes_max: int, may_go_on: Callable[[], bool]) -> Offset | None:
        """One round of compaction; returns the offset up to which the log is clean. None: the round failed.

        Raises LogCorruption, WireError or OSError for records that cannot be read or rewritten.
        """
        return await clean(self._log, now, map_bytes_max, swap=self._swap, may_go_on=may_go_on)

    async def _swap(self, cleaning: Cleaning, cleaned: CleanedSegment) -> bool:
        """Replace the segments that a cleaned one was made from. False: the round failed."""
        try:
            return await self._log.durability.swap(cleaning, cleaned)
        except OSError as error:
            self._go_offline(error)
            return False

    def check_directory(self) -> None:
        """Go offline if the log's files were deleted, but not with their topic."""
        if self.is_closed:
            return
        try:
            self._log.durability.check_directory()
        except OSError as error:
            self._go_offline(error)

    def retain(self, now: Instant) -> Iterator[None]:
        """Delete segments that are too old or too many, and forget idle producers, in steps. Raises OSError."""
        self._log.retain(now)
        yield
        yield from self._log.expire_producers(now)

    def configure(self, config: LogConfig) -> None:
        """The topic's settings have changed."""
        self._log.config = config

    def report(self, error: Exception, *, is_logged: bool = False) -> ErrorCode:
        """Log the error of a read, the same one once, however often clients retry; ``is_logged``: by the caller.
        Returns the error for who wanted to read.

        After an error that only this replica may have let another one lead. From time to time only: all of them may
        have the same damage.
        """
        if not is_logged and str(error) != self._reported:
            self._reported = str(error)
            log.error(
                "partition_damaged", "partition %(partition)s: %(error)s", partition=self.topic_partition, error=error
            )
        is_damage = isinstance(error, LogCorruption) or (isinstance(error, OSError) and error.errno not in SHORTAGES)
        now_ms = self._clock.now().monotonic_ms
        may_resign = self._resigned_ms is None or now_ms >= self._resigned_ms + _RESIGN_EVERY_MS
        if is_damage and may_resign and self._commitment is not None:
            self._resigned_ms = now_ms
            self._commitment.resign()
        return ErrorCode.kafka_storage_error if isinstance(error, OSError) else ErrorCode.corrupt_message

    # --- the end -----------------------------------------------------------------------------------------------------

    def retire(self) -> None:
        """Stop serving: waiting requests get not_leader_or_follower."""
        self.is_closed = self._log.durability.is_closing = True
        self._lead_no_longer()

    async def close(self, *, clean: bool = True) -> None:
        self.retire()
        async with self._log.durability.exclusive:
            self._log.close(clean=clean)
