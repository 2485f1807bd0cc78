"""The consumer on asyncio: subscribe or assign, poll, seek, commit.

``poll`` drives everything that the application must see in order: rebalances and their callbacks, lost positions,
errors of fetches. Fetches themselves run ahead in the background (``fetcher``). What decides is in ``consumer_core``
and ``group_core``.
"""

from __future__ import annotations

import asyncio
import inspect
import random as random_module
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from einmal.client.aio.cluster import Cluster, end_tasks
from einmal.client.aio.done import DONE, Done
from einmal.client.aio.fetcher import Fetcher
from einmal.client.aio.membership import Membership
from einmal.client.aio.offsets import EARLIEST, LATEST, list_offsets
from einmal.client.config import ConsumerSettings, parse
from einmal.client.consumer_core import ConsumerCore, Reset
from einmal.client.errors import ClientClosed, CommitFailed, InvalidState, KafkaError, error_for
from einmal.client.habits import missing_method
from einmal.client.records import (
    ConsumerRecord,
    GroupMetadata,
    OffsetAndMetadata,
    OffsetAndTimestamp,
    check_timeout,
)
from einmal.seams import Clock, Network, SystemClock, TcpNetwork
from einmal.types import ErrorCode, IsolationLevel, TopicPartition

RebalanceCallback = Callable[[list[TopicPartition]], Awaitable[None] | None]

_RESETS: Final = {"earliest": Reset.EARLIEST, "latest": Reset.LATEST, "none": None}
_TIMESTAMPS: Final = {Reset.EARLIEST: EARLIEST, Reset.LATEST: LATEST}


