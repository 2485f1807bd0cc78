"""One replica of this broker: a partition's log, whether it leads or follows, and who waits on it.

Knows no network and no controller. Who says what is committed is a ``Commitment``: the leader of a partition tells it
where its own log ends and gets the high watermark. With ``log.flush.interval.messages=1`` only *flushed* offsets count,
the leader's and the followers', so that nobody can see, and no coordinator can act on, what a power cut would take
back. Flushing is group commit: one ``fdatasync`` in the background covers every append that waits.
The high watermark only grows while the process lives, except where a follower truncates.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol
from uuid import UUID

from einmal.log import segment_swap
from einmal.log.admission import NONE, Admission
from einmal.log.compaction import CleanedSegment, Cleaning
from einmal.log.disk import Disk
from einmal.log.errors import LogCorruption
from einmal.log.partition_log import AppendResult, PartitionLog
from einmal.log.producer_state import Origin, VerificationGuard
from einmal.metadata.records import NO_LEADER
from einmal.replication.leader import Leader
from einmal.seams import Clock
from einmal.types import (
    NO_LEADER_EPOCH,
    NO_OFFSET,
    BrokerId,
    ErrorCode,
    Instant,
    IsolationLevel,
    LeaderEpoch,
    Offset,
    ProducerIdAndEpoch,
    TransactionVersion,
)
from einmal.wire.produce import Records

log = logging.getLogger(__name__)

_NOT_LEADER: Final = AppendResult(ErrorCode.not_leader_or_follower, NO_OFFSET, NO_OFFSET, -1, NO_OFFSET)


class Commitment(Protocol):
    """Who says what is committed in a partition that is led here."""

    def local_end_moved(self, end: Offset) -> Offset:
        """The leader's own end, as far as it counts (flushed, where each write is flushed): the high watermark."""


class _Waiting:
    """Those who wait for the log to pass an offset, in the order of the offsets."""

    __slots__ = ("_queue",)

    def __init__(self) -> None:
        self._queue: deque[tuple[Offset, asyncio.Future[ErrorCode]]] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, offset: Offset) -> asyncio.Future[ErrorCode]:
        future: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        # A duplicate waits for an older offset than those before it; ending a little later does no harm.
        last = self._queue[-1][0] if self._queue else offset
        self._queue.append((max(offset, last), future))
        return future

    def release(self, end: Offset) -> None:
        queue = self._queue
        while queue and queue[0][0] < end:
            _offset, future = queue.popleft()
            if not future.done():
                future.set_result(ErrorCode.none)

    def fail(self, error: ErrorCode) -> None:
        while self._queue:
            _offset, future = self._queue.popleft()
            if not future.done():
                future.set_result(error)


