"""A replica's log, and who waits on it: until a record is written or committed, or until anything changes.

What counts as written: appended, or, with ``log.flush.interval.messages=1``, flushed, so that nobody can see, and no
coordinator can act on, what a power cut would take back. Flushing is group commit: one ``fdatasync`` in the background
covers every append that waits. Whoever waits on a log that goes offline, or is led elsewhere, gets an error.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from einmal.broker.replicas.log_view import LogView
from einmal.event_log import EventLog
from einmal.log.partition_log import PartitionLog
from einmal.types import ErrorCode, Offset

log = EventLog(__name__)


class _Waiting:
    """Those who wait for the log to pass an offset, in the order of the offsets."""

    __slots__ = ("_queue",)

    def __init__(self) -> None:
        self._queue: deque[tuple[Offset, asyncio.Future[ErrorCode]]] = deque()

    def __len__(self) -> int:
        return len(self._queue)

    def add(self, offset: Offset) -> asyncio.Future[ErrorCode]:
        future: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
        # A duplicate waits for an older offset than those before it; ending a little later is fine.
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


class AwaitedLog(LogView):
    def __init__(self, partition_log: PartitionLog, *, flush_each: bool) -> None:
        super().__init__(partition_log)
        self.is_leader = False
        self._flush_each = flush_each
        self._flushing: asyncio.Task[None] | None = None
        self._committing = _Waiting()
        self._writing = _Waiting()
        self._watchers: dict[object, Callable[[], None]] = {}
        self._end_watchers: dict[object, Callable[[], None]] = {}

    def _local_end_moved(self) -> None:
        """More of the log counts in this replica."""
        raise NotImplementedError

    # --- flushing ----------------------------------------------------------------------------------------------------

    def flush_soon(self) -> None:
        """Begin a group commit, unless one is under way: that one continues until everything is flushed."""
        if self._flushing is None:
            self._flushing = asyncio.get_running_loop().create_task(self._flush())

    async def _flush(self) -> None:
        try:
            while self._log.flushed_offset < self._log.log_end_offset:
                end = await self._log.durability.flush()
                if end is None:
                    return
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
        return await self.when_written(Offset(self._log.log_end_offset - 1))

    def _go_offline(self, error: Exception) -> None:
        # Files of a topic that was deleted, or of a log that is being closed, may be gone.
        if not self._log.durability.is_closing:
            log.error(
                "partition_offline",
                "partition %(partition)s is offline: %(error)s",
                partition=self.topic_partition,
                error=error,
            )
        self._fail(ErrorCode.kafka_storage_error)

    def _fail(self, error: ErrorCode) -> None:
        self._committing.fail(error)
        self._writing.fail(error)

    # --- waiting -----------------------------------------------------------------------------------------------------

    def is_committed(self, offset: Offset) -> bool:
        """Whether the record at ``offset`` is below the high watermark."""
        return offset < self._log.high_watermark

    def is_written(self, offset: Offset) -> bool:
        """Whether the record at ``offset`` counts in this replica: flushed, where each write is flushed."""
        return offset < (self._log.flushed_offset if self._flush_each else self._log.log_end_offset)

    @property
    def is_flushed(self) -> bool:
        """Whether all that is appended counts."""
        return not self._flush_each or self._log.flushed_offset >= self._log.log_end_offset

    @property
    def durable_high_watermark(self) -> Offset:
        """The high watermark, as far as this replica itself will have its records after a power failure.

        The voters of a quorum can commit a record that its leader has yet to flush.
        """
        mark = self._log.high_watermark
        return min(mark, self._log.flushed_offset) if self._flush_each else mark

    def when_committed(self, offset: Offset) -> asyncio.Future[ErrorCode]:
        """Done when the record at ``offset`` is committed, or this replica cannot know any more.

        Then it is not_leader_or_follower or kafka_storage_error, and the record may be committed or not.
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
        return self._log.is_offline and self._flushing is None

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


def _done(error: ErrorCode) -> asyncio.Future[ErrorCode]:
    future: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()
    future.set_result(error)
    return future
