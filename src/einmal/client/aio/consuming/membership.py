"""Drives a ``GroupCore``: JoinGroup and SyncGroup, heartbeats in the background, leaving, and the group's offsets.

``join`` is one rebalance from this member's side. Heartbeats use a connection of their own, so that a JoinGroup that
waits for slow members does not delay them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from einmal.client.aio.network.background import end_tasks
from einmal.client.aio.network.cluster import Cluster, by_topic
from einmal.client.aio.network.connections import COORDINATOR_LANE, GROUP_LANE
from einmal.client.aio.network.coordinators import FINDABLE_AGAIN, GROUP, CoordinatorRequest
from einmal.client.aio.network.retry import Retry
from einmal.client.aio.producing.transaction_requests import offset_commit_error, offsets_by_topic
from einmal.client.config import ConsumerSettings
from einmal.client.cores.group_core import GroupCore, MemberStep
from einmal.client.errors import CommitFailed, Disconnected, FatalError, KafkaError, RetriableError, error_for
from einmal.client.records import OffsetAndMetadata
from einmal.types import ErrorCode, TopicPartition
from einmal.wire.api.heartbeat import API as HEARTBEAT
from einmal.wire.api.join_group import API as JOIN_GROUP
from einmal.wire.api.leave_group import API as LEAVE_GROUP
from einmal.wire.api.offset_commit import API as OFFSET_COMMIT
from einmal.wire.api.offset_commit import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from einmal.wire.api.offset_fetch import API as OFFSET_FETCH
from einmal.wire.api.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)
from einmal.wire.api.sync_group import API as SYNC_GROUP
from einmal.wire.messages import Api, Q, R

_JOIN_GRACE_MS: Final = 5_000
"""A JoinGroup is answered when all members have joined, at the latest some time after the rebalance timeout."""

_OF_THE_COORDINATOR: Final = FINDABLE_AGAIN | {ErrorCode.coordinator_load_in_progress}


class GroupMembership:
    """``changed`` is called after an event that poll should handle."""

    def __init__(self, cluster: Cluster, settings: ConsumerSettings, changed: Callable[[], None]) -> None:
        self.core = GroupCore(settings)
        self.polled_at_ms = 0
        self._error: KafkaError | None = None
        """Why this consumer is no member any more."""
        self._is_refused = False
        """The group refuses this instance: if it joined again it would fence another one."""
        self._cluster = cluster
        self._settings = settings
        self._changed = changed
        self._heart: asyncio.Task[None] | None = None

    def raise_error(self) -> None:
        """Raise why the membership has ended: once, and in each call where the group refuses this instance."""
        if (error := self._error) is not None:
            if not self._is_refused:
                self._error = None
            raise error.with_traceback(None)

    def _end(self, error: KafkaError, *, is_refused: bool = False) -> None:
        """A member without heartbeats would read what the group assigns to others."""
        self.core.lost(keep_member_id=True)
        self._error, self._is_refused = error, is_refused
        self._changed()

    # --- joining --------------------------------------------------------------------------------------------------

    async def join(self) -> tuple[TopicPartition, ...]:
        """Join until this member has a generation and its partitions. Raises FatalError and the like."""
        core, backoff = self.core, self._cluster.backoff()
        while True:
            try:
                assignment = await self._join_once()
            except Disconnected:
                self._cluster.coordinators.forget(GROUP, core.group_id)
                await backoff.pause()
                continue
            if assignment is None:
                await backoff.pause()
            elif not core.must_join:
                self._start_heart()
                return assignment

    async def _join_once(self) -> tuple[TopicPartition, ...] | None:
        """One JoinGroup and SyncGroup; None: retry."""
        core = self.core
        timeout_ms = self._settings.max_poll_interval_ms + _JOIN_GRACE_MS
        while True:
            joined = await self._call(JOIN_GROUP, core.join_request(), timeout_ms)
            if joined.error_code is ErrorCode.member_id_required:
                core.joined(joined)
                continue
            if not self._goes_on(core.joined(joined), joined.error_code, "JoinGroup"):
                return None
            break
        counts = await self._partition_counts(core.subscribed_by_all(joined) or core.topics)
        core.must_join = False
        synced = await self._call(SYNC_GROUP, core.sync_request(joined, counts), timeout_ms)
        step, assignment = core.synced(synced)
        return assignment if self._goes_on(step, synced.error_code, "SyncGroup") else None

    async def _call(self, api: Api[Q, R], request: Q, timeout_ms: int | None = None) -> R:
        deadline = self._cluster.deadline()
        node_id = await self._cluster.coordinators.find(GROUP, self.core.group_id, deadline=deadline)
        lane = COORDINATOR_LANE if timeout_ms is None else GROUP_LANE
        answer = self._cluster.call(node_id, api, request, lane=lane, timeout_ms=timeout_ms)
        return await self._cluster.coordinators.unless_moved(GROUP, self.core.group_id, node_id, answer)

    def _goes_on(self, step: MemberStep, code: ErrorCode, what: str) -> bool:
        if step is MemberStep.FAIL:
            raise self.core.error_of(code, what)
        if step is MemberStep.FIND_COORDINATOR:
            self._cluster.coordinators.forget(GROUP, self.core.group_id)
        return step is MemberStep.GO_ON

    async def _partition_counts(self, topics: Iterable[str]) -> dict[str, int]:
        """How many partitions each topic has; those that do not exist (yet) are left out."""
        wanted = list(topics)
        for topic in wanted:
            self._cluster.want_topic(topic, may_create=self._settings.allow_auto_create_topics)
        await self._cluster.refresh_metadata(wanted, may_create=self._settings.allow_auto_create_topics)
        known = self._cluster.metadata.topics
        return {topic: len(known[topic].partitions) for topic in wanted if topic in known and known[topic].is_usable}

    # --- heartbeats -----------------------------------------------------------------------------------------------

    def _start_heart(self) -> None:
        if self._heart is None or self._heart.done():
            self._heart = asyncio.get_running_loop().create_task(self._beat())

    async def _beat(self) -> None:
        core, cluster = self.core, self._cluster
        answered_at = cluster.now_ms()
        while core.is_member:
            await asyncio.sleep(self._settings.heartbeat_interval_ms / 1000)
            if not core.is_member:
                break
            if cluster.now_ms() - self.polled_at_ms > self._settings.max_poll_interval_ms:
                # The application does not poll: leave the partitions to members that do. The next poll joins again.
                await self.leave()
                core.lost()
                break
            generation = core.generation_id
            try:
                response = await self._call(HEARTBEAT, core.heartbeat_request())
            except RetriableError:
                # No coordinator is known, or it does not answer. Without heartbeats a member would keep reading
                # partitions that the group has assigned to others.
                cluster.coordinators.forget(GROUP, core.group_id)
                if cluster.now_ms() - answered_at > self._settings.session_timeout_ms:
                    core.lost(keep_member_id=True)
                continue
            except KafkaError as failure:
                self._end(failure)
                break
            answered_at = cluster.now_ms()
            # An answer for the former generation does not apply to this one.
            if core.generation_id != generation:
                continue
            step = core.answered(response.error_code)
            if step is MemberStep.FAIL:
                error = core.error_of(response.error_code, "Heartbeat")
                self._end(error, is_refused=isinstance(error, FatalError))
                break
            if step is MemberStep.FIND_COORDINATOR:
                cluster.coordinators.forget(GROUP, core.group_id)
            if core.must_join:
                self._changed()
        self._changed()

    async def leave(self) -> None:
        """Send LeaveGroup once, without retries. A static member stays: it may return (KIP-345)."""
        core = self.core
        if core.member_id and self._settings.group_instance_id is None:
            with contextlib.suppress(KafkaError):
                await self._call(LEAVE_GROUP, core.leave_request())
        core.left()

    async def close(self) -> None:
        if self._heart is not None:
            await end_tasks([self._heart])
        await self.leave()

    # --- offsets --------------------------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[TopicPartition, OffsetAndMetadata], *, deadline: int) -> None:
        """OffsetCommit. Raises CommitFailed when the group has moved on."""
        core = self.core
        if not offsets:
            return
        if core.topics and not core.is_member:
            if self._is_refused:
                self.raise_error()
            raise CommitFailed(detail=f"group {core.group_id!r}: this consumer is no member at the moment")
        topics = tuple(
            OffsetCommitRequestTopic(name=name, partitions=tuple(map(OffsetCommitRequestPartition._make, committed)))
            for name, committed in offsets_by_topic(offsets).items()
        )
        request = CoordinatorRequest(
            kind=GROUP,
            key=core.group_id,
            api=OFFSET_COMMIT,
            request=OffsetCommitRequest(
                core.group_id, core.generation_id, core.member_id, self._settings.group_instance_id, topics
            ),
            error_of=offset_commit_error,
        )
        answer = await self._cluster.coordinators.call(request, deadline=deadline)
        code = offset_commit_error(answer.response)
        if code is not ErrorCode.none:
            core.answered(code)
            error = core.error_of(code, "OffsetCommit")
            if core.is_member and isinstance(error, FatalError):
                self._end(error, is_refused=True)
            raise error

    async def committed(
        self, partitions: Iterable[TopicPartition], *, deadline: int
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        return await fetch_committed(self._cluster, self.core.group_id, list(partitions), deadline=deadline)


async def fetch_committed(
    cluster: Cluster,
    group_id: str,
    partitions: list[TopicPartition] | None,
    *,
    deadline: int,
    require_stable: bool = True,
) -> dict[TopicPartition, OffsetAndMetadata | None]:
    """A group's offsets, of all partitions for None; waits until no transaction has undecided ones (KIP-447), unless
    ``require_stable`` is False. Raises the error of a partition."""
    committed: dict[TopicPartition, OffsetAndMetadata | None] = {}
    wanted, retry = partitions, Retry(cluster, f"OffsetFetch for {group_id!r}", deadline)
    while True:
        answer = await fetch_committed_each(cluster, group_id, wanted, deadline=deadline, require_stable=require_stable)
        unstable = []
        for partition, result in answer.items():
            if not isinstance(result, KafkaError):
                committed[partition] = result
            elif result.code is ErrorCode.unstable_offset_commit:
                unstable.append(partition)
            else:
                raise result
        if not unstable:
            return committed
        await retry.after_refusal(ErrorCode.unstable_offset_commit)
        wanted = unstable


async def fetch_settled_each(
    cluster: Cluster, group_id: str, *, deadline: int
) -> dict[TopicPartition, OffsetAndMetadata | KafkaError | None]:
    """As ``fetch_committed`` of all partitions; one that is undecided at the deadline, or has another error, has that
    instead. Raises the group's error."""
    outcomes: dict[TopicPartition, OffsetAndMetadata | KafkaError | None] = {}
    wanted, retry = None, Retry(cluster, f"OffsetFetch for {group_id!r}", deadline)
    while True:
        outcomes |= await fetch_committed_each(cluster, group_id, wanted, deadline=deadline)
        wanted = [
            partition
            for partition, what in outcomes.items()
            if isinstance(what, KafkaError) and what.code is ErrorCode.unstable_offset_commit
        ]
        if not wanted:
            return outcomes
        try:
            await retry.after_refusal(ErrorCode.unstable_offset_commit)
        except RetriableError:
            return outcomes


