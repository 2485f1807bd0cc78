"""Where a consumer's positions come from when it has none: what its group has committed, else an end of the log.

Positions are looked up in the background, one request at a time to the group's coordinator and to each leader:
partitions whose position cannot be found (no leader, unknown topic, no permission) hold back no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from functools import partial
from typing import Any, Final

from einmal.client.aio.consuming.membership import GroupMembership, fetch_committed_each
from einmal.client.aio.consuming.offsets import EARLIEST, LATEST, offset_of, offsets_request
from einmal.client.aio.network.background import end_tasks
from einmal.client.aio.network.cluster import Cluster, by_leader
from einmal.client.aio.network.leaders import ask_leader, passes
from einmal.client.cores.consumer_core import ConsumerCore
from einmal.client.cores.metadata_cache import NO_TOPIC_ID
from einmal.client.cores.partition_reading import Reset
from einmal.client.errors import ClientClosed, Disconnected, KafkaError
from einmal.client.records import OffsetAndMetadata
from einmal.types import IsolationLevel, TopicPartition

_TIMESTAMPS: Final = {Reset.EARLIEST: EARLIEST, Reset.LATEST: LATEST}
_COORDINATOR: Final = -1
"""Stands for the group's coordinator among the ids of nodes that are being asked."""


class Positions:
    """Create it inside a running event loop. ``close`` it. ``changed`` is called when poll should check again."""

    def __init__(
        self,
        core: ConsumerCore,
        cluster: Cluster,
        isolation: IsolationLevel,
        membership: GroupMembership | None,
        changed: Callable[[], None],
    ) -> None:
        self._core = core
        self._cluster = cluster
        self._isolation = isolation
        self._membership = membership
        self._changed = changed
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._loop = asyncio.get_running_loop()

    def look_up(self) -> None:
        """Ask every node that has positions and is not being asked yet. Does not wait."""
        now = self._cluster.now_ms()
        if missing := self._core.without_position(now):
            if self._membership is None:
                self._begin(missing)
                self._core.committed_found(dict.fromkeys(missing), self._retry_at_ms())
            elif _COORDINATOR not in self._tasks:
                self._begin(missing)
                self._start(_COORDINATOR, self._find_committed(self._membership.core.group_id, missing))
        resets = self._core.to_reset(now)
        led, leaderless = by_leader(self._cluster.metadata, resets)
        for partition in leaderless:
            self._cluster.want_topic(partition.topic, may_create=False)
            if (error := self._cluster.metadata.refusal(partition.topic)) is not None:
                self._core.lookup_failed(partition, self._retry_at_ms(), error)
        if leaderless:
            self._cluster.refresh_soon().add_done_callback(lambda _: self._changed())
        for node_id, some in led.items():
            if node_id not in self._tasks:
                self._begin(some)
                self._start(node_id, self._find_ends(node_id, {partition: resets[partition] for partition in some}))

    def _begin(self, partitions: Iterable[TopicPartition]) -> None:
        topics = self._cluster.metadata.topics
        self._core.lookup_begun(
            partitions, {name: topic.topic_id for name, topic in topics.items() if topic.topic_id != NO_TOPIC_ID}
        )

    def _start(self, node_id: int, work: Coroutine[Any, Any, None]) -> None:
        task = self._tasks[node_id] = self._loop.create_task(work)
        task.add_done_callback(partial(self._done, node_id))

    def _done(self, node_id: int, task: asyncio.Task[None]) -> None:
        del self._tasks[node_id]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._loop.call_exception_handler({"message": "a position was not found", "exception": error})
        self._changed()

    def _retry_at_ms(self) -> int:
        return self._cluster.now_ms() + max(1, self._cluster.settings.retry_backoff_ms)

    async def _find_committed(self, group_id: str, missing: list[TopicPartition]) -> None:
        outcomes: dict[TopicPartition, OffsetAndMetadata | KafkaError | None]
        try:
            outcomes = await fetch_committed_each(self._cluster, group_id, missing, deadline=self._cluster.deadline())
        except ClientClosed:
            return
        except KafkaError as error:
            outcomes = dict.fromkeys(missing, error)
        # A transaction that is still open holds an offset back: it is asked for again.
        for partition, result in outcomes.items():
            if isinstance(result, KafkaError):
                self._core.lookup_failed(partition, self._retry_at_ms(), None if passes(result) else result)
        committed = {partition: result for partition, result in outcomes.items() if not isinstance(result, KafkaError)}
        self._core.committed_found(committed, self._retry_at_ms())

    async def _find_ends(self, node_id: int, resets: Mapping[TopicPartition, Reset]) -> None:
        wanted = {partition: _TIMESTAMPS[reset] for partition, reset in resets.items()}
        request = offsets_request(self._cluster, wanted, self._isolation)
        answers = await ask_leader(self._cluster, request, node_id, list(wanted))
        for partition, result in answers.results.items():
            end = offset_of(result)
            self._core.reset_found(partition, resets[partition], end.offset, end.leader_epoch)
        errors = answers.errors
        if any(isinstance(error, Disconnected) and not error.was_sent for error in errors.values()):
            # The pause is that of metadata refreshes, unless the broker was asked.
            await self._cluster.refresh_soon()
        elif errors:
            self._cluster.refresh_soon()
        for partition, error in errors.items():
            if not isinstance(error, ClientClosed):
                self._core.lookup_failed(partition, self._retry_at_ms(), None if passes(error) else error)

    async def close(self) -> None:
        await end_tasks(list(self._tasks.values()))
