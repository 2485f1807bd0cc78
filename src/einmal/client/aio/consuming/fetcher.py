"""Drives a ``ConsumerCore`` over a ``Cluster``: fetches run ahead in the background, one request per broker at a time.

Before a new leader's log is read, the position is compared with it (KIP-320). When a partition moves to another leader,
a request to the former one is not waited for any longer. Knows no group and no committed offsets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final
from uuid import UUID

from einmal.client.aio.consuming.fetching import FetchLimits, fetch
from einmal.client.aio.network.background import end_tasks
from einmal.client.aio.network.cluster import Cluster
from einmal.client.config import ConsumerSettings
from einmal.client.cores.consumer_core import ConsumerCore
from einmal.client.cores.fetch_core import Advice, FetchTicket
from einmal.client.cores.metadata_cache import NO_TOPIC_ID
from einmal.client.cores.pacing import first_pause_ms
from einmal.client.errors import ClientClosed, Disconnected, KafkaError, RequestRefused
from einmal.event_log import EventLog
from einmal.types import ErrorCode, IsolationLevel, TopicPartition
from einmal.wire.api.offset_for_leader_epoch import API as OFFSET_FOR_LEADER_EPOCH
from einmal.wire.api.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from einmal.wire.fetch import FetchPartition

_log = EventLog("einmal.client")

_BUSY_WAIT_MS: Final = 20
"""The broker's wait while some of its partitions are left out because they have buffered records already: a long wait
for the others would delay the next fetch of those."""


class Fetcher:
    """``changed`` is called when poll should check again."""

    def __init__(
        self,
        core: ConsumerCore,
        cluster: Cluster,
        settings: ConsumerSettings,
        isolation: IsolationLevel,
        changed: Callable[[], None],
    ) -> None:
        self._core = core
        self._fetches = core.fetches
        self._cluster = cluster
        self._settings = settings
        self._isolation = isolation
        self._changed = changed
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._doubts: dict[int, asyncio.Task[None]] = {}
        self._asked: dict[TopicPartition, tuple[int, FetchTicket]] = {}
        self._loop = asyncio.get_running_loop()
        cluster.leaders_changed = self._leaders_changed

    def fetch_ahead(self) -> None:
        """Send a fetch to every broker that has wanted partitions and no request in flight."""
        metadata = self._cluster.metadata
        tickets: dict[int, list[FetchTicket]] = {}
        for ticket in self._fetches.fetchable(self._cluster.now_ms()):
            if self._must_start_again(ticket.topic_partition):
                continue
            leader = metadata.leader(ticket.topic_partition)
            if leader is None:
                if (error := metadata.refusal(ticket.topic_partition.topic)) is not None:
                    self._fetches.errors.append(error)
                    self._fetches.fetch_failed(ticket, self._retry_at_ms())
                self._cluster.refresh_soon().add_done_callback(lambda _: self._changed())
            elif self._core.is_ahead_of(ticket.topic_partition, leader.leader_epoch):
                self._doubt(leader.leader, ticket)
            elif leader.leader not in self._tasks:
                tickets.setdefault(leader.leader, []).append(ticket)
        for node_id, wanted in tickets.items():
            task = self._loop.create_task(self._ask(node_id, wanted, self._begin(node_id, wanted)))
            self._tasks[node_id] = task
            task.add_done_callback(partial(self._done, node_id, wanted))

    def _must_start_again(self, partition: TopicPartition) -> bool:
        """Whether the topic that was read is gone, and another one has its name."""
        known = self._cluster.metadata.topic_id(partition.topic)
        if known == NO_TOPIC_ID or not self._core.is_of_former_topic(partition, known):
            return False
        recreated = "topic %(topic)r was deleted and created again: the position in %(partition)s is void"
        _log.warning("position_void", recreated, topic=partition.topic, partition=partition)
        self._changed()
        return True

    def _doubt(self, node_id: int, ticket: FetchTicket) -> None:
        """The broker does not lead any more, if the position is right."""
        self._fetches.fetch_failed(ticket, self._retry_at_ms())
        if node_id not in self._doubts:
            task = self._doubts[node_id] = self._loop.create_task(self._cluster.doubt(node_id))
            task.add_done_callback(lambda _: self._doubted(node_id))

    def _doubted(self, node_id: int) -> None:
        del self._doubts[node_id]
        self._changed()

    def _begin(self, node_id: int, tickets: list[FetchTicket]) -> dict[FetchTicket, tuple[int, int]]:
        """Mark them as in flight. Returns those to validate first: the leader's epoch and the position's."""
        unsure = {}
        for ticket in tickets:
            self._asked[ticket.topic_partition] = (node_id, ticket)
            leader = self._cluster.metadata.leader(ticket.topic_partition)
            assert leader is not None
            epoch = self._core.must_validate(ticket.topic_partition, leader.leader_epoch)
            if epoch is None:
                self._fetches.fetch_begun(ticket)
            else:
                self._fetches.validation_begun(ticket)
                unsure[ticket] = (leader.leader_epoch, epoch)
        return unsure

    def _done(self, node_id: int, tickets: list[FetchTicket], task: asyncio.Task[None]) -> None:
        if self._tasks.get(node_id) is task:
            del self._tasks[node_id]
        for ticket in tickets:
            if self._asked.get(ticket.topic_partition) == (node_id, ticket):
                del self._asked[ticket.topic_partition]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._loop.call_exception_handler({"message": "a fetch failed", "exception": error})
        self._changed()

    def _leaders_changed(self, changed: list[TopicPartition]) -> None:
        for partition in changed:
            self._fetches.leader_changed(partition)
            node_id, ticket = self._asked.get(partition, (-1, None))
            leader = self._cluster.metadata.leader(partition)
            if ticket is not None and leader is not None and leader.leader != node_id:
                del self._asked[partition]
                self._fetches.fetch_abandoned(ticket)
        self._changed()

    def pause_ms(self) -> int:
        """How long only an answer can change anything; the end of a partition's pause wakes nothing by itself."""
        now = self._cluster.now_ms()
        due = self._fetches.next_retry(now)
        longest = max(1, self._settings.retry_backoff_ms)
        return longest if due is None else min(longest, due - now)

    # --- one request ----------------------------------------------------------------------------------------------

    async def _ask(self, node_id: int, tickets: list[FetchTicket], unsure: dict[FetchTicket, tuple[int, int]]) -> None:
        sure = {ticket.topic_partition: ticket for ticket in tickets if ticket not in unsure}
        doubtful = {ticket.topic_partition: ticket for ticket in unsure}
        retry_at_ms = 0
        try:
            if unsure:
                await self._validate(node_id, unsure, doubtful)
            if sure:
                await self._fetch(node_id, sure)
        except ClientClosed:
            return
        except KafkaError as error:
            # The pause is that of metadata refreshes, unless the broker answered and refused.
            await self._cluster.refresh_soon()
            if not (isinstance(error, Disconnected) and not error.was_sent):
                retry_at_ms = self._retry_at_ms()
        except Exception:
            # A defect: it is reported, and must not repeat in a tight loop.
            retry_at_ms = self._retry_at_ms()
            raise
        finally:
            for ticket in (*sure.values(), *doubtful.values()):
                self._fetches.fetch_failed(ticket, retry_at_ms)

    def _retry_at_ms(self) -> int:
        return self._cluster.now_ms() + max(1, self._settings.retry_backoff_ms)

    async def _fetch(self, node_id: int, waiting: dict[TopicPartition, FetchTicket]) -> None:
        """Fetch, and keep the records; partitions that need no retry are removed from ``waiting``."""
        settings = self._settings
        limits = FetchLimits(
            self._isolation,
            min(settings.fetch_max_wait_ms, _BUSY_WAIT_MS) if self._fetches.has_fetched else settings.fetch_max_wait_ms,
            settings.fetch_min_bytes,
            settings.fetch_max_bytes,
        )
        ids = self._ids(waiting)
        asked = [(topic_partition, self._fields(ticket)) for topic_partition, ticket in waiting.items()]
        doubted: list[FetchTicket] = []
        for topic_partition, result in await fetch(
            self._cluster, node_id, asked, limits, topic_ids=ids, confirms_names=False
        ):
            ticket = waiting.pop(topic_partition, None)
            if ticket is None:
                continue
            advice = self._fetches.fetched(ticket, result, self._retry_at_ms())
            leader = self._cluster.metadata.leader(topic_partition)
            if leader is not None and leader.leader != node_id:
                self._fetches.leader_changed(topic_partition)
            elif advice is Advice.REFRESH_METADATA:
                self._cluster.refresh_soon()
            if advice is Advice.ASK_ANOTHER:
                doubted.append(ticket)
        for topic_partition in list(waiting):
            # The broker has left it out.
            self._fetches.fetch_failed(waiting.pop(topic_partition), self._retry_at_ms())
        if doubted:
            waiting.update((ticket.topic_partition, ticket) for ticket in doubted)
            await self._cluster.doubt(node_id)

    def _ids(self, waiting: dict[TopicPartition, FetchTicket]) -> dict[str, UUID]:
        """The topics in which the positions are some. One request has one topic of a name: others are removed from
        ``waiting``, until the one that is gone has been noticed for all its partitions."""
        ids: dict[str, UUID] = {}
        for partition in list(waiting):
            known = self._cluster.metadata.topic_id(partition.topic)
            if known == NO_TOPIC_ID:
                continue
            topic_id = self._core.topic_to_fetch(partition, known)
            if ids.setdefault(partition.topic, topic_id) != topic_id:
                self._fetches.fetch_failed(waiting.pop(partition), self._retry_at_ms())
        return ids

    def _fields(self, ticket: FetchTicket) -> FetchPartition:
        leader = self._cluster.metadata.leader(ticket.topic_partition)
        return FetchPartition(
            ticket.topic_partition.partition,
            ticket.offset,
            self._settings.max_partition_fetch_bytes,
            current_leader_epoch=-1 if leader is None else leader.leader_epoch,
        )

    async def _validate(
        self, node_id: int, unsure: dict[FetchTicket, tuple[int, int]], waiting: dict[TopicPartition, FetchTicket]
    ) -> None:
        """OffsetForLeaderEpoch; partitions that have an answer are removed from ``waiting``."""
        topics: dict[str, list[OffsetForLeaderPartition]] = {}
        for ticket, (leader_epoch, epoch) in unsure.items():
            topic, index = ticket.topic_partition
            topics.setdefault(topic, []).append(OffsetForLeaderPartition(index, leader_epoch, epoch))
        asked_topics = tuple(OffsetForLeaderTopic(name, tuple(partitions)) for name, partitions in topics.items())
        request = OffsetForLeaderEpochRequest(-1, asked_topics)
        try:
            response = await self._cluster.call(node_id, OFFSET_FOR_LEADER_EPOCH, request)
        except RequestRefused:
            # The broker is too old for this request: there is nothing to compare with.
            for ticket, (leader_epoch, _epoch) in unsure.items():
                self._core.validated(waiting.pop(ticket.topic_partition), leader_epoch, -1, -1)
            return
        for answered in response.topics:
            for result in answered.partitions:
                asked = TopicPartition(answered.topic, result.partition)
                if asked not in waiting:
                    continue
                ticket = waiting.pop(asked)
                if result.error_code is ErrorCode.none:
                    self._core.validated(ticket, unsure[ticket][0], result.leader_epoch, result.end_offset)
                else:
                    self._cluster.refresh_soon()
                    pause = first_pause_ms(self._settings.retry_backoff_ms)
                    self._fetches.fetch_failed(ticket, self._cluster.now_ms() + pause)

    async def close(self) -> None:
        await end_tasks([*self._tasks.values(), *self._doubts.values()])
