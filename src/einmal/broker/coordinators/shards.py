"""The shards of one coordinators' topic that this broker leads, each from its election to the loss of its leadership.

Follows the replicas: a leadership is a partition under a leader epoch, and has a runtime of its own, which loads in the
background. Where another leadership has begun, or none is left, the old runtime is stopped first. Knows no API.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic

from einmal.broker.cluster_metadata import ClusterMetadata
from einmal.broker.coordinators.shard_runtime import ActionT, ShardRuntime
from einmal.broker.replicas.partition import Partition
from einmal.broker.replicas.partitions import Partitions
from einmal.metadata.image import ImageDelta
from einmal.shard.decision import RecordT, S
from einmal.types import TopicPartition
from einmal.wire.java_hash import partition_for_id


class Shards(Generic[S, RecordT, ActionT]):
    """``new_runtime``: of a partition that is led here. ``elected`` and ``resigned``: a leadership begins, is over."""

    def __init__(
        self,
        topic: str,
        metadata: ClusterMetadata,
        partitions: Partitions,
        new_runtime: Callable[[Partition], ShardRuntime[S, RecordT, ActionT]],
        *,
        elected: Callable[[ShardRuntime[S, RecordT, ActionT]], None],
        resigned: Callable[[ShardRuntime[S, RecordT, ActionT]], None],
    ) -> None:
        self._topic = topic
        self._metadata = metadata
        self._partitions = partitions
        self._new_runtime = new_runtime
        self._elected = elected
        self._resigned = resigned
        self._runtimes: dict[int, ShardRuntime[S, RecordT, ActionT]] = {}

    # --- looking -----------------------------------------------------------------------------------------------------

    def partition_of(self, key: str) -> int | None:
        """Where the records of a group or a transactional id are; None while there is no such topic."""
        count = self._partition_count()
        return partition_for_id(key, count) if count else None

    def find(self, key: str) -> ShardRuntime[S, RecordT, ActionT] | None:
        """The runtime of a group or a transactional id; None: it is not here."""
        partition = self.partition_of(key)
        return None if partition is None else self.get(partition)

    def get(self, partition: int) -> ShardRuntime[S, RecordT, ActionT] | None:
        """None: it is not led here."""
        return self._runtimes.get(partition)

    def all(self) -> list[ShardRuntime[S, RecordT, ActionT]]:
        """By partition."""
        return [self._runtimes[partition] for partition in sorted(self._runtimes)]

    def _partition_count(self) -> int:
        topic = self._metadata.image.topics.get(self._topic)
        return 0 if topic is None else len(topic.partitions)

    # --- following the replicas --------------------------------------------------------------------------------------

    def apply(self, delta: ImageDelta) -> None:
        """The replicas have taken in what has changed in the cluster."""
        if self._topic in delta.topics or any(name == self._topic for name, _ in delta.deleted):
            self.refresh()

    def refresh(self) -> None:
        """Begin and end leaderships, so that they are those of the replicas."""
        for index in range(max(self._partition_count(), max(self._runtimes, default=-1) + 1)):
            partition = self._partitions.get(TopicPartition(self._topic, index))
            self._follow(index, partition if partition is not None and partition.is_leader else None)

    def _follow(self, index: int, led: Partition | None) -> None:
        runtime = self._runtimes.get(index)
        if runtime is not None:
            # A topic of the same name that was made anew has partitions of its own.
            if led is runtime.partition and led.leader_epoch == runtime.leader_epoch:
                return
            del self._runtimes[index]
            runtime.stop()
            self._resigned(runtime)
        if led is not None:
            runtime = self._runtimes[index] = self._new_runtime(led)
            self._elected(runtime)

    def stop(self) -> None:
        for runtime in self._runtimes.values():
            runtime.stop()
        self._runtimes.clear()
