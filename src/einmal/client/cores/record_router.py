"""Which partition a record goes to, and the records that have to wait until that can be said. No I/O.

A record waits while its topic's metadata is unknown, and while the partition that its sender has named does not exist.
Whatever is sent to the same topic afterwards waits behind it: the records of a topic keep their order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any, NamedTuple

from einmal.client.cores.metadata_cache import TopicMetadata
from einmal.client.cores.partitioner import Partitioner
from einmal.types import TopicPartition
from einmal.wire.record_batch import NewRecord


class UnroutedRecord(NamedTuple):
    """A record whose partition is not known yet. ``partition``: the one that its sender has named."""

    record: NewRecord
    size: int
    partition: int | None
    ticket: Any


class RecordRouter:
    """Routes records in the order in which they are sent."""

    def __init__(self, partitioner: Partitioner) -> None:
        self.waiting_bytes = 0
        """Bytes of the records that wait."""
        self._partitioner = partitioner
        self._waiting: dict[str, deque[UnroutedRecord]] = {}

    def route(
        self, topic: str, known: TopicMetadata | None, key: bytes | None, size: int, partition: int | None
    ) -> int | None:
        """The partition of a record that is sent now; None: it has to wait."""
        if known is None or topic in self._waiting or not known.is_usable:
            return None
        if partition is None:
            return self._partitioner.partition(topic, key, size, len(known.partitions))
        return partition if partition in known.partitions else None

    def wait(self, topic: str, unrouted: UnroutedRecord) -> None:
        """Keep a record until ``routable`` returns it."""
        self._waiting.setdefault(topic, deque()).append(unrouted)
        self.waiting_bytes += unrouted.size

    @property
    def topics(self) -> list[str]:
        """Topics that records wait for."""
        return list(self._waiting)

    def missing_partition(self, topic: str, known: TopicMetadata) -> int | None:
        """The partition that the first waiting record names, if the topic does not have it (yet)."""
        wanted = self._waiting[topic][0].partition
        return None if wanted is None or wanted in known.partitions else wanted

    def routable(self, topic: str, known: TopicMetadata) -> Iterator[tuple[TopicPartition, UnroutedRecord]]:
        """Waiting records of a topic with their partitions, in order, up to one that still has to wait."""
        queue = self._waiting[topic]
        while queue and (queue[0].partition is None or queue[0].partition in known.partitions):
            unrouted = queue.popleft()
            self.waiting_bytes -= unrouted.size
            partition = unrouted.partition
            if partition is None:
                partition = self._partitioner.partition(
                    topic, unrouted.record.key, unrouted.size, len(known.partitions)
                )
            yield TopicPartition(topic, partition), unrouted
        if not queue:
            del self._waiting[topic]

    def is_waiting(self, topic: str) -> bool:
        return topic in self._waiting

    def drop_missing(self, topic: str, known: TopicMetadata) -> list[UnroutedRecord]:
        """Give up what waits for partitions that the topic does not have."""
        missing = []
        for unrouted in self.drop(topic):
            if unrouted.partition is None or unrouted.partition in known.partitions:
                self.wait(topic, unrouted)
            else:
                missing.append(unrouted)
        return missing

    def drop(self, topic: str) -> list[UnroutedRecord]:
        """Give up what waits for a topic."""
        dropped = list(self._waiting.pop(topic, ()))
        self.waiting_bytes -= sum(unrouted.size for unrouted in dropped)
        return dropped
