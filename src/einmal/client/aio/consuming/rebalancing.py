"""A consumer's part in its group's rebalances: join, hand partitions over, and commit before they go.

Drives a ``GroupMembership`` for a ``ConsumerCore``. The application's callbacks run inside ``rebalance``, which
``poll`` calls: so they run in order with the records.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from einmal.client.aio.consuming.membership import GroupMembership
from einmal.client.aio.network.background import end_tasks
from einmal.client.aio.network.changes import Changes
from einmal.client.aio.network.cluster import Cluster
from einmal.client.config import ConsumerSettings
from einmal.client.cores.consumer_core import ConsumerCore
from einmal.client.errors import ClientClosed, CommitFailed, KafkaError
from einmal.client.records import GroupMetadata
from einmal.types import ErrorCode, TopicPartition

RebalanceCallback = Callable[[list[TopicPartition]], Awaitable[None] | None]
_FOR_GOOD: Final = (ErrorCode.invalid_topic_exception, ErrorCode.topic_authorization_failed)
"""Others may pass: a new topic has too few brokers while these start. Java's client raises no others either."""


class Rebalancing:
    """Create it inside a running event loop. ``close`` it."""

    def __init__(self, core: ConsumerCore, cluster: Cluster, settings: ConsumerSettings, changes: Changes) -> None:
        self.membership = GroupMembership(cluster, settings, changes.announce)
        self.is_subscribed = False
        self.is_calling_back = False
        """A callback of the application is running, inside ``poll``."""
        self._core = core
        self._cluster = cluster
        self._settings = settings
        self._changes = changes
        self._on_assigned: RebalanceCallback | None = None
        self._on_revoked: RebalanceCallback | None = None
        self._joining: asyncio.Task[tuple[TopicPartition, ...]] | None = None
        self._committed_at_ms = cluster.now_ms()
        self._refused: dict[str, None] = {}
        """Topics whose refusal has been raised."""

    def subscribe(
        self, topics: Sequence[str], on_assigned: RebalanceCallback | None, on_revoked: RebalanceCallback | None
    ) -> None:
        """Join for these topics with the next ``rebalance``."""
        self._on_assigned, self._on_revoked = on_assigned, on_revoked
        self.is_subscribed = True
        for topic in topics:
            self._cluster.want_topic(topic, may_create=self._settings.allow_auto_create_topics)
        self.membership.core.subscribe(topics)

    def metadata(self) -> GroupMetadata:
        """This member. Raises CommitFailed while a subscribed consumer is none."""
        core = self.membership.core
        if self.is_subscribed and not core.is_member:
            raise CommitFailed(detail=f"group {core.group_id!r}: this consumer is no member at the moment")
        return core.metadata()

    def polled(self) -> None:
        """The application is alive (max.poll.interval.ms): it has called ``poll``, or waits in it."""
        self.membership.polled_at_ms = self._cluster.now_ms()

    async def rebalance(self, deadline: int) -> None:
        """Join when that is due, and take over the assignment; waits for a join at most until ``deadline``."""
        membership = self.membership
        if not self.is_subscribed:
            return
        membership.raise_error()
        core = membership.core
        if core.is_member:
            known = self._cluster.metadata.topics
            core.topics_changed(
                {name: len(known[name].partitions) for name in core.topics if name in known and known[name].is_usable}
            )
        while core.must_join or self._joining is not None:
            if self._joining is None:
                await self._revoke(core.to_revoke())
                self._joining = asyncio.get_running_loop().create_task(membership.join())
                self._joining.add_done_callback(lambda _: self._changes.announce())
            while not self._joining.done():
                left = deadline - self._cluster.now_ms()
                if left <= 0:
                    return
                await self._changes.wait(min(left, max(1, self._settings.max_poll_interval_ms // 2)))
                self.polled()
            joining, self._joining = self._joining, None
            if joining.cancelled():
                raise ClientClosed()
            if joining.exception() is not None:
                core.must_join = True
            await self._take_over(joining.result())
        self._raise_refusal()

    def _raise_refusal(self) -> None:
        """Raise, once, why a topic that is subscribed to cannot be read: its name is none, no permission."""
        for topic in self.membership.core.topics:
            error = self._cluster.metadata.refusal(topic)
            if error is None or error.code not in _FOR_GOOD:
                self._refused.pop(topic, None)
            elif topic not in self._refused:
                self._refused[topic] = None
                raise error

    async def _revoke(self, partitions: tuple[TopicPartition, ...]) -> None:
        """Give up partitions: commit their positions while that is allowed, then call the application back. Its
        exception, or a cancellation, is raised afterwards: as in Java's client they are given up nevertheless."""
        core = self.membership.core
        if not partitions:
            return
        try:
            if core.is_member and not core.has_lost_partitions:
                await self.auto_commit()
        finally:
            try:
                await self._call(self._on_revoked, partitions)
            finally:
                core.revoked(partitions)
                gone = dict.fromkeys(partitions)
                self._core.assign([partition for partition in self._core.assignment if partition not in gone])

    async def _take_over(self, assignment: tuple[TopicPartition, ...]) -> None:
        core = self.membership.core
        gained = [partition for partition in assignment if partition not in core.owned]
        kept = dict.fromkeys(assignment)
        gone = tuple(partition for partition in core.owned if partition not in kept)
        before = core.owned
        try:
            await self._revoke(gone)
        finally:
            # The partitions that were given up just now decide whether this member has to join once more.
            core.owned = before
            core.assigned(assignment)
            self._core.assign(assignment)
            await self._call(self._on_assigned, gained)

    async def _call(self, callback: RebalanceCallback | None, partitions: Iterable[TopicPartition]) -> None:
        if callback is None:
            return
        self.is_calling_back = True
        try:
            result = callback(list(partitions))
            if inspect.isawaitable(result):
                await result
        finally:
            self.is_calling_back = False

    async def commit_when_due(self) -> None:
        """Commit positions every auto.commit.interval.ms, where that is wanted."""
        if self._settings.enable_auto_commit:
            now = self._cluster.now_ms()
            if now - self._committed_at_ms >= self._settings.auto_commit_interval_ms:
                self._committed_at_ms = now
                await self.auto_commit()
                self.membership.raise_error()

    async def auto_commit(self) -> None:
        """Commit positions if that is wanted; a failure only means that some records will be read again."""
        if not self._settings.enable_auto_commit:
            return
        deadline = self._cluster.deadline(self._settings.auto_commit_interval_ms)
        try:
            await self.membership.commit(self._core.positions(), deadline=deadline)
        except KafkaError as error:
            if error.code is None or not (error.code.retriable or self.membership.core.must_join):
                raise

    async def close(self) -> None:
        """Commit if that is automatic, and leave the group."""
        if self._joining is not None:
            await end_tasks([self._joining])
        try:
            await self.auto_commit()
        finally:
            await self.membership.close()
