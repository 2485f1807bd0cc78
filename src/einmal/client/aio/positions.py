"""Where a consumer's positions come from when it has none: what its group has committed, else an end of the log."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from einmal.client.aio.cluster import Cluster
from einmal.client.aio.membership import GroupMembership
from einmal.client.aio.offsets import EARLIEST, LATEST, list_offsets
from einmal.client.consumer_core import ConsumerCore
from einmal.client.errors import KafkaError, error_for
from einmal.client.partition_reading import Reset
from einmal.client.records import OffsetAndMetadata
from einmal.types import ErrorCode, IsolationLevel, TopicPartition

_TIMESTAMPS: Final = {Reset.EARLIEST: EARLIEST, Reset.LATEST: LATEST}


class Positions:
    """Finds the positions of a consumer's partitions."""

    def __init__(
        self, core: ConsumerCore, cluster: Cluster, isolation: IsolationLevel, membership: GroupMembership | None
    ) -> None:
        self._core = core
        self._cluster = cluster
        self._isolation = isolation
        self._membership = membership

    async def find(self, deadline: int) -> None:
        """Look positions up for the partitions that have none; what cannot be found yet is left to the next call."""
        await self._find_committed(deadline)
        resets = self._core.to_reset()
        if resets:
            await self._find_ends(resets, deadline)

    async def position(self, topic_partition: TopicPartition) -> int:
        """The next offset that the application gets. Raises RetriableError when it cannot be found in time."""
        deadline = self._cluster.deadline()
        backoff = self._cluster.backoff()
        while (position := self._core.position(topic_partition)) is None:
            await self.find(deadline)
            if self._core.position(topic_partition) is None:
                left = deadline - self._cluster.now_ms()
                if left <= 0:
                    raise error_for(ErrorCode.request_timed_out, f"the position of {topic_partition}")
                await backoff.pause(left)
        return position

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
            ends = await list_offsets(self._cluster, wanted, self._isolation, deadline=deadline)
        except KafkaError as error:
            if error.code is None or not error.code.retriable:
                raise
            return
        for each, end in ends.items():
            self._core.reset_found(each, resets[each], end.offset, end.leader_epoch)