async def fetch_committed_each(
    cluster: Cluster,
    group_id: str,
    partitions: list[TopicPartition] | None,
    *,
    deadline: int,
    require_stable: bool = True,
) -> dict[TopicPartition, OffsetAndMetadata | KafkaError | None]:
    """A group's offset of each partition, or the partition's error: UNSTABLE_OFFSET_COMMIT while a transaction has an
    undecided one. Raises the group's error."""
    asked = None if partitions is None else [(name, tuple(indexes)) for name, indexes in by_topic(partitions).items()]
    request = CoordinatorRequest(
        kind=GROUP,
        key=group_id,
        api=OFFSET_FETCH,
        request=_offset_fetch_request(group_id, asked, require_stable=require_stable),
        error_of=_offset_fetch_error,
    )
    answer = await cluster.coordinators.call(request, deadline=deadline)
    code = _offset_fetch_error(answer.response)
    if code is not ErrorCode.none:
        raise error_for(code, f"OffsetFetch of group {group_id!r}")
    outcomes: dict[TopicPartition, OffsetAndMetadata | KafkaError | None] = dict.fromkeys(partitions or ())
    for topic in _offset_fetch_group(answer.response).topics:
        for partition in topic.partitions:
            topic_partition = TopicPartition(topic.name, partition.partition_index)
            if partition.error_code is not ErrorCode.none:
                what = f"OffsetFetch of {topic_partition} for group {group_id!r}"
                outcomes[topic_partition] = error_for(partition.error_code, what)
            elif partition.committed_offset >= 0:
                epoch = partition.committed_leader_epoch
                outcomes[topic_partition] = OffsetAndMetadata(
                    partition.committed_offset, epoch, partition.metadata or ""
                )
    return outcomes


def _offset_fetch_request(
    group_id: str, asked: list[tuple[str, tuple[int, ...]]] | None, *, require_stable: bool
) -> OffsetFetchRequest:
    """``asked``: topics with partitions; None: all."""
    of_group = (
        None if asked is None else tuple(OffsetFetchRequestTopics(None, indexes, name) for name, indexes in asked)
    )
    return OffsetFetchRequest(
        groups=(OffsetFetchRequestGroup(group_id, topics=of_group),),
        require_stable=require_stable,
        group_id=group_id,
        topics=None if asked is None else tuple(OffsetFetchRequestTopic(*topic) for topic in asked),
    )


def _offset_fetch_group(response: OffsetFetchResponse) -> OffsetFetchResponse | OffsetFetchResponseGroup:
    return response.groups[0] if response.groups else response


def _offset_fetch_error(response: OffsetFetchResponse) -> ErrorCode:
    """The group's error. A coordinator that has moved may report it for each partition."""
    group = _offset_fetch_group(response)
    codes = [group.error_code, *(partition.error_code for topic in group.topics for partition in topic.partitions)]
    return next((code for code in codes if code in _OF_THE_COORDINATOR), ErrorCode(group.error_code))
