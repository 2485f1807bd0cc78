"""Brings the outcome of each transaction to the leaders of its partitions, until every one has it.

A failure that may pass is tried again, with growing pauses, as long as the coordinator's partition is led here: a
reader of committed data waits meanwhile, but never skips. Two failures end it for a partition: it was deleted, or it
has seen a later epoch of the producer and so an end of this transaction. A coordinator that finds itself fenced
stops. Knows leaders by one interface; with one broker there is one leader, this broker itself.

Each outcome has one sender at a time. Of two, the slower one could bring its marker when the faster one's report has
let the next transaction begin, which before TV2 has the same epoch: half of it would be ended by its predecessor.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final, Protocol

from einmal.broker.marker_writer import TransactionEnd
from einmal.transactions.markers import WriteMarkers
from einmal.types import ErrorCode, TopicPartition

log = logging.getLogger(__name__)

_PAUSE_SECONDS_MIN: Final = 0.01
_PAUSE_SECONDS_MAX: Final = 1.0


class MarkerTarget(Protocol):
    """A broker that leads partitions."""

    async def write_markers(
        self, end: TransactionEnd, partitions: Iterable[TopicPartition]
    ) -> Mapping[TopicPartition, ErrorCode]: ...


LeaderOf = Callable[[TopicPartition], MarkerTarget | None]
"""Who leads a partition now; None: the partition does not exist (any more)."""


_SETTLED: Final = (
    ErrorCode.none,
    # The partition has seen a later epoch of the producer, which begins only after this transaction's end.
    ErrorCode.invalid_producer_epoch,
)


class MarkerSender:
    def __init__(self, leader_of: LeaderOf) -> None:
        self._leader_of = leader_of
        # A dict, not a set: tasks are cancelled in the order in which they began.
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._under_way: set[str] = set()
        """Transactional ids whose markers are being written."""

    def send(self, action: WriteMarkers, coordinator_epoch: int, written: Callable[[], Awaitable[object]]) -> None:
        """Begin. ``written`` is called once, when each partition has its marker or needs none.

        A coordinator that is loaded again asks for what may be on its way already: that is left to the first call.
        """
        if action.transactional_id in self._under_way:
            return
        self._under_way.add(action.transactional_id)
        end = TransactionEnd(
            producer=action.producer,
            committed=action.committed,
            coordinator_epoch=coordinator_epoch,
            transaction_version=action.transaction_version,
        )
        task = asyncio.get_running_loop().create_task(
            self._send(action.transactional_id, end, action.partitions, written)
        )
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()

    async def _send(
        self,
        transactional_id: str,
        end: TransactionEnd,
        partitions: tuple[TopicPartition, ...],
        written: Callable[[], Awaitable[object]],
    ) -> None:
        try:
            is_written = await self._write(end, partitions)
        finally:
            # Before the report: with it the next transaction may begin, and end.
            self._under_way.discard(transactional_id)
        if is_written:
            await written()

    async def _write(self, end: TransactionEnd, partitions: tuple[TopicPartition, ...]) -> bool:
        """Until every partition has its marker or needs none; false: it is another coordinator's task."""
        pause = _PAUSE_SECONDS_MIN
        missing: tuple[TopicPartition, ...] = partitions
        while missing:
            errors = await self._try(end, missing)
            if ErrorCode.transaction_coordinator_fenced in errors.values():
                log.warning("another coordinator speaks for producer %d; its markers are left to it", end.producer[0])
                return False
            missing = tuple(partition for partition, error in errors.items() if error not in _SETTLED)
            if missing:
                log.debug("markers of producer %d are still missing: %s", end.producer[0], errors)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _PAUSE_SECONDS_MAX)
        return True

    async def _try(
        self, end: TransactionEnd, partitions: tuple[TopicPartition, ...]
    ) -> dict[TopicPartition, ErrorCode]:
        """One round over the leaders. Partitions that do not exist any more are left out."""
        by_leader: dict[MarkerTarget, list[TopicPartition]] = {}
        for partition in partitions:
            leader = self._leader_of(partition)
            if leader is not None:
                by_leader.setdefault(leader, []).append(partition)
        errors: dict[TopicPartition, ErrorCode] = {}
        for leader, led in by_leader.items():
            errors.update(await leader.write_markers(end, led))
        return errors