class Partition:
    def __init__(
        self,
        partition_log: PartitionLog,
        topic_id: UUID,
        disk: Disk,
        clock: Clock,
        *,
        broker_id: BrokerId,
        flush_each: bool,
    ) -> None:
        self.log = partition_log
        self.topic_partition = partition_log.topic_partition
        self.topic_id = topic_id
        self.leader_epoch = NO_LEADER_EPOCH
        """The newest known."""
        self.leader = NO_LEADER
        self.is_leader = False
        self.epoch_start = Offset(0)
        """Of a leader: where the log ended when its epoch began. Below it an earlier leader may have shown more."""
        self.replication: Leader | None = None
        """Of a leader: what it knows of its followers. None where somebody else says what is committed."""
        self.min_insync_replicas = 1
        self.is_closed = False
        self.before_cut: Callable[[Offset], None] = lambda offset: None
        """Called before the log is cut at an offset. May raise OSError."""
        self.bytes_appended = 0
        """Since this process began."""
        self._disk = disk
        self._clock = clock
        self._broker_id = broker_id
        self._flush_each = flush_each
        self._commitment: Commitment | None = None
        self._flushing: asyncio.Task[None] | None = None
        self._lacks_checkpoint = False
        self._reported = ""
        self._background = asyncio.Lock()
        """Held by whoever works on the log's files in the background: one at a time, and not while it is closed."""
        self._committing = _Waiting()
        self._writing = _Waiting()
        self._watchers: dict[object, Callable[[], None]] = {}
        self._end_watchers: dict[object, Callable[[], None]] = {}

    @property
    def high_watermark(self) -> Offset:
        return self.log.high_watermark

    @property
    def has_enough_replicas(self) -> bool:
        """Whether a write with acks=all may begin."""
        return self.replication is None or self.replication.has_enough_replicas

    @property
    def knows_high_watermark(self) -> bool:
        """Whether the high watermark is at least what an earlier leader has shown to clients."""
        return self.log.high_watermark >= self.epoch_start

    def visible_end(self, isolation: IsolationLevel) -> Offset:
        """Before which offset a consumer of this isolation may read."""
        if isolation is IsolationLevel.READ_COMMITTED:
            return self.log.last_stable_offset
        return self.log.high_watermark

    def check_leader_epoch(self, current: int) -> ErrorCode:
        """What to answer who names the leader epoch it knows, -1: none (KIP-320). Error unless this broker leads."""
        if self.is_leader and (current < 0 or current == self.leader_epoch):
            return ErrorCode.none
        if self.is_closed or current < 0 or current == self.leader_epoch:
            return ErrorCode.not_leader_or_follower
        return ErrorCode.fenced_leader_epoch if current < self.leader_epoch else ErrorCode.unknown_leader_epoch

    # --- roles -------------------------------------------------------------------------------------------------------

    def lead(self, commitment: Commitment, leader_epoch: LeaderEpoch) -> None:
        """This broker leads from now on. Who waits for a commit goes on waiting if it has led before."""
        self.log.begin_epoch(leader_epoch)
        self.leader_epoch = leader_epoch
        self.leader = self._broker_id
        self.is_leader = True
        self.epoch_start = self.log.log_end_offset
        self._commitment = commitment
        self.replication = commitment if isinstance(commitment, Leader) else None
        self._local_end_moved()
        self.wake()

    def follow(self, leader: BrokerId, leader_epoch: LeaderEpoch) -> None:
        """Another broker leads, or none (-1): whoever waits is answered not_leader_or_follower."""
        self.leader_epoch = leader_epoch
        self.leader = leader
        self._lead_no_longer()
        self.log.forget_empty_epochs()

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
        origin: Origin = Origin.CLIENT,
        verification: VerificationGuard | None = None,
        admission: Admission | None = None,
    ) -> AppendResult:
        """Append as leader; the batches are patched in place. Refusals are in the result."""
        if not self.is_leader:
            return _NOT_LEADER
        result = self.log.append(
            batches,
            leader_epoch=self.leader_epoch,
            now=now,
            origin=origin,
            verification=verification,
            admission=admission,
        )
        if result.error is NONE and not result.is_duplicate:
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
        result = self.log.append_marker(
            producer,
            committed=committed,
            coordinator_epoch=coordinator_epoch,
            leader_epoch=self.leader_epoch,
            now=now,
            transaction_version=transaction_version,
        )
        if result.error is ErrorCode.none and not result.is_duplicate:
            self._appended(0)
        return result

    def _appended(self, size: int) -> None:
        self.bytes_appended += size
        if self._flush_each:
            self.flush_soon()
        elif self._commitment is not None:
            self.advance(self._commitment.local_end_moved(self.log.log_end_offset))
        if self._end_watchers:
            for watcher in list(self._end_watchers.values()):
                watcher()

    def _local_end_moved(self) -> None:
        if self._commitment is not None:
            end = self.log.flushed_offset if self._flush_each else self.log.log_end_offset
            self.advance(self._commitment.local_end_moved(end))

    def delete_records_before(self, offset: Offset) -> None:
        """Move the log start offset up; followers do the same when they hear of it."""
        self.log.delete_records_before(offset)
        self.wake()

    @property
    def low_watermark(self) -> Offset:
        """Of a leader: before which offset no replica that may lead has anything."""
        start = self.log.log_start_offset
        return start if self.replication is None else self.replication.low_watermark(start)

    def advance(self, high_watermark: Offset) -> None:
        """Move the high watermark up, and let go whoever waited for it. One that is not higher changes nothing."""
        if high_watermark <= self.log.high_watermark:
            return
        self.log.advance_high_watermark(high_watermark)
        if self._committing:
            self._committing.release(high_watermark)
        if self._watchers:
            self.wake()

    # --- writing as follower -----------------------------------------------------------------------------------------

    async def replicate(self, batches: Records, leader_high_watermark: Offset, leader_log_start: Offset) -> ErrorCode:
        """Append what the leader sent, which may be nothing, and take over how far it is committed.

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
        """Append as follower. The end may have to be flushed before it counts: see ``is_flushed``."""
        if self.is_leader or self.is_closed:
            return ErrorCode.not_leader_or_follower
        if not batches:
            return NONE
        result = self.log.append(
            bytearray(batches), leader_epoch=self.leader_epoch, now=self._clock.now(), origin=Origin.REPLICATION
        )
        self.bytes_appended += len(batches)
        return result.error

    def settle(self, leader_high_watermark: Offset, leader_log_start: Offset, leader_epoch: LeaderEpoch) -> None:
        """Take over how far the leader of ``leader_epoch`` has committed, and where its log starts."""
        if self.is_leader or self.is_closed or leader_epoch != self.leader_epoch:
            return
        self.advance(min(leader_high_watermark, self.log.log_end_offset))
        start = min(leader_log_start, self.log.high_watermark)
        if start > self.log.log_start_offset:
            self.log.delete_records_before(start)

    async def truncate_to(self, offset: Offset) -> None:
        """Cut off what the leader does not have. Raises OSError or LogCorruption."""

        def truncate() -> None:
            self.before_cut(offset)
            self.log.truncate_to(offset)

        await self._as_follower(truncate)

    async def restart_at(self, offset: Offset) -> None:
        """Forget everything; the log is empty from here on, and goes on at ``offset``. Raises OSError."""

        def restart() -> None:
            self.before_cut(offset)
            self.log.restart_at(offset)

        await self._as_follower(restart)

    async def _as_follower(self, change: Callable[[], None]) -> None:
        """Nothing happens where the leader epoch, for which the change was decided, is over by the time."""
        epoch = self.leader_epoch
        async with self._background:
            if self.is_leader or self.is_closed or epoch != self.leader_epoch:
                return
            try:
                change()
            except (OSError, LogCorruption) as error:
                self._go_offline(error)
                raise

    # --- flushing ----------------------------------------------------------------------------------------------------

    def flush_soon(self) -> None:
        """Begin a group commit, unless one is under way: that one goes on until nothing is left."""
        if self._flushing is None:
            self._flushing = asyncio.get_running_loop().create_task(self._flush())

    async def _flush(self) -> None:
        try:
            while self.log.flushed_offset < self.log.log_end_offset:
                async with self._background:
                    if self.is_closed:
                        return
                    end = self.log.log_end_offset
                    await self._disk.in_background(self.log.flush)
                    self.log.mark_flushed(end)
                self._writing.release(end)
                self._local_end_moved()
        except Exception as error:  # noqa: BLE001 - nobody knows what is flushed, and nobody may wait for it.
            self._go_offline(error)
            if not isinstance(error, OSError):
                what = {"message": f"flushing {self.topic_partition} failed", "exception": error}
                asyncio.get_running_loop().call_exception_handler(what)
        finally:
            self._flushing = None

    async def flushed(self) -> ErrorCode:
        """Wait until everything that is appended now is flushed, where that counts, or the log is offline."""
        return await self.when_written(Offset(self.log.log_end_offset - 1))

    async def checkpoint(self) -> None:
        """Write down how far recovery need not look, if that is due."""
        async with self._background:
            if self.is_closed or not self.log.checkpoint_due:
                return
            checkpoint = self.log.begin_checkpoint()
            try:
                await self._disk.in_background(checkpoint.store)
                self.log.finish_checkpoint(checkpoint)
            except OSError as error:
                self._checkpoint_failed(error)
            else:
                self._lacks_checkpoint = False

    async def replace_segments(self, cleaning: Cleaning, cleaned: CleanedSegment) -> bool:
        """Put a cleaned segment in the place of those it was made from. False: the round has come to nothing."""
        async with self._background:
            checkpoint = None if self.is_closed else self.log.begin_swap(cleaning, cleaned)
            if checkpoint is None:
                return False
            try:
                await self._disk.in_background(checkpoint.store)
                if self.is_closed:
                    # The folder may be another topic's by now; where it is not, recovery does the rest.
                    checkpoint.failed(False)
                    return False
                left_over = self.log.finish_swap(cleaned, checkpoint)
                await self._disk.in_background(lambda: segment_swap.remove(self._disk, left_over))
            except OSError as error:
                self._go_offline(error)
                return False
            return True

    def _checkpoint_failed(self, error: OSError) -> None:
        if self.log.is_offline:
            self._go_offline(error)
        elif not self._lacks_checkpoint:
            self._lacks_checkpoint = True
            log.error("no checkpoint of %s, tried again until there is one: %s", self.topic_partition, error)

    def check_directory(self) -> None:
        """Go offline if the log's files were deleted."""
        try:
            self.log.check_directory()
        except OSError as error:
            self._go_offline(error)

    def report(self, error: Exception) -> None:
        """Log what a reader has met; the same once, however often clients ask again."""
        if str(error) != self._reported:
            self._reported = str(error)
            log.error("partition %s: %s", self.topic_partition, error)

    def _go_offline(self, error: Exception) -> None:
        log.error("partition %s is offline: %s", self.topic_partition, error)
        self._fail(ErrorCode.kafka_storage_error)

    def _fail(self, error: ErrorCode) -> None:
        self._committing.fail(error)
        self._writing.fail(error)

    # --- waiting -----------------------------------------------------------------------------------------------------

    def is_committed(self, offset: Offset) -> bool:
        """Whether the record at ``offset`` is below the high watermark."""
        return offset < self.log.high_watermark

    def is_written(self, offset: Offset) -> bool:
        """Whether the record at ``offset`` counts in this replica: flushed, where each write is flushed."""
        return offset < (self.log.flushed_offset if self._flush_each else self.log.log_end_offset)

    @property
    def is_flushed(self) -> bool:
        """Whether all that is appended counts."""
        return not self._flush_each or self.log.flushed_offset >= self.log.log_end_offset

    def when_committed(self, offset: Offset) -> asyncio.Future[ErrorCode]:
        """Done when the record at ``offset`` is committed, or this replica cannot tell any more.

        That is not_leader_or_follower or kafka_storage_error, and says nothing of the record's fate.
        """
        if self.is_committed(offset):
            return _done(ErrorCode.none)
        if not self.is_leader:
            return _done(ErrorCode.not_leader_or_follower)
        return _done(ErrorCode.kafka_storage_error) if self._is_stuck else self._committing.add(offset)

    def when_written(self, offset: Offset) -> asyncio.Future[ErrorCode]:
        """Done when the record at ``offset`` counts in this replica, or cannot any more."""
        if self.is_written(offset):
            return _done(ErrorCode.none)
        if self._is_stuck:
            return _done(ErrorCode.kafka_storage_error)
        self.flush_soon()
        return self._writing.add(offset)

    @property
    def _is_stuck(self) -> bool:
        """Whether no flush will come any more."""
        return self.log.is_offline and self._flushing is None

    async def committed(self, offset: Offset) -> ErrorCode:
        """Wait until the record at ``offset`` is committed."""
        if self.is_committed(offset):
            return ErrorCode.none
        return await self.when_committed(offset)

    def watch(self, key: object, changed: Callable[[], None]) -> None:
        """Call ``changed`` whenever more may be visible, or this broker leads or follows anew."""
        self._watchers[key] = changed

    def unwatch(self, key: object) -> None:
        self._watchers.pop(key, None)

    def watch_end(self, key: object, changed: Callable[[], None]) -> None:
        """As ``watch``, and also whenever something is appended."""
        self._watchers[key] = self._end_watchers[key] = changed

    def unwatch_end(self, key: object) -> None:
        self._watchers.pop(key, None)
        self._end_watchers.pop(key, None)

    def wake(self) -> None:
        """Something has changed that those who watch may wait for."""
        if self._watchers:
            for watcher in list(self._watchers.values()):
                watcher()

    # --- the end -----------------------------------------------------------------------------------------------------

    def retire(self) -> None:
        """Serve no longer: whoever waits is answered not_leader_or_follower."""
        self.is_closed = True
        self._lead_no_longer()

    async def close(self, *, clean: bool = True) -> None:
        self.retire()
        async with self._background:
            self.log.close(clean=clean)


def _done(error: ErrorCode) -> asyncio.Future[ErrorCode]:
    future: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
    future.set_result(error)
    return future
