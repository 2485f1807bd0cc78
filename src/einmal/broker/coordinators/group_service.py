"""The group coordinator of this broker: its shards, one per partition of ``__consumer_offsets``, and waiting requests.

Finds the shard of a group, and keeps the requests whose answers come later (joins, syncs) under their tickets. The
tickets of a disconnected client are dropped. When a shard is dropped, requests that wait on it are answered with an
error after which the client looks up the coordinator again. Decides nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Final, NamedTuple, TypeAlias, TypeVar

from einmal.broker.cluster_metadata import ClusterMetadata
from einmal.broker.config import BrokerConfig
from einmal.broker.coordinators.shard_runtime import ShardRuntime
from einmal.broker.coordinators.shards import Shards
from einmal.broker.replicas.partition import Partition
from einmal.broker.replicas.partitions import Partitions
from einmal.broker.replicas.replica_sessions import ReplicaSessions
from einmal.groups import records
from einmal.groups.config import GroupConfig
from einmal.groups.coordinator import GroupCoordinator
from einmal.groups.requests import GroupDecision, Respond, Response, Ticket
from einmal.metadata.image import CONSUMER_OFFSETS, ImageDelta
from einmal.seams import Clock
from einmal.types import ErrorCode, Instant

R = TypeVar("R")
_MINUTE_MS: Final = 60_000
_CATCH_UP_SECONDS: Final = 0.5
GroupRuntime: TypeAlias = ShardRuntime[GroupCoordinator, records.Record, Respond]


class _Waiting(NamedTuple):
    runtime: GroupRuntime
    answer: asyncio.Future[Response | ErrorCode]


class GroupService:
    def __init__(
        self,
        config: BrokerConfig,
        metadata: ClusterMetadata,
        partitions: Partitions,
        sessions: ReplicaSessions,
        clock: Clock,
    ) -> None:
        self._config = config
        self._metadata = metadata
        self._sessions = sessions
        self._clock = clock
        self._shards: Shards[GroupCoordinator, records.Record, Respond] = Shards(
            CONSUMER_OFFSETS,
            metadata,
            partitions,
            self._new_runtime,
            elected=self._elected,
            resigned=self._resigned,
        )
        self._deleted: dict[GroupRuntime, set[str]] = {}
        """Topics that were deleted since a shard has last forgotten some, which it does before it looks at offsets."""
        self._waiting: dict[Ticket, _Waiting] = {}
        self._tickets = 0
        self._catching_up: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to load every shard; groups are refused with COORDINATOR_LOAD_IN_PROGRESS until theirs is."""
        self._shards.refresh()

    async def stop(self) -> None:
        self._shards.stop()
        if self._catching_up is not None:
            self._catching_up.cancel()

    def apply(self, delta: ImageDelta) -> None:
        """Apply changes of the cluster and of this broker's replicas."""
        self._shards.apply(delta)
        if delta.deleted:
            for runtime in self.runtimes():
                self._forget_topics(runtime, [name for name, _topic_id in delta.deleted])

    def refresh(self) -> None:
        """Some replicas may have been opened."""
        self._shards.refresh()

    # --- shards ---------------------------------------------------------------------------------------------------

    def runtime(self, partition: int) -> GroupRuntime | None:
        """The shard of one partition of ``__consumer_offsets``, if it is led here."""
        return self._shards.get(partition)

    def runtimes(self) -> list[GroupRuntime]:
        """Return the runtimes of all partitions that are led here."""
        return self._shards.all()

    def runtime_of(self, group_id: str) -> GroupRuntime | ErrorCode:
        """The shard of a group, or the error to answer."""
        partition = self._shards.partition_of(group_id)
        if partition is None:
            return ErrorCode.coordinator_not_available
        return self._shards.get(partition) or ErrorCode.not_coordinator

    def _new_runtime(self, partition: Partition) -> GroupRuntime:
        def dropped() -> None:
            self._abandon(runtime)

        runtime: GroupRuntime = ShardRuntime(
            partition,
            lambda: GroupCoordinator(group_config(self._config, partition.segment_bytes)),
            records,
            clock=self._clock,
            perform=self._perform,
            dropped=dropped,
        )
        return runtime

    def _elected(self, runtime: GroupRuntime) -> None:
        # Groups need not remember topics that are gone; those may have been deleted under an earlier coordinator.
        self._forget_topics(runtime, ())
        runtime.start()

    def _resigned(self, runtime: GroupRuntime) -> None:
        self._deleted.pop(runtime, None)

    def _abandon(self, runtime: GroupRuntime) -> None:
        """A reloaded shard does not know the requests that waited on its predecessor."""
        for waiting in self._waiting.values():
            if waiting.runtime is runtime:
                _answer(waiting, ErrorCode.not_coordinator)

    def _forget_topics(self, runtime: GroupRuntime, deleted: Collection[str]) -> None:
        """Let a shard forget the offsets of deleted topics before it looks at any: a new topic may have the name.

        Those of the new topic are committed later, and stay.
        """
        if runtime.is_behind:
            self._deleted[runtime].update(deleted)
        else:
            names = self._deleted[runtime] = set(deleted)
            runtime.decide_first(lambda shard, now: shard.forget_other_topics(self._metadata.image.topics, names))
        if self._catching_up is None or self._catching_up.done():
            self._catching_up = asyncio.get_running_loop().create_task(self._catch_up())

    async def _catch_up(self) -> None:
        """Let shards forget topics although nobody asks them anything, one shard in a turn."""
        while behind := [runtime for runtime in self.runtimes() if runtime.is_behind]:
            for runtime in behind:
                runtime.catch_up()
                await asyncio.sleep(0)
            await asyncio.sleep(_CATCH_UP_SECONDS)

    # --- requests -------------------------------------------------------------------------------------------------

    async def ask(
        self,
        group_id: str,
        decide: Callable[[GroupCoordinator, Instant], GroupDecision[R]],
        *,
        reads_only: bool = False,
        reads_offsets: bool = True,
    ) -> R | ErrorCode:
        """The answer of the group's shard, or why there is none. ``reads_only``: see ``ShardRuntime.submit``.

        ``reads_offsets``: it is refused until the offsets of deleted topics are forgotten.
        """
        runtime = self.runtime_of(group_id)
        if isinstance(runtime, ErrorCode):
            return runtime
        return await runtime.submit(decide, reads_only=reads_only, awaits_first=reads_offsets)

    async def ask_for_certain(
        self, group_id: str, decide: Callable[[GroupCoordinator, Instant], GroupDecision[R]]
    ) -> R | ErrorCode:
        """As ``ask``, for reading the existing state; NOT_COORDINATOR unless no other coordinator can know more by
        now."""
        runtime = self.runtime_of(group_id)
        if isinstance(runtime, ErrorCode):
            return runtime
        confirmed = self._sessions.confirm_leadership(runtime.partition)
        answer = await runtime.submit(decide, reads_only=True)
        return answer if isinstance(answer, ErrorCode) or await confirmed else ErrorCode.not_coordinator

    async def ask_and_wait(
        self, group_id: str, decide: Callable[[GroupCoordinator, Ticket, Instant], GroupDecision[Response | None]]
    ) -> Response | ErrorCode:
        """As ``ask``, for what may be answered much later. To be cancelled when the client is gone."""
        runtime = self.runtime_of(group_id)
        if isinstance(runtime, ErrorCode):
            return runtime
        self._tickets += 1
        ticket = Ticket(self._tickets)
        waiting = _Waiting(runtime, asyncio.get_running_loop().create_future())
        self._waiting[ticket] = waiting
        try:
            response = await runtime.submit(lambda shard, now: decide(shard, ticket, now))
            return await waiting.answer if response is None else response
        finally:
            del self._waiting[ticket]

    def _perform(self, action: Respond) -> None:
        waiting = self._waiting.get(action.ticket)
        if waiting is not None:
            _answer(waiting, action.response)


def _answer(waiting: _Waiting, response: Response | ErrorCode) -> None:
    if not waiting.answer.done():
        waiting.answer.set_result(response)


def group_config(config: BrokerConfig, segment_bytes: int) -> GroupConfig:
    """The settings of a shard whose partition has segments of this size."""
    # The setting is that of a new topic: segments of this one may be smaller.
    segment_bytes = min(segment_bytes, config.offsets_topic_segment_bytes)
    return GroupConfig(
        initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
        min_session_timeout_ms=config.group_min_session_timeout_ms,
        max_session_timeout_ms=config.group_max_session_timeout_ms,
        max_size=config.group_max_size,
        max_bytes=segment_bytes * 3 // 8,
        max_commit_bytes=segment_bytes * 3 // 4,
        offset_metadata_max_bytes=config.offset_metadata_max_bytes,
        offsets_retention_ms=config.offsets_retention_minutes * _MINUTE_MS,
        offsets_retention_check_interval_ms=config.offsets_retention_check_interval_ms,
    )
