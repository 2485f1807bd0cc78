"""The group coordinator of this broker: its shards, one per partition of ``__consumer_offsets``, and who waits on them.

Finds the shard of a group, and keeps the requests whose answers come later (joins, syncs) under their tickets. A client
that has gone takes its tickets along. When a shard is dropped, whoever waits on it is told to look for the coordinator
again. Decides nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

from einmal.broker.shard_runtime import ShardRuntime
from einmal.groups import records
from einmal.groups.config import GroupConfig
from einmal.groups.coordinator import GroupCoordinator
from einmal.groups.requests import Respond, Response, Ticket
from einmal.log.producer_state import VerificationGuard
from einmal.metadata.image import CONSUMER_OFFSETS
from einmal.shard.decision import Decision
from einmal.types import ErrorCode, Instant, TopicPartition
from einmal.wire.java_hash import partition_for_id

if TYPE_CHECKING:
    from einmal.broker.config import BrokerConfig
    from einmal.broker.node import Node

R = TypeVar("R")
_MINUTE_MS: Final = 60_000
Runtime: TypeAlias = ShardRuntime[GroupCoordinator]


class _Waiting(NamedTuple):
    shard: int
    answer: asyncio.Future[Response | ErrorCode]


class GroupService:
    def __init__(self, node: Node) -> None:
        self._node = node
        self._config = group_config(node.config)
        self._runtimes: dict[int, Runtime] = {}
        self._waiting: dict[Ticket, _Waiting] = {}
        self._tickets = 0
        self._tasks: dict[asyncio.Task[None], None] = {}

    async def start(self) -> None:
        """Begin to load every shard; groups are refused with COORDINATOR_LOAD_IN_PROGRESS until theirs is."""
        for partition in range(self._partition_count()):
            runtime = self._new_runtime(partition)
            if runtime is not None:
                self._spawn(self._load(runtime))

    async def stop(self) -> None:
        for runtime in self._runtimes.values():
            runtime.stop()
        for task in list(self._tasks):
            task.cancel()
        self._runtimes.clear()

    # --- shards ---------------------------------------------------------------------------------------------------

    def partition_of(self, group_id: str) -> int | None:
        """Where a group's records are; None while there is no ``__consumer_offsets``."""
        count = self._partition_count()
        return partition_for_id(group_id, count) if count else None

    def runtime(self, partition: int) -> Runtime | None:
        """The shard of one partition of ``__consumer_offsets``, if it is led here."""
        runtime = self._runtimes.get(partition)
        if runtime is None:
            runtime = self._new_runtime(partition)
            if runtime is not None:
                runtime.start()
        return runtime

    def _new_runtime(self, partition: int) -> Runtime | None:
        led = self._node.partitions.get(TopicPartition(CONSUMER_OFFSETS, partition))
        if led is None:
            return None
        runtime = self._runtimes[partition] = ShardRuntime(
            led,
            partial(GroupCoordinator, self._config),
            records,
            clock=self._node.clock,
            perform=self._perform,
            dropped=partial(self._abandon, partition),
        )
        return runtime

    def runtimes(self) -> list[Runtime]:
        """Of every partition that is led here."""
        return [runtime for runtime in map(self.runtime, range(self._partition_count())) if runtime is not None]

    def _partition_count(self) -> int:
        topic = self._node.metadata.image.topics.get(CONSUMER_OFFSETS)
        return 0 if topic is None else len(topic.partitions)

    def _abandon(self, index: int) -> None:
        """A shard that is loaded anew does not know who waited on its predecessor."""
        for waiting in self._waiting.values():
            if waiting.shard == index:
                _answer(waiting, ErrorCode.not_coordinator)

    async def _load(self, runtime: Runtime) -> None:
        await runtime.load()
        await self._forget_deleted_topics(runtime)

    def topics_deleted(self) -> None:
        """Some topics are gone: groups need not remember them."""
        for runtime in self.runtimes():
            self._spawn(self._forget_deleted_topics(runtime))

    async def _forget_deleted_topics(self, runtime: Runtime) -> None:
        # An error needs no care: it is done again when the shard is loaded at the next start.
        await runtime.submit(lambda shard, now: shard.forget_other_topics(self._node.metadata.image.topics))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)

    # --- requests -------------------------------------------------------------------------------------------------

    async def ask(
        self,
        group_id: str,
        decide: Callable[[GroupCoordinator, Instant], Decision[R]],
        *,
        verification: VerificationGuard | None = None,
    ) -> R | ErrorCode:
        """The answer of the group's shard, or why there is none."""
        runtime = self._runtime_of(group_id)
        if runtime is None:
            return ErrorCode.coordinator_not_available
        return await runtime.submit(decide, verification=verification)

    async def ask_and_wait(
        self, group_id: str, decide: Callable[[GroupCoordinator, Ticket, Instant], Decision[Response | None]]
    ) -> Response | ErrorCode:
        """As ``ask``, for what may be answered much later. To be cancelled when the client is gone."""
        runtime = self._runtime_of(group_id)
        if runtime is None:
            return ErrorCode.coordinator_not_available
        self._tickets += 1
        ticket = Ticket(self._tickets)
        shard = runtime.partition.topic_partition.partition
        waiting = _Waiting(shard, asyncio.get_running_loop().create_future())
        self._waiting[ticket] = waiting
        try:
            response = await runtime.submit(lambda shard, now: decide(shard, ticket, now))
            return await waiting.answer if response is None else response
        finally:
            del self._waiting[ticket]

    def _runtime_of(self, group_id: str) -> Runtime | None:
        partition = self.partition_of(group_id)
        return None if partition is None else self.runtime(partition)

    def _perform(self, action: Any) -> None:
        assert isinstance(action, Respond)
        waiting = self._waiting.get(action.ticket)
        if waiting is not None:
            _answer(waiting, action.response)


def _answer(waiting: _Waiting, response: Response | ErrorCode) -> None:
    if not waiting.answer.done():
        waiting.answer.set_result(response)


def group_config(config: BrokerConfig) -> GroupConfig:
    return GroupConfig(
        initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        min_session_timeout_ms=config.group_min_session_timeout_ms,
        max_session_timeout_ms=config.group_max_session_timeout_ms,
        max_size=config.group_max_size,
        offset_metadata_max_bytes=config.offset_metadata_max_bytes,
        offsets_retention_ms=config.offsets_retention_minutes * _MINUTE_MS,
        offsets_retention_check_interval_ms=config.offsets_retention_check_interval_ms,
    )