class Consumer:
    """Create it inside a running event loop; ``async with``, or ``await close()``. Used by one task at a time."""

    def __init__(
        self,
        config: Mapping[str, Any] | None = None,
        *,
        network: Network | None = None,
        clock: Clock | None = None,
        random: random_module.Random | None = None,
        **settings: Any,
    ) -> None:
        self.settings = parse(ConsumerSettings, config, settings)
        self.isolation = IsolationLevel[self.settings.isolation_level.upper()]
        self._cluster = Cluster(
            self.settings,
            network=network or TcpNetwork(),
            clock=clock or SystemClock(),
            source=random or random_module.Random(),
        )
        self._core = ConsumerCore(
            self.isolation, _RESETS[self.settings.auto_offset_reset], check_crcs=self.settings.check_crcs
        )
        self._membership: Membership | None = None
        if self.settings.group_id is not None:
            self._membership = Membership(self._cluster, self.settings, self._changed)
        self._loop = asyncio.get_running_loop()
        self._fetcher = Fetcher(self._core, self._cluster, self.settings, self.isolation, self._changed)
        self._joining: asyncio.Task[tuple[TopicPartition, ...]] | None = None
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._on_assigned: RebalanceCallback | None = None
        self._on_revoked: RebalanceCallback | None = None
        self._is_subscribed = False
        self._is_closed = False
        self._committed_at_ms = self._cluster.now_ms()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise missing_method(self, name)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # --- what to read ---------------------------------------------------------------------------------------------

    def subscribe(
        self,
        topics: Sequence[str],
        *,
        on_assigned: RebalanceCallback | None = None,
        on_revoked: RebalanceCallback | None = None,
    ) -> Done:
        """Read these topics as a member of the group; partitions come with the next polls.

        The callbacks get the partitions that came, or are about to go, and run inside ``poll``. After ``on_revoked``
        of partitions that are still owned their offsets can be committed for the last time.
        """
        if isinstance(topics, str):
            raise InvalidState(meaning="subscribe() takes a list of topics", what_to_do=f"write [{topics!r}]")
        membership = self._grouped()
        if self._core.assignment and not self._is_subscribed:
            raise InvalidState(meaning="partitions are assigned by hand", what_to_do="assign([]) first")
        self._on_assigned, self._on_revoked = on_assigned, on_revoked
        self._is_subscribed = True
        for topic in topics:
            self._cluster.want_topic(topic, may_create=self.settings.allow_auto_create_topics)
        membership.core.subscribe(topics)
        return DONE

    def assign(self, partitions: Iterable[TopicPartition | tuple[str, int]]) -> Done:
        """Read exactly these partitions, without a group's rebalances. The group id, if any, only keeps offsets."""
        if self._is_subscribed:
            raise InvalidState(meaning="topics are subscribed to", what_to_do="use either subscribe() or assign()")
        wanted = [TopicPartition(*each) for each in partitions]
        for each in wanted:
            self._cluster.want_topic(each.topic, may_create=self.settings.allow_auto_create_topics)
        self._core.assign(wanted)
        return DONE

    def assignment(self) -> list[TopicPartition]:
        return sorted(self._core.assignment)

    def pause(self, *partitions: TopicPartition) -> Done:
        """Give no records of these until ``resume``; what was fetched is kept."""
        self._core.pause(partitions)
        return DONE

    def resume(self, *partitions: TopicPartition) -> Done:
        self._core.resume(partitions)
        return DONE

    def paused(self) -> list[TopicPartition]:
        return sorted(self._core.paused)

    def group_metadata(self) -> GroupMetadata:
        """This member, for ``send_offsets_to_transaction`` (KIP-447).

        Raises CommitFailed while a subscribed consumer is no member: without a generation nothing would be fenced.
        """
        core = self._grouped().core
        if self._is_subscribed and not core.is_member:
            raise CommitFailed(detail=f"group {core.group_id!r}: this consumer is no member at the moment")
        return core.metadata()

    def _grouped(self) -> Membership:
        if self._membership is None:
            raise InvalidState(meaning="this consumer has no group", what_to_do="set group.id")
        return self._membership

    # --- poll -----------------------------------------------------------------------------------------------------

    async def poll(self, timeout_ms: int = 1_000, max_records: int | None = None) -> list[ConsumerRecord]:
        """The next records, at most ``max.poll.records``; an empty list when none come within ``timeout_ms``.

        Raises what a fetch ran into (OffsetOutOfRange, NoOffset, NotAuthorized, CorruptData) or what ended the
        membership; polling again goes on.
        """
        self._check_open()
        check_timeout(timeout_ms)
        self._core.take_back()
        most = self.settings.max_poll_records if max_records is None else max_records
        deadline = self._cluster.deadline(timeout_ms)
        if self._membership is not None:
            self._membership.polled_at_ms = self._cluster.now_ms()
        while True:
            self._cluster.refresh_when_old()
            await self._rebalance(deadline)
            await self._commit_in_background()
            await self._find_positions(deadline)
            if records := self._core.take(most):
                self._fetcher.fetch_ahead()
                return records
            self._fetcher.fetch_ahead()
            left = deadline - self._cluster.now_ms()
            if left <= 0:
                return []
            if not self._core.has_fetched:
                await self._change(min(left, self._fetcher.pause_ms()))

    def __aiter__(self) -> AsyncIterator[ConsumerRecord]:
        return self._iterate()

    async def _iterate(self) -> AsyncIterator[ConsumerRecord]:
        while not self._is_closed:
            for record in self.one_by_one(await self.poll()):
                yield record

    def one_by_one(self, records: list[ConsumerRecord]) -> Iterator[ConsumerRecord]:
        """Give what ``poll`` gave record by record: one that was not asked for is not committed either."""
        return self._core.one_by_one(records)

    def _changed(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)

    async def _change(self, timeout_ms: int) -> None:
        """Wait until something changes, at most so long."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        timer = self._loop.call_later(timeout_ms / 1000, _release, waiter)
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            timer.cancel()

    # --- the group ------------------------------------------------------------------------------------------------

    async def _rebalance(self, deadline: int) -> None:
        """Join when that is due, and take over the assignment; waits for a join at most until ``deadline``."""
        membership = self._membership
        if membership is None or not self._is_subscribed:
            return
        if membership.error is not None:
            error, membership.error = membership.error, None
            raise error
        core = membership.core
        if core.is_member:
            known = self._cluster.metadata.topics
            core.topics_changed(
                {name: len(known[name].partitions) for name in core.topics if name in known and known[name].is_usable}
            )
        while core.must_join or self._joining is not None:
            if self._joining is None:
                await self._revoke(core.to_revoke())
                self._joining = self._loop.create_task(membership.join())
                self._joining.add_done_callback(lambda _: self._changed())
            while not self._joining.done():
                left = deadline - self._cluster.now_ms()
                if left <= 0:
                    return
                await self._change(left)
            joining, self._joining = self._joining, None
            if joining.exception() is not None:
                core.must_join = True
            await self._take_over(joining.result())

    async def _revoke(self, partitions: tuple[TopicPartition, ...]) -> None:
        """Give up partitions: commit what was read of them while that is still allowed, then tell the application."""
        core = self._grouped().core
        if not partitions:
            return
        if core.is_member and not core.has_lost_partitions:
            await self._auto_commit()
        if self._on_revoked is not None:
            await _call(self._on_revoked, partitions)
        core.revoked(partitions)
        gone = dict.fromkeys(partitions)
        self._core.assign([each for each in self._core.assignment if each not in gone])

    async def _take_over(self, assignment: tuple[TopicPartition, ...]) -> None:
        core = self._grouped().core
        gained = [each for each in assignment if each not in core.owned]
        kept = dict.fromkeys(assignment)
        gone = tuple(each for each in core.owned if each not in kept)
        before = core.owned
        await self._revoke(gone)
        # What was given up just now decides whether this member has to join once more.
        core.owned = before
        core.assigned(assignment)
        self._core.assign(assignment)
        if self._on_assigned is not None:
            await _call(self._on_assigned, gained)

    # --- positions ------------------------------------------------------------------------------------------------

    async def _find_positions(self, deadline: int) -> None:
        """Look up what the group has committed, and the ends of logs, for partitions that have no position yet."""
        await self._find_committed(deadline)
        resets = self._core.to_reset()
        if resets:
            await self._find_ends(resets, deadline)

    async def _find_committed(self, deadline: int) -> None:
        missing = self._core.without_position()
        if not missing:
            return
        found: dict[TopicPartition, OffsetAndMetadata | None] = dict.fromkeys(missing)
        if self._membership is not None:
            try:
                found = await self._membership.committed(missing, deadline=deadline)
            except KafkaError as error:
                # A transaction that is still open holds the offsets back: the next poll asks again.
                if error.code is None or not error.code.retriable:
                    raise
                return
        self._core.committed_found(found)

    async def _find_ends(self, resets: Mapping[TopicPartition, Reset], deadline: int) -> None:
        wanted = {each: _TIMESTAMPS[reset] for each, reset in resets.items()}
        try:
            ends = await list_offsets(self._cluster, wanted, self.isolation, deadline=deadline)
        except KafkaError as error:
            if error.code is None or not error.code.retriable:
                raise
            return
        for each, end in ends.items():
            self._core.reset_found(each, resets[each], end.offset, end.leader_epoch)

    def seek(self, topic_partition: TopicPartition, offset: int | OffsetAndMetadata) -> Done:
        """Read on from this offset with the next poll."""
        at = OffsetAndMetadata(offset) if isinstance(offset, int) else offset
        self._core.seek(TopicPartition(*topic_partition), at.offset, at.leader_epoch)
        return DONE

    def seek_to_beginning(self, *partitions: TopicPartition) -> Done:
        """Read these (all, when none is named) from the log's start."""
        self._core.seek_by(partitions or self._core.assignment, Reset.EARLIEST)
        return DONE

    def seek_to_end(self, *partitions: TopicPartition) -> Done:
        """Read these (all, when none is named) from the end on: the last stable offset under read_committed."""
        self._core.seek_by(partitions or self._core.assignment, Reset.LATEST)
        return DONE

    async def position(self, topic_partition: TopicPartition) -> int:
        """The next offset that ``poll`` will give. Raises RetriableError when it cannot be found in time."""
        deadline = self._cluster.deadline()
        backoff = self._cluster.backoff()
        while (position := self._core.position(TopicPartition(*topic_partition))) is None:
            await self._find_positions(deadline)
            if self._core.position(TopicPartition(*topic_partition)) is None:
                left = deadline - self._cluster.now_ms()
                if left <= 0:
                    raise error_for(ErrorCode.request_timed_out, f"the position of {topic_partition}")
                await backoff.pause(left)
        return position

    def lag(self, topic_partition: TopicPartition) -> int | None:
        """Offsets between the position and the readable end, as of the last fetch; None: not known yet."""
        return self._core.lag(TopicPartition(*topic_partition))

    # --- offsets --------------------------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None) -> None:
        """Commit these offsets (of the *next* record), by default the positions after the last poll.

        Raises CommitFailed when the group has given the partitions to others.
        """
        self._check_open()
        membership = self._grouped()
        positions = self._core.positions()
        if offsets is not None:
            positions = {
                TopicPartition(*each): OffsetAndMetadata(offset) if isinstance(offset, int) else offset
                for each, offset in offsets.items()
            }
        await membership.commit(positions, deadline=self._cluster.deadline())

    async def committed(self, *partitions: TopicPartition) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's offsets of these partitions, by default of the assigned ones; None where there is none."""
        wanted = [TopicPartition(*each) for each in partitions] or self.assignment()
        return await self._grouped().committed(wanted, deadline=self._cluster.deadline())

    async def _commit_in_background(self) -> None:
        if self.settings.enable_auto_commit and self._membership is not None:
            now = self._cluster.now_ms()
            if now - self._committed_at_ms >= self.settings.auto_commit_interval_ms:
                self._committed_at_ms = now
                await self._auto_commit()

    async def _auto_commit(self) -> None:
        """Commit positions if that is wanted; a failure only means that some records will be read again."""
        if not self.settings.enable_auto_commit or self._membership is None:
            return
        try:
            await self._membership.commit(
                self._core.positions(), deadline=self._cluster.deadline(self.settings.auto_commit_interval_ms)
            )
        except KafkaError as error:
            if error.code is None or not (error.code.retriable or self._membership.core.must_join):
                raise

    async def beginning_offsets(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """The first offsets that the logs still hold."""
        return await self._ends(partitions, EARLIEST)

    async def end_offsets(self, *partitions: TopicPartition) -> dict[TopicPartition, int]:
        """The ends this consumer may read to: last stable offsets under read_committed, else high watermarks."""
        return await self._ends(partitions, LATEST)

    async def _ends(self, partitions: Sequence[TopicPartition], timestamp: int) -> dict[TopicPartition, int]:
        found = await self._offsets({TopicPartition(*each): timestamp for each in partitions})
        return {each: end.offset for each, end in found.items()}

    async def offsets_for_times(
        self, times: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, OffsetAndTimestamp | None]:
        """The first record at or after each time (ms); None where all records are older."""
        found = await self._offsets(times)
        return {each: None if found[each].offset < 0 else found[each] for each in times}

    async def _offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetAndTimestamp]:
        self._check_open()
        return await list_offsets(self._cluster, wanted, self.isolation, deadline=self._cluster.deadline())

    async def partitions_for_topic(self, topic: str) -> list[TopicPartition]:
        """The partitions of a topic that exists. Raises UnknownTopic."""
        deadline = self._cluster.deadline()
        known = await self._cluster.topic(topic, deadline=deadline, may_create=False)
        return [TopicPartition(topic, index) for index in known.partitions]

    # --- the end --------------------------------------------------------------------------------------------------

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClientClosed()

    async def close(self) -> None:
        """Commit if that is automatic, leave the group, close the connections."""
        if self._is_closed:
            return
        self._is_closed = True
        self._changed()
        await self._fetcher.close()
        if self._joining is not None:
            await end_tasks([self._joining])
        try:
            await self._auto_commit()
        finally:
            if self._membership is not None:
                await self._membership.close()
            await self._cluster.close()


def _release(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


async def _call(callback: RebalanceCallback, partitions: Iterable[TopicPartition]) -> None:
    result = callback(list(partitions))
    if inspect.isawaitable(result):
        await result
